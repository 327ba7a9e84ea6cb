"""The bytes of a status page: the document and the structs agree, and every field survives encoding."""

import re
import struct
import uuid
import zlib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gantry_status import (
    HotPath,
    LogRange,
    Medium,
    Origin,
    PageDamaged,
    PageForeign,
    PageTooShort,
    PageVersionUnknown,
    Phase,
    RefusalReason,
    Role,
    SlaveStatus,
    Status,
    StatusPageError,
)
from gantry_status.layout import (
    COPY_BYTES,
    COPY_FIELDS,
    HEADER_BYTES,
    HEADER_FIELDS,
    PAGE_BYTES,
    SLAVE_FIELDS,
    bounded_utf8,
    decode_copy,
    decode_header,
    encode_copy,
    encode_header,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/status-page.md"
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \|")
ORIGIN = Origin(
    boot_id=uuid.UUID(int=1), machine_boot_id=uuid.UUID(int=2), started_wall_ms=3, started_boottime_ns=4, pid=5,
    broker_name="broker-a", version="0.1.0", minor=0, hot_path=HotPath.PYTHON, hot_path_reason="not built",
)  # fmt: skip
FULL = Status(
    published_boottime_ns=1, published_wall_ms=2, phase=Phase.STOPPING, role=Role.SLAVE,
    wrote=3, committed=4, flushed=5, confirmed=6, min_physical=7, epoch=8, generation=9,
    store_uuid=uuid.UUID(int=10), pool_medium=Medium.HUGETLBFS,
    pool_buffers_total=11, pool_buffers_free=12, is_crash_safe=True, disk_total_bytes=13, disk_used_bytes=14,
    is_refusing_sends=True, recovery_done_bytes=15, recovery_total_bytes=16, connections=17, queues=18, held_sends=19,
    last_error="the disk failed", last_error_wall_ms=20,
    certificate_ends_wall_ms=1 << 41, refused_requests=tuple(range(1, 18)),
    damaged_records=21, damaged_bytes=22, damaged_records_found=23, healed_records=24,
    lost_records=25, scrub_position=26, scrubbed_bytes=27, scrub_pass_ended_wall_ms=28,
    queues_rebuilding=31, queue_units_rebuilt=32, index_rebuilds=33,
    log_missing_bytes=1 << 30,
    log_accepted_loss_bytes=1 << 20,
    log_missing_ranges=tuple(LogRange(n << 20, (n << 20) + n) for n in range(1, 5)),
    slaves=tuple(
        SlaveStatus(slave_id=n, received=n + 1, flushed=n + 2, last_seen_boottime_ns=n + 3) for n in range(16)
    ),
)  # fmt: skip
EMPTY = Status(published_boottime_ns=1, published_wall_ms=2, phase=Phase.STARTING)


def documented_fields(title: str) -> list[tuple[int, int, str]]:
    """Return offset, size and name of the fields in one table of the document."""
    section = DOCUMENT.read_text().split(f"### {title}\n")[1].split("\n#")[0]
    rows = [match for line in section.splitlines() if (match := ROW.match(line))]
    return [(int(row[1]), int(row[2]), row[3]) for row in rows]


def struct_fields(table: tuple[tuple[str, str], ...]) -> list[tuple[int, int, str]]:
    """Return offset, size and name of the fields of a struct."""
    rows, offset = [], 0
    for name, code in table:
        size = struct.calcsize(f">{code}")
        rows.append((offset, size, name))
        offset += size
    return rows


@pytest.mark.parametrize(
    ("title", "table"),
    [("Header", HEADER_FIELDS), ("Copy", COPY_FIELDS), ("Slave slot", SLAVE_FIELDS)],
    ids=["header", "copy", "slave"],
)
def test_document_describes_every_byte(title: str, table: tuple[tuple[str, str], ...]) -> None:
    """Offset, size and name of each field are the same in the document and in the struct, without a gap."""
    assert documented_fields(title) == struct_fields(table)


@pytest.mark.parametrize("kind", [Phase, Role, Medium, HotPath], ids=lambda kind: kind.__name__)
def test_document_lists_every_value(kind: type[Phase] | type[Role] | type[Medium] | type[HotPath]) -> None:
    """The document has each phase, role, medium and hot path with its number."""
    field = {Phase: "phase", Role: "role", Medium: "pool_medium", HotPath: "hot_path"}[kind]
    [row] = [line for line in DOCUMENT.read_text().splitlines() if f"| {field} |" in line]

    named = {int(number): name.upper() for number, name in re.findall(r"(\d+) (\w+)", row.split("|")[4])}

    assert named | {0: "UNKNOWN"} == {member.value: member.name for member in kind}


def test_document_lists_every_refusal_reason() -> None:
    """The document has each reason with the position of its counter, and there are positions for all."""
    rows = [line for line in DOCUMENT.read_text().splitlines() if "refused_requests |" in line]

    named = {int(number): label for row in rows for number, label in re.findall(r"(\d+) `(\w+)`", row)}

    assert named == {reason.value: reason.label for reason in RefusalReason}


@pytest.mark.parametrize("counts", [(), (5,), (0, 0, 7), tuple(range(1, 17))], ids=["none", "first", "third", "all"])
def test_refused_requests_keep_their_positions(counts: tuple[int, ...]) -> None:
    """Each counter is decoded at its position; trailing zeros are left out, as an older writer has only those."""
    status = decode_copy(encode_copy(2, replace(EMPTY, refused_requests=counts)))

    assert status is not None and status.refused_requests == counts


def test_numbers_are_at_their_documented_offsets() -> None:
    """Magic, versions and numbers are at the documented offsets, big-endian."""
    header = encode_header(ORIGIN)
    copy = encode_copy(6, FULL)

    assert (len(header), len(copy), PAGE_BYTES) == (HEADER_BYTES, COPY_BYTES, 4096)
    assert header[:16] == b"GANTRYST\x00\x01\x00\x00" + (1792).to_bytes(4, "big")
    assert header[72:81] == b"\x08broker-a"
    assert copy[:8] == (6).to_bytes(8, "big")
    assert copy[12:17] == bytes([0, 3, 4, 3, 4])
    assert copy[8:12] == zlib.crc32(copy[:8] + copy[12:]).to_bytes(4, "big")
    assert [int.from_bytes(copy[at : at + 8], "big") for at in range(24, 96, 8)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert copy[448 + 64 * 2 + 8 : 448 + 64 * 2 + 16] == (2).to_bytes(8, "big")


@pytest.mark.parametrize("status", [FULL, EMPTY], ids=["everything", "nothing"])
def test_status_round_trip(status: Status) -> None:
    """Every value is decoded as it was, including unknown ones."""
    assert decode_copy(encode_copy(2, status)) == status
    assert decode_header(encode_header(ORIGIN)) == (ORIGIN, COPY_BYTES)


def test_the_full_example_is_full() -> None:
    """The round trip covers every field: each differs from its default, and from every other number."""
    values = [getattr(FULL, field.name) for field in fields(Status)]
    numbers = [value for value in values if type(value) is int]

    assert all(value != field.default for value, field in zip(values, fields(Status), strict=True))
    assert len(set(numbers)) == len(numbers)


def test_texts_are_bounded_and_never_half_a_character() -> None:
    """A long text loses its end only, and no character is split."""
    status = decode_copy(encode_copy(2, replace(EMPTY, last_error="ä" * 300)))
    long = replace(ORIGIN, broker_name="n" * 200, version="v" * 200, hot_path_reason="r" * 200)
    origin, _ = decode_header(encode_header(long))

    assert status is not None and status.last_error == "ä" * 127
    assert (len(origin.broker_name), len(origin.version), len(origin.hot_path_reason)) == (127, 31, 127)
    assert bounded_utf8("abc", 3) == b"abc" and bounded_utf8("\ud800", 3) == b"?"


def test_a_seventeenth_slave_is_left_out() -> None:
    """There are 16 slots, and more slaves do not damage the page."""
    status = replace(FULL, slaves=FULL.slaves + FULL.slaves)

    assert decode_copy(encode_copy(2, status)) == FULL


@pytest.mark.parametrize("position", [*range(24), 191, 192, 447, 448, 1471, 1472, 1791])
def test_flipped_bit_in_a_copy_is_detected(position: int) -> None:
    """A copy with any wrong bit is invalid, including in its sequence, its CRC and its reserved bytes."""
    copy = bytearray(encode_copy(4, FULL))
    copy[position] ^= 0x10

    assert decode_copy(bytes(copy)) is None


@pytest.mark.parametrize("sequence", [0, 1, 3], ids=["never-written", "first", "later"])
def test_copy_that_is_being_written_is_invalid(sequence: int) -> None:
    """An odd sequence, or zero, marks an invalid copy, with any CRC."""
    copy = bytearray(encode_copy(2, FULL))
    copy[:8] = sequence.to_bytes(8, "big")
    copy[8:12] = zlib.crc32(copy[:8] + copy[12:]).to_bytes(4, "big")

    assert decode_copy(bytes(copy)) is None


def changed_header(position: int, data: bytes, *, is_sealed: bool = True) -> bytes:
    """Return a header with other bytes; if sealed, its CRC matches them."""
    header = bytearray(encode_header(ORIGIN))
    header[position : position + len(data)] = data
    if is_sealed:
        header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "big")
    return bytes(header)


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        (b"", PageTooShort, "0 bytes"),
        (encode_header(ORIGIN)[:100], PageTooShort, "100 bytes"),
        (b"GAN", PageTooShort, "3 bytes"),
        (b"{}", PageForeign, "GANTRYST"),
        (bytes(4096), PageForeign, "GANTRYST"),
        (changed_header(8, b"\x00\x02"), PageVersionUnknown, "layout 2.0"),
        (changed_header(8, b"\x00\x02", is_sealed=False), PageVersionUnknown, "layout 2.0"),
        (changed_header(100, b"\xff", is_sealed=False), PageDamaged, "CRC of its header"),
        (changed_header(12, (1791).to_bytes(4, "big")), PageDamaged, "1791"),
        (changed_header(12, b"\xff\xff\xff\xff"), PageDamaged, "4294967295"),
    ],
    ids=["empty", "cut", "cut-in-magic", "text", "zeros", "major", "major-unsealed", "flip", "short-copy", "long-copy"],
)
def test_invalid_header_is_refused_with_a_reason(header: bytes, error: type[StatusPageError], text: str) -> None:
    """A header of another program, or an incomplete one, is refused with what was found."""
    with pytest.raises(error, match=text):
        decode_header(header)


