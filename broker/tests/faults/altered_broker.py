"""Run a broker under limits, without one of its guards, or with a kill or short writes. A program, not to be imported.

    python altered_broker.py [--limit NAME=NUMBER] [--without GUARD] [--kill-at-rename N] [--halve-writes]
        -m gantry_broker -c broker.conf

Limits are set in the process itself before the broker is imported, so that they apply to its very first call. Without a
guard a test must fail, which proves that the test can fail. The guards are methods that are replaced here, outside of
the shipped code; so are calls that end the process or do half of their work.
"""

import argparse
import itertools
import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Final

LIMITS: Final = {"as": resource.RLIMIT_AS, "fsize": resource.RLIMIT_FSIZE, "nofile": resource.RLIMIT_NOFILE}


def replace(owner: object, name: str, method: object) -> None:
    """Replace an attribute of an object, which must exist."""
    assert hasattr(owner, name), f"{owner!r} has no {name} that could be replaced"
    setattr(owner, name, method)


def skip_syncs() -> None:
    """Make the disk port report syncs of files without syncing, so that a power loss may lose all of their data."""
    from gantry_broker.ports.real_disk import RealFile

    replace(RealFile, "sync", lambda file: None)


def ignore_failed_syncs() -> None:
    """Take a failed sync for a good one, as PostgreSQL once did."""
    from gantry_broker.ports.real_disk import RealFile

    sync = RealFile.sync

    def ignoring(file: RealFile) -> None:
        try:
            sync(file)
        except OSError:
            return

    replace(RealFile, "sync", ignoring)


def ignore_short_writes() -> None:
    """Take every write for a complete one, as RocketMQ's commit0 does."""
    from gantry_broker.ports.real_disk import RealFile

    pwrite = RealFile.pwrite

    def ignoring(file: RealFile, data: bytes | bytearray | memoryview, position: int) -> int:
        try:
            pwrite(file, data, position)
        except OSError:
            return len(data)
        return len(data)

    replace(RealFile, "pwrite", ignoring)


def ignore_lock() -> None:
    """Let every process take the lock of the store, so that two can use it."""
    from gantry_broker.ports.real_disk import RealDisk, RealLock

    replace(RealDisk, "lock", lambda disk, path: RealLock(os.open(path, os.O_RDWR | os.O_CREAT)))


def disable_disk_reserve() -> None:
    """Disable the reserve for queues, index and tables, so that the log can fill the disk."""
    from gantry_broker.store import next_file, retention

    replace(retention, "reserve_bytes", lambda space: 0)
    replace(next_file, "has_room_for", lambda space, size: True)


# The guards that `--without` removes, with the functions that replace them.
GUARDS: Final[dict[str, Callable[[], None]]] = {
    "syncs": skip_syncs,
    "sync-errors": ignore_failed_syncs,
    "whole-writes": ignore_short_writes,
    "lock": ignore_lock,
    "disk-reserve": disable_disk_reserve,
}


def kill_at_rename(number: int) -> None:
    """Kill the process right before its n-th rename: the file is written, and does not have its name yet."""
    rename = os.replace
    count = itertools.count(1)

    def counting(source: str, target: str) -> None:
        if next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    replace(os, "replace", counting)


def halve_writes() -> None:
    """Let every positioned write take half of its bytes, as a busy or nearly full disk may."""
    pwrite = os.pwrite

    def halving(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> int:
        with memoryview(data) as whole, whole[: (len(whole) + 1) // 2] as half:
            return pwrite(descriptor, half, position)

    replace(os, "pwrite", halving)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--without", action="append", default=[], choices=sorted(GUARDS))
    parser.add_argument("--kill-at-rename", type=int, metavar="N")
    parser.add_argument("--halve-writes", action="store_true")
    options, rest = parser.parse_known_args()
    for limit in options.limit:
        name, _, number = limit.partition("=")
        resource.setrlimit(LIMITS[name], (int(number), int(number)))
    for guard in options.without:
        GUARDS[guard]()
    if options.kill_at_rename:
        kill_at_rename(options.kill_at_rename)
    if options.halve_writes:
        halve_writes()
    assert rest[:1] == ["-m"], f"expected -m MODULE, not {rest}"
    sys.argv = rest[1:]
    runpy.run_module(rest[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
