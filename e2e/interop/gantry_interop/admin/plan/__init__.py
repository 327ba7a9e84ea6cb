"""The plan: every command of mqadmin, in an order in which an administrator could run them.

Each file holds the commands around one noun. `BEFORE_CLIENTS` runs before clients and messages exist, `WITH_CLIENTS`
with them, and `ACCOUNTS` at a second pair of servers. The steps that a file calls `FINAL` delete what other steps need,
so they run last. The commands of `ABSENT` are not run.
"""

from __future__ import annotations

from gantry_interop.admin.plan import accounts, brokers, groups, lite, messages, names, offsets, out_of_scope, topics
from gantry_interop.admin.steps import Absent, Step

BEFORE_CLIENTS: tuple[Step, ...] = (*names.BEFORE_CLIENTS, *topics.BEFORE_CLIENTS, *groups.BEFORE_CLIENTS)
WITH_CLIENTS: tuple[Step, ...] = (
    *topics.WITH_CLIENTS, *messages.WITH_CLIENTS, *groups.WITH_CLIENTS, *offsets.WITH_CLIENTS,
    *brokers.WITH_CLIENTS, *names.WITH_CLIENTS, *lite.WITH_CLIENTS,
    *topics.FINAL, *groups.FINAL, *offsets.FINAL, *brokers.FINAL,
)  # fmt: skip
ACCOUNTS: tuple[Step, ...] = accounts.STEPS
ALL: tuple[Step, ...] = (*ACCOUNTS, *BEFORE_CLIENTS, *WITH_CLIENTS)
ABSENT: tuple[Absent, ...] = out_of_scope.ABSENT
FILES: dict[str, str] = {**topics.FILES, **groups.FILES}
"""The input files of commands, by name."""


def commands() -> set[str]:
    """Return all commands that the plan runs or leaves out with a reason."""
    return {step.command for step in ALL} | {one.command for one in ABSENT}
