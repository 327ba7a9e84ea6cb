"""The stored message record: both versions, both address families, and the check that trusts nothing."""

import struct
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.message import (
    BLANK_MAGIC,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    RecordFault,
    StoredMessage,
    check_record,
    decode_host,
    decode_record,
    decode_records,
    encode_host,
    encode_record,
    offset_message_id,
    parse_offset_message_id,
    record_size,
    record_store_timestamp,
)

HOST_V4 = st.builds(encode_host, st.ip_addresses(v=4).map(str), st.integers(0, 65535))
HOST_V6 = st.builds(encode_host, st.ip_addresses(v=6).map(str), st.integers(0, 65535))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    return StoredMessage(
        topic=draw(st.text("abcXYZ%_-", min_size=1, max_size=300)),
        queue_id=draw(INT32),
        body=draw(st.binary(max_size=300)),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        flag=draw(INT32),
        sys_flag=draw(st.integers(0, 0x7FF)) & ~(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6),
        born_timestamp_ms=draw(INT64),
        born_host=draw(HOST_V4 | HOST_V6),
        store_timestamp_ms=draw(INT64),
        store_host=draw(HOST_V4 | HOST_V6),
        reconsume_times=draw(INT32),
        prepared_offset=draw(INT64),
        properties_bytes=draw(st.binary(max_size=300)),
    )


def small_record(**fields: object) -> bytearray:
    """Return a small good record."""
    return bytearray(encode_record(StoredMessage(topic="topic", queue_id=3, body=b"body", **fields)))  # type: ignore[arg-type]


@given(messages())
def test_record_round_trip(message: StoredMessage) -> None:
    """Every field survives, v1 or v2, IPv4 or IPv6; the address flags follow from the hosts."""
    data = encode_record(message)
    decoded = decode_record(data)

    assert (
        len(data)
        == decoded.size
        == record_size(len(message.body), len(message.topic), len(message.properties_bytes), decoded.sys_flag)
    )
    for name in ("topic", "queue_id", "body", "queue_offset", "physical_offset", "flag", "born_timestamp_ms",
                 "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "prepared_offset",
                 "properties_bytes"):  # fmt: skip
        assert getattr(decoded, name) == getattr(message, name), name
    assert bool(decoded.sys_flag & FLAG_BORN_HOST_V6) == (len(message.born_host) == 20)
    assert bool(decoded.sys_flag & FLAG_STORE_HOST_V6) == (len(message.store_host) == 20)
    assert decoded.body_crc == crc32(message.body) & 0x7FFFFFFF
    assert record_store_timestamp(data) == message.store_timestamp_ms


@given(st.lists(messages(), max_size=5))
def test_consecutive_records_are_decoded(batch: list[StoredMessage]) -> None:
    """A pull's body is a sequence of records."""
    decoded = decode_records(b"".join(map(encode_record, batch)))

    assert [message.body for message in decoded] == [message.body for message in batch]


def test_the_layout_is_javas() -> None:
    """The bytes of a small record are compared by hand: lengths, magic, offsets and their positions."""
    data = small_record(queue_offset=7, physical_offset=4096, store_timestamp_ms=99, properties_bytes=b"a\x01b\x02")

    assert len(data) == 91 + 4 + 5 + 4
    assert struct.unpack_from(">ii", data, 0) == (len(data), -626843481)
    assert struct.unpack_from(">i", data, 16) == (0,)
    assert struct.unpack_from(">qq", data, 20) == (7, 4096)
    assert struct.unpack_from(">q", data, 56) == (99,)
    assert data[84:] == b"\x00\x00\x00\x04body\x05topic\x00\x04a\x01b\x02"


@pytest.mark.parametrize(("length", "magic"), [(127, MESSAGE_MAGIC_V1), (128, MESSAGE_MAGIC_V2)])
def test_a_long_topic_makes_version_two(length: int, magic: int) -> None:
    """127 bytes fit version 1, one more does not."""
    data = encode_record(StoredMessage(topic="t" * length, queue_id=0, body=b""))

    assert struct.unpack_from(">i", data, 4)[0] == magic
    assert decode_record(data).topic == "t" * length


@pytest.mark.parametrize("fields", [{"properties_bytes": b"x" * 32768}, {"topic": ""}, {"topic": "t" * 32768}], ids=str)
def test_values_that_fit_no_record_are_a_local_error(fields: dict[str, object]) -> None:
    """Properties and topics that are too long, and an empty topic, are a local error."""
    with pytest.raises(LocalProtocolError):
        encode_record(StoredMessage(**({"topic": "t", "queue_id": 0, "body": b""} | fields)))  # type: ignore[arg-type]


