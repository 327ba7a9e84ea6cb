"""The archive server: brokers get archived messages by offset, filter and time, also while the archive changes."""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from spark_kit.toy_archive import archive_log, archive_new_messages
from spark_kit.toy_log import HOUR_US, NOON_US, ToyLog, body_of
from spark_kit.toy_run import GRID_ROWS

from gantry_pipelines.archive.compaction import CompactionRules, compact, expire
from gantry_pipelines.archive.file_writing import Packing
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.serving import chunks, records
from gantry_pipelines.archive.serving.records import encode_chunk
from gantry_pipelines.archive.serving.server import ArchiveServer, ServerParameters
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_remoting.client import Channel
from gantry_status.socket_path import socket_address
from gantry_wire import Command
from gantry_wire.commands.archive import (
    ArchiveCode,
    ArchivedRange,
    ArchivedRanges,
    ArchivePull,
    ArchiveRangesQuery,
    ArchiveSearch,
)
from gantry_wire.compress import inflate_body
from gantry_wire.message import FLAG_COMPRESSED, StoredMessage, decode_host, decode_records
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.schema import arrow_schema

ONE, TWO = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 3)
LOG = ToyLog({ONE: 650, TWO: 320})
PATTERN = "(?!(?:%RETRY%.*)$)(?:.*)"


class Reader:
    """A broker's side of the connection."""

    def __init__(self, channel: Channel, server: ArchiveServer) -> None:
        self.channel = channel
        self.server = server

    async def ask(self, code: ArchiveCode, ext: dict[str, str]) -> Command:
        return await self.channel.request(Command(code=code, ext=ext), 10_000)

    async def pull(
        self,
        queue: QueueId,
        offset: int,
        *,
        count: int = 32,
        size: int = 1 << 20,
        log_begin: int = 1 << 40,
        **fields: Any,
    ) -> Command:
        pull = ArchivePull(
            broker=queue.broker, topic=queue.topic, queue_id=queue.number, queue_offset=offset, count_max=count,
            bytes_max=size, log_begin=log_begin, identity=await self.identity(), **fields,
        )  # fmt: skip
        return await self.ask(ArchiveCode.PULL, pull.write())

    async def identity(self) -> str:
        """Return the identity of the archive, as a broker knows it; empty if the server has none."""
        query = ArchiveRangesQuery(broker="broker-a").write()
        reply = await self.ask(ArchiveCode.LIST_RANGES, query)
        return msgspec.json.decode(reply.body, type=ArchivedRanges).identity if reply.code == 0 else ""

    async def read_all(self, queue: QueueId, offset: int = 0, **fields: Any) -> list[StoredMessage]:
        """Return all messages from an offset on."""
        found: list[StoredMessage] = []
        while True:
            reply = await self.pull(queue, offset, **fields)
            if reply.code == 19:
                return found
            assert reply.code in (0, 20), reply
            messages = decode_records(reply.body)
            assert len(messages) == int(reply.ext.get("count", "0"))
            found += messages
            assert int(reply.ext["nextOffset"]) > offset
            offset = int(reply.ext["nextOffset"])

    async def search(self, queue: QueueId, time_ms: int, boundary: str = "LOWER") -> int:
        search = ArchiveSearch(
            broker=queue.broker, topic=queue.topic, queue_id=queue.number, timestamp=time_ms,
            identity=await self.identity(), boundary_type=boundary,
        )  # fmt: skip
        return int((await self.ask(ArchiveCode.SEARCH_OFFSET, search.write())).ext["offset"])

    async def ranges(self, broker: str = "broker-a", version: str = "") -> ArchivedRanges | None:
        reply = await self.ask(ArchiveCode.LIST_RANGES, ArchiveRangesQuery(broker=broker, version=version).write())
        assert reply.code == 0, reply
        return msgspec.json.decode(reply.body, type=ArchivedRanges) if reply.body else None


@asynccontextmanager
async def serving(storage: Storage, folder: Path, *, refresh_s: float = 60.0) -> AsyncIterator[Reader]:
    """Run a server over a storage, and a connection to it."""
    server = ArchiveServer(storage, ServerParameters(str(folder / "a.sock"), PATTERN, 1 << 20, refresh_s))
    await server.start()
    running = asyncio.ensure_future(server.run())
    channel = await Channel.connect_to_socket(str(folder / "a.sock"))
    try:
        yield Reader(channel, server)
    finally:
        running.cancel()
        await channel.close()
        await server.close()


