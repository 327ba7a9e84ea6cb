"""Resets of groups by time and by offset, with readers that follow late, twice or never; and clones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from gantry_wire.fastjson import ObjectKey, loads

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
RESET_NOTICE = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
OTHER = "OtherGroup"

pytestmark = pytest.mark.usefixtures("clock")


async def send(client: Dialogue, count: int) -> None:
    for number in range(count):
        await client.send_ok(b"%d" % number)


async def ask_reset(client: Dialogue, timestamp: int = -1, **fields: str) -> Command:
    """A reset as mqadmin sends it; ``fields`` win."""
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": str(timestamp), "isForce": "true", **fields}
    return await client.ask(RESET, ext)


async def reset(client: Dialogue, timestamp: int = -1, **fields: str) -> dict[int, int]:
    """Reset the offsets, which must succeed; return the new offset of each queue."""
    reply = await ask_reset(client, timestamp, **fields)
    assert reply.code == 0, reply.remark
    return reset_offsets(loads(reply.body))


def reset_offsets(document: Any) -> dict[int, int]:
    table: dict[ObjectKey, int] = document["offsetTable"]
    assert {(key["topic"], key["brokerName"]) for key in table} == {(TOPIC, "test-broker")}
    return {key["queueId"]: offset for key, offset in table.items()}


async def commit(client: Dialogue, offset: int, *, group: str = GROUP) -> Command:
    ext = {"consumerGroup": group, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    reply = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert reply.code == 0, reply.remark
    return reply


async def committed(client: Dialogue, group: str = GROUP) -> int | None:
    ext = {"consumerGroup": group, "topic": TOPIC, "queueId": "0", "setZeroIfNotFound": "false"}
    reply = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return int(reply.ext["offset"]) if reply.code == 0 else None


def reply_facts(reply: Command) -> tuple[int, str | None, int]:
    return reply.code, reply.remark, int(reply.ext["nextBeginOffset"])


SENT_TO_1 = (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", 1)


# ------- a reader that runs


async def test_running_reader_is_redirected_by_a_reset(client: Dialogue) -> None:
    """The next pull is answered with 21 and the new offset; a pull there is answered as usual."""
    await send(client, 5)
    await client.read(0)
    await commit(client, 5)

    assert (await reset(client, queueId="0", offset="1")) == {0: 1}

    assert reply_facts(await client.pull(5)) == SENT_TO_1
    assert [one.body for one in await client.read(1)] == [b"1", b"2", b"3", b"4"]
    await commit(client, 5)
    assert await committed(client) == 5


async def test_commits_are_ignored_until_the_reader_has_the_reset(client: Dialogue) -> None:
    """A reader commits its old offset meanwhile, by a request and by a pull; neither undoes the reset."""
    await send(client, 5)
    await client.read(0)
    await commit(client, 5)
    await reset(client, queueId="0", offset="1")

    assert (await commit(client, 5)).remark == "Offset has been previously reset"
    with_commit = str(PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)
    assert reply_facts(await client.pull(5, sysFlag=with_commit, commitOffset="5")) == SENT_TO_1
    await commit(client, 5)
    assert await committed(client) == 1

    await client.pull(1)
    await commit(client, 2)
    assert await committed(client) == 2


async def test_unread_answer_does_not_undo_a_reset(broker: Broker, client: Dialogue) -> None:
    """The reader's connection breaks; it reconnects with its old offset, and is redirected again."""
    await send(client, 5)
    await client.read(0)
    await commit(client, 5)
    await reset(client, queueId="0", offset="1")
    async with dialogue(broker) as lost:
        assert reply_facts(await lost.pull(5)) == SENT_TO_1

    async with dialogue(broker) as again:
        await commit(again, 5)
        assert reply_facts(await again.pull(5)) == SENT_TO_1
        assert await committed(again) == 1


async def test_reader_is_redirected_only_once(client: Dialogue) -> None:
    """After one redirection an application may read at any offset."""
    await send(client, 5)
    await client.read(0)
    await reset(client, queueId="0", offset="1")

    assert reply_facts(await client.pull(3)) == SENT_TO_1
    assert [one.body for one in await client.read(3)] == [b"3", b"4"]
    await commit(client, 5)
    assert await committed(client) == 5


async def test_held_pull_is_redirected_at_once(client: Dialogue) -> None:
    """A held pull is redirected without waiting for its deadline or for a message."""
    await send(client, 3)
    waiting = client.start_pull(3, wait_ms=60_000)
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})

    await reset(client, queueId="0", offset="1")

    async with asyncio.timeout(50):
        assert reply_facts(await waiting) == SENT_TO_1