def test_a_newer_minor_version_is_read() -> None:
    """An older reader accepts longer copies, used reserved bytes and unknown phases of a newer minor version."""
    header = bytearray(changed_header(10, b"\x00\x07" + (2048).to_bytes(4, "big")))
    copy = bytearray(encode_copy(2, FULL) + b"new" + bytes(253))
    copy[14:17] = b"\xff\xfe\xfd"
    copy[1744:1752] = b"newfield"
    copy[8:12] = zlib.crc32(copy[:8] + copy[12:]).to_bytes(4, "big")

    origin, copy_bytes = decode_header(bytes(header))
    status = decode_copy(bytes(copy))

    assert (origin.minor, copy_bytes) == (7, 2048)
    assert status == replace(FULL, phase=Phase.UNKNOWN, role=Role.UNKNOWN, pool_medium=Medium.UNKNOWN)


def test_hot_path_of_an_older_writer_is_unknown() -> None:
    """A writer of layout 1.2 left zeros there; an unknown value of a newer one is unknown, too."""
    older, _ = decode_header(changed_header(232, bytes(129)))
    newer, _ = decode_header(changed_header(232, b"\x09"))

    assert (older.hot_path, older.hot_path_reason) == (HotPath.UNKNOWN, "")
    assert newer.hot_path is HotPath.UNKNOWN


