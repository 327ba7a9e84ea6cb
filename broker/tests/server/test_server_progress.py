"""Progress of groups (208, 317, 303), their subscriptions, and the units of consume queues."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core import queue_table
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.groups import offset_handlers
from gantry_client.documents import QueueProgress
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, expire, properties_text, running_broker
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.fastjson import ObjectKey
from gantry_wire.hashing import tags_code

OTHER = "OtherGroup"


@pytest.fixture
async def broker(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Broker]:
    """A broker that accepts SQL92 expressions."""
    async with running_broker(tmp_path, clock=clock, enablePropertyFilter="true") as one:
        yield one


def rows(table: dict[ObjectKey, dict[str, int]]) -> dict[tuple[str, int], dict[str, int]]:
    return {(key["topic"], key["queueId"]): row for key, row in table.items()}


async def stats(client: Dialogue, **fields: str) -> dict[tuple[str, int], dict[str, int]]:
    document = await client.ask_json(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, **fields})
    assert document["consumeTps"] == 0.0
    return rows(document["offsetTable"])


# ------- of one group


async def test_pull_offset_shows_messages_in_flight(clock: FakeClock, broker: Broker, client: Dialogue) -> None:
    """Each queue has its committed, pulled and end offset, and the store time of the last consumed message."""
    await client.send_ok(b"0")
    stored_at = clock.wall_ms()
    clock.advance(1000)
    for number in range(1, 5):
        await client.send_ok(b"%d" % number)
    await client.pull(0, maxMsgNums="3")
    broker.core.offsets.commit(GROUP, TOPIC, 0, 1)

    found = await stats(client)

    assert found[TOPIC, 0] == {
        "brokerOffset": 5, "consumerOffset": 1, "lastTimestamp": stored_at, "minOffset": 0, "pullOffset": 3
    }  # fmt: skip
    assert found[TOPIC, 1] == dict.fromkeys(
        ("brokerOffset", "consumerOffset", "lastTimestamp", "minOffset", "pullOffset"), 0
    )
    assert len(found) == 4


async def test_expired_messages_are_no_lag(tmp_path: Path) -> None:
    """A group that has committed less than the queue's first offset lags only by the messages that still exist."""
    async with (
        running_broker(tmp_path, mappedFileSizeCommitLog="131072", maxMessageSize="16384") as broker,
        dialogue(broker) as client,
    ):
        for _ in range(20):
            await client.send_ok(bytes(10_000))
        broker.core.offsets.commit(GROUP, TOPIC, 0, 1)
        await expire(broker)

        found = (await stats(client))[TOPIC, 0]

    assert 1 < found["minOffset"] < found["brokerOffset"] == 20
    progress = msgspec.convert(found, QueueProgress)
    assert progress.lag == 20 - found["minOffset"]


async def test_unsubscribed_topic_is_listed_only_in_a_topic_list(broker: Broker, client: Dialogue) -> None:
    """For an online group only subscribed topics are listed, unless `topicList` names another."""
    await client.send_ok()
    await client.send_ok(topic="Left")
    broker.core.offsets.commit(GROUP, TOPIC, 0, 1)
    broker.core.offsets.commit(GROUP, "Left", 0, 1)
    assert {topic for topic, _ in await stats(client)} == {TOPIC, "Left"}

    await client.heartbeat("c1")

    assert {topic for topic, _ in await stats(client)} == {TOPIC}
    assert await stats(client, topic="Left") == {}
    assert {topic for topic, _ in await stats(client, topicList=f"Left;{TOPIC};")} == {TOPIC, "Left"}
    assert {topic for topic, _ in await stats(client, topicList="Left;Nothing")} == {"Left"}


async def test_deleted_topic_removes_its_progress(broker: Broker, client: Dialogue) -> None:
    """A new topic of the same name starts without pulled offsets."""
    await client.send_ok()
    await client.pull(0)
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    await client.send_ok()

    assert (await stats(client, topic=TOPIC))[TOPIC, 0]["pullOffset"] == 0


# ------- of all groups


async def test_progress_of_all_groups_is_listed(broker: Broker, client: Dialogue) -> None:
    """Each group is listed with its topics, with the sums of unconsumed messages and of those in flight."""
    for _ in range(5):
        await client.send_ok()
    await client.pull(0, maxMsgNums="3")
    await client.pull(0, consumerGroup=OTHER, maxMsgNums="1")
    broker.core.offsets.commit(GROUP, TOPIC, 0, 2)
    broker.core.offsets.commit(OTHER, TOPIC, 0, 0)

    document = await client.ask_json(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})

    listing: dict[str, Any] = {}
    for entry in document["consumeStatsList"]:
        listing |= entry
    assert rows(listing[GROUP][0]["offsetTable"])[TOPIC, 0]["consumerOffset"] == 2
    assert rows(listing[OTHER][0]["offsetTable"])[TOPIC, 0]["brokerOffset"] == 5
    assert listing["TOOLS_CONSUMER"] == []
    assert (document["totalDiff"], document["totalInflightDiff"]) == (3 + 5, 1 + 1)
    assert document["brokerAddr"] == f"127.0.0.1:{broker.port}"


