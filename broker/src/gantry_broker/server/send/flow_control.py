"""Refuses sends as "busy" with RocketMQ's codes and texts, depending on the backlog of the connection.

RocketMQ's broker measures how long a request has waited in the queue of its thread pool. Here requests wait in the
sockets, so a backlog belongs to a connection: it has one while each of its turns ends before its socket is empty.

    backlog begins                                     five times `waitTimeMillsInSendQueue`
         |-------------------- always served -----------------|--- served, if the bytes in the socket can be served
                                                               |   in one `waitTimeMillsInSendQueue`
                                                               `-- otherwise refused: sustained overload

A burst is served, however large, since it ends. Time is the CPU time of the event loop's thread. So the work of the
loop for a connection counts, and the time that other programs take from it does not: a starved core or a stopped
process delays every request, and is not caused by the sender. Only sends of a connection with such a backlog are
refused; the requests of others wait for one turn of the loop at most.

An append that blocks longer than `osPageCacheBusyTimeOutMills` delays all connections. Sends that arrived meanwhile are
refused with the text for a busy page cache. The time for which the thread waited for a core does not count here either:
only the kernel can distinguish it from a slow disk, and reports it. Other refusals, such as that for a full disk, hold
until they are lifted.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from gantry_broker.server.core.refusals import Refusal
from gantry_status import RefusalReason
from gantry_wire import ResponseCode

BURST_WAITS: Final = 5
"""A backlog that lasts longer than the waiting time multiplied by this is no burst. With 200 ms this is a second of
work, 10,000 sends of the slowest kind, and a third of the timeout of RocketMQ's clients."""

STALL_MS: Final = 10
"""How long sends are refused after a blocked append: RocketMQ checks its queue at this interval."""

RATE_WINDOW_S: Final = 1.0
"""The service rate covers about the last second of work."""

CORE_WAIT_AGE_S: Final = 0.1
"""A reading of the thread's wait for cores costs 1 us, so it is not taken before every append. A reading of this age
shortens the measured time of a blocked append by 100 ms at most."""


