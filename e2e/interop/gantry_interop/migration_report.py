"""The parameters and the report of a migration."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """The parameters of a migration."""

    before_bytes: int = 24 << 20
    """The size of the log before the migration."""

    body_bytes: int = 16 << 10
    """The size of the messages before the migration."""

    file_bytes: int = 8 << 20
    poll_ms: int = 1_000
    """The Java clients' pollNameServerInterval; 0 keeps the default of 30 s."""

    load_seconds: float = 4.0
    """The duration of the load before the command, and again after it."""

    senders: int = 4
    linger_seconds: float = 10.0
    """How long `gantry migrate` copies offsets after the switch that consumers commit at the old broker."""

    busy_share: float = 1.0
    """The share of the time in which the senders send; they pause for about a tenth of a second at a time."""

    settings: dict[str, str] = field(default_factory=dict)


@dataclass
class MigrationReport:
    """The results of a migration."""

    plan: Plan
    broken: list[str] = field(default_factory=list)
    """The guarantees that were violated, as text."""
    before_messages: int = 0
    copied_bytes: int = 0
    """The end of the old log."""

    command_seconds: float = 0.0
    pause_ms: float = 0.0
    """The write pause that the command has measured."""

    client_gap_seconds: float = 0.0
    """The longest time without an answer 0 that the Java producer saw in the whole run."""

    answered: int = 0
    """Attempts to send that were acknowledged (answered 0)."""
    unknown: dict[str, int] = field(default_factory=dict)
    """The attempts to send whose result is unknown, by reason: the message may be stored."""

    redelivered: int = 0
    """Deliveries of a message from a place from which it had been delivered before."""

    late_commits: int = 0
    """The offsets that were copied because consumers had committed them at the old broker after the switch."""

    command_output: str = ""

    @property
    def kept(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept}

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        return [
            f"{self.copied_bytes / (1 << 30):.2f} GiB migrated in {self.command_seconds:.1f} s",
            f"write pause {self.pause_ms:.0f} ms; the Java producer was without an answer for "
            f"{self.client_gap_seconds:.2f} s (route poll {self.plan.poll_ms or 30_000} ms)",
            f"{self.before_messages} messages from before, {self.answered} acknowledged under load, lost 0, "
            f"unknown result {sum(self.unknown.values())}, redelivered {self.redelivered}, "
            f"late commits {self.late_commits}"
            if self.kept
            else "BROKEN: " + "; ".join(self.broken),
        ]


def large_plan(mib: int, poll_ms: int) -> Plan:
    """Return a plan with RocketMQ's own file size, and a log that does not fit into a cache by chance."""
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
    """Return the longest interval between neighbours, in seconds."""
    ordered = sorted(moments_us)
    return max((after - before for before, after in itertools.pairwise(ordered)), default=0) / 1e6
