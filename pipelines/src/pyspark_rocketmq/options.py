"""The options of `spark.read.format("rocketmq")`: each is parsed once, and an invalid one is refused by its name.

This module lists the options for connections, which the sink has, too, and those for reading; `sink.options` lists the
others of the sink. A misspelled option is refused, and the error names the nearest one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, final

from gantry_access.tokens import first_token
from gantry_client import SignatureKind, read_credentials
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import QueueId, ReadFrom, TransportKind
from pyspark_rocketmq.option_parser import OptionParser, moment_ms
from pyspark_rocketmq.planning import BYTES_TARGET
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.selection import PositionKind, QueuePosition, Subscription, UnmatchedTime
from pyspark_rocketmq.settings import ReadSettings, TlsFiles

MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
"""As in Spark's Kafka source: after a quarter of an hour a batch begins, however few messages there are."""

CONNECTION_OPTIONS: Final = (
    "nameServers", "accessKey", "secretKey", "credentialsFile", "signature", "tls", "tlsCa", "tlsCertificate", "tlsKey",
    "tlsVerify", "tlsCheckHost", "requestTimeout", "patience",
)  # fmt: skip
"""How to reach name servers and brokers; the sink has these options, too."""

READ_OPTIONS: Final = (
    "subscribe", "subscribePattern", "assign",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "startingGroup", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay",
    "targetPartitionBytes", "minPartitions", "columns", "tags", "pushdown",
    "failOnDataLoss", "gapsPath", "commitGroup", "discoveryInterval",
    "transport", "readFrom", "sidecars", "directories", "group", "token", "tokenFile", "sidecarCa",
    "sidecarCertificate", "sidecarKey", "sidecarVerify", "sidecarCheckHost", "maxReplicaLag", "readAhead",
    "rangeBytes", "batchRows", "verifyBodies",
)  # fmt: skip
"""Options for reading only."""

BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")
"""The options that only a batch read has."""

STREAM_ONLY: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "commitGroup")
"""The options that only a stream has."""


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """How many messages one batch of a stream may take; None for no limit."""

    rows_max: int | None = None
    """Maximum number of messages, exactly."""
    bytes_max: int | None = None
    """Maximum bytes of records, approximately; no message is cut."""
    rows_min: int = 0
    """A batch with fewer messages waits for more."""
    delay_max_ms: int = MAX_TRIGGER_DELAY_MS
    """Milliseconds after which a batch begins, however few messages there are."""


class _Edge(StrEnum):
    """The first or the last position in a queue, as an option names it."""

    EARLIEST = "earliest"
    LATEST = "latest"