def changed_record(position: int, layout: str, *values: int) -> bytearray:
    data = small_record(physical_offset=1000)
    struct.pack_into(layout, data, position, *values)
    return data


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (bytearray(), RecordFault.END),
        (bytearray(7), RecordFault.END),
        (bytearray(200), RecordFault.END),
        (changed_record(4, ">i", 12345), RecordFault.MAGIC),
        (changed_record(0, ">i", 0), RecordFault.LENGTH),
        (changed_record(0, ">i", -1), RecordFault.LENGTH),
        (changed_record(0, ">i", 90), RecordFault.LENGTH),
        (changed_record(0, ">i", 101), RecordFault.LENGTH),
        (changed_record(0, ">i", 99), RecordFault.LENGTH),
        (changed_record(84, ">i", -1), RecordFault.LENGTH),
        (changed_record(84, ">i", 5), RecordFault.LENGTH),
        (changed_record(84, ">i", 0x7FFFFFFF), RecordFault.LENGTH),
        (changed_record(92, ">B", 6), RecordFault.LENGTH),
        (changed_record(92, ">B", 255), RecordFault.LENGTH),
        (changed_record(98, ">h", 1), RecordFault.LENGTH),
        (changed_record(98, ">h", -1), RecordFault.LENGTH),
        (changed_record(36, ">i", FLAG_BORN_HOST_V6), RecordFault.LENGTH),
        (changed_record(28, ">q", 1001), RecordFault.OFFSET),
        (changed_record(88, ">B", 0), RecordFault.CRC),
        (changed_record(8, ">i", 1), RecordFault.CRC),
        (bytearray(struct.pack(">ii", 100, BLANK_MAGIC)) + bytearray(92), RecordFault.BLANK),
        (bytearray(struct.pack(">ii", 8, BLANK_MAGIC)), RecordFault.BLANK),
        (bytearray(struct.pack(">ii", 7, BLANK_MAGIC)), RecordFault.LENGTH),
        (bytearray(struct.pack(">ii", 9, BLANK_MAGIC)), RecordFault.LENGTH),
    ],
)
def test_check_record_names_the_fault(data: bytearray, fault: RecordFault) -> None:
    """Each inconsistency is found and named; nothing is read beyond the data."""
    check = check_record(data, 0, physical_offset=1000)

    assert check.fault is fault and not check.is_good
    with pytest.raises(RemoteProtocolError):
        decode_record(data if fault is not RecordFault.OFFSET else bytearray())


def test_truncated_record_is_never_accepted() -> None:
    """A torn tail of any length is never accepted as a message."""
    data = small_record(physical_offset=1000)

    assert check_record(data, 0, physical_offset=1000).is_good
    assert not any(check_record(data[:length], 0, physical_offset=1000).is_good for length in range(len(data)))


@given(st.binary(max_size=300), st.integers(0, 300), st.none() | INT64)
@example(bytes(300), 0, None)
@example(struct.pack(">ii", 300, MESSAGE_MAGIC_V1) + bytes(292), 0, 0)
@example(struct.pack(">ii", 91, MESSAGE_MAGIC_V2) + b"\xff" * 83, 0, None)
def test_check_record_never_raises(data: bytes, position: int, physical_offset: int | None) -> None:
    """Any bytes at any position give a result; a good one is within the data."""
    check = check_record(data, position, physical_offset=physical_offset)

    if check.is_good:
        assert position + check.size <= len(data)
        decode_record(data, position)


@given(st.integers(0, 99), st.integers(0, 255))
def test_a_changed_byte_never_gives_a_record_of_another_length(position: int, value: int) -> None:
    """The check returns for any changed byte. Without a seal it detects changes of the body, but not of every field."""
    data = small_record(physical_offset=1000)
    data[position] = value

    check = check_record(data, 0, physical_offset=1000)

    assert not check.is_good or check.size == len(data)
    if 88 <= position < 92:
        assert check.is_good == (value == b"body"[position - 88])


@given(st.lists(messages(), min_size=1, max_size=4), st.binary(max_size=100))
def test_scan_of_arbitrary_bytes_terminates(batch: list[StoredMessage], tail: bytes) -> None:
    """A scan from record to record over any bytes makes progress until it stops."""
    data = b"".join(map(encode_record, batch)) + tail
    position, steps = 0, 0
    while (check := check_record(data, position)).is_good or check.fault is RecordFault.BLANK:
        assert check.size >= 8
        position += check.size
        steps += 1

    assert len(batch) <= steps <= len(data) // 8
    assert position <= len(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read(kind: type) -> None:
    """bytes, bytearray and memoryview give the same message, with fields that outlive the buffer."""
    decoded = decode_record(kind(bytes(small_record(properties_bytes=b"a\x01b\x02"))))

    assert (type(decoded.body), type(decoded.properties_bytes)) == (bytes, bytes)
    assert decoded.properties == {"a": "b"}


def test_copy_parses_its_own_properties() -> None:
    """A copy with other properties does not return those of the original."""
    from msgspec.structs import replace

    message = decode_record(small_record(properties_bytes=b"a\x01b\x02"))
    assert message.properties == {"a": "b"}

    assert replace(message, properties_bytes=b"c\x01d\x02").properties == {"c": "d"}


@given(st.ip_addresses(), st.integers(0, 65535), INT64)
def test_offset_message_id_round_trip(address: object, port: int, physical_offset: int) -> None:
    """An id holds host and offset, in 32 digits for IPv4 and 56 for IPv6."""
    message_id = offset_message_id(encode_host(str(address), port), physical_offset)

    assert message_id == message_id.upper() and len(message_id) in (32, 56)
    assert parse_offset_message_id(message_id) == (str(address), port, physical_offset)
    assert parse_offset_message_id(message_id.lower()) == (str(address), port, physical_offset)


@given(st.text(max_size=60) | st.text("0123456789ABCDEF", max_size=60))
def test_arbitrary_ids_raise_only_protocol_errors(text: str) -> None:
    """Ids come from users: any text is an id or raises RemoteProtocolError."""
    try:
        parse_offset_message_id(text)
    except RemoteProtocolError:
        return


def test_hosts_are_addresses_and_ports() -> None:
    """The documented example of the format decodes to its address and port."""
    assert encode_host("127.0.0.1", 10911) == b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    assert decode_host(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f") == ("127.0.0.1", 10911)
    assert decode_host(encode_host("::1", 5)) == ("::1", 5)
