"""What `spark.read.format("rocketmq")` may be told: every option, read once, refused with its name when it is wrong.

All options of both directions have to be known here, since a misspelled one is refused with the nearest name. Those of
the sink are read by the sink.
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
from pyspark_rocketmq.option_words import OptionWords, moment_ms
from pyspark_rocketmq.planning import BYTES_TARGET
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.selection import Place, PlaceKind, Subscription, WithoutMatch
from pyspark_rocketmq.settings import ReadSettings, TlsFiles

MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
"""As Spark's Kafka source: whatever has come is read after a quarter of an hour, however little it is."""

CONNECTION_OPTIONS: Final = (
    "nameServers", "accessKey", "secretKey", "credentialsFile", "signature", "tls", "tlsCa", "tlsCertificate", "tlsKey",
    "tlsVerify", "tlsCheckHost", "requestTimeout", "patience",
)  # fmt: skip
"""How to reach name servers and brokers; the sink has them, too."""

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
"""What only reading has."""

BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")
STREAM_ONLY: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "commitGroup")


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch of a stream takes; None: no limit."""

    rows_max: int | None = None
    """Messages, exactly."""
    bytes_max: int | None = None
    """Bytes of records, about; no message is cut."""
    rows_min: int = 0
    """A batch with fewer messages waits for more."""
    delay_max_ms: int = MAX_TRIGGER_DELAY_MS
    """After so long a batch begins, however few messages there are."""


class _Edge(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


@final
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a query reads, from where to where, and how."""

    settings: ReadSettings
    subscription: Subscription
    start: Place
    end: Place
    limits: Limits
    columns: tuple[str, ...]
    tags: frozenset[str] | None
    is_pushdown_wanted: bool
    is_loss_fatal: bool
    gaps_path: str
    commit_group: str
    bytes_target: int | None
    """None: what is good for the columns."""
    partitions_min: int
    discovery_interval_ms: int


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """All of them, of one query. Raises InvalidOption, which names the option."""
    words = OptionWords(options)
    words.refuse_unknown((*CONNECTION_OPTIONS, *READ_OPTIONS))
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in words:
            raise InvalidOption(f"option {name} belongs to spark.{'read' if is_stream else 'readStream'}")
    words.refuse_together("subscribe", "subscribePattern", "assign")
    tags = words.words("tags")
    return ReadOptions(
        settings=read_settings(words),
        subscription=Subscription(
            topics=tuple(sorted(set(words.words("subscribe")))),
            pattern=words.text("subscribePattern"),
            queues=words.queue_lists("assign") if "assign" in words else (),
        ),
        start=_start(words, _Edge.LATEST if is_stream else _Edge.EARLIEST),
        end=_end(words),
        limits=Limits(
            rows_max=words.number("maxRowsPerTrigger", 0, minimum=1) if "maxRowsPerTrigger" in words else None,
            bytes_max=words.size("maxBytesPerTrigger", 0) if "maxBytesPerTrigger" in words else None,
            rows_min=words.number("minRowsPerTrigger", 0),
            delay_max_ms=words.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        ),
        columns=read_columns(words.words("columns")),
        tags=frozenset(tags) if tags else None,
        is_pushdown_wanted=words.switch("pushdown", False),
        is_loss_fatal=words.switch("failOnDataLoss", True),
        gaps_path=words.text("gapsPath"),
        commit_group=words.text("commitGroup"),
        bytes_target=words.size("targetPartitionBytes", BYTES_TARGET) if words.text("targetPartitionBytes") else None,
        partitions_min=words.number("minPartitions", 1, minimum=1),
        discovery_interval_ms=words.duration_ms("discoveryInterval", 5000),
    )


