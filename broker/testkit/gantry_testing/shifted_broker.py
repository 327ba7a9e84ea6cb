"""A broker with a wall clock that another process sets. A program, not a module to import.

    python -m gantry_testing.shifted_broker --shift-file shift -- -c broker.conf

The program runs the shipped broker; only ``SystemClock.wall_ms`` differs from the machine's clock, by the milliseconds
in the shift file: a signed number of 8 bytes, big-endian, which is mapped, so that a change counts at once. This is
what an administrator does to a machine, or NTP: the monotonic clock and the boot clock do not change.
"""

from __future__ import annotations

import argparse
import mmap
import struct
import sys
from pathlib import Path
from typing import Final, final

from gantry_broker import __main__ as broker
from gantry_broker.ports.clock import SystemClock
from gantry_testing.crashing_broker import replace

_SHIFT: Final = struct.Struct(">q")


@final
class ShiftFile:
    """The shared number of milliseconds by which a broker's wall clock is ahead of the machine's."""

    def __init__(self, path: Path) -> None:
        """Create the file with 0 if it is missing."""
        if not path.exists():
            path.write_bytes(_SHIFT.pack(0))
        with path.open("r+b") as file:
            self._map: Final = mmap.mmap(file.fileno(), _SHIFT.size)

    @property
    def shift_ms(self) -> int:
        return int(_SHIFT.unpack_from(self._map)[0])

    def set(self, shift_ms: int) -> None:
        """Set the clock of every broker that uses the file."""
        _SHIFT.pack_into(self._map, 0, shift_ms)


def shift_clock(file: ShiftFile) -> None:
    """Make every ``SystemClock`` in this process use the shift."""
    wall_ms = SystemClock.wall_ms

    def shifted(clock: SystemClock) -> int:
        return wall_ms(clock) + file.shift_ms

    replace(SystemClock, "wall_ms", shifted)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shift-file", type=Path, required=True, metavar="FILE")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and the broker's arguments")
    options = parser.parse_args()
    shift_clock(ShiftFile(options.shift_file))
    return broker.main([word for word in options.arguments if word != "--"])


if __name__ == "__main__":
    sys.exit(main())
