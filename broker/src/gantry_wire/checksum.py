"""The CRC-32 of RocketMQ's records and of our frames and files, by the fastest implementation that is installed.

``isal`` computes it with carry-less multiplication: 32 KiB in 0.6 microseconds where zlib takes 7 (measured, x86-64).
Every byte of a message is summed when it is stored, when it is replicated and whenever it is read, so this is felt. It
has wheels for x86-64 and 64-bit ARM and is installed with the broker there. Without it zlib gives the same sums.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # a machine without a wheel
    from zlib import crc32

__all__ = ["crc32"]
