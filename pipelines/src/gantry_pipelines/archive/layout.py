"""Where everything of an archive lies, and what its names say.

    data/topic=orders/day=2026-11-22/broker-a-3-00000000000000100000-00000000000000200000.parquet
    _manifest/format.json             what binds every file of this archive: grid, time zone, columns
    _manifest/writer.json, .lock      who writes
    _manifest/records/TOPIC/*.json    what is there (`manifest`)
    _staged/*.part                    files on their way; no reader's listing shows them

A name says broker, queue and the half-open range of queue offsets, so two files can be compared without opening them,
and a range that is written again has the name that it had. The offsets have twenty digits: names sort as the log
does. Topic and broker are quoted as in addresses, which Spark, DuckDB and pyarrow undo in `topic=`: a topic may
contain `%` and `|`.

Whoever reads an archive is given `data`, in which nothing is but what counts. Spark and pyarrow may be given the whole:
they skip what begins with `_`. DuckDB does not, and a day that is being merged lies in `_staged` for a moment.
"""

import datetime
import re
import zoneinfo
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import quote, unquote

from pyspark_rocketmq.model import QueueId, QueueRange

DATA: Final = "data"
MANIFEST: Final = "_manifest"
RECORDS: Final = f"{MANIFEST}/records"
FORMAT: Final = f"{MANIFEST}/format.json"
WRITER: Final = f"{MANIFEST}/writer.json"
LOCK: Final = f"{MANIFEST}/writer.lock"
STAGED: Final = "_staged"
ASIDE: Final = "_aside"
CHECKPOINT: Final = "_checkpoint"
DATA_SUFFIX: Final = ".parquet"
STAGED_SUFFIX: Final = ".part"
DIGITS: Final = 20

_FOLDER: Final = re.compile(r"data/topic=(?P<topic>[^/]+)/day=(?P<day>\d{4}-\d{2}-\d{2})/(?P<name>[^/]+)")
_NAME: Final = re.compile(r"(?P<broker>.+)-(?P<queue>\d+)-(?P<begin>\d{20})-(?P<end>\d{20})\.parquet")


@final
@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a range lies: in the folder of its day, under its own name."""

    range: QueueRange
    day: str
    """ISO date of the store times, in the archive's time zone."""

    @property
    def folder(self) -> str:
        """The folder of its topic and day."""
        return folder_of(self.range.queue.topic, self.day)

    @property
    def name(self) -> str:
        """The name in that folder."""
        return f"{stem_of(self.range)}{DATA_SUFFIX}"

    @property
    def path(self) -> str:
        """Folder and name, from the archive's root."""
        return f"{self.folder}/{self.name}"


def folder_of(topic: str, day: str) -> str:
    """The folder of one topic's day."""
    return f"{DATA}/topic={quoted(topic)}/day={day}"


def stem_of(a_range: QueueRange) -> str:
    """What a range is called in every name."""
    queue = a_range.queue
    return f"{quoted(queue.broker)}-{queue.number}-{a_range.begin:0{DIGITS}d}-{a_range.end:0{DIGITS}d}"


def quoted(text: str) -> str:
    """As part of a path; never empty, never beginning with a point or an underscore, which readers would skip."""
    words = quote(text, safe="")
    return f"%{ord(words[0]):02X}{words[1:]}" if words[:1] in (".", "_") else words


def place_of(path: str) -> Place | None:
    """What a path from the root says; None where it is no file of ours."""
    folder = _FOLDER.fullmatch(path)
    name = _NAME.fullmatch(folder["name"]) if folder else None
    if folder is None or name is None:
        return None
    queue = QueueId(unquote(folder["topic"]), unquote(name["broker"]), int(name["queue"]))
    return Place(QueueRange(queue, int(name["begin"]), int(name["end"])), folder["day"])


def is_data(path: str) -> bool:
    """Whether readers would open it."""
    parts = path.split("/")
    return parts[0] == DATA and path.endswith(DATA_SUFFIX) and not any(part.startswith((".", "_")) for part in parts)


def day_of(time_us: int, time_zone: str) -> str:
    """The date of a store time."""
    seconds, _ = divmod(time_us, 1_000_000)
    return datetime.datetime.fromtimestamp(seconds, zoneinfo.ZoneInfo(time_zone)).date().isoformat()


def day_end_ms(day: str, time_zone: str) -> int:
    """When a day is over."""
    after = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)
    midnight = datetime.datetime.combine(after, datetime.time(), zoneinfo.ZoneInfo(time_zone))
    return int(midnight.timestamp() * 1000)
