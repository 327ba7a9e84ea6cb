"""Decoding many records at once gives the same result as the decoder of single records, and detects damaged ones."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_kit.stored import Stored, piece_of, row_of, stored, task_for

from gantry_wire.message import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSED,
    StoredMessage,
    encode_host,
)
from gantry_wire.properties import format_properties
from pyspark_rocketmq import decode as decoding
from pyspark_rocketmq.decode import decode
from pyspark_rocketmq.errors import DamagedRecord
from pyspark_rocketmq.model import Task
from pyspark_rocketmq.property_columns import PropertyColumns
from pyspark_rocketmq.replica_view import Piece
from pyspark_rocketmq.schema import COLUMNS, HEADER_COLUMNS, arrow_schema

NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "ü", "__CRC32#", "n" * 300])
VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
HOSTS = st.sampled_from([encode_host("127.0.0.1", 1), encode_host("10.9.8.7", -5), encode_host("2001:db8::7", 10911)])


@st.composite
def property_bytes(draw: st.DrawFn) -> bytes:
    """Mostly as producers write them; Java's leave out the last 0x02; some are random bytes."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=40))
    if kind == 1:  # duplicate names, incomplete pairs, values that contain 0x01
        parts = draw(st.lists(st.sampled_from(["TAGS\x01x", "TAGS\x01y", "\x01z", "none", "k\x01v\x01w"]), max_size=4))
        return "\x02".join(parts).encode()
    data = format_properties(draw(st.dictionaries(NAMES, VALUES, max_size=5))).encode()
    return data[:-1] if kind < 6 else data


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw a body as stored, and its flags."""
    body = draw(st.binary(max_size=60))
    kind = draw(
        st.sampled_from([None, None, None, 0, COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x500, "bad"])
    )
    match kind:
        case None:
            return body, 0
        case "bad":
            return body, FLAG_COMPRESSED | draw(st.sampled_from([0, COMPRESSION_LZ4, COMPRESSION_ZSTD]))
        case int() if kind in (COMPRESSION_LZ4, COMPRESSION_ZSTD):
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "lz4" if kind == COMPRESSION_LZ4 else "zstd") as stream:
                stream.write(body)
            return sink.getvalue().to_pybytes(), FLAG_COMPRESSED | kind
        case _:
            return zlib.compress(body), FLAG_COMPRESSED | int(str(kind))


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    body, flags = draw(bodies())
    return StoredMessage(
        topic=draw(st.sampled_from(["orders", "b", "x" * 127, "%RETRY%" + "y" * 200])),
        queue_id=draw(st.integers(0, 3)),
        body=body,
        queue_offset=draw(st.integers(0, 1 << 30)),
        flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        sys_flag=flags,
        born_timestamp_ms=draw(
            st.sampled_from([0, 1_700_000_000_123, -1, (1 << 63) - 1, -(1 << 63), 253_402_300_800_000])
        ),
        born_host=draw(HOSTS),
        store_timestamp_ms=draw(st.integers(0, 4_000_000_000_000)),
        store_host=draw(HOSTS),
        reconsume_times=draw(st.integers(0, 20)),
        properties_bytes=draw(property_bytes()),
    )


def rows_of(log: Stored, **how: Any) -> list[dict[str, Any]]:
    task = task_for(log, **{name: how.pop(name) for name in ("columns", "tags") if name in how})
    found: list[dict[str, Any]] = []
    for batch in decode(piece_of(log, task), task, **{"batch_rows": 1000} | how):
        assert batch.schema == arrow_schema(task.columns)
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


@pytest.mark.verify
@settings(max_examples=80, deadline=None)
@given(
    st.lists(messages(), min_size=1, max_size=12), st.lists(st.sampled_from([0, 0, 7, 200]), min_size=1), st.booleans()
)
def test_rows_equal_those_of_the_single_record_decoder(
    given_messages: list[StoredMessage], gaps: list[int], is_sealed: bool
) -> None:
    """For any records, with and without bytes between them: each column is as if records were decoded one by one."""
    log = stored(given_messages, gaps=gaps, is_sealed=is_sealed)

    assert rows_of(log, batch_rows=5, is_body_verified=True) == [row_of(one) for one in log.messages]


@settings(max_examples=40, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=8), st.permutations(COLUMNS), st.integers(1, 5))
def test_only_requested_columns_are_returned_in_their_order(
    given_messages: list[StoredMessage], columns: list[str], count: int
) -> None:
    """Any choice of columns gives these columns of the same rows."""
    log = stored(given_messages)
    wanted = tuple(columns[:count])

    assert rows_of(log, columns=wanted) == [{name: row_of(one)[name] for name in wanted} for one in log.messages]


@settings(max_examples=40, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=10), st.frozensets(st.sampled_from(["x", "y", "", "ü"]), min_size=1))
def test_tags_themselves_are_compared(given_messages: list[StoredMessage], tags: frozenset[str]) -> None:
    """Exactly the records with a requested tag are returned, even if no column contains the tag."""
    log = stored(given_messages)
    wanted = [row_of(one) for one in log.messages if one.properties.get("TAGS") in tags]

    assert rows_of(log, tags=tags) == wanted
    assert rows_of(log, tags=tags, columns=("offset",)) == [{"offset": one["offset"]} for one in wanted]


@settings(max_examples=80, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=4), st.data())
def test_flipped_byte_raises_or_leaves_the_position_unchanged(
    given_messages: list[StoredMessage], data: st.DataObject
) -> None:
    """A wrong byte raises DamagedRecord or no error at all; returned rows then still have their positions."""
    log = stored(given_messages)
    place = data.draw(st.integers(0, len(log.data) - 1))
    broken = bytearray(log.data)
    broken[place] ^= data.draw(st.integers(1, 255))
    task = task_for(log)
    piece = replace(piece_of(log, task), data=np.frombuffer(bytes(broken), np.uint8))

    try:
        rows = [row for batch in decode(piece, task, batch_rows=1000) for row in batch.to_pylist()]
    except DamagedRecord as error:
        assert "a test" in str(error) and "is damaged" in str(error)
        return

    places = [(row["topic"], row["queue"], row["offset"], row["physicalOffset"], row["size"]) for row in rows]
    assert places == [
        (one.topic, one.queue_id, one.queue_offset, one.physical_offset, one.size) for one in log.messages
    ]


@pytest.mark.parametrize("missing", [1, 50, 90], ids=["byte", "half", "most"])
def test_truncated_bytes_are_refused(missing: int) -> None:
    """A record is never read beyond the available bytes."""
    log = stored([StoredMessage(topic="orders", queue_id=0, body=b"b", queue_offset=0)])
    task = task_for(log)
    piece = replace(piece_of(log, task), data=np.frombuffer(log.data[:-missing], np.uint8))

    with pytest.raises(DamagedRecord, match="orders/broker-a/0 at offset 0, physical offset 0"):
        list(decode(piece, task, batch_rows=10))


def test_body_crc_is_checked_on_demand() -> None:
    """With the check enabled, the first body that does not match its CRC is named."""
    log = stored([StoredMessage(topic="orders", queue_id=0, body=b"body", queue_offset=n) for n in range(3)])
    broken = bytearray(log.data)
    broken[log.starts[1] + 88] ^= 1
    task = task_for(log)
    piece = replace(piece_of(log, task), data=np.frombuffer(bytes(broken), np.uint8))

    assert len([row for batch in decode(piece, task, batch_rows=10) for row in batch.to_pylist()]) == 3
    with pytest.raises(DamagedRecord, match=r"at offset 1, .*does not match its CRC"):
        list(decode(piece, task, batch_rows=10, is_body_verified=True))


def with_broken_body(bodies: list[bytes], broken: int) -> tuple[Piece, Task]:
    """Return a piece of compressed bodies, one of which has other bytes than when it was stored."""
    packed = [
        StoredMessage(topic="orders", queue_id=0, body=body, queue_offset=number, sys_flag=FLAG_COMPRESSED)
        for number, body in enumerate(bodies)
    ]
    log = stored(packed)
    data = bytearray(log.data)
    data[log.starts[broken] + 88] ^= 0xFF
    task = task_for(log, columns=("offset", "body"))
    return replace(piece_of(log, task), data=np.frombuffer(bytes(data), np.uint8)), task


@pytest.mark.parametrize("bytes_max", [1 << 20, 2000], ids=["small piece", "large piece"])
def test_damaged_compressed_body_is_refused_before_the_first_row(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    """Another replica may have the body as it was stored, and reads the piece from its first row."""
    monkeypatch.setattr(decoding, "UNPACKED_BYTES_MAX", bytes_max)
    piece, task = with_broken_body([zlib.compress(bytes(1000))] * 9, broken=7)
    batches = decode(piece, task, batch_rows=2)

    with pytest.raises(DamagedRecord, match=r"at offset 7, .*does not match its CRC"):
        next(batches)
    headers = replace(task, columns=("offset",))
    assert sum(batch.num_rows for batch in decode(piece, headers, batch_rows=2)) == 9


@pytest.mark.parametrize(("codec", "flag"), [("lz4", COMPRESSION_LZ4), ("zstd", COMPRESSION_ZSTD)])
def test_damaged_body_of_a_compression_without_checksum_is_refused(codec: Literal["lz4", "zstd"], flag: int) -> None:
    """Some damage still decompresses, to other bytes."""
    body = pa.Codec(codec).compress(random.Random(1).randbytes(1000), asbytes=True)
    packed = StoredMessage(topic="orders", queue_id=0, body=body, queue_offset=0, sys_flag=FLAG_COMPRESSED | flag)
    log = stored([packed])
    task = task_for(log, columns=("offset", "body"))
    data = bytearray(log.data)
    data[log.starts[0] + 88 + len(body) // 2] ^= 1  # in the middle of the bytes, which are not compressible

    with pytest.raises(DamagedRecord, match="does not match its CRC"):
        list(decode(replace(piece_of(log, task), data=np.frombuffer(bytes(data), np.uint8)), task, batch_rows=10))


def test_body_that_its_sender_has_not_compressed_is_null() -> None:
    """No replica has a better one, so an error would stop every query there."""
    bodies = [zlib.compress(b"good"), b"not compressed", zlib.compress(b"good, too")]
    packed = [
        StoredMessage(topic="orders", queue_id=0, body=body, queue_offset=number, sys_flag=FLAG_COMPRESSED)
        for number, body in enumerate(bodies)
    ]
    rows = rows_of(stored(packed), columns=("offset", "body"), batch_rows=1)
    assert [row["body"] for row in rows] == [b"good", None, b"good, too"]


def test_batches_of_decompressed_bodies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small stored bodies that grow large end a batch early, and no row is lost at the cut."""
    monkeypatch.setattr(decoding, "UNPACKED_BYTES_MAX", 4000)
    body = zlib.compress(bytes(1000))
    packed = [
        StoredMessage(topic="orders", queue_id=0, body=body, queue_offset=number, sys_flag=FLAG_COMPRESSED)
        for number in range(9)
    ]
    log = stored(packed)
    task = task_for(log, columns=("offset", "body"))

    batches = list(decode(piece_of(log, task), task, batch_rows=1000))

    assert [batch.num_rows for batch in batches] == [5, 4]
    assert [one for batch in batches for one in batch.column(0).to_pylist()] == list(range(9))
    assert all(one == bytes(1000) for batch in batches for one in batch.column(1).to_pylist())


