"""Queue locks where brokers change: two clients never have reason to believe that one queue is theirs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.ha.acknowledgement import AckPolicy
from gantry_broker.server.core.queue_locks import LOCK_LEASE_MS, QueueLocks
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker
from gantry_wire import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.fastjson import dumps, loads

QUEUE = MessageQueue(topic=TOPIC, broker_name="b", queue_id=0)
MEMBER = {"roleAtStart": "UNASSIGNED", "brokerId": "1"}
RENEWAL_MS = 20_000


@dataclass
class Believer:
    """A client that keeps what it was granted for a whole lease: the longest that anybody may."""

    name: str
    clock: FakeClock
    granted_at_ms: int | None = None

    def ask(self, locks: QueueLocks) -> None:
        if locks.rest_ms:
            return  # an error says nothing about what it holds
        asked_at_ms = self.clock.monotonic_ms()
        self.granted_at_ms = asked_at_ms if locks.lock(GROUP, self.name, [QUEUE]) else None

    @property
    def believes(self) -> bool:
        return self.granted_at_ms is not None and self.clock.monotonic_ms() - self.granted_at_ms <= LOCK_LEASE_MS


def contest(*, is_careful: bool) -> tuple[int, bool]:
    """One second after the other: A holds a queue, its master dies, A and B ask the next one.

    Returns how many milliseconds both believed, and whether B has got the queue in the end.
    """
    clock = FakeClock()
    first, second = QueueLocks(clock), QueueLocks(clock)
    a, b = Believer("A", clock), Believer("B", clock)
    a.ask(first)
    clock.advance(RENEWAL_MS)
    a.ask(first)
    clock.advance(1_000)
    if is_careful:
        second.forget_holders()
    both_ms = 0
    for _ in range(200):
        b.ask(second)
        both_ms += 1_000 if a.believes and b.believes else 0
        clock.advance(1_000)
    return both_ms, b.believes


def test_two_clients_never_believe_in_one_queue_through_a_failover() -> None:
    """A new master grants nothing until every belief that it does not know of has ended; then it grants again."""
    assert contest(is_careful=True) == (0, True)


def test_the_contest_finds_a_master_that_does_not_wait() -> None:
    """Twin: without the rest the same contest has two owners of one queue."""
    both_ms, _ = contest(is_careful=False)
    assert both_ms > 0


def test_a_holder_that_asks_again_keeps_its_queue_after_the_rest() -> None:
    """The rest is over at once for everybody, and the first to ask has the queue."""
    clock = FakeClock()
    locks = QueueLocks(clock)
    locks.forget_holders()
    assert repr(locks) == f"<QueueLocks groups=0 rests_ms={LOCK_LEASE_MS + 1}>"

    clock.advance(LOCK_LEASE_MS)
    assert locks.rest_ms == 1
    clock.advance(1)
    assert (locks.rest_ms, locks.lock(GROUP, "A", [QUEUE]), locks.lock(GROUP, "B", [QUEUE])) == (0, [QUEUE], [])


# ------- over real sockets


async def lock(client: Dialogue, name: str) -> Command:
    body = {"consumerGroup": GROUP, "clientId": name, "mqSet": [{"topic": TOPIC, "brokerName": "b", "queueId": 0}]}
    return await client.ask(41, body=dumps(body))


def granted(reply: Command) -> int:
    assert reply.code == 0, f"code {reply.code}: {reply.remark}"
    held: list[Any] = loads(reply.body)["lockOKMQSet"]
    return len(held)


async def test_a_promoted_broker_rests_for_one_lease(tmp_path: Path) -> None:
    """After a promotion locks are refused with 14 and the reason for a lease, then granted; sends go on meanwhile."""
    clock = FakeClock()
    async with running_broker(tmp_path, disk=None, clock=clock, **MEMBER) as broker:
        await broker.orders.promote(2, [], force=False)
        async with dialogue(broker) as client:
            assert granted(await lock(client, "A")) == 1, "a new group waits for nothing"
            await client.send_ok()
        await broker.orders.fence(3)
        await broker.orders.promote(4, [], force=False)

        async with dialogue(broker) as client:
            for name in ("A", "B"):
                refused = await lock(client, name)
                assert (refused.code, "has just become the master" in (refused.remark or "")) == (14, True)
            await client.send_ok()
            clock.advance(LOCK_LEASE_MS + 1)
            assert (granted(await lock(client, "B")), granted(await lock(client, "A"))) == (1, 0)


async def test_a_clean_restart_remembers_who_holds_what(tmp_path: Path) -> None:
    """Holders go on at once, others wait until the lease has run out, counted from the start."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await client.send_ok()
        assert granted(await lock(client, "A")) == 1
        clock.advance(LOCK_LEASE_MS - 1)

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        clock.advance(LOCK_LEASE_MS)
        assert granted(await lock(client, "B")) == 0
        assert granted(await lock(client, "A")) == 1
        clock.advance(LOCK_LEASE_MS + 1)
        assert granted(await lock(client, "B")) == 1


async def test_an_unclean_start_rests(tmp_path: Path) -> None:
    """What was written down at the last clean stop is not believed after a crash."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await client.send_ok()
        assert granted(await lock(client, "A")) == 1
    (tmp_path / "abort").write_bytes(b"")

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        assert [(await lock(client, name)).code for name in ("A", "B")] == [14, 14]


async def test_a_master_that_is_not_sure_of_its_role_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could not acknowledge a message may have a successor, and renews no grant; a holder keeps what it has."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert granted(await lock(client, "A")) == 1
        with monkeypatch.context() as patch:
            patch.setattr(AckPolicy, "may_acknowledge", lambda policy: False)
            refused = await lock(client, "A")
            assert (refused.code, "may not be the master" in (refused.remark or "")) == (14, True)
        assert (granted(await lock(client, "B")), granted(await lock(client, "A"))) == (0, 1)


async def test_a_synchronous_master_without_its_slave_locks_nothing(tmp_path: Path) -> None:
    """Its slave may be the master by now."""
    async with running_broker(tmp_path, brokerRole="SYNC_MASTER") as broker, dialogue(broker) as client:
        assert (await lock(client, "A")).code == 14