def test_zero_damage_differs_from_unknown_damage() -> None:
    """A count of zero is a value; a writer of layout 1.1 left zeros there, which mean unknown."""
    none_damaged = replace(FULL, damaged_records=0, lost_records=0, scrub_position=0)
    copy = bytearray(encode_copy(2, none_damaged))

    assert decode_copy(bytes(copy)) == none_damaged
    copy[1608:1672] = bytes(64)
    copy[8:12] = zlib.crc32(copy[:8] + copy[12:]).to_bytes(4, "big")
    older = decode_copy(bytes(copy))
    assert older is not None and older.damaged_records is older.scrub_pass_ended_wall_ms is None


def test_the_first_missing_ranges_are_published_and_more_are_only_counted() -> None:
    """There are four positions for ranges; zeros of an older writer are no range."""
    ranges = tuple(LogRange(n * 100, n * 100 + 10) for n in range(6))
    few, many = (replace(FULL, log_missing_ranges=some) for some in (ranges[:1], ranges))
    copy = bytearray(encode_copy(2, few))

    assert decode_copy(bytes(copy)) == few
    assert decode_copy(encode_copy(2, many)) == replace(FULL, log_missing_ranges=ranges[:4])
    copy[1672:1736] = bytes(64)
    copy[8:12] = zlib.crc32(copy[:8] + copy[12:]).to_bytes(4, "big")
    assert decode_copy(bytes(copy)) == replace(FULL, log_missing_ranges=())


@pytest.mark.parametrize("left", [bytes(8), b"\xff" * 8], ids=["layout-1.0", "none"])
def test_page_of_layout_1_0_has_no_certificate_expiry(left: bytes) -> None:
    """A writer of layout 1.0 left zeros there, which are no date in 1970."""
    copy = bytearray(encode_copy(2, FULL))
    copy[1472:1480] = left
    copy[8:12] = zlib.crc32(copy[:8] + copy[12:]).to_bytes(4, "big")

    assert decode_copy(bytes(copy)) == replace(FULL, certificate_ends_wall_ms=None)
