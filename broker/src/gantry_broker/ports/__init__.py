"""The four doors to the world: disk, write buffers, clock and net.

Everything above takes these as constructor arguments, so that every fault the world can produce can be produced
in a test. The protocols are in ``disk``, ``buffers``, ``clock`` and ``net``; the twins that touch the real thing in
``real_disk``, ``real_buffers``, ``clock`` and ``net``; those that fail on purpose in ``gantry_testing``.
"""

from gantry_broker.ports.buffers import BufferPiece, BufferVolume
from gantry_broker.ports.clock import Clock, SystemClock
from gantry_broker.ports.disk import Disk, DiskFile, DiskLock, DiskSpace, write_fully
from gantry_broker.ports.net import Net, SystemNet
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
    "Net",
    "RealDisk",
    "SystemClock",
    "SystemNet",
    "open_volume",
    "write_fully",
]