async def wait_until_answer(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a request has the expected answer."""
    for _ in range(500):
        if await check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the answer did not come within ten seconds")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 30)


@pytest.mark.usefixtures("small_chunks")
async def test_every_message_is_returned_once_as_it_was_stored(tmp_path: Path) -> None:
    """Records have the fields of the log's: offsets, times, hosts, properties and body."""
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        for queue, end in LOG.ends.items():
            messages = await reader.read_all(queue)

            assert [one.queue_offset for one in messages] == list(range(end))
            for one in messages:
                row = LOG.row(queue, one.queue_offset)
                assert (one.topic, one.queue_id, one.body) == (
                    queue.topic,
                    queue.number,
                    body_of(queue, one.queue_offset),
                )
                assert one.physical_offset == row["physicalOffset"]
                assert one.store_timestamp_ms * 1000 == row["storeTime"]
                assert one.born_timestamp_ms * 1000 == row["bornTime"]
                assert decode_host(one.born_host) == ("10.0.0.1", 5555)
                assert decode_host(one.store_host) == ("10.0.0.2", 10911)
                assert one.properties == dict(row["properties"])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("begin", [0, 1, 29, 30, 99, 100, 649, 650, 5000])
async def test_reading_begins_at_any_offset(tmp_path: Path, begin: int) -> None:
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        for one in (begin, max(0, begin - 40), begin):  # backwards, too
            messages = await reader.read_all(ONE, one)

            assert [message.queue_offset for message in messages] == list(range(one, 650))


async def test_limits_of_a_pull(tmp_path: Path) -> None:
    """A reply has at most the messages and about the bytes that were asked for, but at least one message."""
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        assert len(decode_records((await reader.pull(ONE, 5, count=7)).body)) == 7
        few = decode_records((await reader.pull(ONE, 5, size=1000)).body)
        assert 1 < len(few) < 10 and sum(one.size for one in few) <= 1000
        assert len(decode_records((await reader.pull(ONE, 5, size=1)).body)) == 1


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("expression", "kind"), [("tag-1 || tag-2", "TAG"), ("TAGS <> 'tag-0'", "SQL92")], ids=["by tags", "by properties"]
)
async def test_filters_are_applied(tmp_path: Path, expression: str, kind: str) -> None:
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        messages = await reader.read_all(ONE, subscription=expression, expression_type=kind)

        assert [one.queue_offset for one in messages] == [offset for offset in range(650) if offset % 3]


@pytest.mark.usefixtures("small_chunks")
async def test_filter_that_matches_nothing_examines_a_part_only(tmp_path: Path) -> None:
    """The reply says where to continue, so that one request does not read a whole archive."""
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        reply = await reader.pull(ONE, 0, subscription="none", expression_type="TAG")

        assert (reply.code, 0 < int(reply.ext["nextOffset"]) < 650) == (20, True)
        assert await reader.read_all(ONE, subscription="none", expression_type="TAG") == []


async def test_invalid_filter_is_refused(tmp_path: Path) -> None:
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        reply = await reader.pull(ONE, 0, subscription="a = ", expression_type="SQL92")

        assert reply.code == 29


async def test_ranges_are_those_of_one_broker_and_are_sent_once(tmp_path: Path) -> None:
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        found = await reader.ranges()
        assert found is not None
        first_ms = NOON_US // 1000
        assert found.topics_pattern == PATTERN
        assert found.ranges == {
            "orders": [
                ArchivedRange(0, 0, 650, first_ms, 649, first_ms + 600, first_ms + 649),
                ArchivedRange(3, 0, 320, first_ms, 319, first_ms + 300, first_ms + 319),
            ]
        }  # fmt: skip
        assert await reader.ranges(version=found.version) is None
        assert await reader.ranges("broker-c") == ArchivedRanges(found.version, found.identity, PATTERN)


async def test_offset_is_found_by_time(tmp_path: Path) -> None:
    first_ms = NOON_US // 1000
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        assert [await reader.search(ONE, first_ms + n) for n in (-5, 0, 1, 333, 649, 650)] == [0, 0, 1, 333, 649, 650]
        assert [await reader.search(ONE, first_ms + n, "UPPER") for n in (0, 333, 649, 9999)] == [0, 333, 649, 649]


async def test_new_messages_are_returned_after_the_next_refresh(tmp_path: Path) -> None:
    log = ToyLog({ONE: 250})
    storage = Folder(str(tmp_path / "archive"))
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        await asyncio.to_thread(archive_new_messages, log, writer)
        async with serving(storage, tmp_path, refresh_s=0.05) as reader:
            before = await reader.ranges()
            assert before is not None and len(await reader.read_all(ONE)) == 250
            await asyncio.to_thread(archive_new_messages, ToyLog({ONE: 400}), writer, 1)

            async def has_changed() -> bool:
                return await reader.ranges(version=before.version) is not None

            await wait_until_answer(has_changed)
            after = await reader.ranges()
            assert after is not None and after.ranges["orders"][0].end == 400
            assert [one.queue_offset for one in await reader.read_all(ONE)] == list(range(400))


