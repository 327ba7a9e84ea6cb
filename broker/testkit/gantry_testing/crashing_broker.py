"""A broker that kills itself with SIGKILL at a crash point. It is a program; import only its helpers.

    python -m gantry_testing.crashing_broker [--crash-at NAME:TIMES] [--armed-by-signal] ... -- -c broker.conf

The program runs the shipped broker; only ``crash_points.hit``, which is empty there, counts and kills here. The count
begins with the process, or, with ``--armed-by-signal``, with SIGUSR1: then the test decides when the start is
complete and the load runs. The last line of the log names the crash point, so that another kill is not mistaken for
a crash there.

The shipped broker writes a recovery point every ten seconds; ``--point-interval`` shortens that for a short load, and
sets the interval of the checkpoint, too.
``--without`` removes one guard, so that a test can show that it detects the missing guard: without ``replay`` no write
buffers are found, without ``hold`` unconfirmed messages are visible.
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
from gantry_broker.store.opening import WritePools
from gantry_broker.store.replay import FoundBuffer
from gantry_broker.store.settings import FlushSettings

CRASHING: Final = "crashing at "
"""The beginning of the log line that names the crash point."""


class CrashAt(NamedTuple):
    """Where to crash: at the ``times``-th hit of this crash point."""

    point: str
    times: int

    def __str__(self) -> str:
        return f"{self.point}:{self.times}"


def parse_crash_at(text: str) -> CrashAt:
    """Parse NAME or NAME:TIMES. Raises ValueError for an unknown crash point."""
    point, _, times = text.partition(":")
    crash_at = CrashAt(point, int(times or 1))
    if point not in crash_points.ALL or crash_at.times < 1:
        raise ValueError(f"unknown crash point {text}")
    return crash_at


@final
class CrashCounter:
    """Counts the hits of one crash point, and kills the process at the chosen one. Any thread may hit it."""

    def __init__(self, crash_at: CrashAt, *, is_armed: bool) -> None:
        self._crash_at: Final = crash_at
        self._lock: Final = threading.Lock()
        self._left = crash_at.times
        self._is_armed = is_armed

    def arm(self, _number: int, _frame: FrameType | None) -> None:
        """Start counting. A signal handler."""
        self._is_armed = True

    def hit(self, name: str) -> None:
        """Count a hit. Replaces ``crash_points.hit``."""
        if not self._is_armed or name != self._crash_at.point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.write(sys.stderr.fileno(), f"{CRASHING}{self._crash_at}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)


def find_no_buffers(_pools: WritePools) -> list[FoundBuffer]:
    """Return no buffers, so that nothing is replayed. Replaces ``WritePools.find_leftover``."""
    return []


def show_at_once(_dispatcher: Dispatcher) -> None:
    """Do not hold messages, so that consumers see messages that may be lost. Replaces ``Dispatcher.hold``."""


def replace(owner: object, name: str, value: object) -> None:
    """Replace an attribute that must exist."""
    assert hasattr(owner, name), f"{owner!r} has no {name} that could be replaced"
    setattr(owner, name, value)


GUARDS: Final[dict[str, tuple[type, str, object]]] = {
    "replay": (WritePools, "find_leftover", find_no_buffers),
    "hold": (Dispatcher, "hold", show_at_once),
}
"""The attribute that removes a guard, and its replacement, by the guard's name for ``--without``."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--crash-at", type=parse_crash_at, metavar="NAME:TIMES")
    parser.add_argument("--armed-by-signal", action="store_true", help="start counting at SIGUSR1")
    parser.add_argument("--point-interval", type=int, metavar="MS", help="interval of recovery points and checkpoints")
    parser.add_argument("--without", choices=sorted(GUARDS), help="guard to remove")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and the broker's arguments")
    options = parser.parse_args()
    if options.crash_at is not None:
        counter = CrashCounter(options.crash_at, is_armed=not options.armed_by_signal)
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
