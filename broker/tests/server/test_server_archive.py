"""Messages that the log does not have any more: pulls get them from the archive, and what is not archived is kept."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from test_server_retention import HOUR_MS, Place, find_logged, place

from gantry_broker.server.admin import retention
from gantry_broker.server.archive.connection import ArchiveUnavailable
from gantry_broker.server.pull.pull_hold import HeldPull
from gantry_broker.store.time_search import TimeSearch
from gantry_remoting.client import Channel
from gantry_testing.local import GROUP, TOPIC, dialogue, pull_ext, wait_until
from gantry_wire import Command, RequestCode
from gantry_wire.commands.archive import (
    ArchiveCode,
    ArchivedRange,
    ArchivedRanges,
    ArchivePull,
    ArchivePulled,
    ArchiveRangesQuery,
    ArchiveSearch,
)
from gantry_wire.commands.offsets import OffsetResult
from gantry_wire.filters import TagFilter, parse_filter
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, decode_records, encode_record

BROKER = "broker-a"
HOURLY = {"fileReservedTime": "1"}
ALL_TOPICS = "(?!(?:%RETRY%.*|%DLQ%.*)$)(?:.*)"


class FakeArchive:
    """An archive server in memory."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.messages: dict[tuple[str, int], list[StoredMessage]] = {}
        self.pattern = ALL_TOPICS
        self.version = 0
        self.identity = "the-archive"
        self.pulls: list[ArchivePull] = []
        self.is_silent = False
        self.fault = ""
        self._server: asyncio.Server | None = None
        self._channels: list[Channel] = []

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(self._new_channel, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for channel in self._channels:
            await channel.close()
        await asyncio.to_thread(Path(self.path).unlink, missing_ok=True)

    def add(self, messages: list[StoredMessage]) -> None:
        """Archive these messages of one queue."""
        self.messages.setdefault((messages[0].topic, messages[0].queue_id), []).extend(messages)
        self.version += 1

    def expire(self, count: int, topic: str = TOPIC, queue_id: int = 0) -> None:
        del self.messages[topic, queue_id][:count]
        self.version += 1

    def _new_channel(self) -> Channel:
        self._channels.append(Channel("broker", on_request=self._answer))
        return self._channels[-1]

    def _answer(self, command: Command, _channel: Channel) -> Command | None:
        if self.is_silent:
            return None
        if self.fault:
            return command.reply(1, self.fault)
        if command.code == ArchiveCode.LIST_RANGES:
            return self._list_ranges(command)
        if command.code == ArchiveCode.SEARCH_OFFSET:
            search = ArchiveSearch.read(command.ext)
            messages = self.messages[search.topic, search.queue_id]
            later = (one.queue_offset for one in messages if one.store_timestamp_ms >= search.timestamp)
            return command.reply(ext=OffsetResult(offset=next(later)).write())
        return self._pull(command, ArchivePull.read(command.ext))

    def _list_ranges(self, command: Command) -> Command:
        query = ArchiveRangesQuery.read(command.ext)
        assert query.broker == BROKER
        if query.version == str(self.version):
            return command.reply()
        found = ArchivedRanges(str(self.version), self.identity, self.pattern)
        for (topic, queue_id), messages in self.messages.items():
            first, last = messages[0], messages[-1]
            one = ArchivedRange(
                queue_id,
                first.queue_offset,
                last.queue_offset + 1,
                first.store_timestamp_ms,
                last.queue_offset,
                last.store_timestamp_ms,
                last.store_timestamp_ms,
            )
            found.ranges.setdefault(topic, []).append(one)
        return command.reply(body=msgspec.json.encode(found))

    def _pull(self, command: Command, pull: ArchivePull) -> Command:
        self.pulls.append(pull)
        if pull.identity != self.identity:
            return command.reply(14, "another archive")
        wanted = parse_filter(pull.expression_type, pull.subscription)
        after = [one for one in self.messages[pull.topic, pull.queue_id] if one.queue_offset >= pull.queue_offset]
        # As the server, which reads a part of one file, it does not pass a gap in one reply.
        after = [one for place, one in enumerate(after) if one.queue_offset - place == after[0].queue_offset]
        examined = after[: pull.count_max]
        found = [
            one
            for one in examined
            if (
                wanted.accepts_code(tags_code(one.properties.get("TAGS")))
                if isinstance(wanted, TagFilter)
                else wanted.accepts(one.properties)
            )
        ]
        end = examined[-1].queue_offset + 1 if examined else pull.queue_offset
        begin = examined[0].queue_offset if examined else pull.log_begin
        if begin > max(pull.queue_offset, pull.log_begin):  # as the server: what the log has is not skipped
            found, end = [], max(pull.queue_offset, pull.log_begin)
        ext = ArchivePulled(next_offset=end, count=len(found)).write()
        return command.reply(0 if found else 20 if examined else 19, ext=ext, body=b"".join(map(encode_record, found)))


@asynccontextmanager
async def archived_place(folder: Path, **conf: str) -> AsyncIterator[tuple[Place, FakeArchive]]:
    """Run a broker with an archive server that has nothing yet."""
    archive = FakeArchive(folder / "archive.sock")
    await archive.start()
    settings = {"brokerName": BROKER, "archiveSocketPath": archive.path, "archiveReadTimeout": "500", **HOURLY, **conf}
    try:
        async with place(**settings) as here:
            await refresh(here)
            yield here, archive
    finally:
        await archive.stop()


async def refresh(here: Place) -> None:
    assert here.broker.archive is not None
    await here.broker.archive.refresh()


async def read_log(here: Place, begin: int, end: int) -> list[StoredMessage]:
    """Read messages of a queue with pulls, as a client does."""
    found: list[StoredMessage] = []
    while begin < end:
        reply = await here.client.pull(begin)
        assert reply.code == 0, (begin, reply)
        found += decode_records(reply.body)
        begin = int(reply.ext["nextBeginOffset"])
    return found


async def expire(here: Place) -> None:
    """Let all messages be older than their retention, and delete what may be deleted."""
    await here.rounds()
    here.clock.advance(2 * HOUR_MS)
    assert (await here.client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
    await here.rounds(2)


async def fill_and_archive(here: Place, archive: FakeArchive, files: int = 3) -> list[StoredMessage]:
    """Fill log files, archive all messages, and delete the expired ones from the log. Return all messages."""
    await here.fill(files)
    messages = await read_log(here, 0, here.end())
    archive.add(messages)
    await refresh(here)
    await expire(here)
    queue = here.broker.store.queues.get(TOPIC, 0)
    assert queue is not None and queue.min_offset > 10
    return messages


def without_seal(message: StoredMessage) -> tuple[object, ...]:
    properties = {name: value for name, value in message.properties.items() if name != "__CRC32#"}
    return message.queue_offset, message.physical_offset, message.body, properties


# ------- pulls


async def test_reader_gets_every_message_from_the_archive_and_then_from_the_log(tmp_path: Path) -> None:
    """A reader that begins at the first message gets all once, in order, and sees the archive's first offset."""
    async with archived_place(tmp_path) as (here, archive):
        messages = await fill_and_archive(here, archive)

        again = await read_log(here, 0, len(messages))

        assert list(map(without_seal, again)) == list(map(without_seal, messages))
        assert len(archive.pulls) > 0
        reply = await here.client.pull(0)
        assert (reply.ext["minOffset"], reply.ext["suggestWhichBrokerId"]) == ("0", "0")
        reply = await here.client.pull(len(messages) - 1)
        assert (reply.code, reply.ext["minOffset"]) == (0, "0")


async def test_reader_without_an_archive_skips_to_the_log(tmp_path: Path) -> None:
    """The twin: without the setting, the same reader is sent to the first message of the log."""
    async with place(**HOURLY) as here:
        await here.fill(3)
        await expire(here)

        reply = await here.client.pull(0)

        assert (reply.code, reply.remark) == (21, "OFFSET_TOO_SMALL")
        assert int(reply.ext["nextBeginOffset"]) > 10


async def test_reader_before_the_archive_is_sent_to_its_first_message(tmp_path: Path) -> None:
    async with archived_place(tmp_path) as (here, archive):
        await fill_and_archive(here, archive)
        archive.expire(4)
        await refresh(here)

        reply = await here.client.pull(1)

        assert (reply.code, reply.ext["nextBeginOffset"], reply.ext["minOffset"]) == (21, "4", "4")
        assert (await here.client.pull(4)).code == 0


@pytest.mark.parametrize(
    ("expression", "kind"), [("blue", "TAG"), ("TAGS = 'blue'", "SQL92")], ids=["by tags", "by properties"]
)
async def test_filters_apply_to_archived_messages(tmp_path: Path, expression: str, kind: str) -> None:
    async with archived_place(tmp_path, enablePropertyFilter="true") as (here, archive):
        messages = await fill_and_archive(here, archive)
        coloured = [
            msgspec.structs.replace(
                one, properties_bytes=b"TAGS\x01" + (b"blue" if one.queue_offset % 3 else b"red") + b"\x02"
            )
            for one in messages
        ]
        archive.messages[TOPIC, 0] = coloured

        ext = pull_ext(0, sysFlag="4", subscription=expression, expressionType=kind)
        reply = await here.client.ask(RequestCode.PULL_MESSAGE, ext)

        assert reply.code == 0
        assert all(one.properties["TAGS"] == "blue" for one in decode_records(reply.body))
        ext = pull_ext(0, sysFlag="4", subscription="green", expressionType="TAG")
        reply = await here.client.ask(RequestCode.PULL_MESSAGE, ext)
        assert (reply.code, reply.remark) == (20, "NO_MATCHED_MESSAGE")
        assert int(reply.ext["nextBeginOffset"]) > 0


async def test_offsets_count_from_the_archive(tmp_path: Path) -> None:
    """The first offset, the earliest time, and the offset for a time are those of the archive."""
    async with archived_place(tmp_path) as (here, archive):
        messages = await fill_and_archive(here, archive)
        address = {"topic": TOPIC, "queueId": "0"}

        assert (await here.client.ask(RequestCode.GET_MIN_OFFSET, address)).ext["offset"] == "0"
        earliest = (await here.client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, address)).ext["timestamp"]
        assert int(earliest) == messages[0].store_timestamp_ms
        search = {**address, "timestamp": str(messages[5].store_timestamp_ms)}
        reply = await here.client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
        assert int(reply.ext["offset"]) == 5
        search["timestamp"] = str(messages[-1].store_timestamp_ms)
        reply = await here.client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
        assert int(reply.ext["offset"]) == len(messages) - 1


async def test_group_is_reset_to_a_time_in_the_archive(tmp_path: Path) -> None:
    async with archived_place(tmp_path, useServerSideResetOffset="true") as (here, archive):
        messages = await fill_and_archive(here, archive)
        await here.client.pull(len(messages) - 1)  # creates the group
        ext = {
            "topic": TOPIC, "group": GROUP, "timestamp": str(messages[7].store_timestamp_ms), "isForce": "true",
            "queueId": "0",
        }  # fmt: skip

        reply = await here.client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)

        assert reply.code == 0, reply
        assert here.broker.core.offsets.find(GROUP, TOPIC, 0) == 7


