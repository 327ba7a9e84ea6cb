"""The pool of write buffers: N pieces of memory, allocated once, borrowed and given back.

    free --borrow--> attached to a log file --committed to its end--> returned --voided, zeroed--> free

``borrow`` returns a buffer at once or none, and never waits. An empty pool means that the disk is slower than the
producers, which get an error then; buffers become free again as the disk catches up. Buffers are reused in place, over
restarts, too: there may be no memory for a new piece beside an old one.

Buffers of crashed processes are given to recovery by ``find_leftover`` before anything is borrowed, and are voided
afterwards.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from typing import Final, NamedTuple, final

from gantry_broker.errors import StoreLocked, StoreUnusable
from gantry_broker.ports.buffers import PIECE_NAME_PREFIX, BufferVolume
from gantry_broker.store import crash_points
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.write_buffer import BufferState, WriteBuffer, piece_bytes, read_header

log = logging.getLogger(__name__)


class PoolStatus(NamedTuple):
    """The state of the pool at one moment."""

    medium: str
    """``hugetlbfs``, ``tmpfs``, ``anonymous``, or ``none``."""

    total: int
    """Number of buffers in the pool."""

    free: int
    """Number of buffers that can be borrowed now."""

    is_crash_safe: bool
    """Whether what was written survives the end of the process; true without a pool, too."""


NO_POOL: Final = PoolStatus("none", 0, 0, True)
"""The status of a store without write buffers."""


@final
class WritePool:
    """A pool of write buffers. Owned by the thread that opens the store until ``prepare`` has returned.

    After that ``borrow`` belongs to the loop's thread, and ``give_back`` to the commit thread.
    """

    def __init__(self, volume: BufferVolume, *, count: int, file_size: int) -> None:
        self._volume: Final = volume
        self._count: Final = count
        self._file_size: Final = file_size
        self._piece_bytes: Final = piece_bytes(file_size, volume.page_bytes)
        self._free: Final[deque[WriteBuffer]] = deque()
        self._buffers: list[WriteBuffer] = []
        self._identity: StoreIdentity | None = None

    def __repr__(self) -> str:
        return f"<WritePool {self._volume.medium} buffers={len(self._buffers)} free={len(self._free)}>"

    @property
    def status(self) -> PoolStatus:
        return PoolStatus(self._volume.medium, len(self._buffers), len(self._free), self._volume.is_crash_safe)

    @property
    def is_crash_safe(self) -> bool:
        return self._volume.is_crash_safe

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the volume and open the buffers in it, and remove those that are incomplete or too small.

        Raises ``StoreLocked`` or ``StoreUnusable``.
        """
        try:
            self._volume.acquire()
        except BlockingIOError as exc:
            raise StoreLocked(f"another process uses the write buffers in {self._volume!r}: stop it first") from exc
        except OSError as exc:
            raise StoreUnusable(
                f"the write buffers in {self._volume!r} cannot be locked: {exc}; repair that and start again"
            ) from exc
        for name in self._volume.names():
            try:
                piece = self._volume.open(name)
            except OSError as exc:
                if exc.errno != errno.EINVAL:
                    raise StoreUnusable(
                        f"the write buffer {name} in {self._volume!r} cannot be opened: {exc}; repair that and start"
                        " again"
                    ) from exc
                self._volume.remove(name)  # its process died while it allocated the piece
                continue
            header = read_header(piece.view) if piece.size >= self._volume.page_bytes else None
            size = header.file_size if header is not None else self._file_size
            if piece.size < piece_bytes(size, self._volume.page_bytes):
                piece.close()
                self._volume.remove(name)
                continue
            buffer = WriteBuffer(piece, file_size=size, page_bytes=self._volume.page_bytes)
            if header is not None:
                buffer.base_offset, buffer.start = header.base_offset, header.start
            self._buffers.append(buffer)

    def __len__(self) -> int:
        return len(self._buffers)

    def find_leftover(self) -> list[WriteBuffer]:
        """Return the live buffers that an earlier process has left, in the order of their files."""
        live = (buffer for buffer in self._buffers if buffer.state is BufferState.LIVE)
        return sorted(live, key=lambda buffer: (buffer.base_offset, buffer.piece.name))

    def void_leftover(self) -> None:
        """Mark all buffers that an earlier process has left as invalid (void), after recovery."""
        for buffer in self.find_leftover():
            buffer.void()

    def prepare(self, identity: StoreIdentity) -> None:
        """Bring the pool to its configured size, with every byte zero and allocated.

        Raises ``StoreUnusable`` if there is not enough memory.
        """
        self._identity = identity
        kept: list[WriteBuffer] = []
        for buffer in self._buffers:
            assert buffer.state is not BufferState.LIVE, buffer
            if len(kept) >= self._count or buffer.piece.size != self._piece_bytes:
                name = buffer.piece.name
                buffer.close()
                self._volume.remove(name)
                continue
            if buffer.file_size != self._file_size:
                buffer.view.release()
                buffer = WriteBuffer(buffer.piece, file_size=self._file_size, page_bytes=self._volume.page_bytes)
            if buffer.state is BufferState.VOID:
                buffer.clean()
            kept.append(buffer)
        self._buffers = kept
        self._grow()
        self._free.extend(self._buffers)

    def _grow(self) -> None:
        names = {buffer.piece.name for buffer in self._buffers}
        number = 0
        while len(self._buffers) < self._count:
            name = f"{PIECE_NAME_PREFIX}{number:03d}"
            number += 1
            if name in names:
                continue
            try:
                piece = self._volume.create(name, self._piece_bytes)
            except OSError as exc:
                raise StoreUnusable(
                    f"no memory for write buffer {len(self._buffers) + 1} of {self._count} ({self._piece_bytes} bytes "
                    f"of {self._volume.medium} each): {exc.strerror}; lower transientStorePoolSize or make room"
                ) from exc
            self._buffers.append(WriteBuffer(piece, file_size=self._file_size, page_bytes=self._volume.page_bytes))

    # -- borrowing -----------------------------------------------------------------------------------------------------

    def borrow(self, base_offset: int, start: int) -> WriteBuffer | None:
        """Return a buffer for the bytes from ``start`` on of the file at ``base_offset``; None if none is free."""
        identity = self._identity
        assert identity is not None, "prepare() comes first"
        try:
            buffer = self._free.popleft()
        except IndexError:
            return None
        buffer.borrow(
            store=identity.uuid,
            generation=identity.generation,
            epoch=identity.epoch,
            base_offset=base_offset,
            start=start,
        )
        return buffer

    def set_identity(self, identity: StoreIdentity) -> None:
        """Write ``identity`` into the headers of buffers that are borrowed from now on. No buffer may be in use."""
        self._identity = identity

    def give_back(self, buffer: WriteBuffer) -> None:
        """Take a buffer back whose bytes are all in the page cache of its file, and which no reader uses any more."""
        buffer.void()
        crash_points.hit(crash_points.MID_RETURN)
        buffer.clean()
        self._free.append(buffer)

    def close(self) -> None:
        """Release all memory. Live buffers stay live for the next start."""
        self._free.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []
        self._volume.release()
