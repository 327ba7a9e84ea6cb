"""Topic settings apply on the master, on slaves and after a restart: permissions, order, queues, attributes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_outside_addresses import ask, name_server
from test_server_roles import running_group

from gantry_broker.app import Broker
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_wire import RequestCode
from gantry_wire.fastjson import dumps

ORDERED = {"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC}


def fields(topic: str = TOPIC, **changes: str) -> dict[str, str]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **changes,
    }  # fmt: skip


async def create_topic(client: Dialogue, **changes: str) -> None:
    reply = await client.ask(17, fields(**changes))
    assert reply.code == 0, reply.remark


@pytest.mark.parametrize(("perm", "pulled"), [("6", 0), ("4", 0), ("2", 16), ("0", 16)])
async def test_topic_permission_applies_to_pulls_but_not_to_sends(client: Dialogue, perm: str, pulled: int) -> None:
    """As in RocketMQ: a producer that knows a queue may still send to it; a pull without permission gets 16."""
    await client.send_ok(b"before")
    await create_topic(client, perm=perm)
    assert (await client.ask_json(351, {"topic": TOPIC}))["perm"] == int(perm)

    assert (await client.send(b"after")).code == 0
    reply = await client.pull(0)
    assert reply.code == pulled
    if pulled:
        assert reply.remark == f"the topic[{TOPIC}] pulling message is forbidden"


async def test_held_pull_is_refused_when_the_topic_becomes_unreadable(client: Dialogue) -> None:
    """It does not get a message that came after the permission had gone."""
    await client.send_ok(b"before")
    held = client.start_pull(1, wait_ms=60_000)
    await asyncio.sleep(0)
    await create_topic(client, perm="2")
    await client.send_ok(b"secret")
    reply = await held
    assert (reply.code, reply.body) == (16, b"")


async def test_queues_are_drained_before_removal(client: Dialogue) -> None:
    """With fewer write than read queues the others are still read. They are removed, and come back unchanged."""
    for queue in range(4):
        await client.send_ok(b"%d" % queue, queueId=str(queue))
    await create_topic(client, writeQueueNums="2")
    assert [message.body for message in await client.read(0, queueId="3")] == [b"3"]
    assert (await client.send(b"x", queueId="3")).code == 0  # a producer with an old route: nothing is lost

    await create_topic(client, writeQueueNums="2", readQueueNums="2")
    assert (await client.pull(0, queueId="3")).code == 29
    refused = await client.send(b"x", queueId="3")
    assert (refused.code, "queueId[3] is illegal" in (refused.remark or "")) == (29, True)

    await create_topic(client, writeQueueNums="8", readQueueNums="8")
    assert [message.body for message in await client.read(0, queueId="3")] == [b"3", b"x"]
    assert (await client.send_ok(b"y", queueId="7"))["queueOffset"] == "0"


async def test_list_of_topics_is_created_completely_or_not_at_all(broker: Broker, client: Dialogue) -> None:
    """Attributes of a list have signs, as in RocketMQ; one that is wrong leaves all topics as they were."""

    def config(name: str, **more: Any) -> dict[str, Any]:
        return {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, **more}

    listed = [config("L1", order=True, attributes={"+message.type": "FIFO"}), config("L2", perm=4)]
    assert (await client.ask(18, body=dumps({"topicConfigList": listed}))).code == 0
    first = await client.ask_json(351, {"topic": "L1"})
    assert (first["order"], first["attributes"]) == (True, {"message.type": "FIFO"})

    for wrong, code in (
        (config("L3", attributes={"message.type": "FIFO"}), 1),
        (config("L3", attributes={"+message.type": "MIXED"}), 29),
        (config("bad name!"), 29),
        (config("TBW102"), 29),
    ):
        body = dumps({"topicConfigList": [config("L1", perm=2), config("L4"), wrong]})
        assert (await client.ask(18, body=body)).code == code
    assert "L4" not in broker.core.topics
    assert (await client.ask_json(351, {"topic": "L1"}))["perm"] == 6


async def test_topic_settings_survive_a_restart(tmp_path: Path) -> None:
    """All of them; and the attributes are changed from where they were."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await create_topic(
            client, perm="4", order="true", readQueueNums="7", attributes="+message.type=DELAY,+reserve.time=5"
        )
        await client.ask(353, {"group": GROUP, "topic": TOPIC, "readable": "false"})
        before = broker.core.topics.find(TOPIC)
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert broker.core.topics.find(TOPIC) == before
        assert broker.core.groups.is_forbidden(GROUP, TOPIC)
        await create_topic(client, perm="4", order="true", readQueueNums="7", attributes="-reserve.time")
        after = broker.core.topics.find(TOPIC)
        assert after is not None and after.attributes == {"message.type": "DELAY"}