@final
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read: the selected messages, the limits of batches, and the settings."""

    settings: ReadSettings
    subscription: Subscription
    start: QueuePosition
    """Where the read begins in each queue; for a stream, in its first batch."""
    end: QueuePosition
    """Where a batch read ends in each queue."""
    limits: Limits
    """The limits of one batch of a stream."""
    columns: tuple[str, ...]
    """The columns of a row, in their order."""
    tags: frozenset[str] | None
    """Only messages with one of these tags; None for all."""
    is_pushdown_wanted: bool
    """Whether the query's filters may narrow the read."""
    is_loss_fatal: bool
    """Whether the query fails if messages are gone (`failOnDataLoss`); else they are skipped."""
    gaps_path: str
    """The folder for the files with skipped messages; empty for none."""
    commit_group: str
    """The consumer group to which progress is committed; empty for none."""
    bytes_target: int | None
    """Bytes of a task; None for a default that depends on the columns and on whether tags are filtered."""
    partitions_min: int
    """The fewest tasks into which a read is split."""
    discovery_interval_ms: int
    """The time after which a stream looks for new queues."""


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse all options of one query. Raises InvalidOption, which names the option."""
    parser = OptionParser(options)
    parser.refuse_unknown((*CONNECTION_OPTIONS, *READ_OPTIONS))
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in parser:
            raise InvalidOption(f"option {name} belongs to spark.{'read' if is_stream else 'readStream'}")
    parser.refuse_together("subscribe", "subscribePattern", "assign")
    tags = parser.name_list("tags")
    return ReadOptions(
        settings=read_settings(parser),
        subscription=Subscription(
            topics=tuple(sorted(set(parser.name_list("subscribe")))),
            pattern=parser.text("subscribePattern"),
            queues=parser.queue_lists("assign") if "assign" in parser else (),
        ),
        start=_parse_start(parser, _Edge.LATEST if is_stream else _Edge.EARLIEST),
        end=_parse_end(parser),
        limits=Limits(
            rows_max=parser.number("maxRowsPerTrigger", 0, minimum=1) if "maxRowsPerTrigger" in parser else None,
            bytes_max=parser.size("maxBytesPerTrigger", 0) if "maxBytesPerTrigger" in parser else None,
            rows_min=parser.number("minRowsPerTrigger", 0),
            delay_max_ms=parser.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        ),
        columns=read_columns(parser.name_list("columns")),
        tags=frozenset(tags) if tags else None,
        is_pushdown_wanted=parser.switch("pushdown", False),
        is_loss_fatal=parser.switch("failOnDataLoss", True),
        gaps_path=parser.text("gapsPath"),
        commit_group=parser.text("commitGroup"),
        bytes_target=parser.size("targetPartitionBytes", BYTES_TARGET) if parser.text("targetPartitionBytes") else None,
        partitions_min=parser.number("minPartitions", 1, minimum=1),
        discovery_interval_ms=parser.duration_ms("discoveryInterval", 5000),
    )


def read_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named columns in this order, or all columns if none is named."""
    by_lower_name = {name.lower(): name for name in COLUMNS}
    columns = tuple(by_lower_name.get(name.lower(), name) for name in names) or COLUMNS
    for name in columns:
        if name not in COLUMNS:
            raise InvalidOption(f"unknown column {name}; a message has the columns {', '.join(COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidOption(f"option columns names a column twice: {', '.join(columns)}")
    return columns


def connection_settings(parser: OptionParser) -> ReadSettings:
    """Parse the options that say how to reach name servers and brokers."""
    parser.refuse_together("accessKey", "credentialsFile")
    access_key, secret_key = parser.text("accessKey") or None, parser.text("secretKey") or None
    if "credentialsFile" in parser:
        try:
            credentials = read_credentials(Path(parser.text("credentialsFile")))
        except (OSError, ValueError) as error:
            raise InvalidOption(f"option credentialsFile: {error}") from error
        access_key, secret_key = credentials.access_key, credentials.secret_key
    is_tls = parser.switch("tls", any(name in parser for name in ("tlsCa", "tlsCertificate", "tlsKey")))
    defaults = ReadSettings(name_servers="-")
    return ReadSettings(
        name_servers=parser.text("nameServers").replace(",", ";"),
        access_key=access_key,
        secret_key=secret_key,
        signature=parser.choice("signature", SignatureKind.V1),
        tls=_parse_tls(parser, "tls") if is_tls else None,
        request_timeout_ms=parser.duration_ms("requestTimeout", defaults.request_timeout_ms, minimum=1),
        patience_ms=parser.duration_ms("patience", defaults.patience_ms),
        directories=_parse_directories(parser),
    )


def read_settings(parser: OptionParser) -> ReadSettings:
    """Parse all options that say how to reach name servers, brokers and sidecars."""
    parser.refuse_together("token", "tokenFile")
    token = parser.text("token") or None
    if "tokenFile" in parser:
        try:
            token = read_token(Path(parser.text("tokenFile")))
        except (OSError, ValueError) as error:
            raise InvalidOption(f"option tokenFile: {error}") from error
    base = connection_settings(parser)
    return replace(
        base,
        transport=parser.choice("transport", TransportKind.AUTO),
        read_from=parser.choice("readFrom", ReadFrom.SLAVE_FIRST),
        sidecars=parser.name_list("sidecars"),
        group=parser.text("group") or base.group,
        token=token,
        sidecar_tls=_parse_tls(parser, "sidecar"),
        replica_lag_bytes_max=parser.size("maxReplicaLag", base.replica_lag_bytes_max, minimum=0),
        read_ahead=parser.number("readAhead", base.read_ahead, minimum=1),
        range_bytes=parser.size("rangeBytes", base.range_bytes),
        batch_rows=parser.number("batchRows", base.batch_rows, minimum=1),
        is_body_verified=parser.switch("verifyBodies", False),
    )


def read_token(path: Path) -> str:
    """Return the first token of a file, as sidecars read it.

    Raises OSError, and ValueError for a file that sidecars refuse; the texts of errors never contain text of the file.
    """
    try:
        return first_token(path.read_bytes().decode("utf-8", "replace"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parse_tls(parser: OptionParser, prefix: str) -> TlsFiles:
    return TlsFiles(
        ca=parser.text(f"{prefix}Ca") or None,
        certificate=parser.text(f"{prefix}Certificate") or None,
        key=parser.text(f"{prefix}Key") or None,
        is_verified=parser.switch(f"{prefix}Verify", True),
        is_host_checked=parser.switch(f"{prefix}CheckHost", True),
    )


def _parse_directories(parser: OptionParser) -> dict[str, str]:
    if "directories" not in parser:
        return {}
    declared = parser.document("directories")
    if not isinstance(declared, dict) or not all(isinstance(one, str) for one in declared.values()):
        raise InvalidOption('option directories must be JSON like {"broker-a": "/data/broker-a", "broker-b:1": ...}')
    return dict(declared)


def _parse_start(parser: OptionParser, default: _Edge) -> QueuePosition:
    parser.refuse_together("startingTimestamp", "startingOffsetsByTimestamp", "startingGroup")
    unmatched_time = parser.choice("startingOffsetsByTimestampStrategy", UnmatchedTime.ERROR)
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        parser.refuse_together(name, "startingOffsets")
        if name in parser:
            return replace(_parse_times(parser, name), unmatched_time=unmatched_time)
    if "startingGroup" in parser:
        edge = parser.choice("startingOffsets", _Edge.EARLIEST)
        return QueuePosition(
            PositionKind.GROUP, "startingGroup", group=parser.text("startingGroup"), fallback=PositionKind(edge.value)
        )
    return _parse_offsets(parser, "startingOffsets", default)


def _parse_end(parser: OptionParser) -> QueuePosition:
    parser.refuse_together("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        if name in parser:
            return replace(_parse_times(parser, name), unmatched_time=UnmatchedTime.LATEST)
    return _parse_offsets(parser, "endingOffsets", _Edge.LATEST)


def _parse_times(parser: OptionParser, name: str) -> QueuePosition:
    if name.endswith("Timestamp") and not name.endswith("ByTimestamp"):
        return QueuePosition(PositionKind.TIMES, name, time_ms=parser.time_ms(name))
    times = {queue: moment_ms(name, value) for queue, value in parser.by_queue(name).items()}
    return QueuePosition(PositionKind.TIMES, name, times_ms=times)


def _parse_offsets(parser: OptionParser, name: str, default: _Edge) -> QueuePosition:
    if not parser.text(name).startswith("{"):
        return QueuePosition(PositionKind(parser.choice(name, default).value), name)
    offsets: dict[QueueId, int] = {}
    for queue, value in parser.by_queue(name).items():
        if type(value) is not int or value < -2:
            raise InvalidOption(
                f"option {name}: {queue} has {value!r}; it must be an offset, -2 (earliest) or -1 (latest)"
            )
        offsets[queue] = value
    return QueuePosition(PositionKind.OFFSETS, name, offsets=offsets)