async def test_other_requests_are_served_while_groups_without_queues_are_listed(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one of them lends the store to another thread, as a change of the log does, the listing is refused."""
    for number in range(20):
        broker.core.groups.find_or_create(f"Group{number}")
    steps: list[int] = []

    async def serve_others(core: BrokerCore) -> None:
        steps.append(len(steps))
        await queue_table.serve_others(core)
        broker.core.gate.is_store_lent = len(steps) == 3

    monkeypatch.setattr(offset_handlers, "_GROUPS_PER_STEP", 5)
    monkeypatch.setattr(offset_handlers, "serve_others", serve_others)

    reply = await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})

    broker.core.gate.is_store_lent = False
    assert (reply.code, len(steps)) == (ResponseCode.SERVICE_NOT_AVAILABLE, 4)


async def test_progress_of_ordered_topics_alone_is_listed(broker: Broker, client: Dialogue) -> None:
    """The tool asks so with ``-o true``."""
    await client.send_ok()
    broker.core.topics.put(TopicConfig(topic_name="Ordered", order=True))
    broker.core.groups.find_or_create(GROUP)
    broker.core.offsets.commit(GROUP, TOPIC, 0, 0)
    broker.core.offsets.commit(GROUP, "Ordered", 0, 0)

    document = await client.ask_json(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})

    (found,) = next(entry[GROUP] for entry in document["consumeStatsList"] if GROUP in entry)
    assert {topic for topic, _ in rows(found["offsetTable"])} == {"Ordered"}


async def test_listing_of_too_many_queues_is_refused(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups times all their queues can be more than a frame takes; then the list is not even made."""
    await client.send_ok()
    broker.core.groups.find_or_create(GROUP)
    broker.core.offsets.commit(GROUP, TOPIC, 0, 0)
    queues = broker.core.topics.find(TOPIC)
    assert queues is not None
    requests = [
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}),
    ]
    monkeypatch.setattr(queue_table, "QUEUES_LISTED_MAX", queues.write_queue_nums)
    assert [(await client.ask(code, fields)).code for code, fields in requests] == [0, 0]
    monkeypatch.setattr(queue_table, "QUEUES_LISTED_MAX", queues.write_queue_nums - 1)

    for code, fields in requests:
        reply = await client.ask(code, fields)

        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark == "4 queues would be listed, at most 3 are allowed: request fewer topics or groups"


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}),
    ],
)
async def test_listing_of_many_queues_needs_no_objects_for_them(
    code: RequestCode, fields: dict[str, str], broker: Broker, client: Dialogue
) -> None:
    """The peak of memory is less than five copies of the answer; with all rows as Python objects it was above six."""
    broker.core.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=20_000, write_queue_nums=20_000))
    broker.core.groups.find_or_create(GROUP)
    broker.core.offsets.commit(GROUP, TOPIC, 0, 0)
    tracemalloc.start()
    try:
        reply = await client.ask(code, fields)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert reply.code == 0 and len(reply.body) > 20_000 * 50
    assert peak_bytes < 5 * len(reply.body)


