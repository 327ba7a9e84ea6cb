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
WITHOUT_NAME_SERVER: Final = frozenset({"dumpCompactionLog", "exportMetadataInRocksDB"})
"""Commands that read files, and ask nobody."""


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
    is_endless: bool = False
    """Whether the command goes on until it is interrupted."""
    deviation: str | None = None
    """Why ours means to do something else here. Then it must be something else."""
    seconds_max: int = COMMAND_SECONDS_MAX
    settles_seconds: float = 0.0
    """How long servers may take until both say the same. Only for commands that change nothing."""
    needs_names: bool = True

    def arguments(self, facts: Mapping[str, str]) -> list[str]:
        """The words of this step at one peer."""
        words = [word.format_map(facts) for word in shlex.split(self.words)]
        return [self.command, *(("-n", facts["names"]) if self.needs_names else ()), *words]

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
