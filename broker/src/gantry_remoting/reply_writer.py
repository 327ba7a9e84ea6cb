"""What is written to one peer, and how much of it the peer has not taken.

    0 ......... taken ......... mark ......... written
                [ waits in the transport's buffer )

`taken` and `written` are counts of bytes. Once a second the mark is set to `written`, if the peer has taken everything
up to the mark before. A mark that stays shows a peer that does not read, also where what waits for it is too little to
pause the connection.
"""

import asyncio
import contextlib
import os
import socket
import struct
from typing import Final, final

from gantry_remoting.budgets import ByteBudget, ReplyTurns

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds."""


@final
class ReplyWriter:
    """The writing side of one connection. Owned by the connection."""

    __slots__ = ("_budget", "_largest_write_bytes", "_mark_bytes", "_taken_bytes", "_transport", "_turns",
                 "_written_bytes", "paused_at", "since")  # fmt: skip

    def __init__(self, transport: asyncio.Transport, turns: ReplyTurns, budget: ByteBudget, now: float) -> None:
        self.paused_at = 0.0
        """When more waited than the transport buffers, in the loop's time; 0 if no more does."""
        self.since = now
        """When the oldest of the bytes that wait was written, to the second."""
        self._transport = transport
        self._turns = turns
        self._budget = budget
        self._written_bytes = 0
        self._largest_write_bytes = 0
        self._taken_bytes = 0
        self._mark_bytes = 0

    def write(self, data: bytes) -> None:
        """Write ``data`` and count it. May close connections, this one included: the port has a budget."""
        size = len(data)
        self._written_bytes += size
        if size > self._largest_write_bytes:
            self._largest_write_bytes = size
        self._transport.write(data)
        self._turns.add(size)
        self._budget.add(size)

    def pause(self, now: float) -> None:
        """Note that more waits than the transport buffers."""
        self.paused_at = now

    def resume(self) -> None:
        """Note that enough was taken."""
        self.paused_at = 0.0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written and not taken."""
        return self._transport.get_write_buffer_size()

    @property
    def memory_bytes(self) -> int:
        """What they take, at most.

        A write that the kernel took a part of is kept as a whole until the rest is gone, so the largest one counts
        beside what waits.
        """
        waiting = self.waiting_bytes
        if not waiting:
            self._largest_write_bytes = 0
        return waiting and waiting + self._largest_write_bytes

    def move_mark(self, now: float) -> None:
        """Called every second: set the mark to what is written, if everything up to it is taken."""
        self._taken_bytes = self._written_bytes - self.waiting_bytes
        if self._taken_bytes >= self._mark_bytes:
            self._mark_bytes, self.since = self._written_bytes, now

    def is_overdue(self, now: float, timeout_s: float) -> bool:
        """Whether the peer has not read for so long."""
        if self.paused_at and now - self.paused_at > timeout_s:
            return True
        return self._mark_bytes > self._taken_bytes and now - self.since > timeout_s

    def reset_on_close(self) -> None:
        """Have the kernel reset the connection instead of keeping what its peer does not read, 4 MiB and more."""
        found = self._transport.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(found.fileno())) as copy:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
