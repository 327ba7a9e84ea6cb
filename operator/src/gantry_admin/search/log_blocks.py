"""Blocks of the log, read into one buffer, so that the memory of a search is bounded and no file is mapped.

A mapped file that becomes shorter ends the process with SIGBUS, and its pages count as memory of the process; `pread`
into a buffer copies at memory speed and has neither fault. What only the search has brought into the page cache is
dropped from it again: otherwise a search of a long log would evict the pages that consumers read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from typing import Final, final

from gantry_admin.store_files import StoreFiles
from gantry_store_files import Segment, split_span

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
"""The flag of a read from the page cache only; None where the system has none."""


@final
class LogBlocks:
    """A reader of blocks of the log. It keeps one file open; owned by one thread."""

    def __init__(self, files: StoreFiles) -> None:
        self.buffer: Final = bytearray()
        """The last block. It has the size of the largest block so far."""

        self._files: Final = files
        self._segments: tuple[Segment, ...] = files.log_segments()
        self._open: tuple[str, FileIO] | None = None

    def __repr__(self) -> str:
        return f"<LogBlocks {self._files!r} buffer={len(self.buffer)}>"

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def oldest(self) -> int | None:
        """Return where the log begins now, by its files; None without a file."""
        self._segments = self._files.log_segments()
        return self._segments[0].base_offset if self._segments else None

    def read(self, start: int, end: int) -> bool:
        """Read ``[start, end)`` into the beginning of the buffer, and return whether all of it could be read."""
        size = end - start
        if len(self.buffer) < size:
            self.buffer.extend(bytes(size - len(self.buffer)))
        view = memoryview(self.buffer)
        try:
            return all(
                piece.segment is not None
                and self._read_file(piece.segment, view[piece.start - start : piece.end - start], piece.start)
                for piece in split_span(self._segments, start, end)
            )
        finally:
            view.release()

    def _read_file(self, segment: Segment, view: memoryview, start: int) -> bool:
        try:
            file = self._file(segment.path).fileno()
        except FileNotFoundError:
            return False
        position, done = start - segment.base_offset, 0
        if _NOWAIT is not None:
            with suppress(OSError):  # nothing is in the page cache, or the file system cannot tell
                done = os.preadv(file, [view], position, _NOWAIT)
        from_disk = position + done
        while done < len(view):
            count = os.preadv(file, [view[done:]], position + done)
            if count == 0:
                return False
            done += count
        if _NOWAIT is not None and from_disk < position + done:
            with suppress(OSError):
                os.posix_fadvise(file, from_disk, position + done - from_disk, os.POSIX_FADV_DONTNEED)
        return True

    def _file(self, path: str) -> FileIO:
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = path, FileIO(path)
        return self._open[1]
