"""Administration: what mqadmin and dashboards ask a broker, answered in Java's shapes."""

from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.setting_keys import effective_settings
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
    wait_until,
)
from gantry_wire import Command, RequestCode
from gantry_wire.codes import PROTOCOL_VERSION_NAME
from gantry_wire.fastjson import dumps, loads
from gantry_wire.message import decode_record, decode_records, parse_offset_message_id

pytestmark = pytest.mark.usefixtures("clock")


def topic_fields(topic: str, **fields: str) -> dict[str, str]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **fields,
    }  # fmt: skip


async def commit(client: Dialogue, offset: int, queue: int = 0) -> None:
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "commitOffset": str(offset)}
    await client.make_group()
    assert (await client.ask(15, ext)).code == 0


# ------- topics


async def test_topic_is_created_changed_and_deleted(broker: Broker, client: Dialogue) -> None:
    """Code 17 creates or changes a topic, 351 shows it, 215 deletes it with its queues and offsets."""
    assert (await client.ask(17, topic_fields("Made", attributes="+message.type=NORMAL"))).code == 0
    shown = await client.ask_json(351, {"topic": "Made"})
    assert shown["topicName"] == "Made"
    assert (shown["readQueueNums"], shown["writeQueueNums"], shown["perm"], shown["order"]) == (3, 2, 6, False)
    assert shown["attributes"] == {"message.type": "NORMAL"}

    more = topic_fields("Made", writeQueueNums="5", order="true", attributes="-message.type,+reserve.time=7")
    assert (await client.ask(17, more)).code == 0
    shown = await client.ask_json(351, {"topic": "Made"})
    assert (shown["writeQueueNums"], shown["order"], shown["attributes"]) == (5, True, {"reserve.time": "7"})

    await client.send_ok(topic="Made", queueId="4")
    await client.make_group()
    await client.ask(15, {"consumerGroup": GROUP, "topic": "Made", "queueId": "4", "commitOffset": "1"})
    assert (await client.ask(215, {"topic": "Made"})).code == 0
    assert (await client.ask(351, {"topic": "Made"})).code == 17
    assert (await client.pull(0, topic="Made", queueId="4")).code == 17
    assert broker.core.offsets.groups_of("Made") == []
    assert broker.core.store.queues.get("Made", 4) is None


async def test_deleted_topic_can_be_created_again_empty(client: Dialogue) -> None:
    """A topic that is created under a deleted name starts at offset 0, without any message of the old one."""
    await client.send_ok(b"old")
    await client.ask(215, {"topic": TOPIC})

    reply = await client.send_ok(b"new")

    assert reply["queueOffset"] == "0"
    assert [message.body for message in await client.read()] == [b"new"]


