"""Consumers that come with a position of the last master: they skip nothing of what the new one takes."""

from __future__ import annotations

from pathlib import Path

from gantry_broker.app import Broker
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from gantry_wire.message import decode_records

BEGIN = 3


async def commit(peer: Dialogue, offset: int) -> None:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


def committed(broker: Broker) -> int | None:
    return broker.core.offsets.find(GROUP, TOPIC, 0)


async def test_a_consumer_that_has_seen_more_than_the_new_master_has_is_sent_back(tmp_path: Path) -> None:
    """The queue has grown past its position meanwhile; what it lacks is at other messages' places."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        async with dialogue(broker) as peer:
            for number in range(BEGIN):
                await peer.send_ok(b"old-%d" % number)
            await peer.read(0)
            await commit(peer, 2)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            for number in range(5):
                await peer.send_ok(b"new-%d" % number)

            await commit(peer, BEGIN + 2)
            assert committed(broker) == BEGIN
            answer = await peer.pull(BEGIN + 2)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(BEGIN))
            assert answer.body == b""

            answer = await peer.pull(BEGIN)
            assert [one.body for one in decode_records(answer.body)] == [b"new-%d" % number for number in range(5)]
            assert [one.body for one in await peer.read(BEGIN + 2)] == [b"new-2", b"new-3", b"new-4"]
            await commit(peer, BEGIN + 5)
            assert committed(broker) == BEGIN + 5


async def test_consumer_that_is_sent_back_gets_again_what_it_has_not_committed(tmp_path: Path) -> None:
    """RocketMQ's client drops what it holds of the queue then: a message that failed, and waits for its retry there,
    is lost unless the client is sent back to what it has committed, in its pull or before."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        async with dialogue(broker) as peer:
            for number in range(BEGIN):
                await peer.send_ok(b"old-%d" % number)
            await peer.read(0)
            await commit(peer, 1)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            answer = await peer.pull(BEGIN + 2)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")

            answer = await peer.pull(BEGIN + 2, sysFlag=str(PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION), commitOffset="2")
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")


async def test_a_group_that_never_committed_begins_where_it_likes(tmp_path: Path) -> None:
    """It had no master before this one, as far as anybody knows."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            for number in range(5):
                await peer.send_ok(b"%d" % number)

            assert [one.body for one in await peer.read(4)] == [b"4"]


async def test_a_start_that_lost_nothing_believes_everybody(tmp_path: Path) -> None:
    """It goes on in its epoch, and consumers where they were."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.send_ok(b"0")
        await peer.read(0)
        await commit(peer, 1)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        for number in (1, 2):
            await peer.send_ok(b"%d" % number)

        assert [one.body for one in await peer.read(2)] == [b"2"]
        await commit(peer, 3)
        assert committed(broker) == 3
