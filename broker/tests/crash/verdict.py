"""The counts and faults of a crash run, and their format as a table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from crash.checker import FaultKind


@dataclass(slots=True)
class Verdict:
    """The counts and faults of one job (ten rounds with one store), or of a cell (all jobs of a mode)."""

    faults: list[str] = field(default_factory=list)
    """Each broken promise, as a line of text."""
    rounds: int = 0
    """Rounds that were run to their end: load, kill, restart and check."""
    kills: int = 0
    """Kills by the run, under load or while recovering. Ends at a crash point are in `hits`."""
    hits: Counter[str] = field(default_factory=Counter)
    """How often the broker ended itself at each crash point."""
    misses: Counter[str] = field(default_factory=Counter)
    """How often the broker should have ended at a crash point and did not reach it in time."""
    sent: int = 0
    """Messages that producers have sent, with any answer or none."""
    acked: int = 0
    """Messages that a reply acknowledged."""
    refused: int = 0
    """Messages that a reply refused: with a code other than 0, 10, 11 and 12."""
    stored: int = 0
    """Messages that the last check found in the store."""
    log_files: int = 0
    """Files of the log at the last check."""
    replayed: int = 0
    """Acknowledged messages that were not in the log's files after the kill, and were stored after the restart."""
    replayed_reported: int = 0
    """Records that the broker reported as replayed, acknowledged or not, in starts that were not disturbed."""
    lost: int = 0
    """Acknowledged messages that are gone. Where the mode allows no loss, each of them is a fault, too."""
    consumed: int = 0
    """Messages that a consumer has read under load; one that is gone is a fault."""
    recovery_kills: int = 0
    """Kills that were to come during a recovery; some come after its end."""
    recovery_hits: int = 0
    """Kills among those that came before the recovery had ended."""
    removals: int = 0
    """Folders and files of queues, index and checkpoint that were removed before a restart."""
    seconds: float = 0.0
    second: Counter[str] = field(default_factory=Counter)
    """The verdicts of Porcupine about the histories of jobs."""

    @property
    def doubled(self) -> int:
        """Messages that were stored twice."""
        return sum(f"{FaultKind.DOUBLED.name}:" in fault for fault in self.faults)

    def add(self, other: "Verdict") -> None:
        """Add the counts and faults of another verdict."""
        for one in fields(self):
            mine, its = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, mine + its)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table, with the first column aligned left and the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    )
