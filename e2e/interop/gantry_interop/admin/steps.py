"""What a plan is made of: commands as an administrator types them, in the order in which he does.

    Step("updateTopic", "-b {broker} -t orders -r 8 -w 8")             what is run, at both peers
    Step("topicRoute", "-t orders", shows="updateTopic")               what is seen of it afterwards

A step says which values may differ between two servers that do the same (`masks`), and nothing else may. In braces
stand facts of a peer: its addresses, its folders, ids of messages that were sent there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry_interop.admin.masks import Common, Mask, Quirk

COMMAND_SECONDS_MAX: Final = 60
LOG_END: Final = "endRound"
LATE: Final = "RemotingTimeoutException"
"""What the tool says when a busy machine was slower than its patience: that is no answer, and it is asked again."""
TRIES_MAX: Final = 3
READS: Final = (
    "allocateMQ", "brokerConsumeStats", "brokerStatus", "clusterList", "consumerConnection", "consumerProgress",
    "consumerStatus", "export", "get", "haStatus", "list", "printMsg", "producer", "query", "statsAll", "topic",
)  # fmt: skip
"""How commands begin that change nothing; only such are run again."""


@dataclass(frozen=True)
class Step:
    """One command with its arguments."""

    command: str
    words: str = ""
    shows: str | None = None
    """The command whose effect this one shows; its verdict hangs on this step as well."""
    masks: Sequence[Mask] = ()
    quirks: Sequence[Quirk] = ()
    common: Common | None = None
    is_unordered: bool = False
    """Whether Apache itself prints these rows in the order of a hash table."""
    reads: str | None = None
    """A file that the command writes: its text is compared, too."""
    logs: str | None = None
    """The mark of what the command goes on to say in the tool's log, whose last line ends with `LOG_END`."""
    is_endless: bool = False
    """Whether the command goes on until it is interrupted."""
    deviation: str | None = None
    """Why ours means to do something else here. Then it must be something else."""
    seconds_max: int = COMMAND_SECONDS_MAX
    settles_seconds: float = 0.0
    """How long servers may take until both say the same. Only for commands that change nothing."""

    def arguments(self, facts: Mapping[str, str]) -> list[str]:
        """The words of this step at one peer."""
        words = [word.format_map(facts) for word in shlex.split(self.words)]
        return [self.command, "-n", facts["names"], *words]

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing. A message that is sent again, or consumed at once, is a change."""
        acts = self.command.startswith("queryMsg") and (" -s true" in self.words or " -d {watcher}" in self.words)
        return self.command.startswith(READS) and not acts

    @property
    def typed(self) -> str:
        """As one types it, with names in the place of a peer's facts."""
        return f"{self.command} {self.words}".strip().format_map(_Named())

    @property
    def whys(self) -> tuple[str, ...]:
        """What was left out of the comparison, and why."""
        rules = (*self.masks, *self.quirks, *(() if self.common is None else (self.common,)))
        return tuple(rule.why for rule in rules if rule.why)


class _Named(dict[str, str]):
    """Every fact by its name."""

    def __missing__(self, name: str) -> str:
        return f"<{name}>"


@dataclass(frozen=True)
class Absent:
    """A command that no step runs, and why."""

    command: str
    why: str


@dataclass(frozen=True)
class Outcome:
    """What one run of a command came to."""

    out: str
    error: str
    exit: int | None
    is_cut: bool
    file: str | None = None
