"""Options, columns and rows of a write: how a row becomes a message, and which errors name an invalid one."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_client import MessageQueue
from gantry_wire.batch import decode_batch, encode_batch
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.properties import parse_properties
from pyspark_rocketmq.errors import InvalidOption, InvalidRow
from pyspark_rocketmq.sink.columns import ACCEPTED, Columns, check_columns
from pyspark_rocketmq.sink.destinations import Destinations
from pyspark_rocketmq.sink.driver import batch_of
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, HalfMessageRef, join_lists, unpack
from pyspark_rocketmq.sink.markers import Marker, MarkerKind, decode, group_of, queue_number
from pyspark_rocketmq.sink.options import OnUnsure, Reserved, parse
from pyspark_rocketmq.sink.packing import Packer
from pyspark_rocketmq.sink.rows import Row, RowReader

SERVERS = {"nameServers": "127.0.0.1:9876"}


def read(columns: Mapping[str, Any], topic: str | None = "T", reserved: Reserved = Reserved.FAIL) -> list[Row]:
    """Return the rows of one batch."""
    types: dict[str, Any] = {"properties": pa.map_(pa.string(), pa.string())}
    arrays = [pa.array(values, types.get(name)) for name, values in columns.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    return list(RowReader(Columns(tuple(columns)), topic, reserved).read(batch))


# ------- options


def test_sink_option_names_are_case_insensitive() -> None:
    """Spark hands them over in lower case; no text shows a secret."""
    options = parse(
        {
            "NAMESERVERS": "a:1,b:2", "Topic": "T", "transactional": "TRUE", "onunsure": "Accept", "batchBytes": "1m",
            "accessKey": "me", "secretKey": "sesame", "checkpointLocation": "/tmp/x",
        }
    )  # fmt: skip

    assert (options.topic, options.is_transactional, options.on_unsure) == ("T", True, OnUnsure.ACCEPT)
    assert options.batch_bytes == 1 << 20
    assert options.connection.name_servers == "a:1;b:2"
    assert "sesame" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("topicc", "T", "unknown option topicc; did you mean topic"),
        ("topic", "a b", "option topic is 'a b'"),
        ("topic", "SPARK_SINK_MARKERS", "holds the markers"),
        ("transactional", "yes", "option transactional is 'yes'; it must be true or false"),
        ("onUnsure", "ignore", "option onUnsure is 'ignore'; it must be fail or accept"),
        ("batchBytes", "many", "option batchBytes is 'many'"),
        ("batchBytes", "64m", "brokers take"),
        ("requestsInFlight", "0", "option requestsInFlight is '0'"),
        ("queryId", "a:b", "option queryId is 'a:b'"),
        ("patience", "for ever", "option patience"),
        ("accessKey", "me", "accessKey and secretKey go together"),
        ("credentialsFile", "/nowhere", "option credentialsFile"),
    ],
)
def test_invalid_sink_option_is_refused_by_name(option: str, value: str, message: str) -> None:
    """A misspelled option would otherwise be ignored."""
    with pytest.raises(InvalidOption, match=message):
        parse({**SERVERS, option: value})


def test_name_servers_are_required() -> None:
    """The error message has an example value."""
    with pytest.raises(InvalidOption, match="nameServers is missing"):
        parse({"topic": "T"})


# ------- columns


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"value": "string"}, "column value is not part of a message"),
        ({"topic": "string"}, "column body is missing"),
        ({"body": "int"}, "column body is of type int; it must be binary or string"),
        ({"body": "binary", "offset": "bigint"}, "column offset"),
        ({"body": "binary", "broker": "string"}, "column broker needs a column queue"),
        ({"body": "binary", "properties": "map<string,int>"}, "column properties is of type"),
    ],
)
def test_invalid_columns_are_refused_by_name(types: dict[str, str], message: str) -> None:
    """Unknown columns are refused, too: their values would be lost silently."""
    with pytest.raises(InvalidOption, match=message):
        check_columns(types, has_topic=True, is_transactional=False)


def test_topic_is_required_and_transactions_cannot_be_delayed() -> None:
    """Both errors are raised before the first row."""
    with pytest.raises(InvalidOption, match="neither an option topic nor a column topic"):
        check_columns({"body": "binary"}, has_topic=False, is_transactional=False)
    with pytest.raises(InvalidOption, match="delayLevel"):
        check_columns({"body": "binary", "delayLevel": "int"}, has_topic=True, is_transactional=True)
    everything = {name: types[0] for name, types in ACCEPTED.items()}
    assert check_columns(everything, has_topic=False, is_transactional=False).names == tuple(everything)


# ------- rows


def test_every_column_reaches_the_message() -> None:
    """Keys are text or a list, properties keep their order, and the option topic overrides the column."""
    rows = read(
        {
            "body": ["ü", "b"], "topic": ["A", "B"], "tags": ["red", None], "keys": [["k1", "k2"], None],
            "properties": [[("colour", "blue")], None], "shardingKey": [None, "s"], "delayLevel": [3, None],
            "broker": ["broker-a", None], "queue": [1, None], "flag": [-7, None],
        },
        topic=None,
    )  # fmt: skip

    assert rows == [
        Row(0, "A", "ü".encode(), "red", ("k1", "k2"), [("colour", "blue")], None, 3, "broker-a", 1, -7),
        Row(1, "B", b"b", None, (), (), "s", 0, None, None, 0),
    ]
    assert [row.topic for row in read({"body": [b"x"], "topic": ["A"]})] == ["T"]
    assert read({"body": [b"x"], "keys": [" a  b "]})[0].keys == ("a", "b")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": [b"x", None]}, "row 1: column body is null"),
        ({"body": [b""]}, "row 0: column body is null or empty"),
        ({"body": [b"x" * (4 << 20) + b"x"]}, "row 0: column body has 4194305 bytes"),
        ({"body": [b"x"], "keys": [["a b"]]}, "row 0: column keys has 'a b'"),
        ({"body": [b"x"], "tags": ["a\x01b"]}, "row 0: column tags contains a byte 1 or 2"),
        ({"body": [b"x"], "delayLevel": [-1]}, "row 0: column delayLevel is -1"),
        ({"body": [b"x"], "flag": [1 << 40]}, "row 0: column flag is"),
        ({"body": [b"x"], "properties": [[("UNIQ_KEY", "1")]]}, "row 0: property UNIQ_KEY is reserved"),
        ({"body": [b"x"], "properties": [[("a", None)]]}, "row 0: property 'a' is null"),
        ({"body": [b"x"], "properties": [[("", "b")]]}, "row 0: property '' has an empty name"),
    ],
)
def test_invalid_row_is_named(columns: Mapping[str, Any], message: str) -> None:
    """It is refused before anything is sent: a broker would refuse a whole request."""
    with pytest.raises(InvalidRow, match=message):
        read(columns)


def test_null_topic_is_refused_and_reserved_properties_may_be_dropped() -> None:
    """Rows that were read from a topic have the properties of a stored message."""
    with pytest.raises(InvalidRow, match="column topic is null"):
        read({"body": [b"x"], "topic": [None]}, topic=None)
    found = read({"body": [b"x"], "properties": [[("UNIQ_KEY", "1"), ("mine", "2")]]}, reserved=Reserved.DROP)
    assert found[0].properties == [("mine", "2")]


def test_rows_are_numbered_over_all_batches_of_a_task() -> None:
    """The ids of messages are made of the row number."""
    reader = RowReader(Columns(("body",)), "T")
    batch = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"])], names=["body"])
    assert [row.number for _ in range(2) for row in reader.read(batch)] == [0, 1, 2, 3]


def test_entry_has_the_id_of_its_row() -> None:
    """Its columns are in RocketMQ's properties."""
    (row,) = read(
        {"body": [b"x"], "tags": ["red"], "keys": ["a b"], "properties": [[("p", "ü")]], "shardingKey": ["s"]}
    )
    entry = Packer("q:5:2").entry(row, "ID")

    assert decode_batch(encode_batch([entry])) == [entry]
    assert parse_properties(entry.properties.decode()) == {
        "UNIQ_KEY": "ID", "WAIT": "true", "SPARK_ID": "q:5:2:0", "TAGS": "red", "KEYS": "a b", "__SHARDINGKEY": "s",
        "p": "ü",
    }  # fmt: skip
    message = Packer("q:5:2").message(row)
    assert (message.properties, message.keys, message.sharding_key) == (
        {"p": "ü", "SPARK_ID": "q:5:2:0"},
        ("a", "b"),
        "s",
    )


