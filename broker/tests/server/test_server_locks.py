"""Queue locks across restarts and failovers: two clients never hold one queue at the same time."""

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
class LockClient:
    """A client that relies on a queue lock for a whole lease, the longest allowed time."""

    name: str
    clock: FakeClock
    locked_at_ms: int | None = None

    def ask(self, locks: QueueLocks) -> None:
        if locks.lock_pause_ms:
            return  # after an error a client keeps its locks
        asked_at_ms = self.clock.monotonic_ms()
        self.locked_at_ms = asked_at_ms if locks.lock(GROUP, self.name, [QUEUE]) else None

    @property
    def is_relying(self) -> bool:
        return self.locked_at_ms is not None and self.clock.monotonic_ms() - self.locked_at_ms <= LOCK_LEASE_MS


def run_lock_contest(*, is_pausing: bool) -> tuple[int, bool]:
    """A renews its lock of a queue once, the master dies, and B asks the next master for the queue every second.

    Returns for how many milliseconds both relied on a lock, and whether B holds the queue in the end.
    """
    clock = FakeClock()
    first, second = QueueLocks(clock), QueueLocks(clock)
    a, b = LockClient("A", clock), LockClient("B", clock)
    a.ask(first)
    clock.advance(RENEWAL_MS)
    a.ask(first)
    clock.advance(1_000)
    if is_pausing:
        second.forget_holders()
    both_ms = 0
    for _ in range(200):
        b.ask(second)
        both_ms += 1_000 if a.is_relying and b.is_relying else 0
        clock.advance(1_000)
    return both_ms, b.is_relying


def test_no_two_clients_hold_one_queue_through_a_failover() -> None:
    """A new master locks nothing until every unknown lock of the old master has expired; then it locks queues again."""
    assert run_lock_contest(is_pausing=True) == (0, True)


def test_lock_contest_finds_a_master_that_does_not_wait() -> None:
    """The twin: without the pause the same contest has two holders of one queue."""
    both_ms, _ = run_lock_contest(is_pausing=False)
    assert both_ms > 0


def test_first_request_after_the_pause_gets_the_queue() -> None:
    """The pause ends for all clients at once, and the first request gets the queue."""
    clock = FakeClock()
    locks = QueueLocks(clock)
    locks.forget_holders()
    assert repr(locks) == f"<QueueLocks groups=0 lock_pause_ms={LOCK_LEASE_MS + 1}>"

    clock.advance(LOCK_LEASE_MS)
    assert locks.lock_pause_ms == 1
    clock.advance(1)
    assert (locks.lock_pause_ms, locks.lock(GROUP, "A", [QUEUE]), locks.lock(GROUP, "B", [QUEUE])) == (0, [QUEUE], [])


# ------- over real sockets


async def lock(client: Dialogue, name: str) -> Command:
    body = {"consumerGroup": GROUP, "clientId": name, "mqSet": [{"topic": TOPIC, "brokerName": "b", "queueId": 0}]}
    return await client.ask(41, body=dumps(body))


def granted(reply: Command) -> int:
    assert reply.code == 0, f"code {reply.code}: {reply.remark}"
    held: list[Any] = loads(reply.body)["lockOKMQSet"]
    return len(held)


async def test_promoted_broker_grants_no_lock_for_one_lease(tmp_path: Path) -> None:
    """After a promotion locks are refused with 14 and the reason for one lease, then granted; sends are accepted."""
    clock = FakeClock()
    async with running_broker(tmp_path, disk=None, clock=clock, **MEMBER) as broker:
        await broker.orders.promote(2, [], force=False)
        async with dialogue(broker) as client:
            assert granted(await lock(client, "A")) == 1, "expected no pause in the first epoch of a new shard"
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


async def test_clean_restart_keeps_lock_holders(tmp_path: Path) -> None:
    """Holders continue at once, others wait until the lease has expired, counted from the start."""
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


async def test_unclean_start_grants_no_lock_for_one_lease(tmp_path: Path) -> None:
    """Locks that were saved at the last clean stop are not used after a crash."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await client.send_ok()
        assert granted(await lock(client, "A")) == 1
    (tmp_path / "abort").write_bytes(b"")

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        assert [(await lock(client, name)).code for name in ("A", "B")] == [14, 14]


async def test_unsure_master_grants_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that cannot acknowledge may have a successor, and renews no lock; a holder keeps what it has."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert granted(await lock(client, "A")) == 1
        with monkeypatch.context() as patch:
            patch.setattr(AckPolicy, "may_acknowledge", lambda policy: False)
            refused = await lock(client, "A")
            assert (refused.code, "may no longer be the master" in (refused.remark or "")) == (14, True)
        assert (granted(await lock(client, "B")), granted(await lock(client, "A"))) == (0, 1)


async def test_synchronous_master_without_its_slave_grants_no_lock(tmp_path: Path) -> None:
    """Its slave may have been promoted meanwhile."""
    async with running_broker(tmp_path, brokerRole="SYNC_MASTER") as broker, dialogue(broker) as client:
        assert (await lock(client, "A")).code == 14
