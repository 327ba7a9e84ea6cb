"""A broker that kills itself with SIGKILL in the middle of writing its status page. A program, not a module to import.

    python -m torn_page_broker --cut BYTES -- -o key=value ...

What runs is the shipped broker. After SIGUSR1, as soon as two publications in a row have a greater `wrote`, it writes
the first BYTES of the second and dies: what is left is a copy that is half of now and half of two publications ago.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

from gantry_broker import __main__ as broker
from gantry_status import PageWriter, Status
from gantry_status.layout import COPIES_COUNT, COPY_BYTES, HEADER_BYTES, SEQUENCE, encode_copy


def tear_after_signal(cut: int) -> None:
    """Replace `PageWriter.publish` by one that ends the process within a publication after SIGUSR1."""
    shipped, armed, published = PageWriter.publish, [False], [0, 0]

    def arm(number: int, frame: FrameType | None) -> None:
        armed[0] = True

    def publish(self: PageWriter, status: Status) -> None:
        wrote = status.wrote or 0
        if armed[0] and wrote > published[-1] > published[-2]:
            sequence = self._sequence + 2
            position = HEADER_BYTES + sequence // 2 % COPIES_COUNT * COPY_BYTES
            self._write(SEQUENCE.pack(sequence - 1), position)
            self._write(encode_copy(sequence, status)[SEQUENCE.size : cut], position + SEQUENCE.size)
            os.kill(os.getpid(), signal.SIGKILL)
        published.append(wrote)
        shipped(self, status)

    PageWriter.publish = publish  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, arm)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cut", type=int, required=True)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    tear_after_signal(given.cut)
    sys.exit(broker.main(given.options))