async def test_held_pull_at_the_new_offset_is_redirected_too(client: Dialogue) -> None:
    """A reader at the end has fetched messages that the reset skips, and drops them only if it is redirected."""
    await send(client, 3)
    waiting = client.start_pull(3, wait_ms=60_000)
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})

    assert (await reset(client))[0] == 3

    assert reply_facts(await waiting) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", 3)
    await commit(client, 1)
    assert await committed(client) == 3
    await client.send_ok(b"new")
    assert [one.body for one in await client.read(3)] == [b"new"]
    await commit(client, 4)
    assert await committed(client) == 4


async def test_leftover_pull_does_not_hide_a_reset(client: Dialogue) -> None:
    """A client that took a queue again has two pulls waiting, and listens to the newer one only."""
    await send(client, 3)
    left_over, waiting = (client.start_pull(3, wait_ms=60_000) for _ in range(2))
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})

    await reset(client, queueId="0", offset="1")

    assert reply_facts(await left_over) == SENT_TO_1
    assert reply_facts(await waiting) == SENT_TO_1
    await commit(client, 3)
    assert await committed(client) == 1


# ------- where to


async def test_every_queue_is_reset_to_a_time(clock: FakeClock, client: Dialogue) -> None:
    """To the first message stored then or later; -1 is the end; a queue without messages has one offset only."""
    await send(client, 2)
    await client.read(0)
    clock.advance(60_000)
    since = clock.wall_ms()
    await send(client, 3)

    assert await reset(client, since) == {0: 2, 1: 0, 2: 0, 3: 0}
    assert await reset(client, 0) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert await reset(client, since + 1) == {0: 5, 1: 0, 2: 0, 3: 0}
    assert await reset(client, -1) == {0: 5, 1: 0, 2: 0, 3: 0}
    assert await reset(client, since, queueId="0", offset="-1") == {0: 2}
    assert await reset(client, since, queueId="0") == {0: 2}


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "Nothing"}, ResponseCode.TOPIC_NOT_EXIST, "Topic Nothing does not exist"),
        ({"group": "UnknownGroup"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group UnknownGroup does not exist"),
        (
            {"queueId": "0", "offset": "4"},
            ResponseCode.SYSTEM_ERROR,
            "Target offset 4 not in consume queue range [0-3]",
        ),
        (
            {"queueId": "0", "offset": "-2"},
            ResponseCode.SYSTEM_ERROR,
            "Target offset -2 not in consume queue range [0-3]",
        ),
        ({"queueId": "99"}, ResponseCode.INVALID_PARAMETER, "queueId[99] is illegal, topic:[TopicTest]"),
    ],
    ids=["no topic", "no group", "beyond the end", "below zero", "no queue"],
)
async def test_reset_to_an_invalid_target_is_refused(
    client: Dialogue, fields: dict[str, str], code: int, remark: str
) -> None:
    """An invalid target skips or repeats no message."""
    await send(client, 3)
    await client.read(0)
    await commit(client, 2)

    reply = await ask_reset(client, -1, **fields)

    assert (reply.code, reply.remark) == (code, remark)
    assert await committed(client) == 2


@pytest.mark.parametrize("missing", ["topic", "group", "timestamp", "isForce"])
async def test_reset_without_a_required_field_is_refused(client: Dialogue, missing: str) -> None:
    """A request without a required field is refused, and resets no group to the end by default."""
    await send(client, 3)
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true"}
    del ext[missing]

    assert (await client.ask(RESET, ext)).code == ResponseCode.SYSTEM_ERROR


# ------- persistence of resets


async def test_group_without_members_is_reset(broker: Broker, client: Dialogue) -> None:
    """The next reader starts at the new offset, which is on disk before the answer."""
    broker.core.groups.put(SubscriptionGroupConfig(group_name=OTHER))
    await send(client, 3)

    assert (await reset(client, group=OTHER))[0] == 3

    assert await committed(client, OTHER) == 3


async def test_reset_survives_a_restart(tmp_path: Path) -> None:
    """A reader that ran all the time is reset too when it comes back with its old offset."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, 5)
        await peer.read(0)
        await commit(peer, 5)
        await reset(peer, queueId="0", offset="1")
        stored = (tmp_path / "config" / "consumerOffset.json").read_text()

    assert loads(stored)["offsetTable"][f"{TOPIC}@{GROUP}"]["0"] == 1
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await commit(peer, 5)
        assert reply_facts(await peer.pull(5)) == SENT_TO_1
        await peer.pull(1)
        await commit(peer, 4)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await peer.pull(4)).code == 0
        assert await committed(peer) == 4


async def test_pending_resets_are_not_answered_to_clients(broker: Broker, client: Dialogue) -> None:
    """The table that slaves of RocketMQ's ask for has the fields that it always has."""
    await send(client, 3)
    await client.read(0)
    await commit(client, 3)
    await reset(client, queueId="0", offset="1")

    table = await client.ask_json(RequestCode.GET_ALL_CONSUMER_OFFSET)

    assert sorted(table) == ["dataVersion", "offsetTable"]
    assert table["offsetTable"][f"{TOPIC}@{GROUP}"] == {"0": 1}


