"""Pulls: messages from an offset on, at once or as soon as there are any, with RocketMQ's codes and next offsets."""

import asyncio
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import StoreCorrupt
from gantry_remoting import ConnectionClosed
from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    RawPeer,
    dialogue,
    properties_text,
    pull_ext,
    running_broker,
    wait_until,
)
from gantry_wire import Command, decode_command, oneway
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.commands.nameserver import PERMISSION_WRITE
from gantry_wire.message import decode_records

LONG_WAIT_MS = 60_000


async def send(client: Dialogue, *bodies: bytes, tag: str = "", **fields: str) -> None:
    pairs = {"UNIQ_KEY": UNIQUE_ID} | ({"TAGS": tag} if tag else {})
    for body in bodies:
        await client.send_ok(body, properties=properties_text(**pairs), **fields)


async def wait_for_held_pulls(broker: Broker, count: int) -> None:
    """Wait until so many pulls are held."""
    await wait_until(lambda: broker.pulls.hold.count == count)


# ------- at once


async def test_pull_returns_stored_messages(client: Dialogue) -> None:
    """The answer has code 0, the records as they are in the log, and the next offset."""
    await send(client, b"0", b"1", b"2")

    reply = await client.pull(1)

    assert (reply.code, reply.remark) == (0, "FOUND")
    assert reply.ext == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3",
    }  # fmt: skip
    assert [message.body for message in decode_records(reply.body)] == [b"1", b"2"]


async def test_lite_pull_is_a_pull(client: Dialogue) -> None:
    """Code 361 is the same request from a client that polls by itself."""
    await send(client, b"0")

    assert (await client.pull(0, code=361, sysFlag="22")).code == 0


async def test_every_offset_has_its_response_code(client: Dialogue) -> None:
    """Below the queue, at its end, beyond it, and in a queue that has nothing: RocketMQ's code and next offset."""
    await send(client, b"0", b"1")

    found = {
        name: (reply.code, int(reply.ext["nextBeginOffset"]))
        for name, reply in {
            "below": await client.pull(-1),
            "end": await client.pull(2),
            "beyond": await client.pull(3),
            "far beyond": await client.pull(1 << 62),
            "empty, from its start": await client.pull(0, queueId="1"),
            "empty, from other": await client.pull(9, queueId="1"),
        }.items()
    }

    assert found == {
        "below": (21, 0),
        "end": (19, 2),
        "beyond": (21, 2),
        "far beyond": (21, 2),
        "empty, from its start": (19, 0),
        "empty, from other": (21, 0),
    }


async def test_tag_filter_returns_matching_messages(client: Dialogue) -> None:
    """A subscription gets messages whose tag's hash it names, and none without a tag; `*` gets all."""
    for number, tag in enumerate(["A", "B", "", "A", "C"]):
        await send(client, b"%d" % number, tag=tag)

    found = {
        expression: [int(message.body) for message in await client.read(0, subscription=expression)]
        for expression in ("A", "A || B", " C||  A ", "*", "", "Z")
    }

    assert found == {
        "A": [0, 3],
        "A || B": [0, 1, 3],
        " C||  A ": [0, 3, 4],
        "*": [0, 1, 2, 3, 4],
        "": [0, 1, 2, 3, 4],
        "Z": [],
    }


async def test_messages_that_do_not_match_are_skipped(client: Dialogue) -> None:
    """A pull that finds no match is answered with 20 and the offset after the checked messages."""
    await send(client, b"0", b"1", tag="B")

    reply = await client.pull(0, subscription="A")

    assert (reply.code, reply.ext["nextBeginOffset"], reply.body) == (20, "2", b"")


async def test_pull_is_limited_in_messages_and_bytes(broker: Broker, client: Dialogue) -> None:
    """As many messages as asked for, as many bytes as allowed, and always at least one."""
    await send(client, b"0", b"1", b"2", b"x" * 1_000_000, b"y" * 1_000_000)

    async def numbers(offset: int, **fields: str) -> list[int]:
        return [message.queue_offset for message in await client.read(offset, **fields)]

    assert await numbers(0, maxMsgNums="2") == [0, 1]
    assert await numbers(0, maxMsgNums="0") == [0]
    assert await numbers(0, maxMsgNums="-7") == [0]
    assert await numbers(0) == [0, 1, 2]
    assert await numbers(3) == [3]
    assert await numbers(0, maxMsgBytes="1") == [0]
    assert await numbers(0, maxMsgBytes="3000000") == [0, 1, 2, 3, 4]
    assert await numbers(0, maxMsgBytes="-1") == [0, 1, 2]
    assert await numbers(0, maxMsgNums=str((1 << 31) - 1)) == [0, 1, 2]


