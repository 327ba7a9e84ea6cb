"""The paths of an archive, and how file names encode ranges.

    data/topic=orders/day=2026-11-22/broker-a-3-00000000000000100000-00000000000000200000.parquet
    data/topic=orders/day=2026-11-22/hour=13/...parquet   in an archive that is partitioned by hour
    _manifest/format.json             the archive's immutable format: grid, time zone, columns
    _manifest/schemas.json            the typed columns of each topic with a declared schema, if there is one
    _manifest/writer.json             the current writer
    _manifest/writer.lock             its lock, in a folder
    _manifest/records/TOPIC/*.json    the records of archived ranges (`manifest`)
    _staged/*.part                    files that are not published; a record may name one, so do not delete them by hand
    _staged/merged-*/                 a partition that is being merged (`compaction`)
    _tables/T/                        the tables of a topic, in a folder (`gantry_pipelines.archive.tables`)
    _aside/                           files after the end of the manifest, which a start has moved out of `data`
    _checkpoint/, _restore/           Spark's checkpoint, and the progress of a restore, unless they are elsewhere

A file name has broker, queue and the half-open range of queue offsets, so that two files can be compared without
opening them, and a range that is written again gets the same name. Offsets have twenty digits, so that the names of a
queue sort by offset. Topic and broker are percent-encoded, which Spark, DuckDB and pyarrow decode in `topic=`: a topic
may contain `%` and `|`.

Readers use the folder `data`, which has only valid files. Spark and pyarrow may also be given the root: they skip names
that begin with `_`. DuckDB does not, and a partition that is being merged is in `_staged` for a moment.
"""

import datetime
import re
import zoneinfo
from dataclasses import dataclass
from typing import Final, NamedTuple, final
from urllib.parse import quote, unquote

from pyspark_rocketmq.model import QueueId, QueueRange

DATA: Final = "data"
"""The folder of the files that readers see. The other folders are described above."""

MANIFEST: Final = "_manifest"
RECORDS: Final = f"{MANIFEST}/records"
FORMAT: Final = f"{MANIFEST}/format.json"
SCHEMAS: Final = f"{MANIFEST}/schemas.json"
WRITER: Final = f"{MANIFEST}/writer.json"
LOCK: Final = f"{MANIFEST}/writer.lock"
STAGED: Final = "_staged"
ASIDE: Final = "_aside"
TABLES: Final = "_tables"
CHECKPOINT: Final = "_checkpoint"
DATA_SUFFIX: Final = ".parquet"
STAGED_SUFFIX: Final = ".part"
"""The suffix of files that are not published."""

DIGITS: Final = 20
"""The number of digits of an offset in a file name."""

_FOLDER: Final = re.compile(
    r"data/topic=(?P<topic>[^/]+)/day=(?P<day>\d{4}-\d{2}-\d{2})(/hour=(?P<hour>[01]\d|2[0-3]))?/(?P<name>[^/]+)"
)
_NAME: Final = re.compile(r"(?P<broker>.+)-(?P<queue>\d+)-(?P<begin>\d{20})-(?P<end>\d{20})\.parquet")


@final
class Partition(NamedTuple):
    """A day, or an hour of a day, in the archive's time zone."""

    day: str
    """The ISO date."""
    hour: str = ""
    """Two digits, `00` to `23`; empty in an archive that is partitioned by day."""

    @property
    def folder(self) -> str:
        """The folder of the partition, relative to that of its topic."""
        return f"day={self.day}/hour={self.hour}" if self.hour else f"day={self.day}"

    def __str__(self) -> str:
        return f"{self.day} {self.hour}h" if self.hour else self.day


@final
@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The location of a range: the folder of its partition, and its file name."""

    range: QueueRange
    """The queue, and the half-open range of its offsets."""

    day: str
    """ISO date of the messages' store times, in the archive's time zone."""

    hour: str = ""
    """The hour of the store times as two digits, in an archive that is partitioned by hour."""

    @property
    def partition(self) -> Partition:
        """The partition of the range."""
        return Partition(self.day, self.hour)

    @property
    def folder(self) -> str:
        """The folder of the range's topic and partition."""
        return folder_of(self.range.queue.topic, self.partition)

    @property
    def name(self) -> str:
        """The file name in that folder."""
        return f"{stem_of(self.range)}{DATA_SUFFIX}"

    @property
    def path(self) -> str:
        """Folder and name, relative to the archive's root."""
        return f"{self.folder}/{self.name}"


def folder_of(topic: str, partition: Partition) -> str:
    """Return the folder of a topic and partition."""
    return f"{DATA}/topic={quote_name(topic)}/{partition.folder}"


def stem_of(queue_range: QueueRange) -> str:
    """Return the part of file and record names that identifies a range."""
    queue = queue_range.queue
    return f"{quote_name(queue.broker)}-{queue.number}-{queue_range.begin:0{DIGITS}d}-{queue_range.end:0{DIGITS}d}"


def quote_name(text: str) -> str:
    """Percent-encode a name for a path, including a leading dot or underscore, since readers skip such files."""
    quoted = quote(text, safe="")
    return f"%{ord(quoted[0]):02X}{quoted[1:]}" if quoted[:1] in (".", "_") else quoted


def place_of(path: str) -> Place | None:
    """Parse a path relative to the root; None if it is not a data file of an archive."""
    folder = _FOLDER.fullmatch(path)
    name = _NAME.fullmatch(folder["name"]) if folder else None
    if folder is None or name is None:
        return None
    queue = QueueId(unquote(folder["topic"]), unquote(name["broker"]), int(name["queue"]))
    return Place(QueueRange(queue, int(name["begin"]), int(name["end"])), folder["day"], folder["hour"] or "")


def is_data(path: str) -> bool:
    """Return whether readers would open this path as a data file."""
    parts = path.split("/")
    return parts[0] == DATA and path.endswith(DATA_SUFFIX) and not any(part.startswith((".", "_")) for part in parts)


def day_of(time_us: int, time_zone: str) -> str:
    """Return the ISO date of a store time in a time zone."""
    seconds, _ = divmod(time_us, 1_000_000)
    return datetime.datetime.fromtimestamp(seconds, zoneinfo.ZoneInfo(time_zone)).date().isoformat()


def partition_end_ms(partition: Partition, time_zone: str) -> int:
    """Return when no message can be stored in a partition any more, in milliseconds since 1970.

    Where clocks are set back an hour of the day occurs twice, and ends after the second time.
    """
    if not partition.hour:
        return day_end_ms(partition.day, time_zone)
    begin = datetime.datetime.combine(datetime.date.fromisoformat(partition.day), datetime.time(int(partition.hour)))
    after = (begin + datetime.timedelta(hours=1)).replace(tzinfo=zoneinfo.ZoneInfo(time_zone))
    return int(max(after.replace(fold=fold).timestamp() for fold in (0, 1)) * 1000)


def day_end_ms(day: str, time_zone: str) -> int:
    """Return the end of a day in a time zone, in milliseconds since 1970."""
    after = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)
    midnight = datetime.datetime.combine(after, datetime.time(), zoneinfo.ZoneInfo(time_zone))
    return int(midnight.timestamp() * 1000)
