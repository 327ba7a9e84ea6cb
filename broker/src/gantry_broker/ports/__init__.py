"""The ports to the operating system: disk, write buffers, clock, and a disk that can only be read.

All layers above take these as constructor arguments, so that a test can produce every fault. The protocols are in
``disk``, ``buffers``, ``clock`` and ``reading``; the real implementations in ``real_disk``, ``real_buffers``, ``clock``
and ``real_reading``; implementations that fail on purpose in ``gantry_testing``.
"""

from gantry_broker.ports.buffers import BufferPiece, BufferVolume
from gantry_broker.ports.clock import Clock, SystemClock
from gantry_broker.ports.disk import Disk, DiskFile, DiskLock, DiskSpace, write_fully
from gantry_broker.ports.real_buffers import open_volume
from gantry_broker.ports.real_disk import RealDisk

__all__ = [
    "BufferPiece",
    "BufferVolume",
    "Clock",
    "Disk",
    "DiskFile",
    "DiskLock",
    "DiskSpace",
    "RealDisk",
    "SystemClock",
    "open_volume",
    "write_fully",
]
