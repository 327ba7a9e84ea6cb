"""What a query passed over, because it was gone and `failOnDataLoss` is false: counted, and written down.

A gap travels in the offset of the batch that passes over it, so it is in Spark's log before the batch is done, and the
same when the batch is done again. With `gapsPath` each batch with gaps leaves one small file there, named by what it
says: done twice, it is one file. `spark.read.json(gapsPath)` is the table.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from gantry_remoting.durable_files import replace_file
from pyspark_rocketmq.model import QueueId

log = logging.getLogger(__name__)


class GapKind(StrEnum):
    """Why the messages are not there."""

    EXPIRED = "expired"
    """The queue begins behind them: its broker deleted them before they were read."""
    REWOUND = "rewound"
    """The queue ends before them, and its broker does not say why: a log that was cut, or a topic that was made anew.
    Reading goes on at the queue's end; what lies below it is not read again."""
    FORKED = "forked"
    """A newer epoch began below them: they were read, and are no part of the log any more."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """The messages `[begin, end)` of a queue are not in what was read, or not in the log any more."""

    queue: QueueId
    begin: int
    end: int
    kind: GapKind

    def __str__(self) -> str:
        return f"{self.queue}[{self.begin}, {self.end}) {self.kind}"

    @property
    def count(self) -> int:
        """How many messages that are."""
        return self.end - self.begin


def gap_lines(gaps: Sequence[Gap]) -> bytes:
    """A row for each, as JSON; nothing of when or where it was written, since a batch may be done again."""
    rows = [
        {
            "topic": gap.queue.topic,
            "broker": gap.queue.broker,
            "queue": gap.queue.number,
            "begin": gap.begin,
            "end": gap.end,
            "rows": gap.count,
            "kind": str(gap.kind),
        }
        for gap in sorted(gaps)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def record_gaps(path: str, gaps: Sequence[Gap]) -> None:
    """Say in the log what was passed over, and leave the file, if there is somewhere to leave it."""
    if not gaps:
        return
    for gap in gaps:
        log.warning("messages passed over", extra={"gap": str(gap), "rows": gap.count})
    if not path:
        return
    lines = gap_lines(gaps)
    name = f"gaps-{hashlib.sha256(lines).hexdigest()[:20]}.json"
    if urlsplit(path).scheme in ("", "file"):
        replace_file(Path(urlsplit(path).path if path.startswith("file:") else path, name), lines)
        return
    store, folder = pafs.FileSystem.from_uri(path)
    with store.open_output_stream(f"{folder.rstrip('/')}/{name}") as stream:  # an object is there whole, or not
        stream.write(lines)