async def test_pull_can_commit_an_offset(broker: Broker, client: Dialogue) -> None:
    """With its flag set a pull also commits an offset; without the flag it does not."""
    await send(client, b"0", b"1")

    await client.pull(1, sysFlag="4", commitOffset="1")
    assert broker.core.offsets.find(GROUP, TOPIC, 0) is None

    await client.pull(1, sysFlag="5", commitOffset="1")
    assert broker.core.offsets.find(GROUP, TOPIC, 0) == 1


# ------- refusals


async def test_group_without_consume_permission_is_refused(broker: Broker, client: Dialogue) -> None:
    """A group that an administrator has disabled is refused with 16."""
    await send(client, b"0")
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, consume_enable=False))

    reply = await client.pull()

    assert (reply.code, "no permission" in (reply.remark or "")) == (16, True)


async def test_unknown_group_is_refused_without_auto_creation(tmp_path: Path) -> None:
    """With autoCreateSubscriptionGroup off an unknown group is 26; one that was made is served."""
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as broker, dialogue(broker) as client:
        await send(client, b"0")

        refused = await client.pull()
        broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP))

        assert refused.code == 26
        assert (await client.pull()).code == 0


async def test_unreadable_topic_is_refused(broker: Broker, client: Dialogue) -> None:
    """A topic without the right to read is 16, a queue beyond its read queues 29."""
    broker.core.topics.put(TopicConfig(topic_name="WriteOnly", perm=PERMISSION_WRITE))
    broker.core.topics.put(TopicConfig(topic_name="Narrow", read_queue_nums=2, write_queue_nums=4))

    assert (await client.pull(topic="WriteOnly")).code == 16
    assert (await client.pull(topic="Narrow", queueId="2")).code == 29
    assert (await client.pull(topic="Narrow", queueId="1")).code == 19


async def test_subscriptions_come_from_heartbeats(client: Dialogue) -> None:
    """A pull without an expression goes by its group's heartbeat: 24 if unknown, 25 if older, else as filtered."""
    await send(client, b"0", tag="A")
    await send(client, b"1", tag="B")

    async def plain() -> Command:
        return await client.pull(0, sysFlag="0", subVersion="5")

    assert (await plain()).code == 24
    await client.heartbeat("c1", topic="Other", version=5)
    assert (await plain()).code == 24
    await client.heartbeat("c1", version=4)
    assert (await plain()).code == 25
    await client.heartbeat("c1", expression="B", version=5)
    reply = await plain()

    assert [message.body for message in decode_records(reply.body)] == [b"1"]


async def test_broadcasting_can_be_forbidden(broker: Broker, client: Dialogue) -> None:
    """A group that must not broadcast is refused with 16 when its members do."""
    await send(client, b"0")
    await client.heartbeat("c1", model="BROADCASTING")
    assert (await client.pull()).code == 0

    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, consume_broadcast_enable=False))

    assert (await client.pull()).code == 16


async def test_property_filters_are_refused(client: Dialogue) -> None:
    """SQL92, off by default, is code 1: filtering it as tags would lose messages. An expression of nothing is 23."""
    await send(client, b"0")

    assert (await client.pull(0, expressionType="SQL92", subscription="a > 1")).code == 1
    assert (await client.pull(0, subscription="|| ||")).code == 23
    assert (await client.pull(0, expressionType="", subscription="*")).code == 0


