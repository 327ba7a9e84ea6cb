"""Memory for write buffers, as a port: pieces of a fixed size that may survive the process which wrote them.

The rule it guards: **every byte of an open piece can be written.** A piece is allocated and touched when it is created,
so that missing memory is an error at the start and never a SIGBUS later.

The media differ in ``is_crash_safe``: files on hugetlbfs or tmpfs keep every byte when the process dies in any way;
anonymous memory is lost with it. Neither survives the machine. Nothing here is ever synced.
"""

from __future__ import annotations

from typing import Final, Protocol

PIECE_NAME_PREFIX: Final = "buffer-"
"""How the names of pieces in a directory begin."""
VOLUME_LOCK: Final = "lock"
"""Name of the file in the directory of a volume that a process using it has locked."""


class BufferPiece(Protocol):
    """One piece of memory. Owned by the caller that opened it."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview:
        """The whole piece, writable, as unsigned bytes."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Set ``[start, end)`` to zero without blocking other threads."""
        ...

    def close(self) -> None:
        """Close the piece. A crash-safe piece keeps its content."""
        ...


class BufferVolume(Protocol):
    """A directory, or the process's memory, that contains pieces. Used by one process at a time."""

    @property
    def medium(self) -> str:
        """The kind of memory: ``hugetlbfs``, ``tmpfs`` or ``anonymous``."""
        ...

    @property
    def is_crash_safe(self) -> bool:
        """Whether pieces survive a crash of the process."""
        ...

    @property
    def page_bytes(self) -> int:
        """Size of a page, of which sizes of pieces are multiples."""
        ...

    def acquire(self) -> None:
        """Lock the volume for this process. Raises ``BlockingIOError`` if another process has locked it."""
        ...

    def release(self) -> None: ...

    def names(self) -> list[str]:
        """Return the names of existing pieces, sorted."""
        ...

    def open(self, name: str) -> BufferPiece:
        """Open a piece that exists on the volume."""
        ...

    def create(self, name: str, size: int) -> BufferPiece:
        """Create a piece of zeros with all pages present.

        Raises ``OSError`` with ``ENOSPC`` or ``ENOMEM`` if there is not enough memory.
        """
        ...

    def remove(self, name: str) -> None: ...
