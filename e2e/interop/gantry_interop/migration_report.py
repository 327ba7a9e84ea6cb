"""Which migration is played, and what it cost."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """Which migration."""

    before_bytes: int = 24 << 20
    """In the log before the attach."""

    body_bytes: int = 16 << 10
    """Of the messages from before."""

    file_bytes: int = 8 << 20
    poll_ms: int = 1_000
    """The Java clients' pollNameServerInterval; 0 leaves it as it is, 30 s."""

    load_seconds: float = 4.0
    """Before the command, and again after it."""

    senders: int = 4
    linger_seconds: float = 10.0
    busy_share: float = 1.0
    """For how much of the time the senders send; the rest of it they pause, a tenth of a second or so at once."""

    settings: dict[str, str] = field(default_factory=dict)


@dataclass
class MigrationReport:
    """What one migration cost."""

    plan: Plan
    broken: list[str] = field(default_factory=list)
    before_messages: int = 0
    copied_bytes: int = 0
    """Where the old log ended."""

    command_seconds: float = 0.0
    pause_ms: float = 0.0
    """In which nobody could write, as the command has measured it."""

    client_gap_seconds: float = 0.0
    """The longest time without an answer 0 that the Java producer saw around the switch."""

    answered: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    redelivered: int = 0
    late_commits: int = 0
    said: str = ""

    @property
    def kept(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept}

    def lines(self) -> list[str]:
        """For a person."""
        return [
            f"{self.copied_bytes / (1 << 30):.2f} GiB migrated in {self.command_seconds:.1f} s",
            f"write pause {self.pause_ms:.0f} ms; the Java producer was without an answer for "
            f"{self.client_gap_seconds:.2f} s (route poll {self.plan.poll_ms or 30_000} ms)",
            f"{self.before_messages} messages from before, {self.answered} acknowledged under load, lost 0, "
            f"refused {sum(self.refused.values())}, redelivered {self.redelivered}, late commits {self.late_commits}"
            if self.kept
            else "BROKEN: " + "; ".join(self.broken),
        ]


def large(mib: int, poll_ms: int) -> Plan:
    """One with RocketMQ's own file size, and a log that is longer than what lies in a cache by chance."""
    return Plan(
        before_bytes=mib << 20,
        body_bytes=64 << 10,
        file_bytes=1 << 30,
        poll_ms=poll_ms,
        load_seconds=15.0,
        senders=1,
        busy_share=0.25,
        linger_seconds=35.0,
    )


def longest_gap(moments_us: list[int]) -> float:
    """Between neighbours, in seconds."""
    ordered = sorted(moments_us)
    return max((after - before for before, after in itertools.pairwise(ordered)), default=0) / 1e6