def test_too_large_properties_are_refused_by_row() -> None:
    """The format has 15 bits for their length, and the broker adds some."""
    (row,) = read({"body": [b"x"], "properties": [[("p", "x" * 32_300)]]})
    with pytest.raises(InvalidRow, match="row 0: its properties"):
        Packer("q:5:2").entry(row, "ID")


# ------- queues


def queues(*places: tuple[str, int]) -> list[MessageQueue]:
    return [MessageQueue(topic="T", broker_name=name, queue_id=number) for name, number in places]


def test_row_goes_to_the_queue_of_its_columns() -> None:
    """A queue by number, with its broker if it is ambiguous; equal keys to one queue; other rows to any."""
    one, two = [("a", 0), ("a", 1)], [("a", 0), ("b", 0)]
    (plain,) = read({"body": [b"x"]})
    assert Destinations(lambda topic: queues(*one)).queue_for(plain) is None
    (numbered,) = read({"body": [b"x"], "queue": [1]})
    assert Destinations(lambda topic: queues(*one)).queue_for(numbered) == queues(("a", 1))[0]
    with pytest.raises(InvalidRow, match="topic T has no such queue"):
        Destinations(lambda topic: queues(*two)).queue_for(numbered)
    (unclear,) = read({"body": [b"x"], "queue": [0]})
    with pytest.raises(InvalidRow, match="is on a, b: add a column broker"):
        Destinations(lambda topic: queues(*two)).queue_for(unclear)
    (clear,) = read({"body": [b"x"], "queue": [0], "broker": ["b"]})
    assert Destinations(lambda topic: queues(*two)).queue_for(clear) == queues(("b", 0))[0]
    keyed = read({"body": [b"x"] * 40, "shardingKey": [f"key-{number % 10}" for number in range(40)]})
    found = [Destinations(lambda topic: queues(*one)).queue_for(row) for row in keyed]
    assert found[:10] == found[10:20] == found[20:30]
    assert len(set(map(str, found))) == 2


