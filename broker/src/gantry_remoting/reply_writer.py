"""The writing side of a connection, and detection of a peer that does not read.

    0 ......... taken ......... mark ......... written
                [ waits in the transport's buffer )

`taken` and `written` are counts of bytes. Once a second the mark is set to `written`, if the peer has taken everything
up to the previous mark. A mark that stays means that the peer does not read, even if too few bytes wait for it to pause
the connection.
"""

import asyncio
import contextlib
import os
import socket
import struct
from typing import Final, final

from gantry_remoting.budgets import COUNTED_WRITE_BYTES, ByteBudget, ReplyTurns

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""The SO_LINGER option with zero seconds."""


@final
class ReplyWriter:
    """The writing side of one connection. Owned by the connection."""

    __slots__ = ("_budget", "_largest_write_bytes", "_mark_bytes", "_taken_bytes", "_transport", "_turns",
                 "_written_bytes", "paused_at", "since")  # fmt: skip

    def __init__(self, transport: asyncio.Transport, turns: ReplyTurns, budget: ByteBudget, now: float) -> None:
        self.paused_at = 0.0
        """When more bytes waited than the transport buffers, in the loop's time; 0 if not paused."""
        self.since = now
        """When the mark was last set, in the loop's time. For a peer that does not read: when the oldest of the waiting
        bytes was written, to the second; for a slow one they may be older."""
        self._transport = transport
        self._turns = turns
        self._budget = budget
        self._written_bytes = 0
        self._largest_write_bytes = 0
        self._taken_bytes = 0
        self._mark_bytes = 0

    def write(self, *parts: bytes) -> None:
        """Write ``parts`` and count them. May close connections, including this one: the port has a budget.

        Several parts go out by one system call, without being joined.
        """
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        self._written_bytes += size
        if size > self._largest_write_bytes:
            self._largest_write_bytes = size
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)
        if size >= COUNTED_WRITE_BYTES:
            self._turns.add(size)
        self._budget.add(size)

    def pause(self, now: float) -> None:
        """Record that more bytes wait than the transport buffers."""
        self.paused_at = now

    def resume(self) -> None:
        """Record that the peer has read enough."""
        self.paused_at = 0.0

    @property
    def waiting_bytes(self) -> int:
        """Return the number of written bytes that the peer has not taken."""
        return self._transport.get_write_buffer_size()

    @property
    def memory_bytes(self) -> int:
        """Return the maximum memory that the waiting bytes take.

        A write of which the kernel took a part is kept as a whole until the rest is sent, so the largest one counts in
        addition to the waiting bytes.
        """
        waiting = self.waiting_bytes
        if not waiting:
            self._largest_write_bytes = 0
        return waiting and waiting + self._largest_write_bytes

    def move_mark(self, now: float) -> None:
        """Set the mark to the written bytes, if everything up to it is taken. Called every second."""
        self._taken_bytes = self._written_bytes - self.waiting_bytes
        if self._taken_bytes >= self._mark_bytes:
            self._mark_bytes, self.since = self._written_bytes, now

    def is_overdue(self, now: float, timeout_s: float) -> bool:
        """Return whether the peer has not read for longer than `timeout_s`."""
        if self.paused_at and now - self.paused_at > timeout_s:
            return True
        return self._mark_bytes > self._taken_bytes and now - self.since > timeout_s

    def reset_on_close(self) -> None:
        """Make the kernel reset the connection instead of keeping 4 MiB and more that its peer does not read."""
        peer_socket = self._transport.get_extra_info("socket")
        if peer_socket is not None:
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(peer_socket.fileno())) as copy:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
