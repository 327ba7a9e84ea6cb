"""What an archive has, in numbers: for the status of a resource, and for people."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

from gantry_pipelines.archive.manifest import ArchivedFile, Kind, Manifest
from pyspark_rocketmq.model import QueueId

QUEUES_SHOWN_MAX: Final = 100
"""A resource's status has a size limit; the manifest has the rest."""


@final
@dataclass(frozen=True, slots=True)
class QueueState:
    """How far one queue is."""

    queue: QueueId
    archived: int
    """The end of what is archived."""
    latest: int
    """The end of what could be read when that was asked."""

    @property
    def lag(self) -> int:
        """Messages still to be archived."""
        return max(0, self.latest - self.archived)


@final
@dataclass(frozen=True)
class ArchiveSummary:
    """Of one run and of the whole."""

    rows: int
    """New in this run, as are bytes, files, and lost."""
    size_bytes: int
    files: int
    lost: int
    rows_total: int
    bytes_total: int
    files_total: int
    queues: tuple[QueueState, ...] = field(default=())
    missing: int = 0

    @property
    def lag(self) -> int:
        """Messages still to be archived."""
        return sum(one.lag for one in self.queues)

    def document(self) -> dict[str, Any]:
        """As a resource's status has it; queues with the most lag first, not all of many."""
        behind = sorted(self.queues, key=lambda one: (-one.lag, one.queue))[:QUEUES_SHOWN_MAX]
        return {
            "rows": self.rows,
            "bytes": self.size_bytes,
            "files": self.files,
            "lost": self.lost,
            "rowsTotal": self.rows_total,
            "bytesTotal": self.bytes_total,
            "filesTotal": self.files_total,
            "missingFiles": self.missing,
            "lag": self.lag,
            "queues": [
                {**_words(one.queue), "archived": one.archived, "latest": one.latest, "lag": one.lag} for one in behind
            ],
        }

    def text(self) -> str:
        """For people."""
        lines = [
            f"archived {self.rows} messages in {self.files} files, {self.size_bytes} bytes",
            f"the archive has {self.rows_total} messages in {self.files_total} files, {self.bytes_total} bytes",
        ]
        if self.lost:
            lines.append(
                f"{self.lost} messages were gone before they could be archived; their ranges are in the manifest"
            )
        if self.missing:
            lines.append(f"{self.missing} files of the archive are missing: see gantry pipeline verify")
        behind = [one for one in self.queues if one.lag]
        lines.append(
            f"{self.lag} messages behind, in {len(behind)} of {len(self.queues)} queues"
            if behind
            else "nothing is behind"
        )
        return "\n".join(lines)


def summarize(
    manifest: Manifest, new: Iterable[ArchivedFile], latest: Mapping[QueueId, int], missing: int = 0
) -> ArchiveSummary:
    """What a run has added, and what is there now."""
    new = list(new)
    data, all_data = [file for file in new if file.kind is Kind.DATA], manifest.data()
    ends = manifest.ends()
    return ArchiveSummary(
        sum(file.rows for file in data),
        sum(file.size_bytes for file in data),
        len(data),
        sum(file.range.count for file in new if file.kind is Kind.LOST),
        sum(file.rows for file in all_data),
        sum(file.size_bytes for file in all_data),
        len(all_data),
        tuple(QueueState(queue, ends.get(queue, 0), end) for queue, end in sorted(latest.items())),
        missing,
    )


def _words(queue: QueueId) -> dict[str, Any]:
    words = asdict(queue)
    return {"topic": words["topic"], "broker": words["broker"], "queue": words["number"]}