async def test_topic_settings_are_replicated(tmp_path: Path) -> None:
    """Topics and what groups may not read go to slaves, which change nothing themselves: 14."""
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        slave = await members.slave(master)
        async with dialogue(master) as client:
            await create_topic(client, perm="4", order="true", attributes="+message.type=FIFO")
            await client.ask(353, {"group": GROUP, "topic": TOPIC, "readable": "false"})
        await wait_until(lambda: slave.core.topics.find(TOPIC) == master.core.topics.find(TOPIC))
        await wait_until(lambda: slave.core.groups.is_forbidden(GROUP, TOPIC))
        async with dialogue(slave) as reader:
            assert (await reader.pull(0)).code == 16
            assert (await reader.ask(17, fields(perm="6"))).code == 14
            assert (await reader.ask(353, {"group": GROUP, "topic": TOPIC, "readable": "true"})).code == 14
            assert (await reader.ask(353, {"group": GROUP, "topic": TOPIC})).code == 14


async def test_order_topics_of_a_name_server_are_order_topics(tmp_path: Path) -> None:
    """Topics in its ORDER_TOPIC_CONFIG are ordered here after the next registration, and in routes if requested,
    and the retry topics of their consumers are ordered, too."""
    async with (
        name_server(tmp_path) as (server, _),
        running_broker(tmp_path / "store", disk=None, clock=None, namesrvAddr=server) as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: server in broker.registration.registered)
        await create_topic(client)
        await client.heartbeat("c1")
        assert not broker.core.topics.is_ordered(TOPIC)
        assert not broker.core.topics.is_ordered(f"%RETRY%{GROUP}")

        await ask(server, RequestCode.PUT_KV_CONFIG, {**ORDERED, "value": "test-broker:4"})
        broker.registration.schedule_update()
        await wait_until(lambda: broker.core.topics.is_ordered(TOPIC))
        assert "Nowhere" not in broker.core.topics
        await client.heartbeat("c1")
        assert broker.core.topics.is_ordered(f"%RETRY%{GROUP}")

        await ask(server, RequestCode.DELETE_KV_CONFIG, ORDERED)
        await create_topic(client, order="false")
        await broker.registration.wait_until_published()
        assert not broker.core.topics.is_ordered(TOPIC)
        await client.heartbeat("c1")
        assert not broker.core.topics.is_ordered(f"%RETRY%{GROUP}")


@pytest.mark.parametrize(("perm", "shown"), [("0", 0), ("2", 2), ("4", 4), ("6", 6)])
async def test_permission_is_in_the_route_when_answered(tmp_path: Path, perm: str, shown: int) -> None:
    """Any change of a permission is in the route, so that clients skip queues that they may not use."""
    async with (
        name_server(tmp_path) as (server, _),
        running_broker(tmp_path / "store", disk=None, clock=None, namesrvAddr=server) as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: server in broker.registration.registered)
        await create_topic(client, perm=perm, writeQueueNums="2")
        _, route = await ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        [queues] = route["queueDatas"]
        assert (queues["perm"], queues["writeQueueNums"], queues["readQueueNums"]) == (shown, 2, 4)


async def test_groups_keep_their_retry_policy_and_have_no_lite_attributes(broker: Broker, client: Dialogue) -> None:
    """RocketMQ's attributes of groups for lite topics are unknown, since Gantry has no such topics."""
    exponential = {"initial": 5000, "max": 7_200_000, "multiplier": 2}
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": exponential}
    config = {"groupName": GROUP, "retryMaxTimes": 3, "groupRetryPolicy": policy}
    assert (await client.ask(200, body=dumps(config))).code == 0
    assert (await client.ask_json(352, {"group": GROUP}))["groupRetryPolicy"] == policy

    wrong = {**config, "retryMaxTimes": 5, "attributes": {"+lite.bind.topic": "orders"}}
    for code, body in ((200, wrong), (225, {"groupConfigList": [{"groupName": "Fine"}, wrong]})):
        refused = await client.ask(code, body=dumps(body))
        assert (refused.code, refused.remark) == (1, "unsupported key: lite.bind.topic")
    assert (await client.ask_json(352, {"group": GROUP}))["retryMaxTimes"] == 3
    assert "Fine" not in broker.core.groups.all
