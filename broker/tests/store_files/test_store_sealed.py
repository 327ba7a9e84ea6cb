"""Sealed documents: they are read whole or not at all, and of two copies of an identity the newer one is used."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.failure import decode_flush_failure
from gantry_broker.store.identity import IdentityFile
from gantry_broker.store.inspect.facts import read_facts
from gantry_store_files import PlainDisk, StoreIdentity, decode_sealed, encode_sealed, read_identity, read_small
from gantry_store_files.store_identity import Epoch

OLD = StoreIdentity("0" * 32, 3, [Epoch(1, 0)])
NEW = StoreIdentity("0" * 32, 4, [Epoch(1, 0), Epoch(2, 4096)])
OTHER = StoreIdentity("f" * 32, 9, [Epoch(1, 0)])
WHOLE = encode_sealed(NEW)


def lax(document: object, form: str) -> bytes:
    """Return a sealed document whose CRC is written in another form."""
    body = msgspec.json.encode(document)
    return (form % crc32(body)).encode() + b"\n" + body


@pytest.mark.parametrize("form", ["0x%08x", " %08x", "%08X", "+%08x", "%09x", "%x_0"])
def test_crc_in_another_form_is_refused(form: str) -> None:
    """The CRC has eight lower-case digits; a reader that accepts more would accept a damaged line."""
    document = next(one for one in map(str, range(1000)) if any(c in "abcdef" for c in f"{crc32(one.encode()):x}"))

    with pytest.raises(ValueError, match="its CRC is wrong"):
        decode_sealed(lax(int(document), form), int)
    assert decode_sealed(encode_sealed(int(document)), int) == int(document)


@pytest.mark.parametrize(
    "data",
    [b"", WHOLE[:-1], WHOLE.replace(b"4096", b"4097"), b"00000000\n", b"not a store", encode_sealed({"epochs": []})],
    ids=["empty", "cut", "changed", "no body", "foreign", "another document"],
)
def test_incomplete_document_is_not_used(data: bytes) -> None:
    """With half of the epochs a diverged log would look like a continuation."""
    with pytest.raises(ValueError, match=r"its CRC is wrong|truncated|missing required field"):
        decode_sealed(data, StoreIdentity)
    assert decode_sealed(WHOLE, StoreIdentity) == NEW


@pytest.mark.parametrize("data", [b"", b"1000 xyz\n", b"1000", b"1000 0x%08x\n" % crc32(b"1000"), b"9" * 5000])
def test_damaged_record_of_a_failed_flush_counts_as_zero(data: bytes) -> None:
    """It counts as offset 0, from which everything is read again."""
    assert decode_flush_failure(data) == 0
    assert decode_flush_failure(b"1000 %08x\n" % crc32(b"1000")) == 1000


@pytest.mark.parametrize(
    ("own", "copy", "expected"),
    [
        (encode_sealed(OLD), encode_sealed(NEW), NEW), (encode_sealed(NEW), encode_sealed(OLD), NEW),
        (encode_sealed(OLD), encode_sealed(OTHER), OLD), (b"damaged", encode_sealed(OLD), OLD),
        (encode_sealed(OLD), None, OLD), (None, encode_sealed(NEW), NEW),
    ],
    ids=["rolled back", "copy is older", "copy of another store", "damaged", "no copy", "copy only"],
)  # fmt: skip
def test_every_reader_uses_the_copy_that_a_start_would_use(
    tmp_path: Path, own: bytes | None, copy: bytes | None, expected: StoreIdentity
) -> None:
    """The broker, its tools and other readers use the same epochs of the log."""
    for name, data in (("store.json", own), ("store.json.bak", copy)):
        if data is not None:
            (tmp_path / name).write_bytes(data)

    assert read_identity(PlainDisk(), str(tmp_path)) == expected
    assert IdentityFile(RealDisk(), str(tmp_path)).read() == expected
    if copy != encode_sealed(OTHER):  # otherwise only other files show which of the two is this store's
        assert read_facts(RealReadingDisk(), str(tmp_path)).identity == expected


def test_without_a_whole_copy_there_is_no_identity(tmp_path: Path) -> None:
    """Without a file, or with a damaged one or a directory, the epochs of the log are unknown."""
    assert read_identity(PlainDisk(), str(tmp_path)) is None
    (tmp_path / "store.json").mkdir()
    (tmp_path / "store.json.bak").write_bytes(encode_sealed(OLD)[:-1])

    assert read_identity(PlainDisk(), str(tmp_path)) is None
    assert read_small(PlainDisk(), str(tmp_path / "store.json")) is None
