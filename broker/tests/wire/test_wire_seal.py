"""The seal over a whole record: it has RocketMQ's bytes, and no bit of a sealed record changes undetected.

D9 is a row of the fault catalogue (`broker/tests/faults/rows.py`).
"""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.message import (
    RecordFault,
    StoredMessage,
    check_record,
    decode_record,
    encode_host,
    encode_record,
)
from gantry_wire.properties import RECORD_CRC, terminate_properties
from gantry_wire.seal import SEAL_BYTES, SEAL_MARK, SEALED_PROPERTIES_MAX, seal, sealable_properties

JAVAS_RECORD = bytes.fromhex(
    "000000c4daa320a717be088000000000000000000000000000000000000000000000000000000000000001a1feba5f847f00000100003039"
    "000001a1feba60187f00000100002a9f00000000000000000000000000000008c15c0289ec2d0a91046c656674005d4b455953016b65792d"
    "30207368617265642d3002554e49515f4b45590130303030303030303030303030303030303030303030303030303030303030300254414753"
    "017461672d30025f5f435243333223013335343438303131313002"
)
"""Written by RocketMQ 5.3.3's own store with ``enabledAppendPropCRC=true``, and taken out of its commit log."""

PROPERTIES = b"KEYS\x01k\x02TAGS\x01a\x02"
HOST_V6 = encode_host("2001:db8::1", 40_000)


def small_message(**fields: object) -> StoredMessage:
    fields = {"topic": "t", "queue_id": 3, "body": b"body", "properties_bytes": PROPERTIES} | fields
    return StoredMessage(**fields)  # type: ignore[arg-type]


def flip_bit(record: bytes, bit: int) -> bytes:
    changed = bytearray(record)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_sealed_record_of_rocketmq_is_reproduced() -> None:
    """A record that Java sealed passes the check, and sealing its fields again gives the same bytes."""
    message = decode_record(JAVAS_RECORD)

    assert check_record(JAVAS_RECORD, 0, physical_offset=0, is_sealed=True).is_good
    unsealed = replace(message, properties_bytes=message.properties_bytes[:-SEAL_BYTES])
    assert encode_record(unsealed, is_sealed=True) == JAVAS_RECORD
    assert message.properties[RECORD_CRC] == "3544801110"


@given(st.binary(max_size=400))
def test_the_digits_are_the_crc_with_the_last_one_first(record: bytes) -> None:
    """A seal always has ten digits: name, separator, digits from the least significant on, end."""
    made = seal(record)

    digits = made[len(SEAL_MARK) : -1]
    assert made == b"__CRC32#\x01" + digits + b"\x02" and len(made) == SEAL_BYTES
    assert sum(int(chr(digit)) * 10**place for place, digit in enumerate(digits)) == crc32(record) & 0x7FFFFFFF


@pytest.mark.parametrize("data", [b"", b"a\x01b\x02"], ids=repr)
def test_terminated_properties_are_unchanged(data: bytes) -> None:
    """No separator is added to properties that already end with one."""
    assert sealable_properties(data) == (data, SEAL_BYTES)


def test_unterminated_pair_is_terminated_before_the_seal() -> None:
    """RocketMQ may leave the last separator out; a seal right after the value would be part of the value."""
    record = encode_record(small_message(properties_bytes=b"a\x01b"), is_sealed=True)

    assert decode_record(record).properties.keys() == {"a", RECORD_CRC}
    assert decode_record(record).properties["a"] == "b"
    assert check_record(record, 0, is_sealed=True).is_good


@pytest.mark.parametrize(
    "message",
    [
        small_message(),
        small_message(body=b"", properties_bytes=b""),
        small_message(topic="t" * 128),
        small_message(born_host=HOST_V6, store_host=HOST_V6),
    ],
    ids=["v1", "without body or properties", "v2", "ipv6"],
)
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_any_flipped_bit_of_a_sealed_record_is_found(message: StoredMessage, kind: type) -> None:
    """D9: with any single bit flipped the record is refused, at any physical offset."""
    record = encode_record(replace(message, physical_offset=4096), is_sealed=True)
    assert check_record(kind(record), 0, physical_offset=4096, is_sealed=True).is_good

    passed = [
        bit
        for bit in range(len(record) * 8)
        if check_record(kind(flip_bit(record, bit)), 0, physical_offset=4096, is_sealed=True).is_good
        or check_record(kind(flip_bit(record, bit)), 0, is_sealed=True).is_good
    ]

    assert passed == []


