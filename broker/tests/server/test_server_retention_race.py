"""Deletion at the same time as reads: a reader of a message under deletion gets it, or the offset to continue at."""

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.ports import DiskSpace, RealDisk
from gantry_testing.local import TOPIC, Dialogue, dialogue, running_broker
from gantry_wire import Command, RequestCode
from gantry_wire.message import decode_records

FILE_BYTES = 256 * 1024
DISK_BYTES = 4 << 20
MESSAGES = 900
BODY_BYTES = 8_000
READERS = 8
CONF = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "maxMessageSize": "65536",
    "cleanResourceInterval": "100",
    "deleteUnconsumed": "true",
    "diskMaxUsedSpaceRatio": "40",
    "diskSpaceCleanForciblyRatio": "50",
    "diskSpaceWarningLevelRatio": "90",
    "flushIntervalCommitLog": "5",
    "flushCommitLogLeastPages": "0",
}


def body_of(number: int) -> bytes:
    """Return a body that identifies its message in the queue, to the last byte."""
    return (b"%06d" % number) * (BODY_BYTES // 6)


def used_bytes(root: str) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


async def produce(broker: Broker) -> None:
    """Send numbered messages, and wait while the disk is too full."""
    async with dialogue(broker) as client:
        number = 0
        while number < MESSAGES:
            reply = await client.send(body_of(number))
            if reply.code == 0:
                assert reply.ext["queueOffset"] == str(number)
                number += 1
            else:
                assert reply.code == 14, reply.remark
                await asyncio.sleep(0.01)


async def read(broker: Broker, seed: int, end: asyncio.Event, counts: dict[str, int]) -> None:
    """Pull from random offsets, most often near the start of the log."""
    rng = random.Random(seed)
    async with dialogue(broker) as client:
        offset = 0
        while not end.is_set():
            reply = await client.pull(offset, maxMsgNums="20")
            minimum, maximum = int(reply.ext["minOffset"]), int(reply.ext["maxOffset"])
            assert 0 <= minimum <= maximum
            if reply.code == 0:
                counts["found"] += 1
                numbers = check_messages(reply.body)
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert offset <= numbers[0]
                assert int(reply.ext["nextBeginOffset"]) == numbers[-1] + 1
            elif reply.code == 21:
                counts["moved"] += 1
                assert offset < minimum or offset > maximum or maximum == 0, reply.ext
                assert int(reply.ext["nextBeginOffset"]) in (minimum, maximum)
            else:
                assert reply.code in (19, 20), (reply.code, reply.remark)
            offset = rng.choice((minimum - 1, minimum, minimum, minimum + 3, rng.randint(0, maximum + 1)))
            offset = max(offset, 0)


def check_messages(data: bytes) -> list[int]:
    """The numbers of whole and unaltered messages."""
    numbers = []
    for message in decode_records(data):
        assert message.body == body_of(message.queue_offset)
        numbers.append(message.queue_offset)
    return numbers


async def ask(broker: Broker, end: asyncio.Event) -> None:
    """Find messages by offset, by time and by key, and send requests of administrators."""
    async with dialogue(broker) as client:
        while not end.is_set():
            queue = {"topic": TOPIC, "queueId": "0"}
            minimum = int((await client.ask(RequestCode.GET_MIN_OFFSET, queue)).ext["offset"])
            oldest = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(broker.store.log.min_physical)})
            assert oldest.code in (0, 1)
            if oldest.code == 0:
                [number] = check_messages(oldest.body)
                assert number >= minimum - 1
            await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": "1"})
            await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
            await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


@pytest.mark.verify
async def test_deletion_and_readers_do_not_interfere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No reader gets a wrong, torn or missing message, each request is answered, and no error is logged."""

    def space(self: RealDisk, path: str) -> DiskSpace:
        used = used_bytes(str(tmp_path))
        return DiskSpace(DISK_BYTES, max(0, DISK_BYTES - used))

    monkeypatch.setattr(RealDisk, "space", space)
    caplog.set_level(logging.ERROR)
    counts = {"found": 0, "moved": 0}
    async with running_broker(tmp_path, disk=None, clock=None, **CONF) as broker:
        end = asyncio.Event()
        readers = [asyncio.ensure_future(read(broker, seed, end, counts)) for seed in range(READERS)]
        readers.append(asyncio.ensure_future(ask(broker, end)))
        try:
            await produce(broker)
        finally:
            end.set()
            await asyncio.gather(*readers)
        deleted = broker.store.log.min_physical // FILE_BYTES
        minimum, wrote = broker.store.queues.get_or_create(TOPIC, 0).min_offset, broker.store.log.wrote
        files = len(os.listdir(tmp_path / "commitlog"))

    refusals = {"disk full; refusing sends"}
    assert [record.getMessage() for record in caplog.records if record.getMessage() not in refusals] == []
    assert deleted >= 15
    assert files <= DISK_BYTES // FILE_BYTES
    assert counts["found"] > 100
    assert counts["moved"] > 20
    async with running_broker(tmp_path, disk=None, clock=None, **CONF) as broker:
        assert broker.store.log.wrote == wrote
        async with dialogue(broker) as client:
            assert check_messages((await last_pull(client, minimum)).body)[-1] == MESSAGES - 1


async def last_pull(client: Dialogue, offset: int) -> Command:
    """The pull that reaches the end of the queue."""
    while True:
        reply = await client.pull(offset, maxMsgNums="100")
        if reply.ext["nextBeginOffset"] == str(MESSAGES):
            return reply
        offset = int(reply.ext["nextBeginOffset"])
