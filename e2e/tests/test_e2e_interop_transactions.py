"""Open transactions are kept when a store changes between Apache's broker and ours, in either direction."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_interop import peers
from gantry_interop.processes import Nursery

from gantry_client import (
    ConsumerSettings,
    Decision,
    Message,
    PollConsumer,
    ProducerSettings,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
)

pytestmark = pytest.mark.needs_java

TOPIC = "Transactions"
GROUP = "payments"
PATIENT = ProducerSettings(send_timeout_ms=20_000)
COMMITTED = (b"0", b"1", b"3", b"5")
"""Two of them are committed by the first broker, and two by the second, after a transaction check."""

SMALL = {"mappedFileSizeCommitLog": str(16 << 20)}
LATER = {"transactionTimeOut": "60000", "transactionCheckInterval": "60000"}
"""The first broker makes no checks; Apache's would store half messages again that have just ended."""

CHECKING = {"transactionTimeOut": "1000", "transactionCheckInterval": "6000"}
"""The interval is longer than the three seconds for which Apache's broker delays its record of ended transactions."""

QUIET_S = 10.0


async def leave_some_open(address: str) -> None:
    """Begin six transactions, of which three end."""
    async with TransactionProducer(address, GROUP, settings=PATIENT) as producer:
        halves = [await producer.begin(Message(TOPIC, b"%d" % number)) for number in range(6)]
        for half in halves[:2]:
            await producer.commit(half)
        await producer.roll_back(halves[2])


async def finish(address: str) -> tuple[list[bytes], set[bytes]]:
    """Return the messages that are delivered in the end, and those that the broker has checked."""
    checked: set[bytes] = set()

    async def check(message: ReceivedMessage) -> Decision:
        checked.add(message.body)
        return Decision.COMMIT if message.body in COMMITTED else Decision.ROLL_BACK

    settings = ConsumerSettings(start_from=StartFrom.FIRST)
    found: list[bytes] = []
    loop = asyncio.get_running_loop()
    async with (
        TransactionProducer(address, GROUP, check, settings=PATIENT),
        PollConsumer(address, "readers", topics=TOPIC, settings=settings) as consumer,
    ):
        async with asyncio.timeout(240):
            while not set(COMMITTED) <= set(found) or not {b"3", b"4", b"5"} <= checked:
                found += [message.body for message in await consumer.poll(timeout_ms=500)]
        end = loop.time() + QUIET_S
        while loop.time() < end:
            found += [message.body for message in await consumer.poll(timeout_ms=500)]
    return found, checked


@pytest.mark.verify
@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        pytest.param("apache", "gantry", "stop", id="from Apache", marks=pytest.mark.slow),
        pytest.param("gantry", "apache", "stop", id="to Apache", marks=pytest.mark.slow),
        pytest.param("apache", "gantry", "crash", id="from Apache that was killed"),
    ],
)
def test_open_transactions_are_kept_with_the_store(first: str, second: str, end: str, tmp_path: Path) -> None:
    """Ended transactions are not repeated, open ones are checked, and rolled back ones are never delivered."""
    layout = peers.Layout(tmp_path / "peer", settings=SMALL)
    with Nursery(tmp_path / "logs") as nursery:
        writer = peers.start(first, nursery, replace(layout, settings=SMALL | LATER))
        asyncio.run(leave_some_open(writer.address))
        getattr(writer, end)()
        reader = peers.start(second, nursery, replace(layout, settings=SMALL | CHECKING))
        found, checked = asyncio.run(finish(reader.address))
        reader.stop()

    assert sorted(found) == sorted(COMMITTED)
    assert {b"3", b"4", b"5"} <= checked
    if end == "stop":
        assert checked == {b"3", b"4", b"5"}
