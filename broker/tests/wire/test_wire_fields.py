"""Typed headers: their round trip, and the errors for invalid fields."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.commands import admin, clients, nameserver, offsets, pop, pull, send
from gantry_wire.commands.fields import FieldError, Fields
from gantry_wire.commands.pull import PullMessage
from gantry_wire.commands.send import SendMessage, SendMessageV2

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def kinds_in(*modules: Any) -> list[type[Fields]]:
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Fields) and kind.__module__ == module.__name__
    ]


ALL_KINDS = kinds_in(admin, clients, nameserver, offsets, pop, pull, send)
"""The headers of these modules; those of `consumers` and `transactions` are not among them."""


def strategy_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
        case msgspec.inspect.StrType():
            return TEXT
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*(strategy_of(one) for one in types))
        case _:
            raise AssertionError(f"a header holds a {kind}")


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_typed_header_round_trips(kind: type[Fields], data: st.DataObject) -> None:
    """A typed header of `ALL_KINDS` that is written to a map of texts and read again is unchanged."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    values = {field.name: data.draw(strategy_of(field.type), label=field.name) for field in info.fields}
    header = kind(**values)

    ext = header.write()

    assert {type(value) for value in ext.values()} <= {str}
    assert kind.read(ext) == header
    assert kind.read(ext | {"ns": "x", "bname": "y", "lo": "true"}) == header, (
        "expected to ignore fields of newer peers"
    )


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_missing_required_field_is_named(kind: type[Fields]) -> None:
    """Without a field that RocketMQ requires the header is refused with that field's wire name."""
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    full = {field.encode_name: "1" for field in required}
    for field in required:
        ext = {name: value for name, value in full.items() if name != field.encode_name}
        with pytest.raises(FieldError, match=field.encode_name):
            kind.read(ext)


@pytest.mark.parametrize("value", ["", "x", "1.5", "2147483648", "-2147483649", "0x10", "9" * 100, "null", "true"])
def test_invalid_number_is_refused(value: str) -> None:
    """A queue id is a 32-bit integer in decimal; any other text is refused with an error that names the field."""
    ext = {"topic": "t", "queueId": value}
    with pytest.raises(FieldError, match="queueId"):
        offsets.QueueAddress.read(ext)


def test_long_and_short_send_headers_are_equivalent() -> None:
    """Code 10's long names and code 310's letters hold the same values."""
    values: dict[str, Any] = {
        "producer_group": "p", "topic": "t", "default_topic": "TBW102", "default_topic_queue_nums": 4, "queue_id": -1,
        "sys_flag": 1, "born_timestamp": 5, "flag": 6, "properties": "a\x01b\x02", "reconsume_times": 0,
        "unit_mode": False, "batch": True, "max_reconsume_times": 3,
    }  # fmt: skip

    assert SendMessage(**values).write()["defaultTopicQueueNums"] == "4"
    assert SendMessageV2(**values).write() == {
        "a": "p", "b": "t", "c": "TBW102", "d": "4", "e": "-1", "f": "1", "g": "5", "h": "6", "i": "a\x01b\x02",
        "j": "0", "k": "false", "m": "true", "l": "3",
    }  # fmt: skip


def test_pull_of_java_client_is_read() -> None:
    """A pull of a 4.9 client is read, with fields that are unknown here."""
    ext = {
        "consumerGroup": "g", "topic": "t", "queueId": "2", "queueOffset": "17", "maxMsgNums": "32", "sysFlag": "2",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "a || b", "subVersion": "1700000000000",
        "expressionType": "TAG", "requestSource": "0", "proxyFrowardClientId": "x",
    }  # fmt: skip

    header = PullMessage.read(ext)

    assert (header.queue_id, header.queue_offset, header.subscription) == (2, 17, "a || b")
    assert header.max_msg_bytes is None