async def test_held_pull_whose_messages_have_expired_is_repeated(tmp_path: Path) -> None:
    """It is not sent to the first message of the log, since the archive has what it waits for."""
    async with archived_place(tmp_path) as (here, archive):
        messages = await fill_and_archive(here, archive)
        held = here.client.start_pull(len(messages), wait_ms=60_000)
        await wait_until(lambda: here.broker.pulls.hold.count == 1)
        [waiting] = here.broker.pulls.hold.held_for((TOPIC, 0))
        assert isinstance(waiting, HeldPull)
        waiting.next_offset = 0

        here.broker.pulls.hold.wake_all()
        reply = await held

        assert (reply.code, reply.ext["nextBeginOffset"]) == (20, "0")


async def test_master_sends_readers_of_the_archive_to_a_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting, and only while a slave is connected. The answer has messages, so no client asks in vain."""
    async with archived_place(tmp_path, archiveReadsOnSlave="true") as (here, archive):
        await fill_and_archive(here, archive)
        assert (await here.client.pull(0)).ext["suggestWhichBrokerId"] == "0"

        monkeypatch.setattr(here.broker.pulls, "_find_slave", lambda preferred: preferred)
        reply = await here.client.pull(0)

        assert (reply.code, reply.ext["suggestWhichBrokerId"]) == (0, "1")


async def test_runtime_table_tells_the_state_of_the_archive(tmp_path: Path) -> None:
    async with archived_place(tmp_path) as (here, archive):
        await fill_and_archive(here, archive)
        read = decode_records((await here.client.pull(0)).body)

        reply = await here.client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = msgspec.json.decode(reply.body)["table"]
        assert table["archiveState"] == "available"
        assert (table["archivedQueues"], table["archivedQueuesOfAnotherLog"]) == ("1", "0")
        assert table["archiveReadMessages"] == str(len(read))

        archive.fault = "broken"
        await refresh(here)
        reply = await here.client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert msgspec.json.decode(reply.body)["table"]["archiveState"] == "unavailable"


# ------- the archive server is away, slow or of another log


async def test_reader_waits_while_the_archive_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pull is answered "busy", so that no message is skipped; it succeeds when the server is back."""
    caplog.set_level(logging.INFO)
    async with archived_place(tmp_path) as (here, archive):
        messages = await fill_and_archive(here, archive)
        await archive.stop()

        replies = [await here.client.pull(0) for _ in range(3)]
        await refresh(here)
        await refresh(here)

        assert [reply.code for reply in replies] == [2, 2, 2]
        assert (replies[0].remark or "").startswith("[ARCHIVE]")
        assert (await here.client.pull(len(messages) - 1)).code == 0
        assert len(find_logged(caplog, "archive unavailable")) == 1
        await archive.start()
        await refresh(here)
        assert (await here.client.pull(0)).code == 0
        assert len(find_logged(caplog, "archive available again")) == 1


