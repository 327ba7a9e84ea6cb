"""Answers that wait until the store has kept its promise, in the order of the log.

    sends -> appended -> parked, by the end of their records ------ `promised` passes it --> code 0
                                                        `---------- the deadline passes ---> code 10

No handler waits for a disk: whoever appended parks its answers here and goes on, and they leave when the flush thread
has said how far the disk is. Offsets only grow, so the waiting room is a deque. Code 10 means "stored, not promised":
the message may survive, the client counts it as not acknowledged.

Answers are kept as bytes with code 0, and the deadline rewrites them: it is met once in a blue moon, and the usual case
then costs one deque entry per pass and connection.
"""

import asyncio
import json
from collections import deque
from typing import NamedTuple, final

from gantry_broker.server.flow_control import Refusal
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import ResponseCode
from gantry_wire.frame import FRAME_HEAD


class Parked(NamedTuple):
    """Answers to one connection for one append."""

    end: int
    """The physical offset behind the last record they are about."""

    deadline: float
    connection: Connection
    replies: bytes
    """Whole frames, as if everything had gone well."""

    sends: int


@final
class ParkedReplies:
    """Owned by the event loop. `released` is called when `promised` may have moved."""

    def __init__(
        self, store: MessageStore, loop: asyncio.AbstractEventLoop, *, timeout_ms: int, sends_max: int = 1 << 62
    ) -> None:
        self._store = store
        self._loop = loop
        self._timeout_s = timeout_ms / 1000
        self._sends_max = sends_max
        self._waiting: deque[Parked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0
        """How many sends wait."""
        self.late_count = 0
        """How many sends were answered 10."""

    def __repr__(self) -> str:
        return f"<ParkedReplies waiting={self.count} late={self.late_count}>"

    @property
    def refusal(self) -> Refusal | None:
        """Why nobody else may come in, if so: who waits costs memory, and a disk that hangs lets nobody go."""
        if self.count < self._sends_max:
            return None
        return ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"

    def park(self, connection: Connection, replies: bytes, count: int, end: int) -> None:
        """Hold `replies`, which are about `count` sends whose records end at or before `end`."""
        assert not self._waiting or self._waiting[-1].end <= end, "offsets grow"
        self._waiting.append(Parked(end, self._loop.time() + self._timeout_s, connection, replies, count))
        self.count += count
        if self._timer is None:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire)

    def release(self) -> None:
        """Answer everybody whose promise is kept now."""
        promised, waiting = self._store.promised, self._waiting
        batches: dict[Connection, list[bytes]] = {}
        while waiting and waiting[0].end <= promised:
            parked = waiting.popleft()
            self.count -= parked.sends
            batches.setdefault(parked.connection, []).append(parked.replies)
        for connection, replies in batches.items():
            connection.send(b"".join(replies))

    def _expire(self) -> None:
        """Answer those whose time is up, and look again when the next one's is."""
        self._timer = None
        self.release()  # what was kept in time but not answered yet is no failure
        now, waiting = self._loop.time(), self._waiting
        while waiting and waiting[0].deadline <= now:
            parked = waiting.popleft()
            self.count -= parked.sends
            self.late_count += parked.sends
            parked.connection.send(with_code(parked.replies, ResponseCode.FLUSH_DISK_TIMEOUT))
        if waiting:
            self._timer = self._loop.call_at(waiting[0].deadline, self._expire)

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self.count = 0


def with_code(replies: bytes, code: ResponseCode) -> bytes:
    """Successful JSON replies, with another code."""
    parts: list[bytes] = []
    position = 0
    while position < len(replies):
        total, header_bytes = FRAME_HEAD.unpack_from(replies, position)
        start, end = position + FRAME_HEAD.size, position + 4 + total
        header = json.loads(replies[start : start + header_bytes])
        header["code"] = int(code)
        data = json.dumps(header, separators=(",", ":")).encode()
        body = replies[start + header_bytes : end]
        parts += (FRAME_HEAD.pack(4 + len(data) + len(body), len(data)), data, body)
        position = end
    return b"".join(parts)