async def test_deleted_group_leaves_no_reset(client: Dialogue) -> None:
    """A later group of the same name starts at any offset."""
    await send(client, 5)
    await client.read(0)
    await reset(client, queueId="0", offset="1")

    await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"})

    assert (await client.pull(4)).code == 0


async def test_reset_overrides_the_epoch_start(tmp_path: Path) -> None:
    """A group that has not been at the epoch's begin yet is moved beyond it, and stays there."""
    async with running_broker(tmp_path, roleAtStart="UNASSIGNED", brokerId="1") as broker:
        await broker.orders.promote(2, [], False)
        async with dialogue(broker) as peer:
            await send(peer, 2)
            await peer.read(0)
            await commit(peer, 1)
        await broker.orders.promote(3, [], False)
        async with dialogue(broker) as peer:
            await send(peer, 3)

            await reset(peer, queueId="0", offset="4")
            assert reply_facts(await peer.pull(1)) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", 4)
            assert [one.body for one in await peer.read(4)] == [b"2"]
            await commit(peer, 5)
            assert await committed(peer) == 5


# ------- the older way


@pytest.fixture
async def broker_without_server_resets(tmp_path: Path) -> AsyncIterator[Broker]:
    """Start a broker with useServerSideResetOffset=false, so that members reset themselves."""
    async with running_broker(tmp_path, useServerSideResetOffset="false") as one:
        yield one


async def commit_everywhere(client: Dialogue, *offsets: int) -> None:
    for queue_id, offset in enumerate(offsets):
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "commitOffset": str(offset)}
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def test_members_are_notified_of_a_reset(broker_without_server_resets: Broker) -> None:
    """Each gets the whole table; the broker's own offsets stay as they are until they commit."""
    async with dialogue(broker_without_server_resets) as client, dialogue(broker_without_server_resets) as other:
        await send(client, 5)
        await client.heartbeat("c1")
        await other.heartbeat("c2")
        await commit_everywhere(client, 5, 0, 0, 0)

        assert await reset(client, 0) == {0: 0, 1: 0, 2: 0, 3: 0}

        await wait_until(lambda: client.count_pushed(RESET_NOTICE) == other.count_pushed(RESET_NOTICE) == 1)
        notice = next(command for command in client.pushed if command.code == RESET_NOTICE)
        assert notice.is_oneway
        assert (notice.ext["topic"], notice.ext["group"], notice.ext["timestamp"]) == (TOPIC, GROUP, "0")
        assert reset_offsets(loads(notice.body)) == {0: 0, 1: 0, 2: 0, 3: 0}
        assert await committed(client) == 5
        assert (await client.pull(5)).code == ResponseCode.PULL_NOT_FOUND


async def test_members_move_forward_only_with_force(broker_without_server_resets: Broker) -> None:
    """Without the force flag no queue moves beyond the committed offset."""
    async with dialogue(broker_without_server_resets) as client:
        await send(client, 5)
        await client.heartbeat("c1")
        await commit_everywhere(client, 2, 0, 0, 0)

        assert (await reset(client, -1, isForce="false"))[0] == 2
        assert (await reset(client, 0, isForce="false"))[0] == 0
        assert (await reset(client, -1))[0] == 5


