"""The columns of a topic's Iceberg table: those of the archive's files, and the day, by which it is partitioned."""

from collections.abc import Mapping
from typing import Final

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from gantry_pipelines.archive.tables.model import DAY_COLUMN, REBUILD, OtherTable
from pyspark_rocketmq.schema import TYPES

_ICEBERG_OF: Final[Mapping[str, IcebergType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestamptzType(),
    "binary": BinaryType(),
}
"""Iceberg's types by Spark's names, except of maps."""


def schema_of(columns: tuple[str, ...]) -> Schema:
    """Return the archive's columns and the day as an Iceberg schema; ids of nested fields follow the others."""
    names = (*columns, DAY_COLUMN)
    return Schema(*(NestedField(at, name, _type_of(name, len(names) + 1)) for at, name in enumerate(names, 1)))


def _type_of(column: str, key_id: int) -> IcebergType:
    """Return the type of a column; `key_id` is the first id of its nested fields."""
    if column == DAY_COLUMN:
        return DateType()
    if TYPES[column] == "map<string,string>":
        return MapType(key_id, StringType(), key_id + 1, StringType(), value_required=False)
    return _ICEBERG_OF[TYPES[column]]


def partitions_of(schema: Schema) -> PartitionSpec:
    """Return the partitions of a new table: one for each day."""
    day = schema.find_field(DAY_COLUMN).field_id
    return PartitionSpec(PartitionField(day, PARTITION_FIELD_ID_START, IdentityTransform(), DAY_COLUMN))


def adapt_columns(table: Table, topic: str, columns: tuple[str, ...]) -> None:
    """Add the columns that a table lacks. Raises OtherTable for other differences."""
    present = {column.name: column.field_type for column in table.schema().fields}
    wanted = (*columns, DAY_COLUMN)
    for name, found in present.items():
        if name not in wanted:
            raise OtherTable(
                f"the Iceberg table of topic {topic!r} has the column {name!r}, and the archive has none:"
                f" drop the table, and publish it again: {REBUILD}"
            )
        if not _is_same_type(found, _type_of(name, 1)):
            raise OtherTable(
                f"the Iceberg table of topic {topic!r} has {found} in the column {name!r}, expected"
                f" {_type_of(name, 1)}: drop the table, and publish it again: {REBUILD}"
            )
    spec = [(one.name, str(one.transform)) for one in table.spec().fields]
    if spec != [(DAY_COLUMN, str(IdentityTransform()))]:
        raise OtherTable(
            f"the Iceberg table of topic {topic!r} is partitioned by {spec}, expected the column {DAY_COLUMN!r}:"
            f" drop the table, and publish it again: {REBUILD}"
        )
    missing = [name for name in columns if name not in present]
    if missing:
        with table.update_schema() as update:
            for name in missing:
                update.add_column(name, _type_of(name, 1))


def _is_same_type(one: IcebergType, other: IcebergType) -> bool:
    """Compare types without the ids of nested fields."""
    if isinstance(one, MapType) and isinstance(other, MapType):
        return (one.key_type, one.value_type) == (other.key_type, other.value_type)
    return one == other


def ensure_name_mapping(table: Table) -> None:
    """Map the names of columns in the files to the ids that the catalog has chosen; pyiceberg adds new columns."""
    if table.name_mapping() is None:
        mapping = table.schema().name_mapping.model_dump_json()
        with table.transaction() as change:
            change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
