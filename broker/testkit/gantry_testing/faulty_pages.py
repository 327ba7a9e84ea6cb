"""The two copies of a file on a ``FaultyDisk``: what programs see, and what is durable.

    cache      what reads and maps show: the page cache
    durable    what a power loss leaves
    lost       sectors whose writing back has failed: the cache has them and calls them clean, the disk has them not

The third is how Linux behaves, and what makes a failed ``fsync`` final: the next one succeeds without writing them.
Only writing to such a sector again makes it dirty. ``drop_lost`` is the kernel taking clean pages out of memory: the
next reader sees what the disk has.

Bytes changed through a map need no bookkeeping: they are found by comparing the two copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, final

SECTOR_BYTES: Final = 512

Survives = Callable[[int], bool]
"""For the start of a dirty sector: whether the disk got it before the power went."""


def nothing(_start: int) -> bool:
    """No dirty sector survives."""
    return False


def everything(_start: int) -> bool:
    """Every dirty sector survives."""
    return True


def outside(start: int, end: int) -> Survives:
    """Everything survives but what touches ``[start, end)``."""
    return lambda sector: sector >= end or sector + SECTOR_BYTES <= start


def by_chance(chance: random.Random) -> Survives:
    """For one file: nothing survives, or everything, or a random part.

    One draw decides how much survives at all, so that "nearly nothing" and "nearly all" both happen, and so does a
    later file that is whole while an earlier one is not there.
    """
    whole, probability = chance.random(), chance.random()
    if whole < 0.2:
        probability = 0.0
    elif whole < 0.4:
        probability = 1.0
    return lambda start: chance.random() < probability


@final
class Node:
    """A file's two copies. Names point to nodes, so that renaming moves no bytes."""

    __slots__ = ("cache", "durable", "durable_size", "lost", "reserved")

    def __init__(self, size: int) -> None:
        self.cache = bytearray(size)
        self.durable = bytearray()
        self.durable_size = -1
        self.reserved = 0
        self.lost: dict[int, bytes] = {}

    def copy(self) -> Node:
        """A node of its own with the same bytes."""
        other = Node(0)
        other.cache, other.durable = bytearray(self.cache), bytearray(self.durable)
        other.durable_size, other.reserved, other.lost = self.durable_size, self.reserved, dict(self.lost)
        return other

    def _dirty(self) -> Iterator[int]:
        """The starts of the sectors that the disk does not have."""
        lasting = self.durable.ljust(len(self.cache), b"\0")
        if self.cache == lasting:
            return
        for start in range(0, len(self.cache), SECTOR_BYTES):
            end = start + SECTOR_BYTES
            if self.cache[start:end] != lasting[start:end]:
                yield start

    def _is_lost(self, start: int) -> bool:
        return self.lost.get(start) == bytes(self.cache[start : start + SECTOR_BYTES])

    def sync(self) -> None:
        """Everything dirty becomes durable; what is lost does not, and nobody is told."""
        lost = {start: data for start, data in self.lost.items() if self._is_lost(start)}
        lasting = self.durable.ljust(len(self.cache), b"\0")
        self.durable = bytearray(self.cache)
        for start in lost:
            self.durable[start : start + SECTOR_BYTES] = lasting[start : start + SECTOR_BYTES]
        self.durable_size = len(self.cache)
        self.lost = lost

    def fail_sync(self) -> None:
        """A sync has failed: its pages are clean now, and not on the disk."""
        for start in self._dirty():
            self.lost[start] = bytes(self.cache[start : start + SECTOR_BYTES])

    def written(self, start: int, end: int) -> None:
        """A system call wrote there: those sectors are dirty, even if they hold what they held."""
        if self.lost:
            for sector in [sector for sector in self.lost if sector < end and start < sector + SECTOR_BYTES]:
                del self.lost[sector]

    def write_back(self, survives: Survives) -> None:
        """The kernel writes dirty sectors to the disk when it likes, and tells nobody."""
        if self.durable_size < 0:
            return
        self.durable = self.durable.ljust(len(self.cache), b"\0")
        for start in list(self._dirty()):
            if not self._is_lost(start) and survives(start):
                self.durable[start : start + SECTOR_BYTES] = self.cache[start : start + SECTOR_BYTES]

    def drop_lost(self) -> None:
        """The page cache is dropped: what was lost reads as the disk has it."""
        lasting = self.durable.ljust(len(self.cache), b"\0")
        for start in [start for start in self.lost if self._is_lost(start)]:
            self.cache[start : start + SECTOR_BYTES] = lasting[start : start + SECTOR_BYTES]
        self.lost = {}

    def kill(self) -> None:
        """Whoever still has a map of the old bytes is dead, and what it writes into them is not seen."""
        self.cache = bytearray(self.cache)

    def crash(self, survives: Survives, *, is_sized: bool) -> None:
        """Fall back to what is durable, but for the dirty sectors that survive.

        A file that was never synced and is not ``is_sized`` has not even got its size: it is empty.
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