# ------- half messages and markers


@given(
    st.lists(
        st.tuples(st.sampled_from("TU"), st.sampled_from(["a", "ü"]), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
    )
)
def test_half_message_list_is_packed_and_unpacked(places: list[tuple[str, str, int, int]]) -> None:
    """The order is preserved, for any values."""
    halves = HalfMessageList(HalfMessageRef(*place) for place in places)
    found = unpack(halves.pack())
    assert found.refs == halves.refs
    assert found.fingerprint == halves.fingerprint
    assert join_lists([found, HalfMessageList()]).refs == halves.refs


def test_half_message_takes_few_bytes_in_a_list() -> None:
    """In log order each half message takes a few bytes."""
    halves = HalfMessageList(HalfMessageRef("T", "a", number, number * 700 + number % 3) for number in range(100_000))
    assert len(halves.pack()) < 300_000


@pytest.mark.parametrize("corrupt", [lambda data: data[:-3], lambda data: b"x" + data, lambda data: b""])
def test_corrupted_half_message_list_is_refused(corrupt: object) -> None:
    """The half messages to commit are never guessed from a damaged list."""
    assert callable(corrupt)
    with pytest.raises(RemoteProtocolError):
        unpack(corrupt(HalfMessageList([HalfMessageRef("T", "a", 1, 2)]).pack()))


def test_marker_is_encoded_and_other_messages_are_refused() -> None:
    """Any account with permission may send to the topic."""
    marker = Marker(
        kind=MarkerKind.COMMIT, query="q", batch=3, attempt="f", run="r", rows=2, scanned=7, newest=2, parts=(4, 5),
        payload=b"\0\1",
    )  # fmt: skip
    assert decode(marker.encode()) == marker
    for body in (b"", b"hello", marker.encode()[:20], b"GSM1\2\0\0\0{}"):
        with pytest.raises(RemoteProtocolError):
            decode(body)


def test_group_and_queue_of_a_query_never_change() -> None:
    """Another value after an update would be another queue, without any marker."""
    assert group_of("453936e3-14ea-4b3b-90eb-9df5ccee09aa") == "SPARK_SINK_4c12c98072254ca4"
    assert queue_number("453936e3-14ea-4b3b-90eb-9df5ccee09aa", 16) == 4


def test_batch_of_a_half_message_is_in_its_id() -> None:
    """An id of another query has no batch."""
    assert batch_of("q:12:0:3", "q") == 12
    assert batch_of("other:12:0:3", "q") is None
    assert batch_of("q:x:0:3", "q") is None
    assert batch_of("q:²:0:3", "q") is None
    assert batch_of("", "q") is None
