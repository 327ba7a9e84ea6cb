"""Consumers with an offset of the last master skip no message of the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.broker_core import BrokerCore
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


async def test_consumer_ahead_of_the_new_master_is_reset(tmp_path: Path) -> None:
    """The queue has grown past its offset meanwhile, with other messages at the offsets that it had read."""
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


async def test_cloned_and_new_groups_are_not_sent_back_to_the_start_of_the_epoch(tmp_path: Path) -> None:
    """Their offsets were set after the epoch had begun, so they are not in a lost part of the log."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        async with dialogue(broker) as peer:
            await peer.send_ok(b"old")
        offsets = broker.core.offsets
        offsets.commit(GROUP, TOPIC, 0, 1)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            for _ in range(4):
                await peer.send_ok(b"new")
        offsets.reset("source", TOPIC, 0, 4)
        offsets.clone("source", GROUP, TOPIC)
        offsets.commit(GROUP, TOPIC, 0, 4)
        assert committed(broker) == 4

        offsets.begin_epoch(lambda topic, queue_id: 1)
        offsets.forget_group(GROUP)
        offsets.commit(GROUP, TOPIC, 0, 4)
        assert committed(broker) == 4


async def test_consumer_that_is_sent_back_gets_again_what_it_has_not_committed(tmp_path: Path) -> None:
    """A consumer that is sent back continues at the offset that it committed, in its pull or before.

    RocketMQ's client then drops its messages of the queue. A message that failed and waits for its retry in the client
    would otherwise be lost.
    """
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


async def test_group_without_commits_starts_anywhere(tmp_path: Path) -> None:
    """It has no offset of an earlier master."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            for number in range(5):
                await peer.send_ok(b"%d" % number)

            assert [one.body for one in await peer.read(4)] == [b"4"]


@pytest.mark.parametrize("is_limited", [True, False], ids=["limited", "without the limit, the twin"])
async def test_group_whose_commits_were_lost_skips_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    """The new master does not know the group. A commit beyond the queue, before a pull, is one at its end."""
    if not is_limited:
        monkeypatch.setattr(BrokerCore, "commit_offset", lambda core, *commit: core.offsets.commit(*commit))
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        async with dialogue(broker) as peer:
            for number in range(BEGIN):
                await peer.send_ok(b"old-%d" % number)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            await peer.make_group(GROUP)
            await commit(peer, BEGIN + 2)
            for number in range(3):
                await peer.send_ok(b"new-%d" % number)
            found = [one.body for one in await peer.read(committed(broker) or 0)]

    assert (found == [b"new-0", b"new-1", b"new-2"]) == is_limited


async def test_offsets_are_kept_after_a_start_without_loss(tmp_path: Path) -> None:
    """The broker continues in its epoch, and consumers at their offsets."""
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