async def test_reader_waits_until_it_is_known_what_the_archive_has(tmp_path: Path) -> None:
    """A restarted broker whose archive server has not answered yet does not send readers to the log."""
    async with archived_place(tmp_path) as (here, archive):
        await fill_and_archive(here, archive)
        assert here.broker.archive is not None
        here.broker.archive._topics = None

        assert (await here.client.pull(0)).code == 2


async def test_silent_archive_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    async with archived_place(tmp_path) as (here, archive):
        messages = await fill_and_archive(here, archive)
        archive.is_silent = True

        reply = await here.client.pull(0)

        assert (reply.code, "within 500 ms" in (reply.remark or "")) == (2, True)
        assert (await here.client.pull(len(messages) - 1)).code == 0


async def test_archive_of_another_log_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the log has another message where the archive ends, the archive has the messages of another log."""
    async with archived_place(tmp_path) as (here, archive):
        await here.fill(3)
        messages = await read_log(here, 0, here.end())
        archive.add([msgspec.structs.replace(one, store_timestamp_ms=one.store_timestamp_ms - 5) for one in messages])
        await refresh(here)

        await expire(here)

        assert here.begin == 0  # nothing was deleted
        assert len(find_logged(caplog, "archive has other messages than the log")) == 1


async def test_topic_that_was_created_again_is_not_archived_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The archive has more messages than the new queue, whose messages are newer; they are kept."""
    async with archived_place(tmp_path) as (here, archive):
        await here.fill(4)
        messages = await read_log(here, 0, here.end())
        hour_before = [
            msgspec.structs.replace(one, store_timestamp_ms=one.store_timestamp_ms - HOUR_MS) for one in messages
        ]
        archive.add([*hour_before, msgspec.structs.replace(hour_before[-1], queue_offset=len(messages) + 100)])
        await refresh(here)

        await expire(here)

        assert here.begin == 0
        assert len(find_logged(caplog, "archive has other messages than the log")) == 1


