"""The columns of a topic's Iceberg table: those of the archive's files, the partitions, and the declared columns.

The catalog assigns the ids of columns, and never reuses one. Declared columns are added one after the other, also to a
new table, so that a table that is made again has the ids of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from gantry_pipelines.archive.schemas.column_types import type_text
from gantry_pipelines.archive.tables.model import REBUILD, OtherTable, TableShape

_ICEBERG_OF: Final[Mapping[str, IcebergType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
}
"""Iceberg's types by Spark's names, except of those with parameters."""


def schema_of(fields: Sequence[pa.Field[Any]]) -> Schema:
    """Return columns as an Iceberg schema; ids of nested fields follow those of the columns."""
    nested = count(len(fields) + 1)
    return Schema(*(NestedField(at, field.name, _type_of(field.type, nested)) for at, field in enumerate(fields, 1)))


def _type_of(data_type: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return Iceberg's type; `ids` are those of its nested fields."""
    found: Any = data_type
    if pa.types.is_decimal128(found):
        return DecimalType(found.precision, found.scale)
    if pa.types.is_list(found):
        return ListType(next(ids), _type_of(found.value_type, ids), element_required=False)
    if pa.types.is_map(found):
        key, value = next(ids), next(ids)
        return MapType(
            key, _type_of(found.key_type, ids), value, _type_of(found.item_type, ids), value_required=False
        )  # fmt: skip
    if pa.types.is_struct(found):
        numbers = [next(ids) for _ in range(found.num_fields)]
        return StructType(
            *(
                NestedField(number, one.name, _type_of(one.type, ids))
                for number, one in zip(numbers, found, strict=True)
            )
        )
    return _ICEBERG_OF[type_text(found)]


def partitions_of(schema: Schema, names: Sequence[str]) -> PartitionSpec:
    """Return the partitions of a new table: one for each value of these columns."""
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(name).field_id, number, IdentityTransform(), name)
            for number, name in enumerate(names, PARTITION_FIELD_ID_START)
        )
    )


def adapt_columns(table: Table, topic: str, shape: TableShape) -> None:
    """Add the columns that a table lacks. Raises OtherTable for other differences."""
    present = {column.name: column.field_type for column in table.schema().fields}
    wanted = {field.name: _type_of(field.type, count(1)) for field in shape.fields}
    for name, found in present.items():
        if name not in wanted:
            raise OtherTable(
                f"the Iceberg table of topic {topic!r} has the column {name!r}, and the archive has none:"
                f" drop the table, and publish it again: {REBUILD}"
            )
        if not _is_same_type(found, wanted[name]):
            raise OtherTable(
                f"the Iceberg table of topic {topic!r} has {found} in the column {name!r}, expected"
                f" {wanted[name]}: drop the table, and publish it again: {REBUILD}"
            )
    spec = [(one.name, str(one.transform)) for one in table.spec().fields]
    if spec != [(name, str(IdentityTransform())) for name in shape.partitions]:
        expected = "the column " + " and ".join(repr(name) for name in shape.partitions)
        raise OtherTable(
            f"the Iceberg table of topic {topic!r} is partitioned by {spec}, expected {expected}:"
            f" drop the table, and publish it again: {REBUILD}"
        )
    missing = [name for name in wanted if name not in present]
    if missing:
        with table.update_schema() as update:
            for name in missing:
                update.add_column(name, wanted[name])


def _is_same_type(one: IcebergType, other: IcebergType) -> bool:
    """Compare types without the ids of nested fields."""
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _is_same_type(one.key_type, other.key_type) and _is_same_type(one.value_type, other.value_type)
    if isinstance(one, ListType) and isinstance(other, ListType):
        return _is_same_type(one.element_type, other.element_type)
    if isinstance(one, StructType) and isinstance(other, StructType):
        pairs = list(zip(one.fields, other.fields, strict=False))
        is_complete = len(one.fields) == len(other.fields)
        return is_complete and all(a.name == b.name and _is_same_type(a.field_type, b.field_type) for a, b in pairs)
    return one == other


def ensure_name_mapping(table: Table) -> None:
    """Map the names of columns in the files to the ids that the catalog has chosen; pyiceberg adds new columns."""
    if table.name_mapping() is None:
        mapping = table.schema().name_mapping.model_dump_json()
        with table.transaction() as change:
            change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
