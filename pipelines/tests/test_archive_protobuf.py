"""Typed columns of Protobuf bodies: types, values, bodies of other messages, and messages that have no columns."""

from __future__ import annotations

import base64
import datetime
import decimal
import random
from typing import Any, Final

import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from gantry_pipelines.archive.schemas.bodies import InvalidSchema, UndecodableBody
from gantry_pipelines.archive.schemas.decoding import RowDecoder
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas, open_decoder
from gantry_spec.pipelines.parts import BodyFormat, SchemaColumn, TopicSchema

FIELD: Final = descriptor_pb2.FieldDescriptorProto


def field(name: str, number: int, kind: Any, type_name: str = "", **more: Any) -> descriptor_pb2.FieldDescriptorProto:
    label = more.pop("label", FIELD.LABEL_OPTIONAL)
    return FIELD(name=name, number=number, type=kind, type_name=type_name or None, label=label, **more)


def shop() -> descriptor_pb2.FileDescriptorProto:
    """Return the file that `protoc` would compile from the definition of an order."""
    line = descriptor_pb2.DescriptorProto(name="Line", field=[
        field("sku", 1, FIELD.TYPE_STRING), field("parent", 2, FIELD.TYPE_MESSAGE, ".shop.Node"),
    ])  # fmt: skip
    entry = descriptor_pb2.DescriptorProto(
        name="LabelsEntry", field=[field("key", 1, FIELD.TYPE_STRING), field("value", 2, FIELD.TYPE_DOUBLE)],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )  # fmt: skip
    order = descriptor_pb2.DescriptorProto(
        name="Order", nested_type=[entry], oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_note")],
        field=[
            field("id", 1, FIELD.TYPE_UINT64), field("count", 2, FIELD.TYPE_SINT32),
            field("small", 3, FIELD.TYPE_UINT32),
            field("ratio", 4, FIELD.TYPE_FLOAT), field("paid", 5, FIELD.TYPE_BOOL), field("data", 6, FIELD.TYPE_BYTES),
            field("state", 7, FIELD.TYPE_ENUM, ".shop.State"),
            field("note", 8, FIELD.TYPE_STRING, oneof_index=0, proto3_optional=True),
            field("lines", 9, FIELD.TYPE_MESSAGE, ".shop.Node", label=FIELD.LABEL_REPEATED),
            field("numbers", 10, FIELD.TYPE_INT64, label=FIELD.LABEL_REPEATED),
            field("labels", 11, FIELD.TYPE_MESSAGE, ".shop.Order.LabelsEntry", label=FIELD.LABEL_REPEATED),
            field("placed", 12, FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            field("limit", 13, FIELD.TYPE_MESSAGE, ".google.protobuf.Int64Value"),
            field("line", 14, FIELD.TYPE_MESSAGE, ".shop.Line"),
        ],
    )  # fmt: skip
    node = descriptor_pb2.DescriptorProto(name="Node", field=[
        field("name", 1, FIELD.TYPE_STRING), field("next", 2, FIELD.TYPE_MESSAGE, ".shop.Node"),
    ])  # fmt: skip
    plain = descriptor_pb2.DescriptorProto(name="Plain", field=[field("line", 1, FIELD.TYPE_MESSAGE, ".shop.Empty")])
    state = descriptor_pb2.EnumDescriptorProto(name="State", value=[
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate(("NEW", "PAID"))
    ])  # fmt: skip
    empty = descriptor_pb2.DescriptorProto(name="Empty")
    return descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", message_type=[order, line, node, plain, empty],
        enum_type=[state], dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )  # fmt: skip


def files() -> list[descriptor_pb2.FileDescriptorProto]:
    found = []
    for module in (timestamp_pb2, wrappers_pb2):
        one = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(one)
        found.append(one)
    return [*found, shop()]


SET: Final = descriptor_pb2.FileDescriptorSet(file=files())
SIMPLE: Final = (
    "id",
    "count",
    "small",
    "ratio",
    "paid",
    "data",
    "state",
    "note",
    "numbers",
    "labels",
    "placed",
    "limit",
)


def proto_schema(message: str, *columns: str, file_set: descriptor_pb2.FileDescriptorSet = SET) -> TopicSchema:
    return TopicSchema(
        topics=["orders"], format=BodyFormat.PROTOBUF, message=message,
        schema=base64.b64encode(file_set.SerializeToString()).decode(),
        columns=[SchemaColumn(name=name) for name in columns],
    )  # fmt: skip