async def test_slave_that_lags_behind_the_archive_counts_its_messages_as_archived(tmp_path: Path) -> None:
    """The archive is read from the master, and may have messages that a slave does not have yet."""
    async with archived_place(tmp_path) as (here, archive):
        await here.fill(4)
        messages = await read_log(here, 0, here.end())
        last = messages[-1]
        ahead = msgspec.structs.replace(
            last, queue_offset=last.queue_offset + 5, store_timestamp_ms=last.store_timestamp_ms + 5
        )
        archive.add([*messages, ahead])
        await refresh(here)

        await expire(here)

        assert here.begin > 0


async def test_pulls_beyond_the_limit_are_answered_busy(tmp_path: Path) -> None:
    """One connection gets a quarter of the places, so that another one finds some."""
    async with archived_place(tmp_path, archiveReadsMax="1", archiveWaitingReadsMax="8") as (here, archive):
        await fill_and_archive(here, archive)
        archive.is_silent = True

        async with dialogue(here.broker) as other:
            replies = await asyncio.gather(*(here.client.pull(0) for _ in range(6)), *(other.pull(0) for _ in range(2)))

        are_refused = [(reply.remark or "").startswith("[ARCHIVE]too many") for reply in replies]
        assert {reply.code for reply in replies} == {2}
        assert (sum(are_refused[:6]), are_refused[6:]) == (4, [False, False])
        archive.is_silent = False
        assert (await here.client.pull(0)).code == 0


