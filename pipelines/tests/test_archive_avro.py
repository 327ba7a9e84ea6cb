"""Typed columns of Avro bodies: types, values, bodies of other schemas, and schemas that have no columns."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import random
import uuid
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec import structs

pytest.importorskip("fastavro")

import fastavro

from gantry_pipelines.archive.schemas.bodies import InvalidSchema, UndecodableBody
from gantry_pipelines.archive.schemas.decoding import RowDecoder
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas, open_decoder
from gantry_spec.pipelines.parts import BodyFormat, SchemaColumn, TopicSchema

LINE: Final[dict[str, Any]] = {"type": "record", "name": "Line", "fields": [
    {"name": "sku", "type": "string"}, {"name": "count", "type": ["null", "int"]},
]}  # fmt: skip
ORDER: Final[dict[str, Any]] = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    {"name": "before", "type": ["null", "State"]},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "due", "type": [{"type": "int", "logicalType": "date"}, "null"]},
    {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "first", "type": ["null", "Line"]},
    {"name": "labels", "type": {"type": "map", "values": "double"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
]}  # fmt: skip
KEY: Final = uuid.UUID(int=7)
VALUE: Final[dict[str, Any]] = {
    "id": -(2**62), "state": "PAID", "before": None, "amount": decimal.Decimal("12.50"),
    "placed": datetime.datetime(2026, 11, 22, 12, 0, 0, 1000, datetime.UTC), "due": datetime.date(2026, 11, 30),
    "key": str(KEY), "hash": b"\1\2", "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": None}],
    "first": {"sku": "a", "count": 1}, "labels": {"x": 0.5}, "local": 5,
}  # fmt: skip


def avro_schema(document: object, *columns: SchemaColumn, skip_bytes: int = 0) -> TopicSchema:
    return TopicSchema(
        topics=["orders"], format=BodyFormat.AVRO, schema=json.dumps(document), columns=list(columns),
        skip_bytes=skip_bytes,
    )  # fmt: skip


def encoded(document: dict[str, Any], value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(document, named_schemas={}), value)
    return stream.getvalue()


def decoded(schema: TopicSchema, *bodies: bytes) -> list[dict[str, Any]]:
    rows = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    extended, _ = RowDecoder(open_decoder(schema)).extend(rows)
    return [{name: value for name, value in row.items() if name != "body"} for row in extended.to_pylist()]


def test_avro_values_become_typed_columns() -> None:
    """Logical types without a column type have the type that they are stored as."""
    schema = avro_schema(ORDER)
    stored = {**VALUE, "local": datetime.datetime(1970, 1, 1, 0, 0, 0, 5000)}

    [row] = decoded(schema, encoded(ORDER, stored))

    assert row == {"decodeError": None, **VALUE, "labels": [("x", 0.5)]}
    assert {one.name: one.type for one in open_decoder(schema).columns} == {
        "id": "bigint", "state": "string", "before": "string", "amount": "decimal(12,2)", "placed": "timestamp",
        "due": "date", "key": "string", "hash": "binary", "lines": "array<struct<sku:string,count:int>>",
        "first": "struct<sku:string,count:int>", "labels": "map<string,double>", "local": "bigint",
    }  # fmt: skip


def test_chosen_fields_become_columns() -> None:
    """A field may have another name as a column, and the header of a schema registry is skipped."""
    columns = SchemaColumn(name="total", field="amount"), SchemaColumn(name="id")
    schema = avro_schema(ORDER, *columns, skip_bytes=5)

    rows = decoded(schema, b"\0\0\0\0\7" + encoded(ORDER, VALUE | {"local": datetime.datetime(2026, 1, 1)}), b"\0\0")

    assert rows == [
        {"decodeError": None, "total": decimal.Decimal("12.50"), "id": -(2**62)},
        {"decodeError": "the body has 2 bytes, fewer than skipBytes 5", "total": None, "id": None},
    ]


def test_body_that_is_no_value_of_the_schema_is_undecodable() -> None:
    """A body that is too short or too long is refused; no bytes raise another error."""
    decoder = open_decoder(avro_schema(ORDER))
    body = encoded(ORDER, VALUE | {"local": datetime.datetime(2026, 1, 1)})
    draw = random.Random(7)

    for wrong in (b"", body[:-1], body + b"\0", b'{"id": 1}', b"\xff" * 40):
        with pytest.raises(UndecodableBody, match="not a value of the Avro schema"):
            decoder.decode(wrong)
    for _ in range(3000):
        changed = bytearray(body)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            RowDecoder(decoder).extend(pa.RecordBatch.from_pydict({"body": pa.array([bytes(changed)], pa.binary())}))
        except UndecodableBody:
            raise AssertionError("expected a row with an error") from None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", "is not JSON"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "none"}]}, "the Avro schema is invalid"),
        ("string", "not that of a record"),
        ([LINE], "not that of a record"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]}, "'x' is a union of 2"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R"]}]}, "'x' .* contains itself"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "null"}]}, "'x' has the type 'null'"),
        ({"type": "record", "name": "R", "fields": [{"name": "offset", "type": "int"}]}, "set field to offset"),
    ],
)
def test_avro_schema_without_columns_is_refused(document: object, text: str) -> None:
    schema = TopicSchema(
        topics=["orders"], format=BodyFormat.AVRO, schema=document if document == "{" else json.dumps(document)
    )

    with pytest.raises(InvalidSchema, match=text):
        TopicSchemas([schema]).check()


def test_field_without_a_column_can_be_left_out() -> None:
    """Its values are skipped in each body."""
    document = {"type": "record", "name": "R", "fields": [
        {"name": "x", "type": ["int", "string"]}, {"name": "inner", "type": ["null", "R"]},
        {"name": "y", "type": "int"},
    ]}  # fmt: skip
    value = {"x": "a", "inner": {"x": 1, "inner": None, "y": 2}, "y": 3}

    assert decoded(avro_schema(document, SchemaColumn(name="y")), encoded(document, value)) == [
        {"decodeError": None, "y": 3}
    ]
    with pytest.raises(InvalidSchema, match="no field 'z'; it has x, inner, y"):
        open_decoder(avro_schema(document, SchemaColumn(name="z")))
    with pytest.raises(InvalidSchema, match="column 'y': string is not a part of int"):
        open_decoder(avro_schema(document, SchemaColumn(name="y", type="string")))
    with pytest.raises(InvalidSchema, match="avro needs schema"):
        open_decoder(TopicSchema(topics=["orders"], format=BodyFormat.AVRO))


def test_column_may_leave_out_fields_of_a_struct() -> None:
    """So a column keeps its type when a nested record gets a field, which would be another type."""
    wider = {**LINE, "fields": [*LINE["fields"], {"name": "note", "type": "string"}]}
    document = {"type": "record", "name": "R", "fields": [{"name": "lines", "type": {"type": "array", "items": wider}}]}
    schema = avro_schema(document, SchemaColumn(name="lines", type="array<struct<sku:string,count:int>>"))
    value = {"lines": [{"sku": "a", "count": 1, "note": "x"}]}

    assert decoded(schema, encoded(document, value)) == [{"decodeError": None, "lines": [{"sku": "a", "count": 1}]}]
    with pytest.raises(InvalidSchema, match="is not a part of array<struct<sku:string,count:int,note:string>>"):
        open_decoder(avro_schema(document, SchemaColumn(name="lines", type="array<struct<sku:int>>")))


def test_bodies_of_earlier_schemas_are_decoded() -> None:
    """The log of a topic has bodies from before and after a field was added; new columns of old bodies are null."""
    old = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
    new = {**old, "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "string"}]}
    schema = structs.replace(avro_schema(new), older_schemas=[json.dumps(old)])

    rows = decoded(schema, encoded(new, {"x": 1, "y": "a"}), encoded(old, {"x": 2}), b"\x02\x02")

    assert [(row["x"], row["y"]) for row in rows] == [(1, "a"), (2, None), (None, None)]
    assert [row["decodeError"] is None for row in rows] == [True, True, False]
    with pytest.raises(InvalidSchema, match="the Avro schema is not JSON"):
        open_decoder(structs.replace(avro_schema(new), older_schemas=["{"]))
    columns = [SchemaColumn(name="x", type="int")]
    with pytest.raises(InvalidSchema, match="json has no olderSchemas"):
        open_decoder(TopicSchema(topics=["a"], columns=columns, older_schemas=["{}"]))
