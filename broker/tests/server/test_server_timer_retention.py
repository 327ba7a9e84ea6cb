"""Retention of the log deletes no pending timer message: it is stored again before its log file expires."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.timers.rolling import TimerRoller
from gantry_broker.store.retention import NOTHING_UNCONSUMED
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import Dialogue, dialogue, running_broker, wait_until
from gantry_testing.timer_client import (
    DAY_MS,
    delivered,
    queue_end,
    recall,
    send_timer,
    unique_id,
    wait_for_rounds,
)

HOUR_MS = 3_600_000
ALL_HOURS = ";".join(map(str, range(24)))


@asynccontextmanager
async def short_lived(path: Path, clock: FakeClock) -> AsyncIterator[tuple[Broker, Dialogue]]:
    """Run a broker that keeps log files for 48 hours and deletes them at any hour."""
    async with (
        running_broker(
            path, clock=clock, fileReservedTime="48", cleanResourceInterval="100", deleteWhen=ALL_HOURS
        ) as broker,
        dialogue(broker) as client,
    ):
        yield broker, client


async def let_files_expire(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """Fill several log files over five days."""
    for _ in range(8):
        for _ in range(9):
            await client.send_ok(bytes(1_000_000), queueId="0")
        clock.advance(15 * HOUR_MS)
        await wait_for_rounds(broker)


async def wait_for_deletions(broker: Broker, clock: FakeClock) -> None:
    """Wait until retention has planned a few times."""
    for _ in range(4):
        rounds = broker.retention.rounds
        clock.advance(200)
        await wait_until(lambda rounds=rounds: broker.retention.rounds > rounds)  # type: ignore[misc]


async def test_pending_timer_outlives_its_log_file(tmp_path: Path, clock: FakeClock) -> None:
    """A message that waits longer than log files are kept is stored again, delivered once, and stays recalled."""
    async with short_lived(tmp_path, clock) as (broker, client):
        handles = [
            (await send_timer(client, b"%d" % n, UNIQ_KEY=unique_id(n), TIMER_DELAY_SEC=str(10 * 86_400)))[
                "recallHandle"
            ]
            for n in range(4)
        ]
        assert (await recall(client, handles[1])).code == 0
        await let_files_expire(broker, client, clock)
        assert broker.timers.roller.rolled_count >= 5
        assert (await recall(client, handles[2])).code == 0
        await wait_for_deletions(broker, clock)
        assert broker.store.log.min_physical > 0

    async with short_lived(tmp_path, clock) as (broker, client):
        clock.advance(10 * DAY_MS)
        await wait_until(lambda: queue_end(broker) == 2)
        await wait_for_rounds(broker)
        assert [one.body for one in await delivered(client, 2)] == [b"0", b"3"]
        assert queue_end(broker) == 2


async def test_file_of_a_pending_timer_is_kept(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the message is not stored again, for example because the disk is full, its log file is not deleted."""
    monkeypatch.setattr(TimerRoller, "step", lambda self: False)
    async with short_lived(tmp_path, clock) as (broker, client):
        await send_timer(client, b"kept", TIMER_DELAY_SEC=str(10 * 86_400))
        await let_files_expire(broker, client, clock)
        await wait_for_deletions(broker, clock)

        assert broker.store.log.min_physical == 0
        clock.advance(10 * DAY_MS)
        await wait_until(lambda: queue_end(broker) == 1)


async def test_file_of_a_pending_timer_is_deleted_without_the_guard(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the limit of retention the file expires, and the message with it: the test before can fail."""
    monkeypatch.setattr(TimerRoller, "step", lambda self: False)
    monkeypatch.setattr(TimerRoller, "needed_from", lambda self: NOTHING_UNCONSUMED)
    async with short_lived(tmp_path, clock) as (broker, client):
        await send_timer(client, b"lost", TIMER_DELAY_SEC=str(10 * 86_400))
        await let_files_expire(broker, client, clock)
        await wait_for_deletions(broker, clock)
        assert broker.store.log.min_physical > 0
        clock.advance(10 * DAY_MS)
        await wait_for_rounds(broker)

        assert queue_end(broker) == 0