async def test_reads_keep_to_the_rate(tmp_path: Path) -> None:
    """Two pulls of 400 kB at 1 MB/s: the second one waits for the bytes of the first."""
    async with archived_place(tmp_path, archiveBytesPerSecond="1000000", archiveReadTimeout="10000") as (here, archive):
        await fill_and_archive(here, archive)
        loop = asyncio.get_running_loop()
        first = await here.client.pull(0, maxMsgNums="4")
        began = loop.time()

        second = await here.client.pull(4, maxMsgNums="4")

        assert (first.code, second.code) == (0, 0)
        assert loop.time() - began >= len(first.body) / 1_000_000 - 0.05


async def test_offsets_are_refused_until_it_is_known_what_the_archive_has(tmp_path: Path) -> None:
    """A reset or a search would otherwise lead to the first message of the log, and skip all before it."""
    async with archived_place(tmp_path, useServerSideResetOffset="true") as (here, archive):
        messages = await fill_and_archive(here, archive)
        await here.client.pull(len(messages) - 1)  # creates the group
        assert here.broker.archive is not None
        here.broker.archive._topics = None
        address = {"topic": TOPIC, "queueId": "0"}
        time_ms = str(messages[7].store_timestamp_ms)

        replies = [
            await here.client.ask(RequestCode.GET_MIN_OFFSET, address),
            await here.client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, address),
            await here.client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**address, "timestamp": time_ms}),
            await here.client.ask(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                {**address, "group": GROUP, "timestamp": time_ms, "isForce": "true"},
            ),
        ]

        assert [reply.code for reply in replies] == [2, 2, 2, 2]
        assert here.broker.core.offsets.find(GROUP, TOPIC, 0) is None


async def test_new_group_does_not_read_the_whole_archive(tmp_path: Path) -> None:
    """Java's consumers start at the end by default, unless a queue still has its first message."""
    async with archived_place(tmp_path) as (here, archive):
        await fill_and_archive(here, archive)

        ext = {"topic": TOPIC, "queueId": "0", "consumerGroup": "new-group"}
        assert (await here.client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)).code == 22


async def test_server_that_has_another_archive_now_makes_no_reader_skip(tmp_path: Path) -> None:
    """It was restarted since the last refresh: pulls are busy until the broker knows what that archive has."""
    async with archived_place(tmp_path) as (here, archive):
        await fill_and_archive(here, archive)
        archive.identity = "another"
        assert (await here.client.pull(0)).code == 2

        archive.identity = "the-archive"
        archive.messages[TOPIC, 0].clear()
        assert (await here.client.pull(0)).code == 2


async def test_message_that_the_log_has_is_not_skipped_if_the_archive_lacks_it(tmp_path: Path) -> None:
    """The archive has lost a range that ends inside of the log."""
    async with archived_place(tmp_path) as (here, archive):
        messages = await fill_and_archive(here, archive, files=4)
        await here.fill(1)
        messages += await read_log(here, len(messages), here.end())
        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None
        first, end = queue.min_offset, queue.readable_end
        assert first + 3 < end
        archive.messages[TOPIC, 0] = [one for one in messages if one.queue_offset < 3 or one.queue_offset >= first + 3]

        found, offset = [], 0
        while offset < end:
            reply = await here.client.pull(offset)
            found += [one.queue_offset for one in decode_records(reply.body)]
            offset = int(reply.ext["nextBeginOffset"])

        assert found == [0, 1, 2, *range(first, end)]


async def test_broker_stops_although_the_archive_server_does_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "hung.sock")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(8)
    async with place(brokerName=BROKER, archiveSocketPath=path, archiveReadTimeout="100", **HOURLY) as here:
        assert here.broker.archive is not None
        for _ in range(100):
            with pytest.raises(ArchiveUnavailable):
                await here.broker.archive.connection.request(Command(code=ArchiveCode.PULL, ext={"x": "x" * 16_000}), 1)
        async with asyncio.timeout(30):
            await here.broker.close()
    listening.close()


