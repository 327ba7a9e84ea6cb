"""The three doors to the world: disk, clock and net.

Everything above takes these as constructor arguments, so that every fault the world can produce can be produced
in a test. The protocols are in ``disk``, ``clock`` and ``net``; the twins that touch the real thing in ``real_disk``,
``clock`` and ``net``; the twins that fail on purpose in ``gantry_broker.testing``.
"""

from gantry_broker.ports.clock import Clock, SystemClock
from gantry_broker.ports.disk import Disk, DiskFile, DiskLock, DiskSpace, write_fully
from gantry_broker.ports.net import Net, SystemNet
from gantry_broker.ports.real_disk import RealDisk

__all__ = [
    "Clock",
    "Disk",
    "DiskFile",
    "DiskLock",
    "DiskSpace",
    "Net",
    "RealDisk",
    "SystemClock",
    "SystemNet",
    "write_fully",
]
