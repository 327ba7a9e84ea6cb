"""The CRC-32 of RocketMQ's records and of Gantry's frames and files, from the fastest implementation that is installed.

``isal`` computes it with carry-less multiplication: 32 KiB in 0.6 microseconds where zlib takes 7 (measured on x86-64).
Every byte of a message is checksummed when it is stored, when it is replicated and whenever it is read, so the speed
matters. ``isal`` has wheels for x86-64 and 64-bit ARM and is installed with the broker there. zlib, which is used where
it is missing, gives the same checksums.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # the platform has no wheel of isal
    from zlib import crc32

__all__ = ["crc32"]
