"""Offsets of consumers and of queues, by time, and their persistence with the other tables."""

import shutil
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.config_file import NEEDED_FILES
from gantry_testing.accounts import FIRST_USER
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import (
    GROUP,
    TOPIC,
    Dialogue,
    dialogue,
    local_conf,
    running_broker,
    wait_until,
)
from gantry_wire import ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.fastjson import dumps, loads

pytestmark = pytest.mark.usefixtures("clock")


async def commit(client: Dialogue, offset: int, *, group: str = GROUP, topic: str = TOPIC, queue: int = 0) -> int:
    """The answer's code, for a group that the broker knows."""
    await client.make_group(group)
    return await commit_only(client, offset, group=group, topic=topic, queue=queue)


async def commit_only(client: Dialogue, offset: int, *, group: str, topic: str = TOPIC, queue: int = 0) -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
    return (await client.ask(15, ext)).code


async def committed(
    client: Dialogue, *, group: str = GROUP, topic: str = TOPIC, zero: bool | None = None
) -> int | None:
    """The committed offset, or None for code 22."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    if zero is not None:
        ext["setZeroIfNotFound"] = "true" if zero else "false"
    reply = await client.ask(14, ext)
    assert reply.code in (0, 22)
    return int(reply.ext["offset"]) if reply.code == 0 else None


async def ask_offset(client: Dialogue, code: int, **fields: str) -> int:
    reply = await client.ask(code, {"topic": TOPIC, "queueId": "0", **fields})
    assert reply.code == 0
    return int(reply.ext["timestamp" if code == 32 else "offset"])


# ------- of consumers


async def test_committed_offset_is_found(client: Dialogue) -> None:
    """Each group has its own offset in each queue; the newest commit counts, also a lower one."""
    await client.send_ok()

    assert await commit(client, 1) == 0
    assert await commit(client, 1, group="Other") == 0
    assert await commit(client, 0) == 0

    assert await committed(client) == 0
    assert await committed(client, group="Other") == 1


async def test_commit_creates_no_group(broker: Broker, client: Dialogue) -> None:
    """As in RocketMQ 5, only a pull or a heartbeat creates a group, so a typing error in a tool creates none."""
    await client.send_ok()

    reply = await client.ask(15, {"consumerGroup": "Slip", "topic": TOPIC, "queueId": "0", "commitOffset": "1"})

    assert (reply.code, reply.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group Slip not exist!")
    assert "Slip" not in broker.core.groups.all


async def test_oneway_commit_is_effective(client: Dialogue) -> None:
    """Consumers commit by one-way requests, without waiting for an answer."""
    await client.send_ok()
    await client.make_group()

    client.send_oneway(15, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"})

    assert await committed(client) == 1


async def test_group_without_a_commit_starts_at_zero_or_by_its_own_rule(client: Dialogue) -> None:
    """If a queue still has its first message, a new group starts at 0, or by its own rule (22) if requested."""
    await client.send_ok()

    assert await committed(client) == 0
    assert await committed(client, zero=True) == 0
    assert await committed(client, zero=False) is None


async def test_commit_needs_a_topic_and_a_group(tmp_path: Path) -> None:
    """A commit for an unknown topic is 17, for an unknown group 26; neither is kept."""
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as broker, dialogue(broker) as client:
        broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP))
        await client.send_ok()

        assert await commit(client, 1, topic="Unknown") == 17
        assert await commit_only(client, 1, group="Unknown") == 26
        assert broker.core.offsets.document().offset_table == {}


async def test_all_offsets_are_listed(client: Dialogue) -> None:
    """Slaves take over the whole table by code 43, in RocketMQ's form."""
    await client.send_ok()
    await commit(client, 1)

    table = await client.ask_json(43)

    assert table["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 1}}
    assert set(table["dataVersion"]) == {"counter", "stateVersion", "timestamp"}


# ------- of queues, in time


async def test_minimum_and_maximum_offset_are_answered(client: Dialogue) -> None:
    """The maximum is where the next message will be, the minimum where the first is; 0 and 0 where nothing is."""
    assert (await ask_offset(client, 30), await ask_offset(client, 31), await ask_offset(client, 32)) == (0, 0, -1)

    for _ in range(3):
        await client.send_ok()

    assert (await ask_offset(client, 30), await ask_offset(client, 31)) == (3, 0)
    assert (await ask_offset(client, 30, queueId="1"), await ask_offset(client, 31, queueId="77")) == (0, 0)


async def test_offsets_are_found_by_time(clock: FakeClock, client: Dialogue) -> None:
    """LOWER is the first message not before a time, or the queue's end; UPPER is the last one not after it."""
    start = clock.wall_ms()
    for gap_ms in (0, 100, 0, 100):
        clock.advance(gap_ms)
        await client.send_ok()

    async def at(after_ms: int, boundary: str | None = None) -> int:
        more = {} if boundary is None else {"boundaryType": boundary}
        return await ask_offset(client, 29, timestamp=str(start + after_ms), **more)

    assert [await at(ms) for ms in (-1, 0, 1, 100, 101, 200, 201)] == [0, 0, 1, 1, 3, 3, 4]
    assert [await at(ms, "UPPER") for ms in (0, 99, 100, 150, 200, 999)] == [0, 0, 2, 2, 3, 3]
    assert await at(100, "lower") == await at(100, "LOWER") == 1
    assert await ask_offset(client, 32) == start


# ------- over a restart


async def test_tables_survive_a_restart(tmp_path: Path) -> None:
    """Messages, topics, groups and offsets are after a clean stop what they were before it."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(b"kept")
        await client.send_ok(topic="Other", defaultTopicQueueNums="2")
        broker.core.groups.put(SubscriptionGroupConfig(group_name="Configured", retry_max_times=5))
        await commit(client, 1)
        topics = dict(broker.core.topics.all)
        version = broker.core.topics.version

    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert dict(broker.core.topics.all) == topics
        assert broker.core.topics.version.counter >= version.counter
        assert broker.core.groups.all["Configured"].retry_max_times == 5
        assert await committed(client) == 1
        assert [message.body for message in await client.read()] == [b"kept"]
        assert (await client.send_ok())["queueOffset"] == "1"


async def test_offsets_are_written_periodically(tmp_path: Path) -> None:
    """Every few seconds the offsets are written, so that a crash repeats little."""
    file = tmp_path / "config/consumerOffset.json"
    async with running_broker(tmp_path, flushConsumerOffsetInterval="100") as broker, dialogue(broker) as client:
        await client.send_ok()
        await commit(client, 1)

        await wait_until(lambda: file.exists() and loads(file.read_bytes())["offsetTable"] != {})

        assert loads(file.read_bytes())["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 1}}


async def test_created_topic_is_on_disk_when_answered(tmp_path: Path) -> None:
    """An administrator's topic or group that was answered 0 outlives a crash right after."""
    disk = FaultyDisk()
    settings = broker_settings(local_conf("/store"))
    broker = Broker(settings, disk=disk, clock=SystemClock())
    await broker.start()
    async with dialogue(broker) as client:
        ext = {
            "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        assert (await client.ask(17, ext)).code == 0
        assert (await client.ask(200, body=dumps({"groupName": "MadeGroup", "retryMaxTimes": 3}))).code == 0
        at_reply = (
            loads(disk.read_file("/store/config/topics.json")),
            loads(disk.read_file("/store/config/subscriptionGroup.json")),
        )
    await broker.close()

    assert at_reply[0]["topicConfigTable"]["Made"]["writeQueueNums"] == 3
    assert at_reply[1]["subscriptionGroupTable"]["MadeGroup"]["retryMaxTimes"] == 3


async def test_topics_on_disk_are_adopted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A topic that has queues and no entry in topics.json is taken in, so that its messages can be had."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(b"kept", topic="Lost", queueId="2")
    shutil.rmtree(tmp_path / "config")

    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert broker.core.topics.find("Lost") == TopicConfig(topic_name="Lost", read_queue_nums=3, write_queue_nums=3)
        assert [message.body for message in await client.read(0, topic="Lost", queueId="2")] == [b"kept"]
    assert "added topics that have queues but no entry in topics.json" in caplog.text


async def test_offsets_beyond_a_queue_are_reset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An offset beyond the recovered queue would skip new messages; it is reset to the queue's end, and logged."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
    table = {"offsetTable": {f"{TOPIC}@{GROUP}": {0: 100, 1: 7}, f"{TOPIC}@Fine": {0: 1}, "Gone@Old": {0: 5}}}
    (tmp_path / "config/consumerOffset.json").write_bytes(dumps(table))

    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        offsets = broker.core.offsets
        assert (offsets.find(GROUP, TOPIC, 0), offsets.find(GROUP, TOPIC, 1)) == (1, 0)
        assert (offsets.find("Fine", TOPIC, 0), offsets.find("Old", "Gone", 0)) == (1, 0)
        await client.send_ok(b"new")
        assert [message.body for message in await client.read(1)] == [b"new"]
    assert caplog.text.count("beyond the end of its queue") == 3
    written = loads((tmp_path / "config/consumerOffset.json").read_bytes())
    assert written["offsetTable"][f"{TOPIC}@{GROUP}"]["0"] == 1


async def test_tables_written_by_java_are_read(tmp_path: Path) -> None:
    """RocketMQ writes bare integer keys, tabs and fields of its own; they are read."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        await client.send_ok()
    text = '{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},"groupTopicMap":{"G":["TopicTest"]},'
    text += '\n\t"offsetTable":{"TopicTest@GroupTest":{0:2\n\t}\n\t}\n}'
    (tmp_path / "config/consumerOffset.json").write_text(text)

    async with running_broker(tmp_path) as broker:
        assert broker.core.offsets.find(GROUP, TOPIC, 0) == 2


async def test_table_with_another_schema_prevents_the_start(tmp_path: Path) -> None:
    """Offsets that cannot be understood stop the start with the file's name; nothing is replaced by an empty table."""
    async with running_broker(tmp_path):
        pass
    file = tmp_path / "config/consumerOffset.json"
    for path in (file, file.with_name("consumerOffset.json.bak")):
        path.write_text('{"offsetTable": [1, 2]}')

    with pytest.raises(ConfigCorrupt, match=r"consumerOffset\.json"):
        async with running_broker(tmp_path):
            pass

    assert file.read_text() == '{"offsetTable": [1, 2]}'


async def test_start_needs_exactly_the_files_that_inspection_expects(tmp_path: Path) -> None:
    """`gantry store inspect` and `repair-plan` use the same list of the files that one start cannot do without."""
    settings = {**FIRST_USER, "haListenPort": "-1"}
    async with running_broker(tmp_path, disk=None, clock=None, **settings):
        pass
    folder = tmp_path / "config"
    names = {path.stem for path in folder.glob("*.json")} | NEEDED_FILES | {"consumerFilter"}
    refused = set()
    for name in names:
        files = [folder / f"{name}.json", folder / f"{name}.json.bak"]
        before = {path: path.read_bytes() for path in files if path.exists()}
        for path in files:
            path.write_bytes(b"{")
        try:
            async with running_broker(tmp_path, disk=None, clock=None, **settings):
                pass
        except ConfigCorrupt:
            refused.add(name)
        for path in files:
            path.unlink()
        for path, data in before.items():
            path.write_bytes(data)

    assert "queueLocks" in names and refused == NEEDED_FILES


async def test_port_in_use_leaves_the_store_closed(tmp_path: Path) -> None:
    """A broker that cannot listen has closed its store cleanly before it fails."""
    async with running_broker(tmp_path / "other") as other:
        taken = str(other.settings.listen_port)
        with pytest.raises(OSError, match=taken):
            async with running_broker(tmp_path / "mine", listenPort=taken):
                pass

    assert not (tmp_path / "mine/abort").exists()
    async with running_broker(tmp_path / "mine"):
        pass


async def test_stop_closes_the_store_even_if_tables_cannot_be_written(tmp_path: Path) -> None:
    """Tables that cannot be written at the stop are logged; the log is closed all the same."""
    disk = RealDisk()
    settings = broker_settings(local_conf(tmp_path))
    broker = Broker(settings, disk=disk, clock=SystemClock())
    await broker.start()
    async with dialogue(broker) as client:
        await client.send_ok()
        await commit(client, 1)
    await broker.core.persistence.wait_for_writes()
    shutil.rmtree(tmp_path / "config")
    (tmp_path / "config").write_text("not a directory")

    await broker.close()

    assert broker.core.persistence.failure is not None
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("content", [b"", b'{"held":[{"group', None])
async def test_start_without_queue_locks_grants_none_for_one_lease(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged or missing file stops no start; but holders before the stop may still rely on their locks."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
    file = tmp_path / "config/queueLocks.json"
    for path in (file, file.with_name("queueLocks.json.bak")):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    async with running_broker(tmp_path) as broker:
        assert broker.core.locks.lock_pause_ms > 0

    assert str(file) in [getattr(record, "path", None) for record in caplog.records]
    caplog.clear()
    async with running_broker(tmp_path) as broker:
        assert broker.core.locks.lock_pause_ms == 0, "expected the file to be whole again"
