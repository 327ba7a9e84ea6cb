"""What a promoted slave has besides the log: topics, consumer offsets, undelivered messages.

R3 is a row of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from gantry_histories.bodies import make_body, read_key
from gantry_histories.consumer import consumer_offset, pull
from gantry_histories.events import Queue
from replication.group import POLL_S, TOPIC, Member
from replication.network import namespaces_missing
from replication.plans import Plan
from replication.seeded_run import start_scene
from replication.supervisor import PATIENCE_S

from gantry_remoting import Channel
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import CreateTopic, SubscriptionGroupConfig
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.offsets import UpdateConsumerOffset
from gantry_wire.commands.send import SendMessageV2

SYNC = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER", "slaveTimeout": "30000"}, faults=())
DELAYED_QUEUE = Queue("Later", 0)
OFFSET_QUEUE = Queue(TOPIC, 0)
DELAYED_COUNT = 20
DELAY_LEVEL = 2
"""The level of a delay of five seconds: messages that are due after the kill of the master come from the next one."""


async def ask(channel: Channel, command: Command) -> Command:
    reply = await channel.request(command, 120_000)
    assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
    return reply


async def create_metadata(address: str) -> None:
    """At the master, create a topic, messages that are delivered_keys later, and a consumer offset."""
    channel = await Channel.connect(address)
    topic = CreateTopic(
        topic=DELAYED_QUEUE.topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG", order=False,
    )  # fmt: skip
    await ask(channel, Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=topic.write()))
    for number in range(DELAYED_COUNT):
        fields = SendMessageV2(
            producer_group="Delayed", topic=DELAYED_QUEUE.topic, default_topic="TBW102", default_topic_queue_nums=1,
            queue_id=0, sys_flag=0, born_timestamp=1_700_000_000_000, flag=0,
            properties=f"UNIQ_KEY\x01later-{number}\x02WAIT\x01true\x02DELAY\x01{DELAY_LEVEL}\x02", batch=False,
        )  # fmt: skip
        body = make_body(f"later-{number}", b"")
        await ask(channel, Command(code=RequestCode.SEND_MESSAGE_V2, ext=fields.write(), body=body))
    group = write_document(SubscriptionGroupConfig(group_name="WithOffset"))
    await ask(channel, Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group))
    offset = UpdateConsumerOffset(consumer_group="WithOffset", topic=TOPIC, queue_id=0, commit_offset=3)
    await ask(channel, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=offset.write()))
    await channel.close()


def has_tables(slave: Member) -> bool:
    """Return whether the member has saved the topic and the consumer offset: tables are sent after the log."""
    wanted = {"topics.json": DELAYED_QUEUE.topic.encode(), "consumerOffset.json": b"WithOffset"}
    try:
        return all(text in (slave.store / "config" / name).read_bytes() for name, text in wanted.items())
    except FileNotFoundError:
        return False


async def delivered_keys(address: str) -> set[str | None]:
    """Return the delayed messages that were delivered_keys so far."""
    channel = await Channel.connect(address)
    found: set[str | None] = set()
    offset = 0
    while (pulled := await pull(channel, "Readers", DELAYED_QUEUE, offset)).messages:
        found |= {read_key(message.body) for message in pulled.messages}
        offset = pulled.next_offset
    await channel.close()
    return found


@pytest.mark.verify
async def test_promoted_slave_continues_with_all_metadata(tmp_path: Path) -> None:
    """R3: the topic exists, the consumer offset is the same, and every delayed message is delivered_keys."""
    async with start_scene(SYNC, tmp_path, is_root=namespaces_missing() is None) as scene:
        await scene.faults.send_some()
        old = scene.supervisor.master
        await create_metadata(old.address)
        slaves = scene.group.others(old)
        await scene.load.wait_until(lambda: all(has_tables(slave) for slave in slaves), PATIENCE_S)
        await old.kill()
        winner = await scene.faults.fail_over()
        await scene.faults.restart_and_follow(old)
        channel = await Channel.connect(winner.address)
        assert await consumer_offset(channel, "WithOffset", OFFSET_QUEUE) == 3
        await channel.close()
        deadline = time.monotonic() + PATIENCE_S
        expected = {f"later-{number}" for number in range(DELAYED_COUNT)}
        while await delivered_keys(winner.address) < expected:
            assert time.monotonic() < deadline
            await asyncio.sleep(POLL_S)
        await scene.faults.send_some()

        assert await scene.stop_and_check() == []