async def test_file_that_was_compacted_meanwhile_is_found_in_the_new_manifest(tmp_path: Path) -> None:
    """The server has an old manifest whose files are gone; the reader gets all messages, and each once."""
    storage = archive_log(LOG, tmp_path / "archive")
    async with serving(storage, tmp_path) as reader:
        first = decode_records((await reader.pull(ONE, 0)).body)
        await asyncio.to_thread(compact_all, storage)

        rest = await reader.read_all(ONE, 32)

        assert [one.queue_offset for one in first + rest] == list(range(650))
        assert len({file.place.path for file in read_manifest(storage).data() if file.range.queue == ONE}) == 1


def compact_all(storage: Storage) -> None:
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        assert list(compact(writer, CompactionRules(1 << 30, 0), Packing(), (NOON_US + 48 * HOUR_US) // 1000))


async def test_expired_messages_are_skipped(tmp_path: Path) -> None:
    """The range begins with the first message that is left, and a pull before it continues there."""
    day_us = 24 * HOUR_US
    log = ToyLog({ONE: 300}, step_us=day_us // 100)
    storage = archive_log(log, tmp_path / "archive")
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        assert list(expire(writer, 1, (NOON_US + 3 * day_us) // 1000))
    left = read_manifest(storage).data()
    async with serving(storage, tmp_path) as reader:
        found = await reader.ranges()
        assert found is not None
        [archived] = found.ranges["orders"]

        messages = await reader.read_all(ONE, 0)

        assert 0 < archived.begin == left[0].range.begin
        assert [one.queue_offset for one in messages] == list(range(archived.begin, 300))


async def test_missing_archive_is_no_empty_one(tmp_path: Path) -> None:
    """Brokers would skip what is not archived, and the volume may only not be mounted: requests are refused."""
    log = ToyLog({ONE: 250})
    async with serving(Folder(str(tmp_path / "archive")), tmp_path, refresh_s=0.05) as reader:
        refused = await reader.ask(ArchiveCode.LIST_RANGES, ArchiveRangesQuery(broker="broker-a").write())
        assert (refused.code, "no archive" in (refused.remark or "")) == (14, True)
        await asyncio.to_thread(archive_log, log, tmp_path / "archive")

        async def has_messages() -> bool:
            return (await reader.pull(ONE, 0)).code == 0

        await wait_until_answer(has_messages)
        assert len(await reader.read_all(ONE)) == 250


async def test_archive_that_vanishes_stays_known(tmp_path: Path) -> None:
    """A volume that is unmounted later makes reads fail; the ranges stay those that were read last."""
    storage = archive_log(LOG, tmp_path / "archive")
    async with serving(storage, tmp_path, refresh_s=0.05) as reader:
        await asyncio.to_thread(os.rename, tmp_path / "archive", tmp_path / "elsewhere")
        await asyncio.sleep(0.3)

        found = await reader.ranges()
        reply = await reader.pull(ONE, 0)

        assert found is not None and found.ranges["orders"][0].end == 650
        assert (reply.code, "cannot read the archive" in (reply.remark or "")) == (1, True)


async def test_path_of_the_socket_may_be_long(tmp_path: Path) -> None:
    """Longer than the kernel takes in an address."""
    folder = tmp_path / ("x" * 120)
    await asyncio.to_thread(folder.mkdir)
    server = ArchiveServer(archive_log(LOG, tmp_path / "archive"), ServerParameters(str(folder / "a.sock"), PATTERN))
    await server.start()
    try:
        with socket_address(str(folder / "a.sock")) as address:
            channel = await Channel.connect_to_socket(address)
        assert len(await Reader(channel, server).read_all(TWO)) == 320
        await channel.close()
    finally:
        await server.close()


async def test_only_the_own_user_can_open_the_socket(tmp_path: Path) -> None:
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path):
        mode = (await asyncio.to_thread((tmp_path / "a.sock").stat)).st_mode

        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


@pytest.mark.usefixtures("small_chunks")
async def test_sequential_reading_reads_each_chunk_once(tmp_path: Path) -> None:
    """Two readers of one queue share the chunks, and a chunk is read ahead."""
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        both = await asyncio.gather(reader.read_all(ONE), reader.read_all(ONE))

        assert [len(one) for one in both] == [650, 650]
        assert reader.server.chunks.read_count == sum(-(-rows // 30) for rows in rows_of_files(tmp_path / "archive"))


def rows_of_files(root: Path) -> list[int]:
    return [file.rows for file in read_manifest(Folder(str(root))).data() if file.range.queue == ONE]


async def test_cache_keeps_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 30)
    storage = archive_log(LOG, tmp_path / "archive")
    server = ArchiveServer(storage, ServerParameters(str(tmp_path / "b.sock"), PATTERN, 30_000))
    await server.start()
    channel = await Channel.connect_to_socket(str(tmp_path / "b.sock"))
    try:
        assert len(await Reader(channel, server).read_all(ONE)) == 650
        assert 0 < server.chunks.size_bytes <= 30_000
    finally:
        await channel.close()
        await server.close()


async def test_lost_range_is_skipped_up_to_the_log(tmp_path: Path) -> None:
    """A broker may still have messages of a range that the archive has lost."""
    storage = Folder(str(tmp_path / "archive"))
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        archive_new_messages(ToyLog({ONE: 200}), writer)
        lost = ArchivedFile(Place(QueueRange(ONE, 200, 300), ""), 0, 0, "", kind=RangeKind.LOST)
        writer.commit("query", 1, [lost])
        archive_new_messages(ToyLog({ONE: 400}), writer, 2)
    async with serving(storage, tmp_path) as reader:
        skipped = await reader.pull(ONE, 200, log_begin=500)
        capped = await reader.pull(ONE, 200, log_begin=250)
        again = await reader.pull(ONE, 199, log_begin=250)

        assert decode_records(skipped.body)[0].queue_offset == 300
        assert (capped.code, capped.ext["nextOffset"]) == (20, "250")
        assert (again.code, again.ext["nextOffset"]) == (0, "200")
        found = await reader.ranges()
        assert found is not None and found.ranges["orders"][0].known_offset == 399


async def test_manifest_with_a_hole_is_refused(tmp_path: Path) -> None:
    """A record may be missing in a listing, and readers would skip its messages. The last good manifest is kept."""
    storage = archive_log(LOG, tmp_path / "archive")
    async with serving(storage, tmp_path, refresh_s=0.05) as reader:
        names = sorted(path for path in storage.paths("_manifest/records") if "-0-" in path)
        await asyncio.to_thread(storage.remove, names[2])
        await asyncio.sleep(0.3)

        assert [one.queue_offset for one in await reader.read_all(ONE)] == list(range(650))


async def test_request_that_means_another_archive_is_refused(tmp_path: Path) -> None:
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        pull = ArchivePull(
            broker="broker-a", topic="orders", queue_id=0, queue_offset=0, count_max=1, bytes_max=1, log_begin=9,
            identity="another",
        )  # fmt: skip

        assert (await reader.ask(ArchiveCode.PULL, pull.write())).code == 14


async def test_chunks_of_large_messages_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk ends after a number of bytes, so that one reader of large messages needs little memory."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 5_000)
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        assert [one.queue_offset for one in await reader.read_all(ONE)] == list(range(650))
        largest = max(one.size_bytes for one in reader.server.chunks._cached.values())
        assert reader.server.chunks.read_count > 7 and largest < 80_000


async def test_expensive_filter_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is evaluated for a limited time for each request, and the reader continues where that ended."""
    monkeypatch.setattr(records, "FILTER_S", -1.0)
    async with serving(archive_log(LOG, tmp_path / "archive"), tmp_path) as reader:
        reply = await reader.pull(ONE, 0, subscription="TAGS = 'none'", expression_type="SQL92")
        assert (reply.code, reply.ext["nextOffset"]) == (20, str(records.FILTERED_AT_ONCE))

        found = await reader.read_all(ONE, subscription="TAGS = 'tag-1'", expression_type="SQL92")

        assert [one.queue_offset for one in found] == [offset for offset in range(650) if offset % 3 == 1]


def test_large_body_is_compressed_again() -> None:
    """A reply with it fits into a frame; one that does not shrink is left out."""
    text = b"x" * (20 << 20)
    noise = random.Random(1).randbytes(16 << 20)
    rows = [{**LOG.row(ONE, 7), "body": text}, {**LOG.row(ONE, 8), "body": noise}]

    chunk = encode_chunk("orders", pa.RecordBatch.from_pylist(rows, schema=arrow_schema()))

    [message] = decode_records(chunk.records[0])
    assert inflate_body(message.body, message.sys_flag) == text
    assert chunk.records[1] == b""


def test_record_of_a_compressed_message_has_its_body_as_sent() -> None:
    """The archive has bodies decompressed, so the record must not claim to be compressed."""
    row = {**LOG.row(ONE, 7), "sysFlag": FLAG_COMPRESSED | 0x300, "bornHost": None, "storeTime": None}
    lost = {**LOG.row(ONE, 8), "body": None}
    batch = pa.RecordBatch.from_pylist([row, lost], schema=arrow_schema())

    chunk = encode_chunk("orders", batch)

    [message] = decode_records(chunk.records[0])
    assert (message.sys_flag, message.body) == (0, body_of(ONE, 7))
    assert (message.store_timestamp_ms, message.born_host) == (0, bytes(8))
    assert chunk.records[1] == b""