def message(name: str = "shop.Order") -> Any:
    pool = descriptor_pool.DescriptorPool()
    for one in SET.file:
        pool.Add(one)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def decoded(schema: TopicSchema, *bodies: bytes) -> list[dict[str, Any]]:
    rows = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    extended, _ = RowDecoder(open_decoder(schema)).extend(rows)
    return [{name: value for name, value in row.items() if name != "body"} for row in extended.to_pylist()]


def test_protobuf_values_become_typed_columns() -> None:
    """An unsigned 64-bit number is a decimal, and an enum value without a name its number."""
    order = message()
    order.id, order.count, order.small, order.ratio, order.paid = 2**64 - 1, -3, 2**32 - 1, 0.5, True
    order.data, order.note = b"\0\1", ""
    order.numbers.extend([1, -1])
    order.labels["x"] = 1.5
    order.placed.seconds, order.placed.nanos = 1_795_348_800, 1_500
    order.limit.value = 0
    schema = proto_schema("shop.Order", *SIMPLE)
    other = message()
    other.state = 1
    unknown = b"\x38\x63"  # the field state with the number 99

    row, paid, later, empty = decoded(schema, order.SerializeToString(), other.SerializeToString(), unknown, b"")

    assert row == {
        "decodeError": None, "id": decimal.Decimal(2**64 - 1), "count": -3, "small": 2**32 - 1, "ratio": 0.5,
        "paid": True, "data": b"\0\1", "state": "NEW", "note": "", "numbers": [1, -1], "labels": [("x", 1.5)],
        "placed": datetime.datetime(2026, 11, 22, 12, 0, 0, 1, datetime.UTC), "limit": 0,
    }  # fmt: skip
    assert (paid["state"], later["state"]) == ("PAID", "99")
    assert empty == {
        "decodeError": None, "id": 0, "count": 0, "small": 0, "ratio": 0.0, "paid": False, "data": b"", "state": "NEW",
        "note": None, "numbers": [], "labels": [], "placed": None, "limit": None,
    }  # fmt: skip


def test_message_within_a_message_is_a_struct() -> None:
    """A message of a chosen field is decoded with all of its fields."""
    file_set = descriptor_pb2.FileDescriptorSet()
    file_set.CopyFrom(SET)
    [line] = [one for one in file_set.file[-1].message_type if one.name == "Line"]
    del line.field[1]
    order = message()
    order.line.sku = "a"

    schema = proto_schema("shop.Order", "line", file_set=file_set)

    assert [one.type for one in open_decoder(schema).columns] == ["struct<sku:string>"]
    assert decoded(schema, order.SerializeToString()) == [{"decodeError": None, "line": {"sku": "a"}}]


def test_body_that_is_no_message_is_undecodable() -> None:
    """No bytes raise another error, or fail a batch."""
    order = message()
    order.id, order.note, order.placed.seconds = 1, "n", 10**11
    schema = proto_schema("shop.Order", *SIMPLE)
    decoder, body, draw = open_decoder(schema), order.SerializeToString(), random.Random(7)

    for wrong in (b"\xff", b"{", body[:-1]):
        with pytest.raises(UndecodableBody, match="not a message of the Protobuf schema"):
            decoder.decode(wrong)
    for _ in range(2000):
        changed = bytearray(body)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        RowDecoder(decoder).extend(pa.RecordBatch.from_pydict({"body": pa.array([bytes(changed)], pa.binary())}))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (proto_schema("shop.Order"), "the field 'lines' has a message that contains itself"),
        (proto_schema("shop.Plain"), "the field 'line' has a message without fields"),
        (proto_schema("shop.Bill"), "has no message 'shop.Bill'"),
        (proto_schema("shop.Order", "total"), "shop.Order has no field 'total'; it has id, count"),
        (proto_schema(""), "protobuf needs message"),
        (
            proto_schema("shop.Order", "id", file_set=descriptor_pb2.FileDescriptorSet(file=files()[-1:])),
            "make it with protoc --include_imports",
        ),
        (
            TopicSchema(topics=["a"], format=BodyFormat.PROTOBUF, message="m", schema="not Base64"),
            "not a descriptor set",
        ),
    ],
)
def test_protobuf_schema_without_columns_is_refused(schema: TopicSchema, text: str) -> None:
    with pytest.raises(InvalidSchema, match=text):
        TopicSchemas([schema]).check()
