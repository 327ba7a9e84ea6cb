"""The parameters of an archive's jobs, parsed from a `TopicArchive` and validated before anything is started."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, final

from msgspec.structs import replace

from gantry_pipelines.archive.compaction import CompactionRules
from gantry_pipelines.archive.errors import ArchiveError
from gantry_pipelines.archive.file_writing import ZSTD_LEVEL, Packing
from gantry_pipelines.archive.format import ArchiveFormat, columns_of
from gantry_pipelines.archive.layout import CHECKPOINT
from gantry_pipelines.archive.schemas.bodies import InvalidSchema
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.engine import spark_conf
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.source_options import connection_options, limit_options, start_options, topics_pattern
from gantry_spec.pipelines.kinds import ArchiveSpec
from gantry_spec.pipelines.parts import (
    BodyFormat,
    CatalogKind,
    Column,
    Compression,
    OnDataLoss,
    TableFormat,
    Tables,
    TopicSchema,
)

SNAPSHOT_AGE_MS: Final = 24 * 3_600_000
"""The default of the time for which old snapshots, and the files that only they have, stay readable."""

TABLE_PACKAGES: Final = {TableFormat.ICEBERG: "pyiceberg", TableFormat.DELTA: "deltalake"}
"""The package of each format of tables, which the extra `tables` installs."""


@final
@dataclass(frozen=True, slots=True)
class CatalogParameters:
    """Where the Iceberg tables of an archive are registered."""

    kind: CatalogKind = CatalogKind.FOLDER
    namespace: str = "gantry"
    properties: Mapping[str, str] = field(default_factory=dict)
    """The properties of the catalog, as PyIceberg names them."""


@final
@dataclass(frozen=True, slots=True)
class TableParameters:
    """The tables to which an archive is published."""

    formats: tuple[TableFormat, ...] = ()
    """None: the archive has no tables."""
    catalog: CatalogParameters = field(default_factory=CatalogParameters)
    snapshot_age_ms: int = SNAPSHOT_AGE_MS


@final
@dataclass(frozen=True)
class ArchiveParameters:
    """The parameters of the jobs that write or compact an archive; the others take its destination."""

    destination: str
    """A path, or the address of an object store."""
    format: ArchiveFormat = field(default_factory=ArchiveFormat)
    packing: Packing = field(default_factory=Packing)
    rules: CompactionRules = field(default_factory=CompactionRules)
    retention_days: int = 0
    """Days after which a day's files are deleted; 0: never."""
    tables: TableParameters = field(default_factory=TableParameters)
    schemas: TopicSchemas = field(default_factory=TopicSchemas)
    """The declared schemas of topics, with the content of their files."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of the archive's data source."""
    checkpoint: str = ""
    """The folder of Spark's checkpoint."""
    is_continuous: bool = False
    """Whether the run continues until it is stopped."""
    trigger_ms: int = 60_000
    """The interval at which batches of a continuous run start."""
    cores: int | None = None
    """The number of concurrent tasks; None for that of the machine."""
    spark_conf: dict[str, str] = field(default_factory=dict)


def parse_archive_parameters(config: PipelineConfig[ArchiveSpec]) -> ArchiveParameters:
    """Parse the parameters for jobs that read or compact an archive. Raises ConfigError."""
    if not config.runtime.destination:
        raise ConfigError(["runtime.destination: missing; set it to the archive's folder or address"])
    layout = config.spec.layout
    try:
        archive_format = ArchiveFormat(
            layout.rows_per_file,
            layout.time_zone,
            columns_of(tuple(column.value for column in config.spec.columns)),
            partition_by=layout.partition_by,
        )
    except ArchiveError as error:
        raise ConfigError([f"layout: {error}"]) from error
    return ArchiveParameters(
        destination=config.runtime.destination,
        format=archive_format,
        packing=packing_of(layout.compression),
        rules=CompactionRules(int(layout.target_file_size), int(layout.compact_after)),
        retention_days=config.spec.retention.days,
        tables=table_parameters_of(config.spec.tables),
    )


