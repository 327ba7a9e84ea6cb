"""Memory for write buffers in a test: it survives ``kill`` if it is crash-safe, and never a power loss.

One ``FaultyVolume`` is a directory on a tmpfs or on hugetlbfs that the test keeps for several processes of a store.
With ``is_crash_safe=False`` it is anonymous memory: ``kill`` discards everything. ``capacity`` is its size in bytes.
"""

from __future__ import annotations

import errno
import os
from typing import Final, final

from gantry_broker.ports.buffers import BufferPiece

PAGE_BYTES: Final = 512


@final
class FaultyPiece:
    """One buffer in a volume."""

    def __init__(self, name: str, data: bytearray) -> None:
        self._name = name
        self._data = data

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def view(self) -> memoryview:
        return memoryview(self._data)

    def zero(self, start: int, end: int) -> None:
        self._data[start:end] = bytes(end - start)

    def close(self) -> None:
        return


@final
class FaultyVolume:
    """A directory for write buffers; see the module's docstring."""

    page_bytes = PAGE_BYTES

    def __init__(self, *, is_crash_safe: bool = True, capacity: int = 1 << 30) -> None:
        self.is_crash_safe = is_crash_safe
        self.capacity = capacity
        self.pieces: dict[str, bytearray] = {}
        self._is_taken = False

    @property
    def medium(self) -> str:
        return "tmpfs" if self.is_crash_safe else "anonymous"

    def kill(self) -> None:
        """End the process that used it."""
        self._is_taken = False
        if self.is_crash_safe:
            # The old process is dead, so its later writes to the old memory must not be visible.
            self.pieces = {name: bytearray(data) for name, data in self.pieces.items()}
        else:
            self.pieces = {}

    def lose_power(self) -> None:
        """Lose power: all pieces are gone."""
        self._is_taken = False
        self.pieces = {}

    def copy(self) -> FaultyVolume:
        """Return an independent, unused volume with the same bytes."""
        other = FaultyVolume(is_crash_safe=self.is_crash_safe, capacity=self.capacity)
        other.pieces = {name: bytearray(data) for name, data in self.pieces.items()}
        return other

    def acquire(self) -> None:
        if self._is_taken:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._is_taken = True

    def release(self) -> None:
        self._is_taken = False
        if not self.is_crash_safe:
            self.pieces = {}

    def names(self) -> list[str]:
        return sorted(self.pieces)

    def open(self, name: str) -> BufferPiece:
        return FaultyPiece(name, self.pieces[name])

    def create(self, name: str, size: int) -> BufferPiece:
        if sum(map(len, self.pieces.values())) + size > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        self.pieces[name] = bytearray(size)
        return FaultyPiece(name, self.pieces[name])

    def remove(self, name: str) -> None:
        del self.pieces[name]
