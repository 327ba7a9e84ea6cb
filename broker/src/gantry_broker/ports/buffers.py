"""Memory for write buffers, as a port: pieces of a fixed size that may outlive the process which wrote them.

The rule it guards: **whoever has a piece can write every byte of it.** A piece is allocated and touched when it is
created, so that memory which is not there is an error at the start and never a SIGBUS later.

What the media differ in is ``is_crash_safe``: files on hugetlbfs or tmpfs keep every byte when the process dies,
however it dies; anonymous memory goes with it. Neither outlives the machine. Nothing here is ever synced.
"""

from __future__ import annotations

from typing import Final, Protocol

PIECE_NAME_PREFIX: Final = "buffer-"
VOLUME_LOCK: Final = "lock"
"""The file in the directory of a volume whose lock says that a process uses it."""


class BufferPiece(Protocol):
    """One piece of memory. Owned by whoever opened it."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview:
        """All of it, writable, as unsigned bytes."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Make ``[start, end)`` zero without holding up other threads."""
        ...

    def close(self) -> None:
        """Let go of it. A crash-safe piece stays where it is."""
        ...


class BufferVolume(Protocol):
    """Where pieces live. Used by one process at a time."""

    @property
    def medium(self) -> str:
        """``hugetlbfs``, ``tmpfs`` or ``anonymous``."""
        ...

    @property
    def is_crash_safe(self) -> bool:
        """Whether pieces outlive the process."""
        ...

    @property
    def page_bytes(self) -> int:
        """Sizes of pieces are multiples of this."""
        ...

    def acquire(self) -> None:
        """Take the volume for this process. ``BlockingIOError`` if another one has it."""
        ...

    def release(self) -> None: ...

    def names(self) -> list[str]:
        """The pieces that are there, sorted."""
        ...

    def open(self, name: str) -> BufferPiece:
        """A piece that is there."""
        ...

    def create(self, name: str, size: int) -> BufferPiece:
        """A new piece of zeros, every page of it present. ``ENOSPC`` or ``ENOMEM`` when there is no room."""
        ...

    def remove(self, name: str) -> None: ...