async def test_failed_read_is_answered_with_an_error(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot read answers code 1, also to a pull that was held."""
    await send(client, b"0")
    waiting = client.start_pull(1, wait_ms=LONG_WAIT_MS)
    await wait_for_held_pulls(broker, 1)

    def fail(*arguments: object, **more: object) -> None:
        raise StoreCorrupt(0, "rot")

    monkeypatch.setattr(broker.core.store, "read", fail)
    await send(client, b"1")

    assert (await waiting).code == 1
    assert (await client.pull(0)).code == 1
    assert broker.pulls.hold.count == 0


# ------- held


async def test_held_pull_wakes_with_its_message(broker: Broker, client: Dialogue) -> None:
    """A pull at the end of its queue is answered as soon as a message comes."""
    await send(client, b"0")
    waiting = client.start_pull(1, wait_ms=LONG_WAIT_MS)
    await wait_for_held_pulls(broker, 1)

    await send(client, b"1", queueId="1")
    assert broker.pulls.hold.count == 1
    await send(client, b"2")

    reply = await waiting
    assert (reply.code, [message.body for message in decode_records(reply.body)]) == (0, [b"2"])
    assert broker.pulls.hold.count == 0


async def test_first_message_of_a_queue_wakes_held_pulls(broker: Broker, client: Dialogue) -> None:
    """A pull of a queue that does not exist yet is held, and woken by what makes it."""
    broker.core.topics.put(TopicConfig(topic_name=TOPIC))
    waiting = client.start_pull(0, wait_ms=LONG_WAIT_MS)
    await wait_for_held_pulls(broker, 1)

    await send(client, b"0")

    assert (await waiting).code == 0


async def test_held_pull_stays_held_for_messages_that_do_not_match(broker: Broker, client: Dialogue) -> None:
    """Only a match wakes it; the reply starts after the messages that do not match."""
    await send(client, b"0", tag="B")
    waiting = client.start_pull(1, wait_ms=LONG_WAIT_MS, subscription="A")
    await wait_for_held_pulls(broker, 1)

    await send(client, b"1", b"2", tag="B")
    await client.ask(30, {"topic": TOPIC, "queueId": "0"})
    assert broker.pulls.hold.count == 1
    await send(client, b"3", tag="A")

    reply = await waiting
    assert (reply.code, reply.ext["nextBeginOffset"]) == (0, "4")
    assert [message.body for message in decode_records(reply.body)] == [b"3"]


async def test_held_pull_is_answered_at_its_deadline(broker: Broker, client: Dialogue) -> None:
    """At its deadline it is answered with 19 at the same offset, or with 20 after messages that do not match."""
    await send(client, b"0")
    loop = asyncio.get_running_loop()
    began = loop.time()

    nothing, other, _ = await asyncio.gather(
        client.pull(1, wait_ms=300),
        client.pull(1, wait_ms=300, subscription="A"),
        send(client, b"1", tag="B", queueId="1"),
    )
    assert (nothing.code, nothing.ext["nextBeginOffset"], nothing.body) == (19, "1", b"")
    assert (other.code, other.ext["nextBeginOffset"]) == (19, "1")
    assert loop.time() - began >= 0.3

    unwanted, _ = await asyncio.gather(client.pull(1, wait_ms=300, subscription="A"), send(client, b"1", tag="B"))
    assert (unwanted.code, unwanted.ext["nextBeginOffset"], unwanted.body) == (20, "2", b"")


async def test_pulls_of_one_queue_all_wake(broker: Broker, client: Dialogue) -> None:
    """Every group that waits at a queue gets the message."""
    await send(client, b"0")
    waiting = [client.start_pull(1, wait_ms=LONG_WAIT_MS, consumerGroup=f"group{number}") for number in range(50)]
    await wait_for_held_pulls(broker, 50)

    await send(client, b"1")

    assert {reply.code for reply in await asyncio.gather(*waiting)} == {0}


async def test_only_a_pull_that_may_wait_is_held(broker: Broker, client: Dialogue) -> None:
    """Without the flag or without time a pull is answered at once."""
    await send(client, b"0")

    assert (await client.pull(1)).code == 19
    assert (await client.pull(1, sysFlag="6", suspendTimeoutMillis="0")).code == 19
    assert (await client.pull(1, sysFlag="6", suspendTimeoutMillis="-1")).code == 19
    assert (await client.pull(9, wait_ms=LONG_WAIT_MS)).code == 21
    assert broker.pulls.hold.count == 0


async def test_oneway_pull_is_neither_held_nor_answered(broker: Broker, client: Dialogue) -> None:
    """Nothing waits for its answer, so it takes no place; the next message wakes only pulls with an answer."""
    await send(client, b"0")
    waits = pull_ext(1, wait_ms=LONG_WAIT_MS)
    requests = [oneway(11, waits), Command(code=11, ext=waits)]
    peer = await RawPeer.open(broker.port)
    await peer.send(b"".join(request.encode() for request in requests))
    await wait_until(lambda: broker.pulls.hold.count >= 1)
    assert broker.pulls.hold.count == 1

    await send(client, b"1")

    assert decode_command(await peer.frame()).opaque == requests[-1].opaque
    assert broker.pulls.hold.count == 0
    await peer.close()


async def test_held_pulls_are_limited(tmp_path: Path) -> None:
    """Held pulls beyond the limit are refused with 2; when one ends, the next is accepted."""
    async with running_broker(tmp_path, pullThreadPoolQueueCapacity="3") as broker, dialogue(broker) as client:
        await send(client, b"0")
        waiting = [client.start_pull(1, wait_ms=LONG_WAIT_MS) for _ in range(3)]
        await wait_for_held_pulls(broker, 3)

        refused = await client.pull(1, wait_ms=LONG_WAIT_MS)
        await send(client, b"1")
        await asyncio.gather(*waiting)
        again = client.start_pull(2, wait_ms=LONG_WAIT_MS)
        await wait_for_held_pulls(broker, 1)
        await send(client, b"2")

        assert refused.code == 2
        assert (refused.remark or "").startswith("[OVERLOAD]")
        assert (await again).code == 0


async def test_held_pulls_of_one_connection_are_limited(tmp_path: Path) -> None:
    """Held pulls are limited for each connection, too; others still wait."""
    async with running_broker(tmp_path, maxHeldPullsPerConnection="2") as broker, dialogue(broker) as client:
        await send(client, b"0")
        waiting = [client.start_pull(1, wait_ms=LONG_WAIT_MS) for _ in range(2)]
        await wait_for_held_pulls(broker, 2)

        assert (await client.pull(1, wait_ms=LONG_WAIT_MS)).code == 2
        async with dialogue(broker) as other:
            waiting.append(other.start_pull(1, wait_ms=LONG_WAIT_MS))
            await wait_for_held_pulls(broker, 3)
            await send(client, b"1")
            assert {reply.code for reply in await asyncio.gather(*waiting)} == {0}


async def test_closed_connection_drops_its_held_pulls(broker: Broker, client: Dialogue) -> None:
    """A closed connection leaves no held pull; those of others stay."""
    await send(client, b"0")
    mine = client.start_pull(1, wait_ms=LONG_WAIT_MS)
    peer = await RawPeer.open(broker.port)
    for opaque in range(20):
        await peer.send(Command(code=11, opaque=opaque, ext=pull_ext(1, wait_ms=LONG_WAIT_MS)).encode())
    await wait_for_held_pulls(broker, 21)

    await peer.close()

    await wait_for_held_pulls(broker, 1)
    await send(client, b"1")
    assert (await mine).code == 0


async def test_stopping_broker_answers_its_held_pulls(tmp_path: Path) -> None:
    """Held pulls are answered with 19 before the ports close, so that no client waits for a stopped broker."""
    async with running_broker(tmp_path) as broker:
        client = await Dialogue.open(f"127.0.0.1:{broker.port}")
        await send(client, b"0")
        waiting = [client.start_pull(1, wait_ms=LONG_WAIT_MS) for _ in range(5)]
        await wait_for_held_pulls(broker, 5)

    assert [reply.code for reply in await asyncio.gather(*waiting)] == [19] * 5
    with pytest.raises(ConnectionClosed):
        await client.pull(1)
    await client.close()


async def test_deleted_topic_ends_its_held_pulls(broker: Broker, client: Dialogue) -> None:
    """A pull that is held at a deleted topic is refused at its deadline at the latest, as in RocketMQ."""
    await send(client, b"0")

    waited, deleted = await asyncio.gather(client.pull(1, wait_ms=300), client.ask(215, {"topic": TOPIC}))

    assert deleted.code == 0
    assert waited.code == 17
    assert (await client.pull(1)).code == 17
