"""The elements of a plan: commands as an administrator runs them, in their order.

    Step("updateTopic", "-b {broker} -t orders -r 8 -w 8")             a command that runs at both peers
    Step("topicRoute", "-t orders", shows="updateTopic")               a command that shows its effect

A step lists the values that may differ between two equivalent servers (`masks`), and no others may; `masks.py` has the
kinds of rules. Names in braces stand for facts of a peer: its addresses, its folders, ids of messages that were sent
there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry_interop.admin.masks import CommonRows, Mask, Quirk

COMMAND_SECONDS_MAX: Final = 60
LOG_END: Final = "endRound"
"""The end of the last line that `startMonitoring` logs in one round."""
TOOL_TIMEOUT_ERROR: Final = "RemotingTimeoutException"
"""The error of the tool if a busy machine is slower than its timeout. A command that changes nothing is run again."""
TRIES_MAX: Final = 3
READING_COMMANDS: Final = (
    "allocateMQ", "brokerConsumeStats", "brokerStatus", "clusterList", "consumerConnection", "consumerProgress",
    "consumerStatus", "export", "get", "haStatus", "list", "printMsg", "producer", "query", "statsAll", "topic",
)  # fmt: skip
"""The prefixes of commands that change nothing; only these are run again."""


@dataclass(frozen=True)
class Step:
    """One command with its arguments."""

    command: str
    words: str = ""
    """Its arguments, as typed in a shell."""
    shows: str | None = None
    """The command whose effect this step shows; that command's verdict includes this step."""
    masks: Sequence[Mask] = ()
    """The values that may differ between the peers."""
    quirks: Sequence[Quirk] = ()
    """The output that is left out of the comparison."""
    common: CommonRows | None = None
    """If each peer has rows of its own: the rule that selects the rows to compare."""
    is_unordered: bool = False
    """Whether Apache itself prints these rows in the order of a hash table."""
    output_file: str | None = None
    """A file that the command writes; its text is compared too."""
    logs: str | None = None
    """The prefix of the command's lines in the tool's log, whose last line ends with `LOG_END`."""
    is_endless: bool = False
    """Whether the command runs until it is interrupted."""
    deviation: str | None = None
    """The reason for an intended difference. Then the output must differ."""
    seconds_max: int = COMMAND_SECONDS_MAX
    settles_seconds: float = 0.0
    """The time that servers may take until both print the same. Only for commands that change nothing."""

    def arguments(self, facts: Mapping[str, str]) -> list[str]:
        """Return the arguments of this step at one peer."""
        words = [word.format_map(facts) for word in shlex.split(self.words)]
        return [self.command, "-n", facts["names"], *words]

    @property
    def is_read(self) -> bool:
        """Whether the step changes nothing. Sending a message again, or consuming one, is a change."""
        acts = self.command.startswith("queryMsg") and (" -s true" in self.words or " -d {watcher}" in self.words)
        return self.command.startswith(READING_COMMANDS) and not acts

    @property
    def typed(self) -> str:
        """The command line with names in place of a peer's facts."""
        return f"{self.command} {self.words}".strip().format_map(_Named())

    @property
    def rule_reasons(self) -> tuple[str, ...]:
        """The reasons for everything that was left out of the comparison."""
        rules = (*self.masks, *self.quirks, *(() if self.common is None else (self.common,)))
        return tuple(rule.why for rule in rules if rule.why)


class _Named(dict[str, str]):
    """A mapping of every fact to its name in brackets."""

    def __missing__(self, name: str) -> str:
        return f"<{name}>"


@dataclass(frozen=True)
class Absent:
    """A command that no step runs, and the reason."""

    command: str
    why: str


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a command."""

    out: str
    error: str
    exit: int | None
    """The exit code; None if the command was interrupted."""
    is_cut: bool
    """Whether the command was interrupted at the end of its time."""
    file: str | None = None
    """The text of the file or of the log that the command wrote."""
