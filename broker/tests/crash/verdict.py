"""What a run found and did, and how the sums of a cell are put into words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from crash.checker import Kind


@dataclass(slots=True)
class Verdict:
    """One chapter's sums, or a cell's."""

    faults: list[str] = field(default_factory=list)
    rounds: int = 0
    kills: int = 0
    """By us: under load or while recovering. Ends at a named point are in `hits`."""
    hits: Counter[str] = field(default_factory=Counter)
    """How often the broker ended itself at which point."""
    misses: Counter[str] = field(default_factory=Counter)
    """How often it should have, and did not come there in time."""
    sent: int = 0
    acked: int = 0
    """Messages that a reply acknowledged."""
    refused: int = 0
    stored: int = 0
    log_files: int = 0
    replayed: int = 0
    """Acknowledged, not in the log's files right after the kill, there after the restart."""
    replayed_said: int = 0
    """Records that the broker says it replayed, acknowledged or not, in starts that were not disturbed."""
    lost: int = 0
    """Acknowledged and gone, where the mode allows it; elsewhere each is a fault."""
    seen: int = 0
    """Messages that a consumer was shown under load; one that is gone is a fault."""
    recovery_kills: int = 0
    """Kills of a broker that had begun to open its store, or was about to."""
    recovery_hits: int = 0
    """Of these, kills before it had recovered."""
    removals: int = 0
    seconds: float = 0.0

    @property
    def doubled(self) -> int:
        """Messages that were stored twice."""
        return sum(f"{Kind.DOUBLED.name}:" in fault for fault in self.faults)

    def add(self, other: "Verdict") -> None:
        """The sums of both."""
        for one in fields(self):
            mine, its = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, mine + its)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; the first to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    )
