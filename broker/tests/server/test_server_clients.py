"""Clients: heartbeats, members of groups, notifications of changes, and queue locks."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.clients import CLIENT_TIMEOUT_MS
from gantry_broker.server.core.queue_locks import LOCK_LEASE_MS, QueueLocks
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_wire import RequestCode
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.fastjson import dumps

CHANGED = 40

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[Dialogue]:
    async with dialogue(broker) as one:
        yield one


async def members(client: Dialogue, group: str = GROUP) -> list[str]:
    reply: dict[str, Any] = await client.ask_json(38, {"consumerGroup": group})
    ids: list[str] = reply["consumerIdList"]
    return ids


async def wait_for_notices(client: Dialogue, count: int) -> None:
    """Wait until the broker has sent exactly this many notifications of group changes."""
    await wait_until(lambda: client.count_pushed(CHANGED) >= count)
    await client.ask(30, {"topic": TOPIC, "queueId": "0"})
    assert client.count_pushed(CHANGED) == count


# ------- heartbeats


async def test_heartbeat_registers_a_client(broker: Broker, client: Dialogue) -> None:
    """The group exists, its retry topic exists, and its members can be asked for."""
    reply = await client.heartbeat("c1", "NewGroup")

    config = broker.core.topics.find("%RETRY%NewGroup")
    assert reply.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true", "GANTRY_ENDS_ONCE": "true"}
    assert await members(client, "NewGroup") == ["c1"]
    assert "NewGroup" in broker.core.groups.all
    assert config is not None and (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


async def test_group_without_members_is_answered_with_an_error(client: Dialogue) -> None:
    """Asking for the members of a group without any is code 1 with the group's name."""
    reply = await client.ask(38, {"consumerGroup": "UnknownGroup"})

    assert (reply.code, "UnknownGroup" in (reply.remark or "")) == (1, True)


async def test_members_are_notified_of_a_new_member(client: Dialogue, other: Dialogue) -> None:
    """A new member notifies all members at once; a heartbeat that changes nothing notifies none."""
    await client.heartbeat("c1")
    await wait_for_notices(client, 1)
    await other.heartbeat("c2")
    await wait_for_notices(client, 2)
    await wait_for_notices(other, 1)

    await other.heartbeat("c2")
    await client.heartbeat("c1")

    await wait_for_notices(client, 2)
    await wait_for_notices(other, 1)
    assert {command.ext["consumerGroup"] for command in client.pushed} == {GROUP}
    assert all(command.is_oneway for command in client.pushed)
    assert await members(client) == ["c1", "c2"]


async def test_members_are_notified_of_a_new_subscription(client: Dialogue, other: Dialogue) -> None:
    """A changed subscription with a newer version notifies all members; an older version is ignored."""
    await client.heartbeat("c1", expression="A", version=5)
    await other.heartbeat("c2", expression="A", version=5)
    await wait_for_notices(client, 2)

    await other.heartbeat("c2", expression="B", version=4)
    await wait_for_notices(client, 2)
    await other.heartbeat("c2", expression="B", version=6)
    await wait_for_notices(client, 3)