def test_without_a_seal_most_fields_can_change_undetected() -> None:
    """D9: without a seal only changes of magic, lengths, physical offset, body and its CRC are detected.

    The unsealed record stands for RocketMQ's, where nothing better can be required.
    """
    record = encode_record(small_message(physical_offset=4096))
    passing = {
        bit // 8
        for bit in range(len(record) * 8)
        if check_record(flip_bit(record, bit), 0, physical_offset=4096).is_good
    }

    body_start = 88
    topic_start = body_start + 4 + 1
    properties_start = topic_start + 1 + 2
    queue_id, flag, queue_offset, sys_flag = range(12, 16), range(16, 20), range(20, 28), range(36, 40)
    born, stored, reconsumed, prepared = range(40, 56), range(56, 72), range(72, 76), range(76, 84)
    topic, properties = range(topic_start, topic_start + 1), range(properties_start, len(record))
    assert passing == {
        byte
        for field in (queue_id, flag, queue_offset, sys_flag, born, stored, reconsumed, prepared, topic, properties)
        for byte in field
    }


@pytest.mark.parametrize("length", range(1, 60))
def test_sealed_record_torn_after_its_body_is_refused(length: int) -> None:
    """The last bytes of a record read as zeros: without the seal most of these pass, with it none does."""
    record = encode_record(small_message(properties_bytes=PROPERTIES * 3), is_sealed=True)

    torn = record[:-length] + bytes(length)

    assert not check_record(torn, 0, is_sealed=True).is_good


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        PROPERTIES,
        PROPERTIES + seal(b"some other record"),
        seal(b"some other record") + PROPERTIES,
        PROPERTIES + b"__CRC32#\x01+000000012\x02",
        PROPERTIES + b"__CRC32#\x011\x02",
    ],
    ids=["none", "no seal", "stale", "stale and not last", "no digits", "short"],
)
def test_missing_or_foreign_seal_is_refused_where_required(properties: bytes) -> None:
    """RocketMQ copies the property, and as a seal of another record it is invalid.

    Where no seal is required it is ignored.
    """
    record = encode_record(small_message(properties_bytes=properties))

    check = check_record(record, 0, is_sealed=True)

    assert (check.fault, check.size, check.is_good) == (RecordFault.SEAL, 0, False)
    assert check_record(record, 0).is_good
    assert check_record(record, 0, verify_crc=False, is_sealed=True).is_good, "expected no check of the seal"


def test_stale_copy_before_the_seal_is_ignored() -> None:
    """The seal is identified by its position at the very end."""
    record = encode_record(small_message(properties_bytes=seal(b"some other record") + PROPERTIES), is_sealed=True)

    assert check_record(record, 0, is_sealed=True).is_good
    assert decode_record(record).properties[RECORD_CRC] == seal(record[:-SEAL_BYTES])[9:-1].decode()


def long_properties(length: int) -> bytes:
    return b"a\x01" + b"x" * (length - 3) + b"\x02"


@pytest.mark.parametrize("length", [SEALED_PROPERTIES_MAX - 20, SEALED_PROPERTIES_MAX - 19, SEALED_PROPERTIES_MAX])
def test_seal_that_just_fits_is_written_and_required(length: int) -> None:
    """Up to 32747 bytes of properties leave space for the seal, which is then required."""
    record = encode_record(small_message(properties_bytes=long_properties(length)), is_sealed=True)

    assert decode_record(record).properties_bytes.endswith(seal(record[:-SEAL_BYTES]))
    assert check_record(record, 0, is_sealed=True).is_good
    for bit in (0, 8 * 12, 8 * 100, 8 * (len(record) - 30), 8 * (len(record) - 5)):
        assert not check_record(flip_bit(record, bit), 0, is_sealed=True).is_good


@pytest.mark.parametrize("length", [SEALED_PROPERTIES_MAX + 1, PROPERTIES_BYTES_MAX])
def test_record_with_maximum_properties_has_no_seal(length: int) -> None:
    """RocketMQ allows 32767 bytes of properties, so nothing is refused; only the body's CRC is checked."""
    record = encode_record(small_message(properties_bytes=long_properties(length)), is_sealed=True)

    assert decode_record(record).properties_bytes == long_properties(length)
    assert check_record(record, 0, is_sealed=True).is_good
    assert check_record(flip_bit(record, 8 * 89), 0, is_sealed=True).fault is RecordFault.CRC
    assert check_record(flip_bit(record, 8 * 300), 0, is_sealed=True).is_good, (
        "expected the known limit: only the body is covered"
    )


@pytest.mark.parametrize("length", [SEALED_PROPERTIES_MAX, PROPERTIES_BYTES_MAX - 1, PROPERTIES_BYTES_MAX])
def test_separator_is_added_only_if_it_fits(length: int) -> None:
    """A missing separator is added if it fits; in any case the check accepts what the encoder wrote."""
    properties = long_properties(length)[:-1] + b"x"

    record = encode_record(small_message(properties_bytes=properties), is_sealed=True)

    assert len(terminate_properties(properties)) == min(length + 1, PROPERTIES_BYTES_MAX)
    assert decode_record(record).properties_bytes == terminate_properties(properties)
    assert check_record(record, 0, is_sealed=True).is_good


@given(st.binary(max_size=300), st.integers(0, 300))
def test_check_record_with_seal_never_raises(data: bytes, position: int) -> None:
    """Any bytes at any position give a result."""
    check = check_record(data, position, is_sealed=True)

    assert not check.is_good or check.size >= 91
