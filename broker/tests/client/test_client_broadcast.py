"""Broadcasting: every member receives all messages and keeps its offsets in its own file."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from gantry_client import (
    ClientSettings,
    ConsumerSettings,
    InvalidMessage,
    Message,
    MessageModel,
    MessageQueue,
    OffsetsUnreadable,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from gantry_client.offset_store import FileOffsets
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode

GROUP = "everyone"
QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)


class BodyRecorder:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)


def member(cluster: FakeCluster, folder: Path, instance: str, handler: BodyRecorder) -> PushConsumer:
    settings = ConsumerSettings(
        model=MessageModel.BROADCASTING, start_from=StartFrom.FIRST, broadcast_offsets_folder=folder
    )
    return PushConsumer(
        cluster.name_server,
        GROUP,
        topics="orders",
        handler=handler,
        settings=settings,
        client_settings=ClientSettings(instance=instance),
    )


async def send(cluster: FakeCluster, *bodies: bytes) -> None:
    async with Producer(cluster.name_server) as producer:
        for body in bodies:
            await producer.send(Message("orders", body))


async def test_every_member_gets_every_message(tmp_path: Path) -> None:
    """Two members both handle all messages; the brokers store no offset for them and are not queried for members."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=3)
        first, second = BodyRecorder(), BodyRecorder()
        async with member(cluster, tmp_path, "one", first), member(cluster, tmp_path, "two", second):
            await send(cluster, *(b"%d" % number for number in range(30)))
            await wait_until(lambda: len(first.bodies) == len(second.bodies) == 30)

        assert set(first.bodies) == set(second.bodies)
        assert cluster.broker().state.offsets == {}
        assert cluster.broker().received[RequestCode.GET_CONSUMER_LIST_BY_GROUP] == 0


async def test_member_continues_at_the_offsets_in_its_file(tmp_path: Path) -> None:
    """A restarted member handles only new messages, independently of other members."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=2)
        first, again, other = BodyRecorder(), BodyRecorder(), BodyRecorder()
        async with member(cluster, tmp_path, "one", first):
            await send(cluster, b"1", b"2")
            await wait_until(lambda: len(first.bodies) == 2)
        await send(cluster, b"3")

        async with member(cluster, tmp_path, "one", again), member(cluster, tmp_path, "two", other):
            await wait_until(lambda: len(again.bodies) == 1 and len(other.bodies) == 3)

        assert again.bodies == [b"3"]


async def test_failed_broadcast_message_is_not_sent_back(tmp_path: Path) -> None:
    """Broadcasting has no retry topic: a failed message is logged and skipped."""

    class Failing(BodyRecorder):
        async def __call__(self, message: ReceivedMessage) -> None:
            if message.body == b"bad":
                raise RuntimeError("no")
            await super().__call__(message)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        handler = Failing()
        async with member(cluster, tmp_path, "one", handler):
            await send(cluster, b"bad", b"good")
            await wait_until(lambda: handler.bodies == [b"good"])

        assert cluster.broker().state.send_backs == []
        assert f"%RETRY%{GROUP}" not in {
            subscription.topic
            for heartbeat in cluster.broker().state.clients.values()
            for data in heartbeat.consumer_data_set
            for subscription in data.subscription_data_set
        }


async def test_cancelled_commit_does_not_overwrite_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk may still write when the member closes, which commits again: the newest offset remains."""
    store, may_write = FileOffsets(tmp_path, GROUP, "one"), threading.Event()
    replace_file, calls = store._replace_file, []

    def slow(offsets: dict[MessageQueue, int]) -> None:
        calls.append(dict(offsets))
        assert may_write.wait(60)
        replace_file(offsets)

    monkeypatch.setattr(store, "_replace_file", slow)
    given_up = asyncio.create_task(store.write({QUEUE: 7}))
    await wait_until(lambda: len(calls) == 1)
    given_up.cancel()
    last = asyncio.create_task(store.write({QUEUE: 9}))
    await asyncio.sleep(0.05)
    assert len(calls) == 1

    may_write.set()
    assert await last == {}

    assert calls == [{QUEUE: 7}, {QUEUE: 9}]
    assert await FileOffsets(tmp_path, GROUP, "one").read(QUEUE) == 9


async def test_leftover_beside_the_offsets_file_is_ignored(tmp_path: Path) -> None:
    """A new store reads what was written; a leftover of a crash beside the file does not matter."""
    store = FileOffsets(tmp_path, GROUP, "one")
    assert await store.read(QUEUE) is None

    assert await store.write({QUEUE: 7}) == {}
    store.path.with_suffix(".json.tmp").write_bytes(b"{half a fi")

    assert await FileOffsets(tmp_path, GROUP, "one").read(QUEUE) == 7


async def test_damaged_offsets_file_is_an_error(tmp_path: Path) -> None:
    """Unreadable offsets never cause a silent restart from the beginning."""
    store = FileOffsets(tmp_path, GROUP, None)
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b"{not json")

    with pytest.raises(OffsetsUnreadable, match=r"everyone\.json"):
        await store.read(QUEUE)


async def test_full_disk_keeps_the_old_offsets_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset that could not be stored is returned with its error, and the old file remains."""
    store = FileOffsets(tmp_path, GROUP, "one")
    await store.write({QUEUE: 7})

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        failed = await store.write({QUEUE: 8})

    assert isinstance(failed[QUEUE], OSError)
    assert await FileOffsets(tmp_path, GROUP, "one").read(QUEUE) == 7


@pytest.mark.parametrize("instance", ["../escape", "a/b", "dot.dot", "nul\x00"])
def test_instance_name_cannot_leave_the_folder(tmp_path: Path, instance: str) -> None:
    """An instance name is a single folder name or an error."""
    with pytest.raises(InvalidMessage):
        FileOffsets(tmp_path, GROUP, instance)
