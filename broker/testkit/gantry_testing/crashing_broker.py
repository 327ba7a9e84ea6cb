"""A broker that ends itself with SIGKILL at a named place of its own work. A program, not a module to import.

    python -m gantry_testing.crashing_broker [--crash-at NAME:TIMES] [--armed-by-signal] ... -- -c broker.conf

What runs is the shipped broker; only ``crash_points.hit``, which does nothing there, counts and kills here. The count
begins with the process, or, with ``--armed-by-signal``, with SIGUSR1: then whoever watches decides that the start is
over and the load is on. The last line of the log says where it ended, so that a kill by anybody else is not taken for
one.

Recovery points come every ten seconds as shipped; ``--point-interval`` has them come under a short load. And one guard
can be taken away, so that a test can show that it would notice: ``--without replay`` finds no write buffers,
``--without hold`` shows consumers what is not committed.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import threading
from types import FrameType
from typing import Final, NamedTuple, final

from gantry_broker import __main__ as broker
from gantry_broker import setting_keys
from gantry_broker.store import crash_points
from gantry_broker.store.dispatcher import Dispatcher
from gantry_broker.store.opening import OpenPools
from gantry_broker.store.replay import FoundBuffer
from gantry_broker.store.settings import FlushSettings

CRASHING: Final = "crashing at "


class CrashAt(NamedTuple):
    """Where to end: at the ``times``-th time that the work comes to this point."""

    point: str
    times: int

    def __str__(self) -> str:
        return f"{self.point}:{self.times}"


def parse_crash_at(text: str) -> CrashAt:
    """NAME or NAME:TIMES. Raises ValueError for a place that there is not."""
    point, _, times = text.partition(":")
    crash_at = CrashAt(point, int(times or 1))
    if point not in crash_points.ALL or crash_at.times < 1:
        raise ValueError(f"{text} is no place to crash at")
    return crash_at


@final
class Counter:
    """Counts how often one point is reached, and kills. Any thread may come to a point."""

    def __init__(self, crash_at: CrashAt, *, is_armed: bool) -> None:
        self._crash_at: Final = crash_at
        self._lock: Final = threading.Lock()
        self._left = crash_at.times
        self._is_armed = is_armed

    def arm(self, _number: int, _frame: FrameType | None) -> None:
        """From now on it counts. A signal handler."""
        self._is_armed = True

    def hit(self, name: str) -> None:
        """Stands for ``crash_points.hit``."""
        if not self._is_armed or name != self._crash_at.point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.write(sys.stderr.fileno(), f"{CRASHING}{self._crash_at}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)


def find_no_buffers(_pools: OpenPools) -> list[FoundBuffer]:
    """Stands for ``OpenPools.found``: nothing is replayed."""
    return []


def show_at_once(_dispatcher: Dispatcher) -> None:
    """Stands for ``Dispatcher.hold``: consumers see what may still be lost."""


def replace(owner: object, name: str, value: object) -> None:
    """Put something else in the place of an attribute."""
    assert hasattr(owner, name), f"{owner!r} has no {name} that could be replaced"
    setattr(owner, name, value)


GUARDS: Final[dict[str, tuple[type, str, object]]] = {
    "replay": (OpenPools, "found", find_no_buffers),
    "hold": (Dispatcher, "hold", show_at_once),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--crash-at", type=parse_crash_at, metavar="NAME:TIMES")
    parser.add_argument("--armed-by-signal", action="store_true", help="count from SIGUSR1 on")
    parser.add_argument("--point-interval", type=int, metavar="MS", help="how often recovery points are written")
    parser.add_argument("--without", choices=sorted(GUARDS), help="a guard that is taken away")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and what the broker is given")
    options = parser.parse_args()
    if options.crash_at is not None:
        counter = Counter(options.crash_at, is_armed=not options.armed_by_signal)
        signal.signal(signal.SIGUSR1, counter.arm)
        replace(crash_points, "hit", counter.hit)
    if options.point_interval is not None:
        often = {"recovery_point_interval_ms": options.point_interval, "checkpoint_interval_ms": options.point_interval}
        replace(setting_keys, "FlushSettings", functools.partial(FlushSettings, **often))
    if options.without is not None:
        replace(*GUARDS[options.without])
    return broker.main([word for word in options.arguments if word != "--"])


if __name__ == "__main__":
    sys.exit(main())