async def test_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    """A restart does not bring a deleted topic back, though its messages are still in the log."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(topic="Gone")
        await client.send_ok()
        assert (await client.ask(215, {"topic": "Gone"})).code == 0

    async with running_broker(tmp_path) as broker:
        assert broker.core.topics.find("Gone") is None
        assert broker.core.store.queues.get("Gone", 0) is None
        assert broker.core.topics.find(TOPIC) is not None


async def test_several_topics_are_created_at_once(broker: Broker, client: Dialogue) -> None:
    """Code 18 makes every topic of a list."""
    configs = [
        {"topicName": f"T{number}", "readQueueNums": number, "writeQueueNums": number, "perm": 6} for number in (1, 2)
    ]

    assert (await client.ask(18, body=dumps({"topicConfigList": configs}))).code == 0

    found = [broker.core.topics.find(name) for name in ("T1", "T2")]
    assert [None if one is None else one.write_queue_nums for one in found] == [1, 2]


BAD_TOPICS = [
    {"readQueueNums": "-1"},
    {"writeQueueNums": "65537"},
    {"perm": "16"},
    {"perm": "-1"},
    {"topicFilterType": "OTHER"},
    {"attributes": "novalue"},
]


@pytest.mark.parametrize("fields", BAD_TOPICS, ids=[str(one) for one in BAD_TOPICS])
async def test_invalid_topic_is_refused(broker: Broker, client: Dialogue, fields: dict[str, str]) -> None:
    """Invalid numbers, permissions and filter types are 29, attributes 1, as in RocketMQ; no topic is created."""
    reply = await client.ask(17, topic_fields("Made", **fields))

    assert (reply.code, bool(reply.remark)) == (1 if "attributes" in fields else 29, True)
    assert "Made" not in broker.core.topics


async def test_system_topics_cannot_be_changed(broker: Broker, client: Dialogue) -> None:
    """The broker's own topics can be neither made nor deleted by an administrator: 29."""
    before = dict(broker.core.topics.all)
    for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "TestCluster", "test-broker"):
        assert (await client.ask(17, topic_fields(topic))).code == 29
        assert (await client.ask(215, {"topic": topic})).code == 29

    assert dict(broker.core.topics.all) == before
    names = (await client.ask_json(305))["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "TestCluster", "test-broker", "BenchmarkTest"} <= set(names)


async def test_all_topics_are_listed(client: Dialogue) -> None:
    """Code 21 gives every topic with the version of the table, as slaves and tools read it."""
    await client.ask(17, topic_fields("Made"))

    reply = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    document = loads(reply.body)

    assert document["topicConfigTable"]["Made"]["readQueueNums"] == 3
    assert document["dataVersion"] == document["mappingDataVersion"]
    assert reply.ext["totalTopicNum"] == str(len(document["topicConfigTable"]))


async def test_topic_statistics_count_queues(clock: FakeClock, client: Dialogue) -> None:
    """Code 202 gives minimum, maximum and time of every queue, keyed by the queue itself as Java's maps are."""
    await client.ask(17, topic_fields(TOPIC))
    clock.advance(10_000)
    await client.send_ok()
    await client.send_ok()

    document = await client.ask_json(202, {"topic": TOPIC})

    table = {key["queueId"]: value for key, value in document["offsetTable"].items()}
    assert {key["brokerName"] for key in document["offsetTable"]} == {"test-broker"}
    assert {key["topic"] for key in document["offsetTable"]} == {TOPIC}
    assert table == {
        0: {"lastUpdateTimestamp": clock.wall_ms(), "maxOffset": 2, "minOffset": 0},
        1: {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
        2: {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
    }


async def test_unknown_topic_is_answered_with_its_code(client: Dialogue) -> None:
    """A request about a missing topic is answered with code 17 and the name."""
    for code in (202, 351):
        reply = await client.ask(code, {"topic": "Missing"})
        assert (reply.code, "Missing" in (reply.remark or "")) == (17, True)


# ------- groups


async def test_group_is_created_changed_and_deleted(broker: Broker, client: Dialogue) -> None:
    """200 and 225 make or change groups, 352 shows one, 201 all, 207 deletes one, with its offsets if asked."""
    await client.send_ok()
    await commit(client, 1)
    config = {"groupName": GROUP, "retryMaxTimes": 3, "consumeBroadcastEnable": False}
    assert (await client.ask(200, body=dumps(config))).code == 0
    listing = {"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2", "consumeEnable": False}]}
    assert (await client.ask(225, body=dumps(listing))).code == 0

    shown = await client.ask_json(352, {"group": GROUP})
    assert (shown["retryMaxTimes"], shown["consumeBroadcastEnable"], shown["retryQueueNums"]) == (3, False, 1)
    table = (await client.ask_json(201))["subscriptionGroupTable"]
    assert {GROUP, "G1", "G2", "TOOLS_CONSUMER"} <= set(table)
    assert table["G2"]["consumeEnable"] is False

    assert (await client.ask(207, {"groupName": GROUP})).code == 0
    assert broker.core.offsets.find(GROUP, TOPIC, 0) == 1
    assert GROUP not in (await client.ask_json(201))["subscriptionGroupTable"]
    assert (await client.ask(207, {"groupName": GROUP, "cleanOffset": "true"})).code == 0
    assert broker.core.offsets.find(GROUP, TOPIC, 0) is None


async def test_retry_queues_of_a_group_are_limited(broker: Broker, client: Dialogue) -> None:
    """A group that asks for billions of retry queues is refused with 29: every list of them would end the broker."""
    reply = await client.ask(200, body=dumps({"groupName": "Greedy", "retryQueueNums": 2_000_000_000}))

    assert reply.code == 29
    assert "Greedy" not in broker.core.groups.all


async def test_groups_and_topics_of_consumption_are_listed(client: Dialogue) -> None:
    """300 names the groups of a topic, 343 the topics of a group, whether connected or only with offsets."""
    await client.send_ok()
    await commit(client, 1)
    await client.heartbeat("c1", "Connected")

    groups = await client.ask_json(300, {"topic": TOPIC})
    topics = await client.ask_json(343, {"group": GROUP})

    assert groups["groupList"] == ["Connected", GROUP]
    assert topics["topicList"] == [TOPIC]


async def test_backlog_of_a_group_is_answered(clock: FakeClock, client: Dialogue) -> None:
    """208 gives for every queue how far it goes, how far the group is, and when it last consumed."""
    await client.ask(17, topic_fields(TOPIC, readQueueNums="2"))
    stored_at: list[int] = []
    for _ in range(3):
        clock.advance(1_000)
        stored_at.append(clock.wall_ms())
        await client.send_ok()
    await commit(client, 2)

    document = await client.ask_json(208, {"consumerGroup": GROUP, "topic": TOPIC})

    table = {key["queueId"]: value for key, value in document["offsetTable"].items()}
    assert table == {
        0: {"brokerOffset": 3, "consumerOffset": 2, "minOffset": 0, "pullOffset": 2, "lastTimestamp": stored_at[1]},
        1: {"brokerOffset": 0, "consumerOffset": 0, "minOffset": 0, "pullOffset": 0, "lastTimestamp": 0},
    }
    assert (await client.ask_json(208, {"consumerGroup": GROUP}))["offsetTable"] == document["offsetTable"]


# ------- messages


async def test_messages_are_found_by_key(client: Dialogue) -> None:
    """Code 12 finds messages by each of their keys and by their unique id, and answers 22 if there is none."""
    ids = [f"{UNIQUE_ID[:-2]}{number:02d}" for number in range(4)]
    for number, unique in enumerate(ids):
        text = properties_text(UNIQ_KEY=unique, KEYS=f"all key{number}")
        await client.send_ok(b"%d" % number, properties=text)

    async def query(key: str, **more: str) -> Command:
        ext = {"topic": TOPIC, "key": key, "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(1 << 60), **more}
        return await client.ask(12, ext)

    async def found(key: str, **more: str) -> list[bytes]:
        reply = await query(key, **more)
        return sorted(message.body for message in decode_records(reply.body)) if reply.code == 0 else []

    assert await found("all") == [b"0", b"1", b"2", b"3"]
    assert await found("key2") == [b"2"]
    assert await found(ids[3], _UNIQUE_KEY_QUERY="true", maxNum="1") == [b"3"]
    assert len(await found("all", maxNum="2")) == 2
    assert await found("all", maxNum="-1") == []
    assert await found("all", endTimestamp="1000") == []
    assert (await query("none")).code == 22
    assert (await query("all", topic="Other")).code == 22
    assert set((await query("all")).ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


async def test_query_answer_fits_into_a_frame(client: Dialogue) -> None:
    """Many large messages of one key come in an answer that a client takes, not in one that it must refuse."""
    text = properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="big")
    for _ in range(5):
        await client.send_ok(b"x" * 4_000_000, properties=text)
    ext = {"topic": TOPIC, "key": "big", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}

    reply = await client.ask(12, ext)

    assert reply.code == 0
    assert len(decode_records(reply.body)) == 2


async def test_message_is_found_by_its_offset(client: Dialogue) -> None:
    """33 gives the whole record at a physical offset."""
    sent = await client.send_ok(b"here")

    reply = await client.ask(33, {"offset": str(parse_offset_message_id(sent["msgId"])[2])})

    assert decode_record(reply.body).body == b"here"


# ------- the broker


async def test_runtime_info_has_rocketmqs_fields(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """28 gives the numbers that tools show, all as texts, among them those of the log."""
    await client.send_ok()
    await client.pull(0)
    waiting = client.start_pull(1, wait_ms=60_000)
    await wait_until(lambda: broker.pulls.hold.count == 1)
    clock.advance(90_061_000)

    table: dict[str, Any] = (await client.ask_json(28))["table"]

    assert all(isinstance(value, str) for value in table.values())
    assert table["brokerVersionDesc"] == PROTOCOL_VERSION_NAME
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")
    assert table["commitLogMaxOffset"] == str(broker.core.store.log.wrote) == table["putMessageSizeTotal"]
    assert (table["commitLogMinOffset"], table["dispatchBehindBytes"], table["heldPulls"]) == ("0", "0", "1")
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["earliestMessageTimeStamp"] == str(clock.wall_ms() - 90_061_000)
    assert 0 < float(table["commitLogDiskRatio"]) < 1
    for name in ("putTps", "getTransferredTps", "getFoundTps", "getMissTps"):
        assert len([float(rate) for rate in table[name].split()]) == 3
    await client.send_ok()
    await waiting


async def test_settings_are_answered(broker: Broker, client: Dialogue) -> None:
    """26 gives the effective settings in the format of broker.conf, and three more keys for RocketMQ's tools."""
    reply = await client.ask(26)

    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    resolved = {"brokerIP2": "127.0.0.1", "inSyncReplicas": "1", "deleteWhen": "04"}  # as RocketMQ writes them
    for_tools = {"traceOn", "useTLS", "clientCallbackExecutorThreads"}
    assert for_tools <= lines.keys()
    assert {key: value for key, value in lines.items() if key not in for_tools} == {
        **effective_settings(broker.settings),
        **resolved,
    }
    assert lines["brokerName"] == "test-broker"
    assert loads(reply.ext["version"])["counter"] >= 0


async def test_small_tables_are_answered(client: Dialogue) -> None:
    """Slaves and tools also ask for delay offsets (45), consumer offsets (43) and request modes (402)."""
    assert (await client.ask_json(45))["offsetTable"] == {}
    assert (await client.ask_json(43))["offsetTable"] == {}
    assert await client.ask_json(402) == {"messageRequestModeMap": {}}
