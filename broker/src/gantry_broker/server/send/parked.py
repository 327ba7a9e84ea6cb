"""Answers that wait until the store has kept its promise, in the order of the log.

    sends -> appended -> parked, by the end of their records ------ `promised` passes it -------------> code 0
                                                        `---------- a deadline passes, and its stage
                                                                    is not reached -----------------> its code

No handler waits for a disk or a slave: whoever appended parks its answers here and goes on, and they leave when the
flush thread, or an ack, has moved what may be promised. Offsets only grow, so each waiting room is a deque. What is
waited for has stages with a deadline each, the disk (code 10) and the slaves (code 12), which are waited for in
parallel: who has reached the earlier one in time goes on waiting for the later. Both codes say "stored, not promised":
the message may survive, the client counts it as not acknowledged.

Answers are kept as bytes with code 0, and the deadline rewrites them: it is met once in a blue moon, and the usual case
then costs one deque entry per pass and connection.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from gantry_broker.server.core.refusals import Refusal
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_status import RefusalReason
from gantry_wire import ResponseCode
from gantry_wire.frame import FRAME_HEAD

WAIT_BUCKETS: Final = 32
"""Bucket `n` counts waits of `[2**(n-1), 2**n)` us, the last one everything longer."""


WAITING_FULL: Final = Refusal(
    ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while", RefusalReason.WAITING_FULL
)


class Stage(NamedTuple):
    """Something that answers wait for."""

    timeout_ms: int
    code: ResponseCode
    reached: Callable[[], int]
    """Records that end at or before it have it."""


class Parked(NamedTuple):
    """Answers to one connection for one append."""

    end: int
    """The physical offset behind the last record they are about."""

    at: float
    connection: Connection
    replies: bytes
    """Whole frames, as if everything had gone well."""

    sends: int


def always() -> bool:
    """Every answer waits."""
    return True


def no_shortfall() -> ResponseCode | None:
    """There is somebody to wait for."""
    return None


@final
class ParkedReplies:
    """Owned by the event loop. `release` is called when `promised` may have moved."""

    def __init__(
        self, store: MessageStore, loop: asyncio.AbstractEventLoop, stages: Sequence[Stage], *, sends_max: int = 1 << 62
    ) -> None:
        self.shortfall: Callable[[], ResponseCode | None] = no_shortfall
        """Why nobody need wait at all, since what they would wait for is not there; the code to answer at once."""

        self.must_wait: Callable[[], bool] = always
        """Whether what has just been appended waits at all. Asked just before the answers."""

        self.promised: Callable[[], int] = lambda: store.promised
        """Records that end at or before it may be acknowledged."""

        self.count = 0
        """How many sends wait."""

        self.late_count = 0
        """How many sends were answered that they were not promised."""

        self.waits = [0] * WAIT_BUCKETS
        """How many sends were acknowledged after which time in here."""

        self._loop = loop
        self._stages = sorted(stages, key=lambda stage: stage.timeout_ms)
        self._rooms: list[deque[Parked]] = [deque() for _ in self._stages]
        """One for each stage, by deadlines; who has passed a deadline has smaller offsets than who has not."""

        self.sends_max = sends_max
        """As many may wait."""

        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ParkedReplies waiting={self.count} late={self.late_count}>"

    @property
    def refusal(self) -> Refusal | None:
        """Why nobody else may come in, if so: who waits costs memory, and a disk that hangs lets nobody go."""
        if self.count < self.sends_max:
            return None
        return WAITING_FULL

    def park(self, connection: Connection, replies: bytes, count: int, end: int) -> None:
        """Hold `replies`, which are about `count` sends whose records end at or before `end`."""
        self.park_all([(connection, replies, count)], end)

    def park_all(self, answers: Sequence[tuple[Connection, bytes, int]], end: int) -> None:
        """Hold the answers of one append: to whom, the replies, and how many sends they are about."""
        shortfall, now, room, total = self.shortfall(), self._loop.time(), self._rooms[0], 0
        assert not room or room[-1].end <= end, "offsets grow"
        for connection, replies, count in answers:
            parked = Parked(end, now, connection, replies, count)
            if shortfall is not None:
                self._late(parked, shortfall)
                continue
            room.append(parked)
            total += count
        self.count += total
        if self._timer is None:
            self._set_timer()

    def release(self) -> None:
        """Answer everybody whose promise is kept now."""
        promised, now, waits = self.promised(), self._loop.time(), self.waits
        batches: dict[Connection, list[bytes]] = {}
        for room in reversed(self._rooms):
            while room and room[0].end <= promised:
                parked = room.popleft()
                self.count -= parked.sends
                waits[min(int((now - parked.at) * 1e6).bit_length(), WAIT_BUCKETS - 1)] += parked.sends
                batches.setdefault(parked.connection, []).append(parked.replies)
        for connection, replies in batches.items():
            connection.send(b"".join(replies))

    def _deadline(self, place: int) -> float:
        return self._rooms[place][0].at + self._stages[place].timeout_ms / 1000

    def _set_timer(self) -> None:
        deadlines = [self._deadline(place) for place, room in enumerate(self._rooms) if room]
        if deadlines:
            self._timer = self._loop.call_at(min(deadlines), self._expire)

    def _expire(self) -> None:
        """Answer those whose time is up, and look again when the next one's is."""
        self._timer = None
        self.release()  # what was kept in time but not answered yet is no failure
        now = self._loop.time()
        for place, (stage, room) in enumerate(zip(self._stages, self._rooms, strict=True)):
            while room and self._deadline(place) <= now:
                parked = room.popleft()
                if parked.end <= stage.reached() and place + 1 < len(self._rooms):
                    self._rooms[place + 1].append(parked)
                    continue
                self.count -= parked.sends
                self._late(parked, stage.code)
        self._set_timer()

    def _late(self, parked: Parked, code: ResponseCode) -> None:
        self.late_count += parked.sends
        parked.connection.send(with_code(parked.replies, code))

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for room in self._rooms:
            room.clear()
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