def read_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Columns by name, in this order; all of them when none is named."""
    by_small_letters = {name.lower(): name for name in COLUMNS}
    columns = tuple(by_small_letters.get(name.lower(), name) for name in names) or COLUMNS
    for name in columns:
        if name not in COLUMNS:
            raise InvalidOption(f"there is no column {name}; a message has {', '.join(COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidOption(f"option columns names a column twice: {', '.join(columns)}")
    return columns


def connection_settings(words: OptionWords) -> ReadSettings:
    """How to reach name servers and brokers."""
    words.refuse_together("accessKey", "credentialsFile")
    access_key, secret_key = words.text("accessKey") or None, words.text("secretKey") or None
    if "credentialsFile" in words:
        try:
            credentials = read_credentials(Path(words.text("credentialsFile")))
        except (OSError, ValueError) as error:
            raise InvalidOption(f"option credentialsFile: {error}") from error
        access_key, secret_key = credentials.access_key, credentials.secret_key
    is_tls = words.switch("tls", any(name in words for name in ("tlsCa", "tlsCertificate", "tlsKey")))
    defaults = ReadSettings(name_servers="-")
    return ReadSettings(
        name_servers=words.text("nameServers").replace(",", ";"),
        access_key=access_key,
        secret_key=secret_key,
        signature=words.choice("signature", SignatureKind.V1),
        tls=_tls(words, "tls") if is_tls else None,
        request_timeout_ms=words.duration_ms("requestTimeout", defaults.request_timeout_ms, minimum=1),
        patience_ms=words.duration_ms("patience", defaults.patience_ms),
        directories=_directories(words),
    )


def read_settings(words: OptionWords) -> ReadSettings:
    """How to reach everybody who is read from."""
    words.refuse_together("token", "tokenFile")
    token = words.text("token") or None
    if "tokenFile" in words:
        try:
            token = read_token(Path(words.text("tokenFile")))
        except (OSError, ValueError) as error:
            raise InvalidOption(f"option tokenFile: {error}") from error
    base = connection_settings(words)
    return replace(
        base,
        transport=words.choice("transport", TransportKind.AUTO),
        read_from=words.choice("readFrom", ReadFrom.SLAVE_FIRST),
        sidecars=words.words("sidecars"),
        group=words.text("group") or base.group,
        token=token,
        sidecar_tls=_tls(words, "sidecar"),
        replica_lag_bytes_max=words.size("maxReplicaLag", base.replica_lag_bytes_max, minimum=0),
        read_ahead=words.number("readAhead", base.read_ahead, minimum=1),
        range_bytes=words.size("rangeBytes", base.range_bytes),
        batch_rows=words.number("batchRows", base.batch_rows, minimum=1),
        is_body_verified=words.switch("verifyBodies", False),
    )


def read_token(path: Path) -> str:
    """Return the first token of a file, as sidecars read it.

    Raises OSError, and ValueError for a file that sidecars refuse; no text of an error has anything of the file.
    """
    try:
        return first_token(path.read_bytes().decode("utf-8", "replace"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _tls(words: OptionWords, prefix: str) -> TlsFiles:
    return TlsFiles(
        ca=words.text(f"{prefix}Ca") or None,
        certificate=words.text(f"{prefix}Certificate") or None,
        key=words.text(f"{prefix}Key") or None,
        is_verified=words.switch(f"{prefix}Verify", True),
        is_host_checked=words.switch(f"{prefix}CheckHost", True),
    )


def _directories(words: OptionWords) -> dict[str, str]:
    if "directories" not in words:
        return {}
    said = words.document("directories")
    if not isinstance(said, dict) or not all(isinstance(one, str) for one in said.values()):
        raise InvalidOption('option directories has to be JSON like {"broker-a": "/data/broker-a", "broker-b:1": ...}')
    return dict(said)


def _start(words: OptionWords, default: _Edge) -> Place:
    words.refuse_together("startingTimestamp", "startingOffsetsByTimestamp", "startingGroup")
    without_match = words.choice("startingOffsetsByTimestampStrategy", WithoutMatch.ERROR)
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        words.refuse_together(name, "startingOffsets")
        if name in words:
            return replace(_by_time(words, name), without_match=without_match)
    if "startingGroup" in words:
        edge = words.choice("startingOffsets", _Edge.EARLIEST)
        return Place(
            PlaceKind.GROUP, "startingGroup", group=words.text("startingGroup"), otherwise=PlaceKind(edge.value)
        )
    return _by_offsets(words, "startingOffsets", default)


def _end(words: OptionWords) -> Place:
    words.refuse_together("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        if name in words:
            return replace(_by_time(words, name), without_match=WithoutMatch.LATEST)
    return _by_offsets(words, "endingOffsets", _Edge.LATEST)


def _by_time(words: OptionWords, name: str) -> Place:
    if name.endswith("Timestamp") and not name.endswith("ByTimestamp"):
        return Place(PlaceKind.TIMES, name, time_ms=words.time_ms(name))
    times = {queue: moment_ms(name, value) for queue, value in words.by_queue(name).items()}
    return Place(PlaceKind.TIMES, name, times_ms=times)


def _by_offsets(words: OptionWords, name: str, default: _Edge) -> Place:
    if not words.text(name).startswith("{"):
        return Place(PlaceKind(words.choice(name, default).value), name)
    offsets: dict[QueueId, int] = {}
    for queue, value in words.by_queue(name).items():
        if type(value) is not int or value < -2:
            raise InvalidOption(
                f"option {name}: {queue} has {value!r}; an offset, -2 (earliest) or -1 (latest) is wanted"
            )
        offsets[queue] = value
    return Place(PlaceKind.OFFSETS, name, offsets=offsets)
