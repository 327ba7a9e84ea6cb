"""Java's JSON dialect: maps with numbers and objects for keys, read tolerantly, written so that Java reads them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gantry_wire.commands.clients import HeartbeatData, LockBatch, MessageQueue
from gantry_wire.commands.documents import plain_document, read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import BrokerData, KeyValueTable, TopicRoute
from gantry_wire.fastjson import DEPTH_MAX, ObjectKey, dumps, loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_standard_json_is_standard_json(value: Any) -> None:
    """Values without features of the dialect are read and written as standard JSON."""
    assert loads(json.dumps(value)) == value
    assert json.loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ("{-1:2}", {"-1": 2}),
        ("{a_b.c-d:1,$x:2}", {"a_b.c-d": 1, "$x": 2}),
        ("{'single':'quo\"tes'}", {"single": 'quo"tes'}),
        ("'a\\\"b \\\\\" c'", 'a"b \\" c'),
        ("[1,2,]", [1, 2]),
        ("{'a':1,}", {"a": 1}),
        ("[1L,2.5F,3D,1e3,-0.5]", [1, 2.5, 3, 1000.0, -0.5]),
        ("[true,false,null,NaN]", [True, False, None, None]),
        ("{a:[{b:{}}]}", {"a": [{"b": {}}]}),
        ("'\\u00e9\\n\\t\\''", "é\n\t'"),
    ],
)
def test_dialect_is_parsed(text: str, expected: Any) -> None:
    """Bare keys, single quotes, trailing commas and Java's number suffixes are parsed."""
    assert loads(text) == expected
    assert loads(text.encode()) == expected


def test_object_keys_compare_by_content() -> None:
    """Java writes a map keyed by queues with bare objects; the keys compare by content, in any order of fields."""
    value = loads('{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}')

    key = ObjectKey({"topic": "T", "queueId": 0, "brokerName": "b"})
    assert value == {"offsetTable": {key: {"maxOffset": 5}}}
    assert hash(key) == hash(next(iter(value["offsetTable"])))
    assert key["topic"] == "T" and len(key) == 3 and set(key) == {"topic", "queueId", "brokerName"}


@given(st.dictionaries(st.tuples(st.text("abc\"\\'{}:", max_size=5), st.integers(0, 9)), st.integers(), max_size=5))
def test_object_keys_round_trip(table: dict[tuple[str, int], int]) -> None:
    """Writing keeps object keys bare, and reading them gives the same table."""
    value = {"t": {ObjectKey({"n": name, "q": number}): count for (name, number), count in table.items()}}

    data = dumps(value)

    assert loads(data) == value
    assert not table or data.startswith(b'{"t":{{"n":')


def test_numeric_keys_are_written_quoted() -> None:
    """Numeric keys are written quoted: Java reads both forms, standard parsers only this one."""
    assert dumps({0: "a", ObjectKey({"q": 1}): {2: "b"}}) == b'{"0":"a",{"q":1}:{"2":"b"}}'


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "}", "[", "]", "{a}", "{a:}", "{:1}", "[1 2]", "{a:1 b:2}", "tru", "'", '"', "-", "1.2.3",
     "{a:1}}", "[1]]", "\x00", "{{}:1", "{{a:1}", "'bad \\q'", "9" * 500 + "L", "undefined", ",", "[,]"],
)  # fmt: skip
def test_invalid_text_raises_value_error(text: str) -> None:
    """Invalid text raises ValueError with a position, and never gives a partial value."""
    with pytest.raises(ValueError):
        loads(text)


@pytest.mark.parametrize("opening", ["[", "{a:", "{{"], ids=["arrays", "objects", "keys"])
def test_depth_is_bounded(opening: str) -> None:
    """Brackets nested beyond the limit are refused without deep recursion."""
    with pytest.raises(ValueError, match=f"deeper than {DEPTH_MAX}"):
        loads("'x'" if not opening else opening * 100_000)


def test_realistic_depth_is_accepted() -> None:
    """The depth of real documents is far below the limit."""
    depth = 50
    assert loads("{a:" * depth + "1" + "}" * depth)


@given(st.text(alphabet="{}[]:,'\"\\abc019-.eELn \n", max_size=40))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    """No text raises anything but ValueError."""
    try:
        loads(text)
    except ValueError:
        return


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    """No bytes raise anything but ValueError, including bytes that are not UTF-8."""
    try:
        loads(data)
    except ValueError:
        return


def test_route_of_old_name_server_is_read() -> None:
    """Unquoted broker ids, unknown keys and missing optional ones, as in a reply of a 4.9 name server, are read."""
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":0,'
        b'"writeQueueNums":4}]}'
    )

    route = read_document(body, TopicRoute)

    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert route.queue_datas[0].write_queue_nums == 4


def test_documents_are_written_with_java_names_and_without_nulls() -> None:
    """Keys have Java's names, numeric keys are quoted, and absent values are left out."""
    data = write_document(BrokerData(cluster="c", broker_name="b", broker_addrs={0: "a:1"}))

    assert json.loads(data) == {
        "cluster": "c", "brokerName": "b", "brokerAddrs": {"0": "a:1"}, "enableActingMaster": False
    }  # fmt: skip


class AnyDocument(msgspec.Struct):
    """A document with a value of any shape."""

    value: Any = None
    numbered: dict[int, Any] = {}


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@given(VALUES, st.dictionaries(st.integers(0, 9), VALUES, max_size=3))
@example({"a": ":null", "b": [None, {"c": None}]}, {1: None})
def test_documents_have_no_null_fields(value: Any, numbered: dict[int, Any]) -> None:
    """Fields without a value are left out at any depth, and all others are written, with any text."""
    document = AnyDocument(value, numbered)

    expected = without_nulls({"value": value, "numbered": numbered})
    assert json.loads(write_document(document)) == expected
    assert plain_document(document) == expected


def test_client_documents_are_read_with_their_irregular_names() -> None:
    """The irregular name clientID is read, and sets arrive as lists."""
    heartbeat = read_document(
        b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}', HeartbeatData
    )
    lock = read_document(
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,"topic":"t"}]}', LockBatch
    )

    assert heartbeat.client_id == "c" and heartbeat.producer_data_set[0].group_name == "p"
    assert lock.mq_set == [MessageQueue(topic="t", broker_name="b", queue_id=1)]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"table":[]}', b'{"table":{"a":{}}}', b"\xff", b"[" * 100_000])
def test_invalid_body_raises_field_error(body: bytes) -> None:
    """Every kind of damage raises the same exception, FieldError."""
    with pytest.raises(FieldError):
        read_document(body, KeyValueTable)
