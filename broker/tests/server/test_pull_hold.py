"""Held requests are retried in turns of limited time; those that compete for messages, only while some are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gantry_broker.server.pull import pull_hold
from gantry_broker.server.pull.pull_hold import ANY_QUEUE, PullHold, QueueKey
from gantry_remoting import Connection
from gantry_wire import Command


class FakeLoop:
    """A loop whose turns and time the test decides about."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run_turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def run(self) -> None:
        """Run turns until nothing is scheduled."""
        while self.calls:
            self.run_turn()


class FakeConnection:
    is_open = True
    peer = ("127.0.0.1", 1)

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)


class FakePop:
    """A request for one message of a shared supply, which costs some time for each retry."""

    def __init__(self, world: World, contest: str, *, queue_id: int = ANY_QUEUE) -> None:
        self.world, self.contest = world, contest
        self.command = Command(code=1)
        self.connection = cast(Connection, FakeConnection())
        self.keys: tuple[QueueKey, ...] = (("orders", queue_id),)
        self.deadline = 200.0
        self.is_done = False
        self.is_more_left = True
        self.retries = 0

    def retry(self, must_answer: bool) -> Command | None:
        self.retries += 1
        self.world.loop.now += self.world.retry_s
        supply = self.world.supply
        found = supply.get(self.contest, 0)
        if not found:
            self.is_more_left = False
            return None
        supply[self.contest] = found - 1
        self.is_more_left = found > 1
        return self.command.reply()


class World:
    """Held requests of one topic, and the messages for each contest."""

    def __init__(self, retry_s: float = 0) -> None:
        self.loop = FakeLoop()
        self.retry_s = retry_s
        self.supply: dict[str, int] = {}
        self.hold = PullHold(
            cast(asyncio.AbstractEventLoop, self.loop), lambda held, must: None,
            held_max=10_000, held_per_connection_max=10_000,
        )  # fmt: skip

    def add(self, contest: str, count: int, **fields: Any) -> list[FakePop]:
        found = [FakePop(self, contest, **fields) for _ in range(count)]
        for one in found:
            self.hold.hold(one)
        return found

    def wake(self) -> None:
        self.hold.mark_queues([("orders", 0)])
        self.loop.run()


def answered(pops: list[FakePop]) -> int:
    return sum(len(cast(FakeConnection, one.connection).sent) for one in pops)


def test_message_wakes_one_request_of_each_contest() -> None:
    """Of 500 pops of a group, one is answered and no other is retried; another group gets the message, too."""
    world = World()
    billing, archive = world.add("billing", 500), world.add("archive", 3)
    world.supply = {"billing": 1, "archive": 1}
    world.wake()
    assert (answered(billing), sum(one.retries for one in billing)) == (1, 1)
    assert (answered(archive), sum(one.retries for one in archive)) == (1, 1)
    world.wake()
    assert (answered(billing), sum(one.retries for one in billing)) == (1, 2)


def test_each_message_is_taken_by_a_request() -> None:
    """Requests are retried as long as messages are left, whichever queue they wait for."""
    world = World()
    pops = [*world.add("billing", 5), *world.add("billing", 5, queue_id=0)]
    world.supply = {"billing": 7}
    world.wake()
    assert (answered(pops), world.supply) == (7, {"billing": 0})


def test_request_that_left_messages_does_not_end_the_wake() -> None:
    """One that stays held, but has not examined all messages, lets the others try."""
    world = World()
    [first] = world.add("billing", 1)
    others = world.add("billing", 2)
    first.retry = lambda must_answer: None  # type: ignore[method-assign]
    world.supply = {"billing": 2}
    world.wake()
    assert answered(others) == 2


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
def test_retries_of_one_turn_are_limited_in_time(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """The others are retried in the next turns, so that the loop serves other requests in between."""
    if not is_guarded:
        monkeypatch.setattr(pull_hold, "TURN_S", 1e9)
    world = World(retry_s=0.002)
    pops = [pop for number in range(30) for pop in world.add(f"group-{number}", 1)]
    world.supply = {f"group-{number}": 1 for number in range(30)}
    world.hold.mark_queues([("orders", 0)])
    world.loop.run_turn()
    assert answered(pops) == (3 if is_guarded else 30)
    world.loop.run()
    assert answered(pops) == 30


def test_dropped_requests_are_not_retried() -> None:
    """A connection that is closed while its request waits for its turn takes no message."""
    world = World(retry_s=1)
    first, second, third = world.add("billing", 3)
    world.supply = {"billing": 2}
    world.hold.mark_queues([("orders", 0)])
    world.loop.run_turn()
    world.hold.drop_connection(second.connection)
    world.loop.run()
    assert [answered([one]) for one in (first, second, third)] == [1, 0, 1]
    assert world.hold.count == 0
