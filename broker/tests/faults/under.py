"""Run a broker under limits, under another command, or without one of its guards. A program, not a module to import.

    python under.py [--limit NAME=NUMBER] [--without GUARD] -m gantry_broker -c broker.conf

Limits are set in the process itself before anything of the broker is imported, so that its very first call meets
them. A guard that is taken away must make a test fail: that is how the tests show that they can. The guards are methods
that are replaced here, where no shipped code can see it.
"""

import argparse
import os
import resource
import runpy
import sys
from collections.abc import Callable
from typing import Final

LIMITS: Final = {"as": resource.RLIMIT_AS, "fsize": resource.RLIMIT_FSIZE, "nofile": resource.RLIMIT_NOFILE}


def replace(owner: type, name: str, method: object) -> None:
    """Put another method in the place of one."""
    setattr(owner, name, method)


def lie_about_syncs() -> None:
    """A disk port that says "synced" and syncs nothing: every power loss takes what it likes."""
    from gantry_broker.ports.real_disk import RealFile

    replace(RealFile, "sync", lambda file: None)


def forgive_failed_syncs() -> None:
    """A failed sync is taken for a good one, as PostgreSQL once did."""
    from gantry_broker.ports.real_disk import RealFile

    sync = RealFile.sync

    def forgiving(file: RealFile) -> None:
        try:
            sync(file)
        except OSError:
            return

    replace(RealFile, "sync", forgiving)


def forgive_short_writes() -> None:
    """One write is taken to have written everything, as RocketMQ's commit0 takes it."""
    from gantry_broker.ports.real_disk import RealFile

    pwrite = RealFile.pwrite

    def forgiving(file: RealFile, data: bytes | bytearray | memoryview, position: int) -> int:
        try:
            pwrite(file, data, position)
        except OSError:
            return len(data)
        return len(data)

    replace(RealFile, "pwrite", forgiving)


def share_the_lock() -> None:
    """Everybody gets the lock."""
    from gantry_broker.ports.real_disk import RealDisk, RealLock

    replace(RealDisk, "lock", lambda disk, path: RealLock(os.open(path, os.O_RDWR | os.O_CREAT)))


GUARDS: Final[dict[str, Callable[[], None]]] = {
    "syncs": lie_about_syncs,
    "sync-errors": forgive_failed_syncs,
    "whole-writes": forgive_short_writes,
    "lock": share_the_lock,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--without", action="append", default=[], choices=sorted(GUARDS))
    options, rest = parser.parse_known_args()
    for limit in options.limit:
        name, _, number = limit.partition("=")
        resource.setrlimit(LIMITS[name], (int(number), int(number)))
    for guard in options.without:
        GUARDS[guard]()
    assert rest[:1] == ["-m"], "what runs is a module"
    sys.argv = rest[1:]
    runpy.run_module(rest[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
