"""The two copies of a file on a ``FaultyDisk``: the one that programs see, and the durable one.

    cache      the data that reads and maps return: the page cache
    durable    the data that is left after a power loss
    lost       sectors whose writeback has failed: they are clean in the cache, but not on the disk

``lost`` models Linux, where a failed ``fsync`` is final: the next one succeeds without writing these sectors.
Only another write makes such a sector dirty. ``drop_lost`` models the kernel evicting clean pages: the
next reader gets the content of the disk.

Bytes changed through a map need no bookkeeping: they are found by comparing the two copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, final

SECTOR_BYTES: Final = 512

Survives = Callable[[int], bool]
"""Returns for the start of a dirty sector whether the disk got it before the power loss."""


def nothing(_start: int) -> bool:
    """Return False: no dirty sector survives."""
    return False


def everything(_start: int) -> bool:
    """Return True: every dirty sector survives."""
    return True


def outside(start: int, end: int) -> Survives:
    """Return a rule by which all sectors survive except those that overlap ``[start, end)``."""
    return lambda sector: sector >= end or sector + SECTOR_BYTES <= start


def by_chance(chance: random.Random) -> Survives:
    """Return a rule for one file: no dirty sector survives, or all, or a random part.

    One random number decides how much survives at all, so that "nearly nothing" and "nearly all" both occur, and so
    does a later file that is complete while an earlier one is missing.
    """
    whole, probability = chance.random(), chance.random()
    if whole < 0.2:
        probability = 0.0
    elif whole < 0.4:
        probability = 1.0
    return lambda start: chance.random() < probability


@final
class Node:
    """A file's two copies. Names refer to nodes, so that renaming moves no bytes."""

    __slots__ = ("cache", "durable", "durable_size", "lost", "reserved")

    def __init__(self, size: int) -> None:
        self.cache = bytearray(size)
        self.durable = bytearray()
        self.durable_size = -1
        """The size of the file on the disk; -1 if it was never synced."""
        self.reserved = 0
        self.lost: dict[int, bytes] = {}

    def copy(self) -> Node:
        """Return an independent node with the same bytes."""
        other = Node(0)
        other.cache, other.durable = bytearray(self.cache), bytearray(self.durable)
        other.durable_size, other.reserved, other.lost = self.durable_size, self.reserved, dict(self.lost)
        return other

    def _dirty(self) -> Iterator[int]:
        """Yield the starts of the sectors that the disk does not have."""
        lasting = self.durable.ljust(len(self.cache), b"\0")
        if self.cache == lasting:
            return
        for start in range(0, len(self.cache), SECTOR_BYTES):
            end = start + SECTOR_BYTES
            if self.cache[start:end] != lasting[start:end]:
                yield start

    def _is_lost(self, start: int) -> bool:
        return self.lost.get(start) == bytes(self.cache[start : start + SECTOR_BYTES])

    def sync(self, content: bytes | None = None) -> None:
        """Make all dirty sectors durable, but not the lost ones, without an error.

        ``content`` is what the sync covers: the cache when it was called; None if that has not changed since then.
        """
        lost = {start: data for start, data in self.lost.items() if self._is_lost(start)}
        lasting = self.durable.ljust(len(self.cache), b"\0")
        self.durable = bytearray(self.cache if content is None else content)
        for start in lost:
            self.durable[start : start + SECTOR_BYTES] = lasting[start : start + SECTOR_BYTES]
        self.durable_size = len(self.cache)
        self.lost = lost

    def fail_sync(self) -> None:
        """Fail a sync: its pages are clean now, but not on the disk."""
        for start in self._dirty():
            self.lost[start] = bytes(self.cache[start : start + SECTOR_BYTES])

    def mark_dirty(self, start: int, end: int) -> None:
        """Mark the sectors of a system call's write as dirty, even if their content is the same."""
        if self.lost:
            for sector in [sector for sector in self.lost if sector < end and start < sector + SECTOR_BYTES]:
                del self.lost[sector]

    def write_back(self, survives: Survives) -> None:
        """Write dirty sectors to the disk, as the kernel does by itself; none of a file that was never synced."""
        if self.durable_size < 0:
            return
        self.durable = self.durable.ljust(len(self.cache), b"\0")
        for start in list(self._dirty()):
            if not self._is_lost(start) and survives(start):
                self.durable[start : start + SECTOR_BYTES] = self.cache[start : start + SECTOR_BYTES]

    def drop_lost(self) -> None:
        """Drop the page cache: lost sectors read as they are on the disk."""
        lasting = self.durable.ljust(len(self.cache), b"\0")
        for start in [start for start in self.lost if self._is_lost(start)]:
            self.cache[start : start + SECTOR_BYTES] = lasting[start : start + SECTOR_BYTES]
        self.lost = {}

    def kill(self) -> None:
        """Detach maps of the old process, so that its later writes have no effect."""
        self.cache = bytearray(self.cache)

    def crash(self, survives: Survives, *, is_sized: bool) -> None:
        """Return to the durable content, plus the dirty sectors that survive.

        A file that was never synced and is not ``is_sized`` has not even its size: it is empty.
        """
        if self.durable_size < 0 and not is_sized:
            self.cache = bytearray()
            self.lost = {}
        survived = self.durable.ljust(len(self.cache), b"\0")[: len(self.cache)]
        for start in list(self._dirty()):
            if not self._is_lost(start) and survives(start):
                survived[start : start + SECTOR_BYTES] = self.cache[start : start + SECTOR_BYTES]
        self.cache = survived
        self.durable = bytearray(survived)
        self.durable_size = len(survived)
        self.lost = {}
