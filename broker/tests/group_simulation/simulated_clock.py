"""The clocks of simulated machines, and the functions of ``time`` and ``random`` that read them.

Brokers get their ``Clock`` as a port, but clients, name servers and libraries call ``time.monotonic_ns`` and others.
Within ``virtual_time`` these functions return the clock of the machine whose code runs, and random bytes of the system
come from the generator of its process.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, final
from unittest.mock import patch

if TYPE_CHECKING:
    from group_simulation.simulated_world import World

WALL_BEGIN_S: Final = 1_700_000_000.0
REBOOT_S: Final = 12.0
"""The age of a machine, on its boot clock, when its broker starts after a reboot."""


@final
class MachineClock:
    """The clocks of one machine, all derived from the time of the world."""

    def __init__(self, world: World, name: str) -> None:
        self._world: Final = world
        self._name: Final = name
        self._wall_offset_s = WALL_BEGIN_S - world.now
        self._monotonic_offset_s = 0.0
        self._boot_offset_s = 0.0
        self._boots = 1
        self.jumps = 0
        """How often the wall clock was set."""

    def __repr__(self) -> str:
        return f"<MachineClock {self._name} wall_ms={self.wall_ms()} boots={self._boots}>"

    def wall_s(self) -> float:
        return self._world.now + self._wall_offset_s

    def monotonic_s(self) -> float:
        return self._world.now + self._monotonic_offset_s

    def boot_s(self) -> float:
        return self._world.now + self._boot_offset_s

    def world_time(self, monotonic_s: float) -> float:
        """Return the time of the world at which the monotonic clock shows ``monotonic_s``."""
        return monotonic_s - self._monotonic_offset_s

    # -- the port ``Clock`` of brokers ---------------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return int(self.wall_s() * 1000)

    def monotonic_ms(self) -> int:
        return int(self.monotonic_s() * 1000)

    def boot_ms(self) -> int:
        return int(self.boot_s() * 1000)

    def boot_id(self) -> str:
        return f"{self._name}-boot-{self._boots}"

    # -- faults --------------------------------------------------------------------------------------------------------

    def jump_wall(self, by_s: float) -> None:
        """Set the wall clock forward or backward."""
        self._wall_offset_s += by_s
        self.jumps += 1

    def suspend(self, seconds: float) -> None:
        """Take a time that has passed from the monotonic clock, because the machine was suspended meanwhile."""
        self._monotonic_offset_s -= seconds

    def reboot(self) -> None:
        """Begin another boot, whose boot clock starts anew."""
        self._boots += 1
        self._boot_offset_s = REBOOT_S - self._world.now


def _seconds(world: World) -> dict[str, Callable[[], float]]:
    """Return the clocks of the process whose code runs, by their names in ``time``."""

    def of(read: Callable[[MachineClock], float], default: Callable[[], float]) -> Callable[[], float]:
        return lambda: default() if world.process is None else read(world.process.clock)

    return {
        "monotonic": of(MachineClock.monotonic_s, lambda: world.now),
        "perf_counter": of(MachineClock.monotonic_s, lambda: world.now),
        "time": of(MachineClock.wall_s, lambda: world.now + WALL_BEGIN_S),
        "boottime": of(MachineClock.boot_s, lambda: world.now),
    }


@contextmanager
def virtual_time(world: World) -> Iterator[None]:
    """Let all code of this real process see the clocks of the world, and repeatable random numbers."""
    seconds = _seconds(world)
    real_clock_gettime_ns = time.clock_gettime_ns

    def clock_gettime_ns(number: int) -> int:
        if number == time.CLOCK_BOOTTIME:
            return int(seconds["boottime"]() * 1e9)
        return real_clock_gettime_ns(number)

    def random_bytes(count: int) -> bytes:
        process = world.process
        return (outside if process is None else process.chance).randbytes(count)

    outside = world.random("outside of processes")
    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", seconds["monotonic"]),
        (time, "perf_counter", seconds["perf_counter"]),
        (time, "time", seconds["time"]),
        (time, "monotonic_ns", lambda: int(seconds["monotonic"]() * 1e9)),
        (time, "time_ns", lambda: int(seconds["time"]() * 1e9)),
        (time, "clock_gettime_ns", clock_gettime_ns),
        (os, "urandom", random_bytes),
        (random, "_urandom", random_bytes),
    ]
    state = random.getstate()
    random.seed(world.seed)
    with ExitStack() as stack:
        for owner, name, replacement in replaced:
            stack.enter_context(patch.object(owner, name, replacement))
        try:
            yield
        finally:
            random.setstate(state)
