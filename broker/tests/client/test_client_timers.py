"""A producer delays a message by any time, and recalls it before it is delivered."""

from pathlib import Path

import pytest
from named_cluster import named_cluster

from gantry_client import BrokerRefused, InvalidMessage, Message, Producer
from gantry_testing.local import wait_until
from gantry_testing.timer_client import TIMERS, queue_end


async def test_delayed_message_can_be_recalled(tmp_path: Path) -> None:
    """The receipt has a handle; a recalled message is not delivered, and one that was delivered cannot be recalled."""
    async with named_cluster(tmp_path) as (address, broker), Producer(address, "billing") as producer:
        first = await producer.send(Message("orders", b"kept", delay_ms=300))
        second = await producer.send(Message("orders", b"recalled", delay_ms=60_000))
        assert first.recall_handle and second.recall_handle

        assert await producer.recall(second.recall_handle) == second.message_id
        await wait_until(lambda: sum(queue_end(broker, "orders", number) for number in range(8)) == 1)
        with pytest.raises(BrokerRefused, match="ILLEGAL_OPERATION"):
            await producer.recall(first.recall_handle)
        assert queue_end(broker, TIMERS, 0) == 3


async def test_message_for_a_time_in_the_past_is_delivered_at_once(tmp_path: Path) -> None:
    """A time that has passed is no delay, and there is nothing to recall."""
    async with named_cluster(tmp_path) as (address, broker), Producer(address, "billing") as producer:
        receipt = await producer.send(Message("orders", b"late", deliver_at_ms=1_000))

        assert receipt.recall_handle is None
        assert queue_end(broker, "orders", receipt.queue.queue_id) == 1


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"x", delay_level=1, delay_ms=5),
        Message("orders", b"x", delay_ms=5, deliver_at_ms=5),
        Message("orders", b"x", delay_ms=-5),
        Message("orders", b"x", deliver_at_ms=-5),
    ],
)
async def test_contradictory_delay_is_refused(tmp_path: Path, message: Message) -> None:
    """A message has one delay, and it is positive; nothing is sent otherwise."""
    async with named_cluster(tmp_path) as (address, broker), Producer(address, "billing") as producer:
        with pytest.raises(InvalidMessage):
            await producer.send(message)
        with pytest.raises(InvalidMessage, match="recall handle is invalid"):
            await producer.recall("nonsense")
        assert broker.store.log.wrote == 0
