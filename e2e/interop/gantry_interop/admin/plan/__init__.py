"""The plan: every command of mqadmin 5.3.3, in an order in which an administrator could run them.

Each file holds the commands around one noun. `BEFORE` runs before clients and messages exist, `AFTER` with them, and
`ACCOUNTS` at a second pair of servers. The commands of `ABSENT` are not run.
"""

from __future__ import annotations

from gantry_interop.admin.plan import accounts, brokers, groups, messages, names, offsets, out_of_scope, topics
from gantry_interop.admin.steps import Absent, Step

BEFORE: tuple[Step, ...] = (*names.BEFORE, *topics.BEFORE, *groups.BEFORE)
AFTER: tuple[Step, ...] = (
    *topics.AFTER, *messages.AFTER, *groups.AFTER, *offsets.AFTER, *brokers.AFTER, *names.AFTER,
    *topics.AT_LAST, *groups.AT_LAST, *offsets.AT_LAST, *brokers.AT_LAST,
)  # fmt: skip
ACCOUNTS: tuple[Step, ...] = accounts.STEPS
ALL: tuple[Step, ...] = (*ACCOUNTS, *BEFORE, *AFTER)
ABSENT: tuple[Absent, ...] = out_of_scope.ABSENT
FILES: dict[str, str] = {**topics.FILES, **groups.FILES}
"""The input files of commands, by name."""


def commands() -> set[str]:
    """Return all commands that the plan runs or leaves out with a reason."""
    return {step.command for step in ALL} | {one.command for one in ABSENT}
