"""Code 353 forbids a group to read a topic, and no other."""

from __future__ import annotations

import pytest

from gantry_broker.app import Broker
from gantry_testing.local import GROUP, TOPIC, Dialogue
from gantry_wire import RequestCode


async def readable(client: Dialogue, **fields: str) -> bool:
    """Change the permission, or only query it; return the answer."""
    ext = {"group": GROUP, "topic": TOPIC, **fields}
    found = await client.ask_json(353, ext)
    assert (found["group"], found["topic"]) == (ext["group"], ext["topic"])
    return bool(found["readable"])


async def test_group_is_forbidden_to_read_one_topic(client: Dialogue) -> None:
    """Its pulls get 16 until reading is permitted again; other groups and other topics are not affected."""
    for topic in (TOPIC, "Other"):
        await client.send_ok(b"x", topic=topic)
    assert await readable(client)
    assert not await readable(client, readable="false")

    refused = await client.pull(0)
    assert (refused.code, refused.remark) == (16, f"the consumer group[{GROUP}] is forbidden for topic[{TOPIC}]")
    assert (await client.pull(0, code=RequestCode.LITE_PULL_MESSAGE)).code == 16
    assert (await client.pull(0, topic="Other")).code == 0
    assert (await client.pull(0, consumerGroup="Others")).code == 0
    assert not await readable(client)

    assert await readable(client, readable="true")
    assert (await client.pull(0)).code == 0


async def test_held_pull_is_refused_when_reading_is_forbidden(client: Dialogue) -> None:
    """It gets no message that arrives after reading was forbidden."""
    await client.send_ok(b"x")
    held = client.start_pull(1, wait_ms=60_000)
    assert not await readable(client, readable="false")
    await client.send_ok(b"secret")
    assert (await held).code == 16


async def test_two_topics_are_forbidden_and_permitted_independently(broker: Broker, client: Dialogue) -> None:
    """RocketMQ lets a group read all topics again as soon as one of them is allowed."""
    for topic in (TOPIC, "Other"):
        assert not await readable(client, topic=topic, readable="false")
    assert await readable(client, readable="true")
    assert not await readable(client, topic="Other")
    table = await client.ask_json(201, {})
    assert table["forbiddenTable"] == {GROUP: {"Other": 4}}

    assert await readable(client, topic="Other", readable="true")
    assert broker.core.groups.document().forbidden_table == {}


async def test_deleted_group_loses_its_forbidden_topics(client: Dialogue) -> None:
    """As in RocketMQ, a new group of that name may read the topic."""
    await client.heartbeat("c1")
    assert not await readable(client, readable="false")
    assert (await client.ask(207, {"groupName": GROUP})).code == 0
    assert await readable(client)


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"group": GROUP}, 1),
        ({"topic": TOPIC}, 1),
        ({"group": "bad name", "topic": TOPIC}, 29),
        ({"group": GROUP, "topic": "../x"}, 29),
        ({"group": GROUP, "topic": TOPIC, "readable": "perhaps"}, 1),
    ],
)
async def test_invalid_request_changes_nothing(
    broker: Broker, client: Dialogue, ext: dict[str, str], code: int
) -> None:
    """An invalid request is refused with the reason."""
    reply = await client.ask(353, ext)
    assert (reply.code, bool(reply.remark)) == (code, True)
    assert broker.core.groups.document().forbidden_table == {}