async def test_progress_of_all_groups_is_listed_for_one_request_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these answers may fill a frame. One at a time, their memory does not add up."""
    running: list[int] = [0]

    async def list_slowly(core: BrokerCore, *, is_order: bool) -> bytes:
        running.append(running[-1] + 1)
        await asyncio.sleep(0)
        running.append(running[-1] - 1)
        return b"{}"

    monkeypatch.setattr(offset_handlers, "_progress_of_all", list_slowly)
    async with dialogue(broker) as first, dialogue(broker) as second:
        await asyncio.gather(*(
            one.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}) for one in (first, second)
        ))  # fmt: skip

    assert running == [0, 1, 0, 1, 0]


# ------- in time


async def test_time_spans_show_the_delay_of_a_group(clock: FakeClock, broker: Broker, client: Dialogue) -> None:
    """Each queue is listed with the store times of its first, last and last consumed message, and the delay."""
    began_at = clock.wall_ms()
    for number in range(3):
        await client.send_ok(b"%d" % number)
        clock.advance(1000)
    broker.core.offsets.commit(GROUP, TOPIC, 0, 1)

    document = await client.ask_json(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP})
    unused = await client.ask_json(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": OTHER})

    spans = {span["messageQueue"]["queueId"]: span for span in document["consumeTimeSpanSet"]}
    assert spans[0] == {
        "consumeTimeStamp": began_at,
        "delayTime": 2000,
        "maxTimeStamp": began_at + 2000,
        "messageQueue": {"brokerName": "test-broker", "queueId": 0, "topic": TOPIC},
        "minTimeStamp": began_at,
    }
    assert (spans[1]["minTimeStamp"], spans[1]["maxTimeStamp"], spans[1]["delayTime"]) == (-1, -1, 0)
    first = next(one for one in unused["consumeTimeSpanSet"] if one["messageQueue"]["queueId"] == 0)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (began_at, 3000)

    missing = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Nothing", "group": GROUP})
    assert (missing.code, missing.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[Nothing] not exist")


# ------- subscriptions


async def test_subscription_of_a_group_is_answered(client: Dialogue) -> None:
    """The subscription of the members; for an unknown group or topic only the names are answered."""
    await client.heartbeat("c1", expression="a || b")

    async def asked(**fields: str) -> Any:
        return await client.ask_json(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields)

    found = await asked(group=GROUP, topic=TOPIC)
    assert (found["group"], found["topic"]) == (GROUP, TOPIC)
    assert found["subscriptionData"]["subString"] == "a || b"
    assert found["subscriptionData"]["expressionType"] == "TAG"
    assert await asked(group=GROUP, topic="Other") == {"group": GROUP, "topic": "Other"}
    assert await asked(group=OTHER, topic=TOPIC) == {"group": OTHER, "topic": TOPIC}
    assert await asked(group=GROUP) == {"group": GROUP}


async def test_topics_of_a_group_have_the_broker_address(broker: Broker, client: Dialogue) -> None:
    """As RocketMQ: the tool shows where it has the list from."""
    broker.core.offsets.commit(GROUP, TOPIC, 0, 1)

    found = await client.ask_json(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP})

    assert found == {"topicList": [TOPIC], "brokerAddr": f"127.0.0.1:{broker.port}"}


# ------- units of a consume queue


async def queue(client: Dialogue, **fields: str) -> Any:
    ext = {"topic": TOPIC, "queueId": "0", "index": "0", "count": "10", **fields}
    return await client.ask_json(RequestCode.QUERY_CONSUME_QUEUE, ext)


async def test_consume_queue_is_listed_by_unit(client: Dialogue) -> None:
    """Units are returned with offset, size and tag hash: from an index on, up to the requested number."""
    ends = []
    for tag in ("a", "b", "c"):
        sent = await client.send_ok(properties=properties_text(TAGS=tag))
        ends.append(int(sent["msgId"][-16:], 16))

    found = await queue(client, index="1", count="1")

    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    (unit,) = found["queueData"]
    assert unit == {
        "eval": False, "physicOffset": ends[1], "physicSize": ends[2] - ends[1], "tagsCode": tags_code("b")
    }  # fmt: skip
    assert len((await queue(client))["queueData"]) == 3
    assert (await queue(client, count="0"))["queueData"] == []
    assert "filterData" not in found


@pytest.mark.parametrize("index", ["3", "-1"])
async def test_index_outside_of_a_queue_is_answered_with_a_text(client: Dialogue, index: str) -> None:
    """Code 0 without a body, as RocketMQ; a queue that is not there is an error."""
    for _ in range(3):
        await client.send_ok()
    ext = {"topic": TOPIC, "queueId": "0", "index": index, "count": "10"}

    reply = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert (reply.code, reply.remark, reply.body) == (0, f"Index {index} of 0@{TOPIC} is not exist!", b"")

    reply = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, {**ext, "queueId": "7"})
    assert (reply.code, reply.remark) == (1, f"7@{TOPIC} is not exist!")


async def test_consume_queue_is_listed_with_the_groups_filter(client: Dialogue) -> None:
    """Tags have no data of a filter; a condition over properties is shown; a group that is not here is named."""
    await client.send_ok()

    assert (await queue(client, consumerGroup=GROUP))["filterData"] == f"{GROUP}@{TOPIC} is not online!"
    await client.heartbeat("c1", expression="a")
    found = await queue(client, consumerGroup=GROUP)
    assert (found["filterData"], found["subscriptionData"]["subString"]) == ("null", "a")
    await client.heartbeat("c1", expression="n > 5", expression_type="SQL92", version=2)
    kept = json.loads((await queue(client, consumerGroup=GROUP))["filterData"])
    assert (kept["expression"], kept["expressionType"], kept["consumerGroup"]) == ("n > 5", "SQL92", GROUP)
