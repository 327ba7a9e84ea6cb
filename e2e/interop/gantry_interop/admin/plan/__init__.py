"""The plan: every command of mqadmin 5.3.3, in an order in which an administrator could type them.

Each file holds the commands around one noun. `before` comes before there are messages and clients, `after` with them.
"""

from __future__ import annotations

from gantry_interop.admin.plan import accounts, brokers, elsewhere, groups, messages, names, offsets, topics
from gantry_interop.admin.steps import Absent, Step

BEFORE: tuple[Step, ...] = (*names.BEFORE, *topics.BEFORE, *groups.BEFORE)
AFTER: tuple[Step, ...] = (
    *topics.AFTER, *messages.AFTER, *groups.AFTER, *offsets.AFTER, *brokers.AFTER, *names.AFTER,
    *topics.AT_LAST, *groups.AT_LAST, *offsets.AT_LAST, *brokers.AT_LAST,
)  # fmt: skip
ACCOUNTS: tuple[Step, ...] = accounts.STEPS
ALL: tuple[Step, ...] = (*ACCOUNTS, *BEFORE, *AFTER)
ABSENT: tuple[Absent, ...] = elsewhere.ABSENT
FILES: dict[str, str] = {**topics.FILES, **groups.FILES}
"""What the commands are given to read, by name."""


def commands() -> set[str]:
    """All that is run, or is said not to be."""
    return {step.command for step in ALL} | {one.command for one in ABSENT}
