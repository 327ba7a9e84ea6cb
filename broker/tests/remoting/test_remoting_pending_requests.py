"""Requests that wait for replies: how each of them ends, and how many timers they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gantry_remoting.errors import ConnectionClosed, RemotingTimeout
from gantry_remoting.pending_requests import IDLE_QUEUES_MAX, Outcome, PendingRequests
from gantry_wire.command import Command


@dataclass(eq=False)
class Timer:
    at: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Loop:
    """A loop whose time a test moves."""

    now: float = 100.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    @property
    def pending(self) -> list[Timer]:
        return [one for one in self.timers if not one.is_cancelled]

    def advance(self, seconds: float) -> None:
        """Let time pass, and call what is due."""
        self.now += seconds
        for one in [timer for timer in self.pending if timer.at <= self.now]:
            one.is_cancelled = True
            one.callback()


@dataclass
class Requests:
    """Pending requests on a loop of the test, and their outcomes by request id."""

    pending: PendingRequests = field(default_factory=PendingRequests)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)

    def begin(self, timeout_ms: int = 3_000) -> int:
        command = Command(code=10)
        self.pending.begin(command, self._write, "10.0.0.1:10911", timeout_ms, self._on_outcome(command.opaque))
        return command.opaque

    def answer(self, opaque: int) -> None:
        self.pending.resolve(Command(code=0, opaque=opaque, flag=1))

    def _write(self, command: Command) -> None:
        self.written.append(command.opaque)

    def _on_outcome(self, opaque: int) -> Callable[[Outcome], None]:
        def keep(outcome: Outcome) -> None:
            assert opaque not in self.outcomes, "a request has one outcome"
            self.outcomes[opaque] = outcome

        return keep


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    one = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: one)
    return one


def test_each_reply_ends_its_request(loop: Loop) -> None:
    """Replies come in any order, and one that no request waits for is dropped."""
    requests = Requests()
    first, second = requests.begin(), requests.begin()

    requests.answer(second)
    requests.answer(second + 1_000)
    requests.answer(first)
    requests.answer(first)

    assert requests.written == [first, second]
    assert list(requests.outcomes) == [second, first]
    assert all(isinstance(one, Command) for one in requests.outcomes.values())
    assert len(requests.pending) == 0


def test_request_ends_at_its_own_deadline(loop: Loop) -> None:
    """Neither earlier requests, answered or not, nor those with other timeouts move it."""
    requests = Requests()
    answered = requests.begin()
    loop.advance(1.0)
    late, short = requests.begin(), requests.begin(500)
    requests.answer(answered)

    loop.advance(0.5)
    assert isinstance(requests.outcomes[short], RemotingTimeout)
    loop.advance(2.4)
    assert late not in requests.outcomes
    loop.advance(0.1)

    assert str(requests.outcomes[late]) == "no reply from 10.0.0.1:10911 to code 10 within 3000 ms"
    assert len(requests.pending) == 0
    assert loop.pending == []


def test_requests_with_the_same_timeout_share_a_timer(loop: Loop) -> None:
    """A request costs no timer of its own, also when all before it are answered."""
    requests = Requests()
    for _ in range(1_000):
        requests.answer(requests.begin())
        loop.advance(0.001)
    held = requests.begin()

    assert len(loop.timers) == 1
    loop.advance(2.5)
    assert held not in requests.outcomes
    assert len(loop.pending) == 1
    loop.advance(3.0)
    assert isinstance(requests.outcomes[held], RemotingTimeout)


def test_timers_without_a_request_are_few(loop: Loop) -> None:
    """Each long poll may have another timeout; their timers must not wait for nothing."""
    requests = Requests()
    for timeout_ms in range(1_000, 1_100):
        requests.answer(requests.begin(timeout_ms))
    held = [requests.begin(timeout_ms) for timeout_ms in range(2_000, 2_030)]

    assert len(loop.pending) == IDLE_QUEUES_MAX + len(held)
    loop.advance(3.0)
    assert all(isinstance(requests.outcomes[one], RemotingTimeout) for one in held)
    assert loop.pending == []


def test_lost_connection_ends_every_request(loop: Loop) -> None:
    """Each of them learns it once, and no timer remains."""
    requests = Requests()
    begun = [requests.begin(timeout_ms) for timeout_ms in (100, 100, 200)]

    requests.pending.fail("the connection was lost")
    loop.advance(1.0)

    assert [str(requests.outcomes[one]) for one in begun] == ["the connection was lost"] * 3
    assert all(isinstance(requests.outcomes[one], ConnectionClosed) for one in begun)
    assert loop.pending == []


def test_outcome_may_begin_another_request(loop: Loop) -> None:
    """A caller that repeats a request at its timeout waits for the full time again."""
    requests = Requests()
    repeated: list[int] = []
    command = Command(code=10)
    requests.pending.begin(command, lambda _: None, "peer", 1_000, lambda _: repeated.append(requests.begin(1_000)))

    loop.advance(1.0)
    [again] = repeated
    loop.advance(0.9)
    assert again not in requests.outcomes
    loop.advance(0.1)

    assert isinstance(requests.outcomes[again], RemotingTimeout)


def test_request_that_cannot_be_written_is_not_pending(loop: Loop) -> None:
    """The caller gets the error, and no outcome later."""
    requests = Requests()

    def refuse(command: Command) -> None:
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        requests.pending.begin(Command(code=10), refuse, "peer", 1_000, lambda _: pytest.fail("an outcome"))
    loop.advance(2.0)

    assert len(requests.pending) == 0


async def test_waiting_can_be_cancelled() -> None:
    """A caller that goes away leaves nothing behind, and its reply is dropped."""
    pending, command = PendingRequests(), Command(code=10)
    waiting = asyncio.ensure_future(pending.send(command, lambda _: None, "peer", 60_000))
    await asyncio.sleep(0)
    assert len(pending) == 1

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    pending.resolve(Command(code=0, opaque=command.opaque, flag=1))

    assert len(pending) == 0
    pending.fail("the test is over")


async def test_waiting_returns_the_reply_or_raises() -> None:
    """`send` is `begin` for a task."""
    pending, answered, lost = PendingRequests(), Command(code=10), Command(code=10)
    tasks = [asyncio.ensure_future(pending.send(one, lambda _: None, "peer", 60_000)) for one in (answered, lost)]
    await asyncio.sleep(0)

    pending.resolve(Command(code=7, opaque=answered.opaque, flag=1))
    pending.fail("the connection was lost")
    reply, error = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(reply, Command) and reply.code == 7
    assert isinstance(error, ConnectionClosed)