async def test_heartbeat_without_subscriptions_keeps_them(broker: Broker, client: Dialogue) -> None:
    """Java's client with useHeartbeatV2 sends them once, and then again only where the broker asks for them."""
    consumer = {"groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}
    short = {"clientID": "c1", "consumerDataSet": [consumer], "heartbeatFingerprint": 7, "withoutSub": True}
    asked = await client.ask(RequestCode.HEART_BEAT, body=dumps(short))
    assert asked.ext["IS_SUB_CHANGE"] == "true", "expected a broker without them to ask for them"

    await client.heartbeat("c1", expression="A", version=5)
    reply = await client.ask(RequestCode.HEART_BEAT, body=dumps(short))

    assert (reply.code, reply.ext["IS_SUB_CHANGE"]) == (0, "false")
    subscription = broker.core.clients.subscription(GROUP, TOPIC)
    assert subscription is not None and subscription.data.sub_string == "A"


async def test_members_are_notified_of_a_leaving_member(client: Dialogue, other: Dialogue) -> None:
    """After an unregistration or a closed connection the others are notified at once, and the client is removed."""
    await client.heartbeat("c1")
    await other.heartbeat("c2")
    await wait_for_notices(client, 2)

    assert (await other.ask(35, {"clientID": "c2", "consumerGroup": GROUP})).code == 0
    await wait_for_notices(client, 3)
    assert await members(client) == ["c1"]

    await other.heartbeat("c2")
    await wait_for_notices(client, 4)
    await other.close()
    await wait_for_notices(client, 5)
    assert await members(client) == ["c1"]


async def test_broadcasting_members_are_not_notified(client: Dialogue, other: Dialogue) -> None:
    """Broadcasting members each get all messages, and are not notified of one another."""
    await client.heartbeat("c1", model="BROADCASTING")
    await other.heartbeat("c2", model="BROADCASTING")

    await wait_for_notices(client, 0)
    assert await members(client) == ["c1", "c2"]


async def test_reconnected_client_is_listed_once(client: Dialogue, other: Dialogue) -> None:
    """Two connections of one client are one member, otherwise queues would be assigned to a dead connection."""
    await client.heartbeat("c1")
    await other.heartbeat("c1")

    assert await members(client) == ["c1"]


async def test_group_that_cannot_be_created_is_not_joined(tmp_path: Path) -> None:
    """With auto-creation off a heartbeat joins the groups that exist and passes over the others."""
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as broker, dialogue(broker) as client:
        broker.core.groups.put(SubscriptionGroupConfig(group_name="Made", retry_queue_nums=3))

        assert (await client.heartbeat("c1", "Made")).code == 0
        assert (await client.heartbeat("c1", "Unmade")).code == 0

        assert sorted(broker.core.clients.consumers) == ["Made"]
        assert broker.core.topics.find("%RETRY%Unmade") is None
        config = broker.core.topics.find("%RETRY%Made")
        assert config is not None and config.write_queue_nums == 3


async def test_silent_clients_are_disconnected(
    broker: Broker, clock: FakeClock, client: Dialogue, other: Dialogue
) -> None:
    """A client without a heartbeat for two minutes is removed and disconnected; the others are notified."""
    await client.heartbeat("c1")
    await other.heartbeat("c2")
    await wait_for_notices(client, 2)

    clock.advance(CLIENT_TIMEOUT_MS)
    broker.periodic_tasks.expire()
    assert await members(client) == ["c1", "c2"]
    await client.heartbeat("c1")
    clock.advance(1)
    broker.periodic_tasks.expire()

    await wait_for_notices(client, 3)
    assert await members(client) == ["c1"]
    await wait_until(lambda: not other.channel.is_open)
    assert client.channel.is_open


async def test_expired_membership_keeps_the_connection_of_another_group(
    broker: Broker, clock: FakeClock, client: Dialogue
) -> None:
    """A client that no longer names one of its groups leaves that group and keeps its connection."""
    await client.heartbeat("c1", "First")
    await client.heartbeat("c1", "Second")
    clock.advance(CLIENT_TIMEOUT_MS)
    await client.heartbeat("c1", "Second")
    clock.advance(1)

    broker.periodic_tasks.expire()

    assert sorted(broker.core.clients.consumers) == ["Second"]
    assert await members(client, "Second") == ["c1"]


async def test_wall_clock_change_expires_no_client(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Silence is measured with the monotonic clock: no client is lost when the wall clock is set."""
    await client.heartbeat("c1")

    clock.jump_wall(10 * CLIENT_TIMEOUT_MS)
    broker.periodic_tasks.expire()

    assert await members(client) == ["c1"]


async def test_subscription_check_refuses_what_will_not_work(client: Dialogue) -> None:
    """A client that asks before subscribing learns what will not work: SQL92, off by default, is 1, no tag 23."""

    async def check(**data: str) -> int:
        body = {"clientId": "c1", "group": GROUP, "subscriptionData": {"topic": TOPIC, **data}}
        return (await client.ask(46, body=dumps(body))).code

    assert await check(subString="A || B", expressionType="TAG") == 0
    assert await check(subString="||", expressionType="TAG") == 23
    assert await check(subString="a > 1", expressionType="SQL92") == 1


async def test_bad_expression_in_a_heartbeat_affects_only_its_subscription(client: Dialogue) -> None:
    """A subscription that cannot be parsed matches nothing; the rest of the heartbeat counts."""
    assert (await client.heartbeat("c1", expression="||")).code == 0

    assert await members(client) == ["c1"]


# ------- connections


async def test_connections_are_listed(client: Dialogue, other: Dialogue) -> None:
    """Tools see consumers with their subscriptions (203) and producers (204), as Java's beans."""
    await client.heartbeat("c1", expression="A")
    await other.heartbeat("c2", expression="A")

    consumers = await client.ask_json(203, {"consumerGroup": GROUP})
    producers = await client.ask_json(204, {"producerGroup": "producers"})

    assert sorted(one["clientId"] for one in consumers["connectionSet"]) == ["c1", "c2"]
    assert {"clientId", "clientAddr", "language", "version"} == set(consumers["connectionSet"][0])
    assert consumers["connectionSet"][0]["clientAddr"].startswith("127.0.0.1:")
    assert (consumers["messageModel"], consumers["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert consumers["subscriptionTable"][TOPIC]["subString"] == "A"
    assert len(producers["connectionSet"]) == 2


async def test_group_without_connections_is_answered_with_an_error(client: Dialogue) -> None:
    """A group without consumers is 206, one without producers 1."""
    assert (await client.ask(203, {"consumerGroup": "UnknownGroup"})).code == 206
    assert (await client.ask(204, {"producerGroup": "UnknownGroup"})).code == 1


async def test_leaving_producer_is_removed(broker: Broker, client: Dialogue) -> None:
    """Unregistering from a producer group removes the client from the list."""
    await client.heartbeat("c1")

    await client.ask(35, {"clientID": "c1", "producerGroup": "producers"})

    assert broker.core.clients.producers == {}
    assert await members(client) == ["c1"]


# ------- locks


def queue(number: int) -> dict[str, Any]:
    return {"topic": TOPIC, "brokerName": "test-broker", "queueId": number}


async def lock(client: Dialogue, client_id: str, *numbers: int, group: str = GROUP, code: int = 41) -> list[int]:
    body = {"consumerGroup": group, "clientId": client_id, "mqSet": [queue(number) for number in numbers]}
    reply: dict[str, Any] | None = await client.ask_json(code, body=body)
    return [] if reply is None else sorted(one["queueId"] for one in reply["lockOKMQSet"])


async def test_queue_is_locked_by_one_client(clock: FakeClock, client: Dialogue) -> None:
    """A lock is one client's until it unlocks or its lease of a minute runs out; renewing it is allowed."""
    assert await lock(client, "c1", 0, 1) == [0, 1]
    assert await lock(client, "c2", 0, 1, 2) == [2]
    assert await lock(client, "c2", 0, group="OtherGroup") == [0]

    clock.advance(LOCK_LEASE_MS)
    assert await lock(client, "c1", 0) == [0]
    assert await lock(client, "c2", 1) == []
    clock.advance(1)
    assert await lock(client, "c2", 0, 1) == [1]


async def test_unlocking_frees_only_own_locks(client: Dialogue) -> None:
    """A client unlocks its own queues; others' locks stay."""
    await lock(client, "c1", 0)
    await lock(client, "c2", 1)

    await lock(client, "c2", 0, 1, code=42)

    assert await lock(client, "c3", 0, 1) == [1]


async def test_locks_ignore_the_wall_clock(clock: FakeClock, client: Dialogue) -> None:
    """A lease is measured with the monotonic clock."""
    await lock(client, "c1", 0)

    clock.jump_wall(10 * LOCK_LEASE_MS)

    assert await lock(client, "c2", 0) == []


def test_expired_locks_are_removed() -> None:
    """Locks that were not renewed are removed from memory; an empty request adds nothing."""
    clock = FakeClock()
    locks = QueueLocks(clock)
    one = MessageQueue(topic=TOPIC, broker_name="b", queue_id=0)
    locks.lock(GROUP, "c1", [one])
    locks.lock("Empty", "c1", [])

    clock.advance(LOCK_LEASE_MS)
    assert locks.is_held(GROUP)
    locks.expire()
    assert repr(locks) == "<QueueLocks groups=1>"
    clock.advance(1)
    assert not locks.is_held(GROUP)
    locks.expire()

    assert repr(locks) == "<QueueLocks groups=0>"


async def test_group_without_notifications_gets_none(broker: Broker, client: Dialogue, other: Dialogue) -> None:
    """`notifyConsumerIdsChangedEnable=false` of a group keeps a new member from waking the others."""
    broker.core.groups.put(SubscriptionGroupConfig(group_name="quiet", notify_consumer_ids_changed_enable=False))

    await client.heartbeat("c1", "quiet")
    await other.heartbeat("c2", "quiet")
    await other.heartbeat("c2", "loud")

    await wait_for_notices(other, 1)
    await wait_for_notices(client, 0)
