"""Guards that can be taken from all simulated brokers of this real process, so that the judges must find a violation.

The guards of replication are those of ``replication.run_without_guards``; those here are of disks and records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from replication import run_without_guards
from replication.run_without_guards import GUARDS as REPLICATION_GUARDS
from replication.run_without_guards import replace

from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.store.log_guard import LogGuard
from gantry_testing.faulty_disk import FaultyFile


def flush_without_sync() -> None:
    """Let syncs of open files return without an effect, as those of a broker that forgets ``fdatasync``."""
    replace(FaultyFile, "sync", lambda file: None)


def acknowledge_unflushed() -> None:
    """Let a slave report everything that it has received as flushed."""
    replace(SlaveStore, "flushed", property(lambda store: store.received))


def serve_unverified() -> None:
    """Serve and send records without a check of their checksums."""
    begin = LogGuard.__init__

    def initialise(guard: LogGuard, *arguments: Any, **options: Any) -> None:
        begin(guard, *arguments, **options)
        guard.is_verifying = False

    replace(LogGuard, "__init__", initialise)


GUARDS: Final[dict[str, Callable[[], None]]] = {
    **REPLICATION_GUARDS,
    "sync": flush_without_sync,
    "flushed-acks": acknowledge_unflushed,
    "checksums": serve_unverified,
}
"""The functions that remove a guard from this process, by the guard's name for ``--without``."""


@contextmanager
def without_guard(guard: str) -> Iterator[None]:
    """Remove a guard within the context."""
    undo: list[tuple[Any, str, object]] = []
    missing = object()

    def replace_for_now(owner: Any, name: str, method: object) -> None:
        undo.append((owner, name, vars(owner).get(name, missing)))
        setattr(owner, name, method)

    modules = (run_without_guards, sys.modules[__name__])
    try:
        with patch.object(modules[0], "replace", replace_for_now), patch.object(modules[1], "replace", replace_for_now):
            GUARDS[guard]()
        yield
    finally:
        for owner, name, before in reversed(undo):
            delattr(owner, name) if before is missing else setattr(owner, name, before)