def test_header_columns_do_not_parse_properties() -> None:
    """Header columns come from fixed fields, so invalid properties do not matter."""
    log = stored([StoredMessage(topic="orders", queue_id=0, body=b"", properties_bytes=b"\x01\x01\xff")] * 3)

    assert [row["offset"] for row in rows_of(log, columns=HEADER_COLUMNS)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("texts", "is_cut"),
    [
        ([b"a\x01b\x02c\x01d\x02", b"", b"c\x01\x02"], True),
        ([b"a\x01b\x02c\x01d", b"a\x01b"], True),
        ([b"a\x01b\x02", b"a\x01b\x02a\x01c\x02"], False),
        ([b"a\x01b\x02", b"\x01b\x02"], False),
        ([b"a\x01\xff\x02"], False),
        ([b"".join(b"n%d\x01v\x02" % n for n in range(100))], True),
    ],
    ids=["ended", "unended", "twice", "unnamed", "no utf-8", "many"],
)
def test_well_formed_properties_are_cut_out_without_a_loop(texts: list[bytes], is_cut: bool) -> None:
    """Properties as producers write them are cut out without a loop; others are parsed, with the same result."""
    ends = np.cumsum([len(one) for one in texts])
    starts = ends - [len(one) for one in texts]

    columns = PropertyColumns(np.frombuffer(b"".join(texts), np.uint8), starts, ends)

    assert columns.is_fast is is_cut
    assert len(columns.maps()) == len(texts)