async def test_reset_by_members_needs_a_member(broker_without_server_resets: Broker) -> None:
    """It is answered with 206, after which RocketMQ's tool commits the offsets itself."""
    async with dialogue(broker_without_server_resets) as client:
        await send(client, 1)
        assert (await ask_reset(client)).remark == f"THe consumer group <{GROUP}> not exist"
        await client.pull(0)
        await commit_everywhere(client, 1, 0, 0, 0)

        assert (await ask_reset(client)).code == ResponseCode.CONSUMER_NOT_ONLINE
        assert (await ask_reset(client, topic="Nothing")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_reset_by_members_of_one_queue_is_refused(broker_without_server_resets: Broker) -> None:
    """Members would reset all queues to that time, although the request names only one."""
    async with dialogue(broker_without_server_resets) as client:
        await send(client, 2)
        await client.heartbeat("c1")
        await commit_everywhere(client, 2, 0, 0, 0)

        reply = await ask_reset(client, 0, queueId="0", offset="1")

        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert client.count_pushed(RESET_NOTICE) == 0


async def test_cpp_members_get_the_reset_as_a_list(broker_without_server_resets: Broker) -> None:
    """Their JSON has no objects as keys; the language of the administrator's request selects the format."""
    async with dialogue(broker_without_server_resets) as client:
        await send(client, 2)
        await client.heartbeat("c1")
        await commit_everywhere(client, 2, 0, 0, 0)
        ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}

        reply = await client.channel.request(Command(code=RESET, ext=ext, language="CPP"), 60_000)

        assert reset_offsets(loads(reply.body))[0] == 0
        await wait_until(lambda: client.count_pushed(RESET_NOTICE) == 1)
        rows = loads(next(command for command in client.pushed if command.code == RESET_NOTICE).body)["offsetTable"]
        assert rows[0] == {"brokerName": "test-broker", "offset": 0, "queueId": 0, "topic": TOPIC}


async def test_reset_with_a_too_old_member_is_refused(broker_without_server_resets: Broker) -> None:
    """No member is notified then: half a group that resets is worse than none."""
    async with dialogue(broker_without_server_resets) as client:
        await send(client, 1)
        await client.heartbeat("c1")
        await commit_everywhere(client, 1, 0, 0, 0)
        (member,) = broker_without_server_resets.core.clients.consumers[GROUP].members.values()
        member.version = 27

        reply = await ask_reset(client, 0)

        assert (reply.code, reply.remark) == (1, "the client does not support this feature. version=27")
        assert client.count_pushed(RESET_NOTICE) == 0


async def test_switching_resets_off_drops_pending_ones(client: Dialogue) -> None:
    """The setting changes while the broker runs, and readers continue at their offsets."""
    await send(client, 5)
    await client.read(0)
    await reset(client, queueId="0", offset="1")

    await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"useServerSideResetOffset=false\n")

    assert (await client.pull(4)).code == 0
    await commit(client, 5)
    assert await committed(client) == 5


# ------- clones


async def clone_offsets(client: Dialogue, **fields: str) -> Command:
    return await client.ask(
        RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": GROUP, "destGroup": OTHER, "offline": "true", **fields}
    )


async def test_clone_copies_the_offsets_of_a_group(tmp_path: Path) -> None:
    """All of its queues, and after a restart, too; what it had of its own is gone."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, 5)
        await peer.read(0)
        await commit(peer, 4)
        await commit_everywhere(peer, 4, 0)
        await peer.pull(0, consumerGroup=OTHER)
        await commit(peer, 1, group=OTHER)

        assert (await clone_offsets(peer, topic=TOPIC)).code == 0

        assert broker.core.offsets.document().offset_table[f"{TOPIC}@{OTHER}"] == {0: 4, 1: 0}
        await commit(peer, 5)
        assert await committed(peer, OTHER) == 4
    async with running_broker(tmp_path) as broker:
        assert broker.core.offsets.document().offset_table[f"{TOPIC}@{OTHER}"] == {0: 4, 1: 0}


async def test_clone_without_a_topic_copies_all_topics(broker: Broker, client: Dialogue) -> None:
    """Without a name all are meant; those that the source group no longer reads are omitted while it is online."""
    await send(client, 1)
    await client.send_ok(b"x", topic="Left")
    await client.read(0)
    broker.core.offsets.commit(GROUP, TOPIC, 0, 1)
    broker.core.offsets.commit(GROUP, "Left", 0, 1)
    broker.core.offsets.commit(GROUP, "Gone", 0, 1)
    broker.core.topics.ensure(f"%RETRY%{GROUP}", 1)
    broker.core.offsets.commit(GROUP, f"%RETRY%{GROUP}", 0, 1)
    await client.heartbeat("c1")

    assert (await clone_offsets(client, offline="false")).code == 0
    assert broker.core.offsets.topics_of(OTHER) == [TOPIC]

    assert (await clone_offsets(client)).code == 0
    assert broker.core.offsets.topics_of(OTHER) == ["Left", TOPIC]


async def test_clone_without_offsets_changes_nothing(broker: Broker, client: Dialogue) -> None:
    """A group without offsets has none to give."""
    await send(client, 1)
    broker.core.offsets.commit(OTHER, TOPIC, 0, 1)

    assert (await clone_offsets(client, topic=TOPIC, srcGroup="UnknownGroup")).code == 0

    assert broker.core.offsets.document().offset_table[f"{TOPIC}@{OTHER}"] == {0: 1}
