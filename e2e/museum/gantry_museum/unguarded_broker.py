"""Run a broker without one of its guards, for a twin. A program, not to be imported.

    python unguarded_broker.py GUARD -c broker.conf

The guard is a method that is replaced here, outside of the shipped code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from gantry_broker import __main__ as broker
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.pull.pull_plans import PullPlan, PullPlans
from gantry_broker.server.roles.table_sync import TableSync
from gantry_testing.crashing_broker import replace
from gantry_wire import ResponseCode
from gantry_wire.commands.pull import PullMessage


def keep_tables() -> None:
    """Send no table to slaves: no topics, groups and offsets."""
    for name in ("all_tables", "urgent_tables", "due_tables"):
        replace(TableSync, name, lambda self: [])


def refuse_reads_from_slaves() -> None:
    """Let a slave serve no pulls, as RocketMQ's by default."""
    find = PullPlans.find

    def refusing(self: PullPlans, pull: PullMessage) -> PullPlan:
        if self._core.is_slave():
            raise Refused(ResponseCode.NO_PERMISSION, "slaves serve no pulls")
        return find(self, pull)

    replace(PullPlans, "find", refusing)


GUARDS: Final[dict[str, Callable[[], None]]] = {"tables": keep_tables, "slave-reads": refuse_reads_from_slaves}


def main() -> None:
    """Remove the guard that the first argument names, and run the broker with the others."""
    GUARDS[sys.argv[1]]()
    del sys.argv[1]
    broker.main()


if __name__ == "__main__":
    main()