class CoreWait:
    """The time that the creating thread has waited for a core; always 0 if the kernel does not count it."""

    def __init__(self) -> None:
        try:
            # The kernel resolves this name to the thread that opens it, for every later read.
            self._descriptor: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def seconds(self) -> float:
        """Return the sum since the start of the thread, in seconds."""
        if self._descriptor is None:
            return 0.0
        return int(os.pread(self._descriptor, 128, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Close the file of the kernel; the wait is 0 afterwards."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Sender(Protocol):
    """The state of a connection that flow control needs."""

    @property
    def is_backlogged(self) -> bool:
        """Whether its last turn ended before its socket was empty."""

    def queued_bytes(self) -> int:
        """Return the bytes that the kernel has received for the connection and that were not read yet."""


@final
class Backlog:
    """The work for one connection since its socket was last empty, in CPU time of the loop's thread."""

    def __init__(self, now: float) -> None:
        self.began_at: Final = now
        self._counted_at = now
        self._read_bytes = 0
        self._served_bytes = 0.0
        self._served_s = 0.0

    def count(self, now: float, size: int) -> None:
        """Count a read of `size` bytes before it is handled; the previous one is complete."""
        if self._read_bytes:
            self._served_bytes += self._read_bytes
            self._served_s += now - self._counted_at
            if self._served_s > RATE_WINDOW_S:
                self._served_bytes, self._served_s = self._served_bytes / 2, self._served_s / 2
        self._counted_at, self._read_bytes = now, size

    def ignore_read(self) -> None:
        """Ignore the last read, which is refused: its cost does not show the service rate of sends."""
        self._read_bytes = 0

    def estimate_drain_s(self, queued_bytes: int) -> float:
        """Return how long serving this many bytes takes at the present rate."""
        return queued_bytes * self._served_s / self._served_bytes if self._served_bytes else 0.0


@final
class FlowControl:
    """Decides whether sends of a connection are refused as busy. Owned by the event loop.

    `refusal` is called once per read, not per message.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        wait_ms_max: int,
        append_ms_max: int,
        cpu_time: Callable[[], float] = time.thread_time,
        core_wait: CoreWait | None = None,
    ) -> None:
        """Must be called in the loop's thread, whose times are measured. The last two arguments are for tests."""
        self._loop = loop
        self._cpu_time = cpu_time
        self._core_wait = core_wait or CoreWait()
        self._core_wait_s = self._core_wait.seconds()
        self._core_wait_until = 0.0
        self.set_limits(wait_ms_max=wait_ms_max, append_ms_max=append_ms_max)
        self._backlogs: dict[Sender, Backlog] = {}
        self._stall: asyncio.TimerHandle | None = None
        self._stall_s = 0.0
        self.standing_refusal: Refusal | None = None
        """The refusal of every send until it is lifted, since the disk is too full; None if sends are accepted."""

        self.is_quiet = True
        """Whether `refusal` is None for every sender without a backlog, so that it need not be called for those."""

    def __repr__(self) -> str:
        return (
            f"<FlowControl backlogs={len(self._backlogs)} stall={self._stall_s:.3f} s standing={self.standing_refusal}>"
        )

    def set_limits(self, *, wait_ms_max: int, append_ms_max: int) -> None:
        """Set the limits of waiting time and append time."""
        self._wait_s_max = wait_ms_max / 1000
        self._append_s_max = append_ms_max / 1000

    def set_standing_refusal(self, refusal: Refusal | None) -> None:
        """Refuse every send with this refusal from now on; with None, accept sends again."""
        self.standing_refusal = refusal
        self._note_change()

    def _note_change(self) -> None:
        self.is_quiet = self.standing_refusal is None and not self._stall_s and not self._backlogs

    def stop(self) -> None:
        """Cancel the timer and close the file."""
        if self._stall is not None:
            self._end_stall()
        self._core_wait.close()

    def begin_append(self, now: float) -> None:
        """Record at loop time `now` the reading that `end_append` compares with."""
        if now > self._core_wait_until:
            self._core_wait_s = self._core_wait.seconds()
            self._core_wait_until = now + CORE_WAIT_AGE_S

    def end_append(self, seconds: float) -> None:
        """Refuse sends for STALL_MS if the append took too long because of the disk, not for lack of a core."""
        if seconds > self._append_s_max:
            seconds -= self._core_wait.seconds() - self._core_wait_s
        if seconds > self._append_s_max:
            if self._stall is not None:
                self._stall.cancel()
            self._stall_s = seconds
            self._note_change()
            self._stall = self._loop.call_later(STALL_MS / 1000, self._end_stall)

    def refusal(self, sender: Sender, data: bytes) -> Refusal | None:
        """Return the refusal of the sends in `data`, a read of `sender`; None if they are accepted."""
        if self.standing_refusal is not None:
            return self.standing_refusal
        if self._stall_s:
            return _busy(RefusalReason.PAGE_CACHE_BUSY, self._stall_s, sender.queued_bytes(), data)
        if sender.is_backlogged:
            return self._overload(sender, data)
        self.forget(sender)
        return None

    def forget(self, sender: Sender) -> None:
        """Remove the backlog of a connection that is closed, or that has none any more."""
        if self._backlogs.pop(sender, None) is not None:
            self._note_change()

    def _overload(self, sender: Sender, data: bytes) -> Refusal | None:
        now = self._cpu_time()
        backlog = self._backlogs.get(sender)
        if backlog is None:
            backlog = self._backlogs[sender] = Backlog(now)
            self._note_change()
        backlog.count(now, len(data))
        if now - backlog.began_at <= BURST_WAITS * self._wait_s_max:
            return None
        queued_bytes = sender.queued_bytes()
        if not queued_bytes:  # the sender waits for its answers: its limit of outstanding sends fills a turn
            self.forget(sender)
            return None
        drain_s = backlog.estimate_drain_s(queued_bytes)
        if drain_s <= self._wait_s_max:
            return None
        backlog.ignore_read()
        return _busy(RefusalReason.QUEUE_TIMEOUT, drain_s, queued_bytes, data)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._stall, self._stall_s = None, 0.0
        self._note_change()


def _busy(reason: RefusalReason, waited_s: float, queued_bytes: int, data: bytes) -> Refusal:
    kind = "PCBUSY_CLEAN_QUEUE" if reason is RefusalReason.PAGE_CACHE_BUSY else "TIMEOUT_CLEAN_QUEUE"
    frame_bytes = 4 + int.from_bytes(data[:4], "big")
    return Refusal(
        ResponseCode.SYSTEM_BUSY,
        f"[{kind}]broker busy, start flow control for a while, "
        f"period in queue: {waited_s * 1000:.0f}ms, size of queue: {queued_bytes // frame_bytes}",
        reason,
    )