async def test_failed_comparison_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the archive has is not known before the log was read, and is after the next refresh."""
    async with archived_place(tmp_path) as (here, archive):
        await fill_and_archive(here, archive)
        link = here.broker.archive
        assert link is not None
        link._topics, link._version = None, ""

        def fail(*_: object) -> int:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(TimeSearch, "store_time", fail)
            await refresh(here)
            known = [link.is_known]
        await refresh(here)
        known.append(link.is_known)

        assert known == [False, True]
        assert (await here.client.pull(0)).code == 0


# ------- retention


async def test_topic_that_is_created_again_after_it_was_compared_is_kept(tmp_path: Path) -> None:
    """Its messages are not those of the archive, and the archive's are not delivered."""
    async with archived_place(tmp_path) as (here, archive):
        await here.fill(3)
        archive.add(await read_log(here, 0, here.end()))
        await refresh(here)
        assert (await here.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
        here.clock.advance(5_000)
        await here.fill(2)

        await expire(here)

        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None and queue.min_offset == 0
        assert archive.pulls == []


async def test_range_without_a_known_message_proves_nothing(tmp_path: Path) -> None:
    """All that was archived of the queue was lost, or has expired in an archive of an older version."""
    async with archived_place(tmp_path) as (here, archive):
        found = ArchivedRanges("9", archive.identity, ALL_TOPICS, {TOPIC: [ArchivedRange(0, 500, 500, 0)]})
        archive._list_ranges = lambda command: command.reply(body=msgspec.json.encode(found))  # type: ignore[method-assign]
        await refresh(here)
        await here.fill(3)

        await expire(here)

        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None and queue.min_offset == 0


async def test_queue_that_no_archive_reads_does_not_prevent_deletion(tmp_path: Path) -> None:
    """An archive reads as many queues as consumers do."""
    async with archived_place(tmp_path) as (here, archive):
        await here.client.send_ok(b"alone", topic=TOPIC, queueId="3")
        await here.fill(4)
        archive.add(await read_log(here, 0, here.end()))
        await refresh(here)
        ext = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert (await here.client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0

        await expire(here)

        assert here.begin > 0


async def test_message_is_deleted_only_when_it_is_archived(tmp_path: Path) -> None:
    """Expired messages stay while they are not archived, and go when they are."""
    async with archived_place(tmp_path) as (here, archive):
        await here.fill(4)
        messages = await read_log(here, 0, here.end())
        archive.add(messages[:15])
        await refresh(here)

        await expire(here)

        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None and 0 < queue.min_offset <= 15
        archive.add(messages[15:])
        await refresh(here)
        await expire(here)
        assert queue.min_offset > 15


async def test_unarchived_message_is_deleted_if_nothing_guards_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the guard: with it off, a message is lost that is nowhere else."""

    async def find_nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(retention, "find_oldest_unarchived", find_nothing)
    async with archived_place(tmp_path) as (here, archive):
        await here.fill(4)
        archive.add((await read_log(here, 0, here.end()))[:15])
        await refresh(here)

        await expire(here)

        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None and queue.min_offset > 15


async def test_full_disk_deletes_nothing_that_is_not_archived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sends are refused instead, and the log says why."""
    async with archived_place(tmp_path, deleteUnconsumed="true") as (here, _archive):
        await here.fill(3)
        here.press(91)

        await here.rounds(3)

        assert here.begin == 0
        assert here.broker.retention.status.is_refusing
        [blocked] = find_logged(caplog, "disk is filling up, but no more files can be deleted")
        assert "archived" in vars(blocked)["reason"]


async def test_topics_that_are_not_archived_are_deleted_as_usual(tmp_path: Path) -> None:
    async with archived_place(tmp_path) as (here, archive):
        archive.pattern = "other-.*"
        archive.version += 1
        await refresh(here)
        await here.fill(3)

        await expire(here)

        assert here.begin > 0
        assert (await here.client.pull(0)).code == 21


async def test_nothing_is_deleted_while_the_archive_server_has_never_answered(tmp_path: Path) -> None:
    async with place(brokerName=BROKER, archiveSocketPath=str(tmp_path / "none.sock"), **HOURLY) as here:
        await here.fill(3)

        await expire(here)

        assert here.begin == 0
