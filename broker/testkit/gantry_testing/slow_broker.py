"""A broker on a disk whose ``fdatasync`` takes longer. A program, not a module to import.

    python -m gantry_testing.slow_broker --sync-delay-ms 5 -- -c broker.conf

The program runs the shipped broker; only ``RealFile.sync`` waits first, in the calling thread and without the
interpreter lock, as with a slow disk. An external tracer could delay the call as well, but would stop
the process at every other call too, which would distort the figures.
"""

from __future__ import annotations

import argparse
import sys
import time

from gantry_broker import __main__ as broker
from gantry_broker.ports.real_disk import RealFile
from gantry_testing.crashing_broker import replace

DELAY_MS_MAX = 60_000


def parse_delay_ms(text: str) -> float:
    """Parse milliseconds, with fractions. Raises ValueError out of bounds."""
    delay_ms = float(text)
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise ValueError(f"the delay must be from 0 to {DELAY_MS_MAX} ms, not {text}")
    return delay_ms


def slow_down(delay_ms: float) -> None:
    """Make every ``RealFile.sync`` in this process take this much longer."""
    sync = RealFile.sync

    def slow_sync(file: RealFile) -> None:
        time.sleep(delay_ms / 1000)
        sync(file)

    replace(RealFile, "sync", slow_sync)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sync-delay-ms", type=parse_delay_ms, required=True, metavar="MS")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and the broker's arguments")
    options = parser.parse_args()
    slow_down(options.sync_delay_ms)
    return broker.main([word for word in options.arguments if word != "--"])


if __name__ == "__main__":
    sys.exit(main())
