"""Gaps: the messages that a query skipped, because they were gone and `failOnDataLoss` is false.

A gap of a stream is part of the offset of the batch that skips it. So it is in Spark's log before the batch is
processed, and does not change if the batch is repeated. Only messages that are lost after their batch was planned are
not in its offset: a repetition of the batch finds them. With `gapsPath` each batch with gaps writes one small file,
whose name is a hash of its content, so that a repeated batch writes the same file. `spark.read.json(gapsPath)` reads
all gaps as a table.
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
    """The reason why messages are missing."""

    EXPIRED = "expired"
    """The queue begins above them: its broker deleted them before they were read."""
    REWOUND = "rewound"
    """The queue ends below them, and its broker gives no reason: a log that was cut, or a topic that was created again.
    Reading continues at the queue's end; messages below it are not read again."""
    FORKED = "forked"
    """A newer epoch began below them: they were read, or planned to be read, and are no longer part of the log."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """The messages `[begin, end)` of a queue that were not read, or are no longer in the log."""

    queue: QueueId
    begin: int
    end: int
    kind: GapKind

    def __str__(self) -> str:
        return f"{self.queue}[{self.begin}, {self.end}) {self.kind}"

    @property
    def count(self) -> int:
        """The number of messages in the gap."""
        return self.end - self.begin


def gap_lines(gaps: Sequence[Gap]) -> bytes:
    """Return one JSON line for each gap, without time or place of writing, since a batch may be repeated."""
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
    """Log the skipped messages, and write their file if `path` is given."""
    if not gaps:
        return
    for gap in gaps:
        log.warning("skipped missing messages", extra={"gap": str(gap), "rows": gap.count})
    if not path:
        return
    lines = gap_lines(gaps)
    name = f"gaps-{hashlib.sha256(lines).hexdigest()[:20]}.json"
    if urlsplit(path).scheme in ("", "file"):
        replace_file(Path(urlsplit(path).path if path.startswith("file:") else path, name), lines)
        return
    store, folder = pafs.FileSystem.from_uri(path)
    with store.open_output_stream(f"{folder.rstrip('/')}/{name}") as stream:  # an object appears whole, or not at all
        stream.write(lines)