def parse_run_parameters(config: PipelineConfig[ArchiveSpec]) -> ArchiveParameters:
    """Parse the parameters for the job that writes an archive. Raises ConfigError."""
    base = parse_archive_parameters(config)
    options = {
        **connection_options(config),
        **start_options(config.spec.start),
        **limit_options(config.spec.limits),
        "subscribePattern": topics_pattern(config.spec.topics),
        "failOnDataLoss": str(config.spec.on_data_loss is OnDataLoss.FAIL).lower(),
        "archive.destination": base.destination,
        "archive.compression": base.packing.compression,
    }
    schemas = declared_schemas(config.spec)
    if not schemas.is_empty:
        options["archive.schemas"] = schemas.text()
    if base.packing.level is not None:
        options["archive.level"] = str(base.packing.level)
    if config.spec.commit_group:
        options["commitGroup"] = config.spec.commit_group
    if config.spec.engine.cores:
        options["archive.cores"] = str(config.spec.engine.cores)
    return ArchiveParameters(
        base.destination,
        base.format,
        base.packing,
        base.rules,
        base.retention_days,
        base.tables,
        schemas,
        options=options,
        checkpoint=config.runtime.checkpoint or default_checkpoint(base.destination),
        is_continuous=config.is_continuous,
        trigger_ms=int(config.spec.trigger),
        cores=config.spec.engine.cores or None,
        spark_conf=spark_conf(config),
    )


def table_parameters_of(tables: Tables) -> TableParameters:
    """Return the parameters of the tables to which an archive is published. Raises ConfigError."""
    missing = [name for one in tables.formats if find_spec(name := TABLE_PACKAGES[one]) is None]
    if missing:
        raise ConfigError([
            f"tables.formats: needs the package {missing[0]}, which is not installed: pip install 'gantry-mq[tables]'"
        ])  # fmt: skip
    catalog = CatalogParameters(tables.catalog.kind, tables.catalog.namespace, tables.catalog.properties)
    return TableParameters(tuple(dict.fromkeys(tables.formats)), catalog, int(tables.snapshot_age))


def declared_schemas(spec: ArchiveSpec) -> TopicSchemas:
    """Return the declared schemas of topics, with the content of their files. Raises ConfigError."""
    schemas = TopicSchemas([_with_file(schema, number) for number, schema in enumerate(spec.schemas)])
    try:
        schemas.check()
    except InvalidSchema as error:
        raise ConfigError([str(error)]) from error
    if not schemas.is_empty and Column.BODY not in spec.columns:
        raise ConfigError(["schemas: typed columns are decoded from the body: add body to columns"])
    return schemas


def _with_file(schema: TopicSchema, number: int) -> TopicSchema:
    """Return a schema with the content of its file as text: Avro's as it is, a descriptor set in Base64."""
    for pattern in schema.topics:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                [f"schemas[{number}].topics: {pattern!r} is not a regular expression: {error}"]
            ) from error
    if not schema.schema_file:
        return schema
    if schema.schema:
        raise ConfigError([f"schemas[{number}]: has schema and schemaFile: set one of them"])
    try:
        content = Path(schema.schema_file).read_bytes()
        is_text = schema.format is BodyFormat.AVRO
        text = content.decode() if is_text else base64.b64encode(content).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"schemas[{number}].schemaFile: cannot read {schema.schema_file}: {error}"]) from error
    return replace(schema, schema=text, schema_file="")


def packing_of(compression: Compression) -> Packing:
    """Return how files are compressed; only zstd has a level."""
    if compression is Compression.ZSTD:
        return Packing("zstd", ZSTD_LEVEL)
    return Packing(compression.value, None)


def default_checkpoint(destination: str) -> str:
    """Return the checkpoint folder in the archive's folder.

    Raises ConfigError for an object store: this Spark has no connector to one.
    """
    if "://" in destination and not destination.startswith("file://"):
        needed = "with an object store as destination set it to a folder for Spark's checkpoint"
        raise ConfigError([f"runtime.checkpoint: missing; {needed}"])
    return str(Path(destination.removeprefix("file://"), CHECKPOINT))
