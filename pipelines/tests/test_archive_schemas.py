"""Typed columns of declared schemas: the types, the decoding of JSON bodies, real files, and what may change later."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_kit.declared import JsonLog, json_schema, json_schemas, order_of
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import days_later_ms

from gantry_pipelines.archive.compaction import CompactionRules, compact
from gantry_pipelines.archive.errors import ManifestBroken, SchemaConflict
from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.grid import split_on_grid
from gantry_pipelines.archive.layout import SCHEMAS
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.schemas.bodies import InvalidSchema
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn, InvalidType, parse_type, type_text
from gantry_pipelines.archive.schemas.decoding import RowDecoder
from gantry_pipelines.archive.schemas.recorded import add_columns, read_recorded_schemas
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas, open_decoder
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_spec.pipelines.parts import BodyFormat, SchemaColumn, TopicSchema
from pyspark_rocketmq.model import QueueId, QueueRange

ORDERS, BILLS = QueueId("orders", "broker-a", 0), QueueId("bills", "broker-a", 0)
INT_COLUMN = SchemaColumn(name="x", type="int")
ERROR = DeclaredColumn("decodeError", "string")


def archive_more(root: Path, log: ToyLog, schemas: TopicSchemas | None = None, batch: int = 0) -> list[ArchivedFile]:
    """Archive the new messages of a log with these schemas."""
    schemas = schemas or TopicSchemas()
    with ArchiveWriter.open(Folder(str(root)), ArchiveFormat(100), declared=schemas) as writer:
        ends = writer.manifest.ends()
        ranges = [QueueRange(queue, ends.get(queue, 0), end) for queue, end in log.ends.items()]
        cut = [piece for one in ranges for piece in split_on_grid(one, 100)]
        return writer.commit(
            "query", batch, list(write_files(log.batches(cut), cut, writer.storage, writer.format, Packing(), schemas))
        )


def decoded(schema: TopicSchema, *bodies: bytes | None) -> list[dict[str, Any]]:
    """Return the typed columns of bodies."""
    rows = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    extended, undecoded = RowDecoder(open_decoder(schema)).extend(rows)
    found: list[dict[str, Any]] = extended.to_pylist()
    assert undecoded == sum(row["decodeError"] is not None for row in found)
    assert [row.pop("body") for row in found] == list(bodies)
    return found


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("BIGINT", "bigint"),
        ("decimal( 10 , 2 )", "decimal(10,2)"),
        ("array< struct<Sku : string, n:int>>", "array<struct<Sku:string,n:int>>"),
        ("map<string, array<double>>", "map<string,array<double>>"),
        ("timestamp", "timestamp"),
    ],
)
def test_type_is_recorded_in_one_form(text: str, normal: str) -> None:
    """Spaces and upper case in a declaration are no other type."""
    assert type_text(parse_type(text)) == normal == type_text(parse_type(normal))


@pytest.mark.parametrize(
    "text",
    ["", "text", "decimal(39,2)", "decimal(2,3)", "array<int", "map<double,int>", "struct<>", "struct<a:int,A:int>",
     "int int", "array<" * 50 + "int" + ">" * 50, "int;"],
)  # fmt: skip
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(InvalidType):
        parse_type(text)


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_json_values_are_exact() -> None:
    """Decimals keep their digits, times become UTC, and a missing field is null."""
    schema = json_schema(
        "orders", id="bigint", amount="decimal(12,2)", placed="timestamp", day_of="date", data="binary",
        ratio="double", ok="boolean", tags2="map<string,int>", lines="array<struct<sku:string,n:int>>",
    )  # fmt: skip
    body = {
        "id": 2**62 + 1, "placed": "2026-11-22T13:00:00.000001+01:00", "day_of": "2026-11-22", "data": "AAE=",
        "ratio": 1, "ok": True, "tags2": {"a": 1, "b": None}, "lines": [{"sku": "x", "more": 1}, None],
        "other": [1, "two"],
    }  # fmt: skip
    text = json.dumps(body)[:-1] + ', "amount": 0.10}'

    [row] = decoded(schema, text.encode())

    assert row == {
        "decodeError": None, "id": 2**62 + 1, "amount": decimal.Decimal("0.10"),
        "placed": datetime.datetime(2026, 11, 22, 12, 0, 0, 1, datetime.UTC), "day_of": datetime.date(2026, 11, 22),
        "data": b"\0\1", "ratio": 1.0, "ok": True, "tags2": [("a", 1), ("b", None)],
        "lines": [{"sku": "x", "n": None}, None],
    }  # fmt: skip
    assert decoded(schema, b"{}") == [dict.fromkeys(row)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"7", "Expected `object`"),
        (b'{"id": "7"}', "Expected `int | null`, got `str` - at `$.id`"),
        (b'{"id": 2147483648}', "Expected `int` <= 2147483647"),
        (b'{"id": 1} {"id": 2}', "malformed"),
        (b'{"amount": 1.234}', "column amount: "),
        (b'{"amount": 1e40}', "column amount: "),
        (b'{"amount": NaN}', "malformed"),
        (b'{"amount": "Infinity"}', "column amount: "),
        (b'{"amount": 1e999999999}', ""),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"x": ' + b"[" * 100_000, ""),
        (None, "the body is missing"),
    ],
)
def test_body_without_the_declared_schema_gives_nulls_and_an_error(body: bytes | None, text: str) -> None:
    """Other bodies of the batch keep their values."""
    schema = json_schema("orders", id="int", amount="decimal(10,2)")
    good, bad, other = decoded(schema, b'{"id": 1, "amount": 2}', body, b'{"id": 3}')

    assert (good["id"], good["decodeError"], other["id"], other["decodeError"]) == (1, None, 3, None)
    assert (bad["id"], bad["amount"]) == (None, None)
    assert text in bad["decodeError"] and bad["decodeError"]


def test_column_may_have_another_name_than_its_field() -> None:
    """So a field with the name of a column of the archive, or of signs that no column may have, can be a column."""
    columns = [SchemaColumn(name="sold", type="int", field="offset"), SchemaColumn(name="a_b", type="int", field="a-b")]
    schema = TopicSchema(topics=["orders"], columns=columns)

    assert decoded(schema, b'{"offset": 1, "a-b": 2}') == [{"decodeError": None, "sold": 1, "a_b": 2}]


# -- declarations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TopicSchema(topics=["a"]), r"schemas\[0\]: JSON has no schema of its own"),
        (json_schema("a", Offset="int"), "column 'Offset' has the name of a column of the archive: .* set field to"),
        (json_schema("a", hour="int"), "column 'hour' has the name of a column of the archive"),
        (json_schema("a", x="int", X="int"), "two columns have the name 'X'"),
        (json_schema("a", x="text"), "column 'x': unknown type 'text'"),
        (json_schema("a", x=""), "column 'x' has no type"),
        (TopicSchema(topics=["a"], message="m", columns=[INT_COLUMN]), "json has no message"),
        (
            TopicSchema(topics=["a"], skip_bytes=5, columns=[SchemaColumn(name="x", type="int")]),
            "json has no skipBytes",
        ),
        (TopicSchema(topics=["a"], format=BodyFormat.RAW, schema="{}"), "raw have no typed columns"),
    ],
)
def test_schema_that_cannot_be_used_is_refused(schema: TopicSchema, text: str) -> None:
    with pytest.raises(InvalidSchema, match=text):
        TopicSchemas([schema]).check()


def test_first_schema_that_matches_a_whole_topic_counts() -> None:
    """A topic of the format raw has no typed columns, even if a later schema matches."""
    schemas = TopicSchemas([
        TopicSchema(topics=["raw-.*"], format=BodyFormat.RAW), json_schema("orders", "o.*", x="int"),
        json_schema(".*", y="int"),
    ])  # fmt: skip
    copied = pickle.loads(pickle.dumps(schemas))

    for one in (schemas, copied):
        assert one.columns_of("orders") == (ERROR, DeclaredColumn("x", "int"))
        assert one.columns_of("reorders") == (ERROR, DeclaredColumn("y", "int"))
        assert one.columns_of("raw-orders") == ()
    assert TopicSchemas().is_empty and TopicSchemas().columns_of("orders") == ()


# -- evolution ---------------------------------------------------------------------------------------------------------


X, Y = DeclaredColumn("x", "int"), DeclaredColumn("y", "string")


def test_new_columns_follow_the_recorded_ones() -> None:
    assert add_columns("t", (ERROR, X), (ERROR, Y, X)) == (ERROR, X, Y)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ((ERROR, Y), "topic 't': the archive has the column 'x' int, which cannot be removed"),
        ((), "topic 't': the archive has the column 'x' int, which cannot be removed"),
        ((ERROR, DeclaredColumn("x", "bigint")), "the column 'x' is int in the archive and cannot become bigint"),
        ((ERROR, DeclaredColumn("X", "int")), "the column 'x' of the archive cannot be renamed to 'X'"),
    ],
)
def test_recorded_column_is_neither_removed_nor_changed(declared: tuple[DeclaredColumn, ...], text: str) -> None:
    with pytest.raises(SchemaConflict, match=text):
        add_columns("t", (ERROR, X), declared)


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_have_typed_columns_beside_the_raw_body(tmp_path: Path) -> None:
    """Bodies that are not JSON are counted, and no row or byte of a body is lost."""
    log = JsonLog({ORDERS: 150, BILLS: 20})
    schemas = json_schemas("orders", order="bigint", amount="decimal(10,2)")
    files = archive_more(tmp_path, log, schemas)

    of_orders = [file for file in files if file.range.queue == ORDERS]
    rows = [row for file in of_orders for row in pq.ParquetFile(tmp_path / file.place.path).read().to_pylist()]
    assert [row["body"] for row in rows] == [log.row(ORDERS, offset)["body"] for offset in range(150)]
    for row in rows:
        is_json = row["offset"] % 7 != 0
        assert (row["decodeError"] is None) is is_json
        assert row["order"] == (order_of(row["offset"])["order"] if is_json else None)
        assert row["amount"] == (decimal.Decimal(f"{row['offset']}.25") if is_json else None)
    [bills] = [file for file in files if file.range.queue == BILLS]
    assert "decodeError" not in pq.read_schema(tmp_path / bills.place.path).names
    assert [file.undecoded for file in of_orders] == [15, 7] and bills.undecoded == 0
    assert read_recorded_schemas(Folder(str(tmp_path))) == {"orders": schemas.columns_of("orders")}
    assert verify(Folder(str(tmp_path)), is_deep=True).findings == ()


def test_compaction_keeps_typed_columns_of_files_with_different_schemas(tmp_path: Path) -> None:
    """Rows of files before a column was added are null; the count of undecoded bodies stays."""
    narrow = json_schemas("orders", order="bigint")
    wide = json_schemas("orders", note="string", order="bigint", lines="array<struct<sku:string,count:int>>")
    for batch, (end, schemas) in enumerate([(50, None), (100, narrow), (200, wide)]):
        archive_more(tmp_path, JsonLog({ORDERS: end}, step_us=1000), schemas, batch)

    with ArchiveWriter.open(Folder(str(tmp_path))) as writer:
        [day] = compact(writer, CompactionRules(1 << 30, 0), Packing(), days_later_ms("2026-11-22", 3))
        [file] = writer.manifest.data()

    rows = pq.ParquetFile(tmp_path / file.place.path).read().to_pylist()
    assert (day.files_before, day.files_after) == (3, 1)
    assert list(rows[0])[-4:] == ["decodeError", "order", "note", "lines"]
    for row in rows:
        offset, order = row["offset"], order_of(row["offset"])
        is_json = offset % 7 != 0
        assert row["order"] == (order["order"] if is_json and offset >= 50 else None)
        assert row["note"] == (order["note"] if is_json and offset >= 100 else None)
        assert row["lines"] == (order["lines"] if is_json and offset >= 100 else None)
        assert (row["decodeError"] is None) is (is_json or offset < 50)
    assert file.undecoded == sum(offset % 7 == 0 for offset in range(50, 200))
    assert verify(Folder(str(tmp_path)), is_deep=True).findings == ()


def test_start_with_a_removed_or_changed_column_is_refused(tmp_path: Path) -> None:
    """Nothing is archived then, and the recorded columns stay."""
    archive_more(tmp_path, JsonLog({ORDERS: 50}), json_schemas("orders", order="bigint", note="string"))
    before = (tmp_path / SCHEMAS).read_bytes()

    for schemas, text in (
        (json_schemas("orders", order="bigint"), "topic 'orders': .*'note' string, which cannot be removed"),
        (json_schemas("orders", order="int", note="string"), "'order' is bigint in the archive and cannot become int"),
        (TopicSchemas(), "topic 'orders': .*'order' bigint, which cannot be removed"),
    ):
        with pytest.raises(SchemaConflict, match=text):
            archive_more(tmp_path, JsonLog({ORDERS: 100}), schemas, 1)
    assert (tmp_path / SCHEMAS).read_bytes() == before
    assert len(archive_more(tmp_path, JsonLog({ORDERS: 50}, step_us=HOUR_US), TopicSchemas([
        json_schema("orders", order="bigint", note="string", amount="decimal(10,2)"),
    ]), 1)) == 0  # fmt: skip
    [*_, last] = read_recorded_schemas(Folder(str(tmp_path)))["orders"]
    assert last == DeclaredColumn("amount", "decimal(10,2)")


def test_verification_finds_columns_that_are_not_recorded(tmp_path: Path) -> None:
    """Without the record of a column the next compaction is refused, and a run with the schema records it again."""
    schemas = json_schemas("orders", order="bigint")
    for batch, end in enumerate((20, 40)):
        archive_more(tmp_path, JsonLog({ORDERS: end}), schemas, batch)
    (tmp_path / SCHEMAS).unlink()

    texts = {finding.text for finding in verify(Folder(str(tmp_path))).findings}
    with ArchiveWriter.open(Folder(str(tmp_path))) as writer, pytest.raises(ManifestBroken, match="'decodeError'"):
        list(compact(writer, CompactionRules(1 << 30, 0), Packing(), days_later_ms("2026-11-22", 3)))
    archive_more(tmp_path, JsonLog({ORDERS: 40}), schemas, 2)

    assert texts == {
        "has the column 'decodeError' of the type string, which the archive does not have",
        "has the column 'order' of the type int64, which the archive does not have",
    }
    assert verify(Folder(str(tmp_path))).findings == ()
