"""Retention in a broker: deletion by time and space, unconsumed messages, and refused sends on a full disk."""

import errno
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from gantry_broker.app import Broker
from gantry_broker.ports import DiskSpace
from gantry_broker.server.admin.retention import DiskStatus
from gantry_broker.setting_keys import broker_settings
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import (
    GROUP,
    ROOMY,
    TOPIC,
    Dialogue,
    dialogue,
    local_conf,
    properties_text,
    truncate_log,
    wait_until,
)
from gantry_wire import RequestCode
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.names import SCHEDULE_TOPIC, SELF_CHECK_TOPIC, retry_topic

MIB = 1 << 20
HOUR_MS = 3_600_000
BODY = b"x" * 100_000
CONF = {
    "mappedFileSizeCommitLog": str(MIB),
    "maxMessageSize": "200000",
    "cleanResourceInterval": "100",
    "flushIntervalCommitLog": "10",
    "flushCommitLogLeastPages": "0",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
}


@dataclass
class Place:
    """A broker with a disk size and a time that the test sets."""

    disk: FaultyDisk
    clock: FakeClock
    broker: Broker
    client: Dialogue

    @property
    def begin(self) -> int:
        return self.broker.store.log.min_physical

    async def fill(self, files: int, *, topic: str = TOPIC, queue_id: int = 0) -> None:
        """Send messages of 100 kB until this many more log files are full and flushed."""
        target = self.broker.store.log.wrote + files * MIB
        while self.broker.store.log.wrote < target:
            await self.client.send_ok(BODY, topic=topic, queueId=str(queue_id))
            self.clock.advance(1)
        await wait_until(lambda: self.broker.store.log.flushed == self.broker.store.log.wrote)

    def press(self, percent: int) -> None:
        """Set the usage of the disk by changing its size."""
        self.disk.capacity = self.disk.space("/").used * 100 // percent

    def expected_status(self, *, is_refusing: bool) -> DiskStatus:
        """Return the status that retention should report; recovery points may change the usage meanwhile."""
        space = self.disk.space("/store")
        return DiskStatus(space.total, space.used, is_refusing)

    async def rounds(self, count: int = 1) -> None:
        """Run this many rounds of retention with the present state."""
        for _ in range(count + 1):
            before = self.broker.retention.rounds
            self.clock.advance(1_000)
            await wait_until(lambda before=before: self.broker.retention.rounds > before)  # type: ignore[misc]

    def consume(self, offset: int, *, group: str = GROUP, topic: str = TOPIC, queue_id: int = 0) -> None:
        self.broker.core.offsets.commit(group, topic, queue_id, offset)

    def end(self, topic: str = TOPIC, queue_id: int = 0) -> int:
        queue = self.broker.store.queues.get(topic, queue_id)
        assert queue is not None
        return queue.end


def hour_of(clock: FakeClock) -> int:
    return time.localtime(clock.wall_ms() / 1000).tm_hour


@asynccontextmanager
async def place(disk: FaultyDisk | None = None, clock: FakeClock | None = None, /, **conf: str) -> AsyncIterator[Place]:
    """Run a broker on the model's disk and clock; by default the delete hour is far away."""
    disk, clock = disk or FaultyDisk(), clock or FakeClock()
    far = str((hour_of(clock) + 12) % 24)
    settings = broker_settings(local_conf("/store", **{**CONF, "deleteWhen": far, **conf}))
    broker = Broker(settings, disk=disk, clock=clock)
    await broker.start()
    try:
        async with dialogue(broker) as client:
            yield Place(disk, clock, broker, client)
    finally:
        await broker.close()


def find_logged(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == text]


# ------- when sends are refused


async def test_sends_are_refused_above_the_level_and_accepted_below(caplog: pytest.LogCaptureFixture) -> None:
    """Sends get 14 before the disk is full, and are accepted again with space; each change is logged once."""
    async with place() as here:
        await here.client.send_ok(b"first")
        here.press(91)
        await wait_until(lambda: here.broker.retention.status.is_refusing)

        refused = [await here.client.send(b"more") for _ in range(5)]
        batch = await here.client.send(b"", code=RequestCode.SEND_BATCH_MESSAGE)

        assert {reply.code for reply in (*refused, batch)} == {14}
        assert (refused[0].remark or "").startswith("service not available now, the disk is full: 91.")
        assert [message.body for message in await here.client.read(0)] == [b"first"]
        await wait_until(lambda: here.broker.retention.status == here.expected_status(is_refusing=True))
        assert len(find_logged(caplog, "disk full; refusing sends")) == 1
        here.press(50)
        await wait_until(lambda: not here.broker.retention.status.is_refusing)
        assert (await here.client.send_ok(b"again"))["queueOffset"] == "1"
        assert len(find_logged(caplog, "disk has space again; accepting sends")) == 1


async def test_broker_on_a_full_disk_refuses_the_first_send() -> None:
    """No send is accepted before the disk was checked."""
    disk, clock = FaultyDisk(), FakeClock()
    async with place(disk, clock) as here:
        await here.client.send_ok(b"first")
    disk.capacity = disk.space("/").used * 100 // 95

    async with place(disk, clock) as here:
        assert (await here.client.send(b"second")).code == 14
        assert [message.body for message in await here.client.read(0)] == [b"first"]


async def test_disk_is_never_filled_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast messages come and however small the disk: refused before any file meets the end of the space."""
    met: list[str] = []
    charge = FaultyDisk.charge

    def record_failure(self: FaultyDisk, node: object, end: int, path: str) -> None:
        try:
            charge(self, node, end, path)  # type: ignore[arg-type]
        except OSError as error:
            assert error.errno == errno.ENOSPC
            met.append(path)
            raise

    monkeypatch.setattr(FaultyDisk, "charge", record_failure)
    async with place(FaultyDisk(capacity=16 * MIB), **ROOMY) as here:
        taken = 0
        while (reply := await here.client.send(BODY)).code == 0:
            taken += 1

        assert (reply.code, "the disk is full" in (reply.remark or "")) == (14, True)
        assert taken > 100
        assert met == []
        assert here.disk.space("/").free >= here.disk.capacity // 64
        await wait_until(lambda: here.broker.retention.status.is_refusing)  # the check has ended
        here.disk.capacity = 32 * MIB
        here.clock.advance(2_000)
        await wait_until(lambda: not here.broker.retention.status.is_refusing)
        await here.client.send_ok(BODY)


async def test_last_half_file_is_reserved_for_the_broker() -> None:
    """When the next file is due and does not fit, clients are refused while delayed messages still find room."""
    async with place(FaultyDisk(capacity=64 * MIB), **ROOMY) as here:
        delayed = properties_text(UNIQ_KEY="7F00000100007A0B4C9D2E1F00000000", DELAY="1")
        await here.client.send_ok(b"later", properties=delayed)
        here.disk.capacity = here.disk.space("/").used + MIB // 2
        for _ in range(6):
            await here.client.send_ok(BODY)
        await wait_until(lambda: here.broker.retention.status.is_refusing)
        assert (await here.client.send(BODY)).code == 14
        end = here.end()

        here.clock.advance(10_000)
        await wait_until(lambda: here.end() == end + 1)

        assert [message.body for message in await here.client.read(end)] == [b"later"]
        assert here.broker.retention.status.is_refusing


# ------- what goes


async def test_expired_messages_are_deleted_at_the_delete_hour() -> None:
    """Messages expire after the reserved time, consumed or not; a pull for a deleted one gets the first offset."""
    clock = FakeClock()
    async with place(None, clock, deleteWhen=str((hour_of(clock) + 3) % 24), fileReservedTime="1") as here:
        await here.fill(5)
        clock.advance(HOUR_MS + HOUR_MS // 2)
        await here.client.send_ok(b"new")
        await here.rounds()
        assert here.begin == 0, "expired files were deleted before the delete hour"
        clock.advance(HOUR_MS + HOUR_MS // 2)
        await here.rounds()

        reply = await here.client.pull(0)

        assert here.begin == 5 * MIB
        assert (reply.code, reply.ext["nextBeginOffset"]) == (21, reply.ext["minOffset"])
        left = await here.client.read(int(reply.ext["nextBeginOffset"]), maxMsgNums="1")
        assert 0 < left[0].queue_offset < here.end()


async def test_administrator_deletes_expired_files_at_any_hour() -> None:
    """Code 329 is answered at once; only expired files are deleted in the next rounds."""
    async with place(fileReservedTime="1") as here:
        await here.fill(3)
        await here.rounds()
        here.clock.advance(2 * HOUR_MS)
        await here.fill(3)
        await here.rounds()
        assert here.begin == 0

        reply = await here.client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await here.rounds()

        assert reply.code == 0
        assert 2 * MIB <= here.begin <= 3 * MIB
        end = here.end()
        assert (await here.client.send_ok(b"next"))["queueOffset"] == str(end)


async def test_cleaning_queues_loses_nothing() -> None:
    """Code 306 finds nothing left to do, and unlike RocketMQ's it never lets a queue begin at zero again."""
    async with place(deleteUnconsumed="true") as here:
        await here.client.send_ok(b"only", topic="Quiet")
        await here.fill(5)
        here.press(99)
        await here.rounds(2)
        assert here.begin > 0

        reply = await here.client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

        assert reply.code == 0
        here.press(20)
        await wait_until(lambda: not here.broker.retention.status.is_refusing)
        assert (await here.client.send_ok(b"next", topic="Quiet"))["queueOffset"] == "1"


# ------- whose messages are kept


async def test_unconsumed_messages_are_not_deleted_for_space(caplog: pytest.LogCaptureFixture) -> None:
    """Forced deletion stops at the slowest group, logs it once, and continues when that group does."""
    caplog.set_level(logging.INFO)
    async with place() as here:
        await here.fill(6)
        here.consume(here.end(), group="fast")
        here.consume(15, group="slow")
        for _ in range(3):
            here.press(97)
            await here.rounds()
        first = here.begin

        assert 0 < first < 3 * MIB
        left = await here.client.read(15, maxMsgNums="1")
        assert [message.queue_offset for message in left] == [15]
        [line] = find_logged(caplog, "disk is filling up, but no more files can be deleted")
        assert (line.topic, line.group) == (TOPIC, "slow")  # type: ignore[attr-defined]
        assert "not consumed" in line.reason  # type: ignore[attr-defined]

        here.consume(here.end(), group="slow")
        await here.rounds(3)

        assert here.begin > first
        deleted = find_logged(caplog, "deleted expired messages")
        assert deleted[0].start == 0  # type: ignore[attr-defined]
        assert deleted[-1].end == here.begin  # type: ignore[attr-defined]
        assert "consumed by every group" in deleted[-1].reason  # type: ignore[attr-defined]


async def test_full_disk_refuses_sends_until_messages_are_consumed() -> None:
    """The default keeps messages and refuses sends; consuming is enough for sends to come back by themselves."""
    async with place() as here:
        await here.fill(6)
        here.press(95)
        await here.rounds(2)
        assert here.begin == 0, "messages of a topic without consumers were deleted"
        assert (await here.client.send(BODY)).code == 14

        here.consume(here.end())
        await here.rounds(2)

        assert here.begin > 0
        assert (await here.client.send(BODY)).code == 0


async def test_the_self_check_of_a_group_holds_no_files() -> None:
    """The message that `gantry up` has sent to itself has no consumers, and does not keep the files after it."""
    async with place() as here:
        await here.client.send_ok(b"gantry up", topic=SELF_CHECK_TOPIC)
        await here.fill(6)
        here.consume(here.end())
        here.press(95)
        await here.rounds(2)
        assert here.begin > 0


@pytest.mark.verify
async def test_unconsumed_messages_are_deleted_if_configured() -> None:
    """With ``deleteUnconsumed`` the oldest files are deleted, no more than needed; never the current file."""
    async with place(deleteUnconsumed="true") as here:
        await here.fill(6)
        here.press(90)
        await here.rounds(3)

        assert MIB <= here.begin < 6 * MIB
        space = here.disk.space("/")
        assert space.used * 100 <= 85 * space.total < (space.used + MIB) * 100
        for _ in range(8):
            here.press(99)
            await here.rounds()
        assert here.begin == here.broker.store.log.wrote - here.broker.store.log.wrote % MIB


async def test_delayed_messages_wait_for_their_delivery() -> None:
    """Undelivered messages count as unconsumed, independent of committed offsets."""
    async with place() as here:
        here.broker.core.topics.put(TopicConfig(topic_name="Later", read_queue_nums=1, write_queue_nums=1))
        delayed = properties_text(UNIQ_KEY="7F00000100007A0B4C9D2E1F00000000", DELAY="18")
        await here.client.send_ok(b"later", topic="Later", properties=delayed)
        await here.fill(6)
        here.consume(here.end())
        here.press(95)
        await here.rounds(2)
        assert here.begin == 0

        here.clock.advance(2 * HOUR_MS)
        await wait_until(lambda: here.broker.store.queues.get("Later", 0) is not None)
        here.consume(1, topic="Later")
        await wait_until(lambda: here.broker.store.log.flushed == here.broker.store.log.wrote)
        here.press(95)
        await here.rounds(2)

        assert here.begin > 0
        assert SCHEDULE_TOPIC in here.broker.store.queues.topics()


async def test_failed_messages_wait_for_their_own_group() -> None:
    """A retry topic keeps its file until its own group has consumed it; other groups do not count."""
    async with place() as here:
        await here.client.send_ok(b"again", topic=retry_topic(GROUP))
        await here.fill(6)
        here.consume(here.end())
        here.consume(1, topic=retry_topic(GROUP), group="other-group")
        here.press(95)
        await here.rounds(2)
        assert here.begin == 0

        here.consume(1, topic=retry_topic(GROUP))
        await here.rounds(2)

        assert here.begin > 0


@pytest.mark.parametrize(
    ("model", "group", "is_held"),
    [("CLUSTERING", "newcomer", True), ("BROADCASTING", "radio", False), ("CLUSTERING", "CID_RMQ_SYS_x", False)],
    ids=["a-subscriber-without-an-offset", "broadcasting", "a-system-group"],
)
async def test_groups_that_count_as_consumers(model: str, group: str, is_held: bool) -> None:
    """A connected group that has consumed nothing holds everything; broadcasters and the system's own hold nothing."""
    async with place() as here:
        await here.fill(6)
        here.consume(here.end())
        await here.client.heartbeat("client", group, TOPIC, model=model)
        here.press(95)

        await here.rounds(2)

        assert (here.begin == 0) is is_held


async def test_system_topics_prevent_no_deletion() -> None:
    """System topics have no consumers, and their messages may be deleted."""
    async with place() as here:
        await here.client.send_ok(b"measured", topic="BenchmarkTest")
        await here.fill(6)
        here.consume(here.end())
        here.press(95)

        await here.rounds(2)

        assert here.begin > 0


# ------- clocks, restarts, problems


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("hours", [3, 100, 24 * 3650, -3, -100])
async def test_clock_jump_deletes_nothing(hours: int) -> None:
    """K7: an administrator's mistake with the clock, put right within the hour, costs no message."""
    every_hour = ";".join(str(hour) for hour in range(24))
    async with place(fileReservedTime="1", deleteWhen=every_hour) as here:
        await here.fill(5)
        await here.rounds()
        here.clock.jump_wall(hours * HOUR_MS)
        for _ in range(5):
            here.clock.advance(600_000)
            await here.rounds(0)
        here.clock.jump_wall(-hours * HOUR_MS)
        await here.rounds()

        assert here.begin == 0
        assert len(await here.client.read(0, maxMsgNums="2")) == 2


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("hours", [24, -24, 24 * 30, -24 * 30])
async def test_expired_messages_are_deleted_after_the_clock_was_set(hours: int) -> None:
    """A clock that is set by days, and stays so, expires nothing early and keeps nothing late."""
    every_hour = ";".join(str(hour) for hour in range(24))
    async with place(fileReservedTime="10", deleteWhen=every_hour) as here:
        await here.fill(5)
        await here.rounds()
        here.clock.jump_wall(hours * HOUR_MS)
        for _ in range(9):
            here.clock.advance(HOUR_MS)
            await here.rounds(0)
        early = here.begin
        here.clock.advance(HOUR_MS + 120_000)
        await here.rounds()

        assert (early, here.begin) == (0, 5 * MIB)


async def test_own_time_of_the_store_survives_a_restart() -> None:
    """After a clock was set days ahead the next process does not follow it either; expired files are deleted."""
    every_hour = ";".join(str(hour) for hour in range(24))
    disk, clock = FaultyDisk(), FakeClock()
    async with place(disk, clock, fileReservedTime="10", deleteWhen=every_hour) as here:
        await here.fill(5)
        await here.rounds()
        clock.jump_wall(30 * 24 * HOUR_MS)
        await here.fill(1)
        await here.rounds()
    clock.advance(HOUR_MS)
    async with place(disk, clock, fileReservedTime="10", deleteWhen=every_hour) as here:
        for _ in range(8):
            clock.advance(HOUR_MS)
            await here.rounds(0)
        early = here.begin
        clock.advance(2 * HOUR_MS)
        await here.rounds()

        assert (early, here.begin >= 5 * MIB) == (0, True)


async def test_damaged_retention_clock_record_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The broker starts, and messages expire by their store times, as without a record."""
    disk, clock = FaultyDisk(), FakeClock()
    async with place(disk, clock) as here:
        await here.fill(1)
        await here.rounds()
    disk.write_file("/store/retention-clock.json", b"damaged")
    async with place(disk, clock) as here:
        await here.rounds()

        assert (
            len(find_logged(caplog, "unusable retention clock record; messages expire by their store timestamps")) == 1
        )


async def test_messages_after_a_cut_have_their_real_age() -> None:
    """A member whose log is cut to a new master's soon has other messages there: those that were cut were older."""
    every_hour = ";".join(str(hour) for hour in range(24))
    async with place(fileReservedTime="10", deleteWhen=every_hour) as here:
        await here.fill(3)
        await here.rounds()
        here.clock.advance(6 * HOUR_MS)
        await here.rounds()
        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None and here.begin == 0
        cut = next(unit[0] for unit in queue.units(0, queue.end) if unit[0] >= 2 * MIB)

        await truncate_log(here.broker, cut)
        async with dialogue(here.broker) as here.client:
            await here.fill(2)
        here.clock.advance(6 * HOUR_MS)
        await here.rounds()
        assert here.begin <= 2 * MIB


async def test_messages_after_a_cut_have_their_real_age_after_a_kill() -> None:
    """The broker dies before it has written the record again: the old record is older than the cut, and not used."""
    every_hour = ";".join(str(hour) for hour in range(24))
    disk, clock = FaultyDisk(), FakeClock()
    async with place(disk, clock, fileReservedTime="10", deleteWhen=every_hour) as here:
        await here.fill(3)
        await here.rounds()
        clock.advance(6 * HOUR_MS)
        await here.rounds()
        queue = here.broker.store.queues.get(TOPIC, 0)
        assert queue is not None and here.begin == 0
        cut = next(unit[0] for unit in queue.units(0, queue.end) if unit[0] >= 2 * MIB)
        stale = disk.read_file("/store/retention-clock.json")

        await truncate_log(here.broker, cut)
        async with dialogue(here.broker) as here.client:
            await here.fill(2)
    disk.write_file("/store/retention-clock.json", stale)
    async with place(disk, clock, fileReservedTime="10", deleteWhen=every_hour) as here:
        clock.advance(6 * HOUR_MS)
        await here.rounds()

        assert here.begin <= 2 * MIB


async def test_delete_hour_during_a_doubtful_clock_is_postponed() -> None:
    """After a standstill and a reboot the hour of doubt may be the delete hour: expired files go right after it."""
    disk, clock = FaultyDisk(), FakeClock()
    async with place(disk, clock, fileReservedTime="10") as here:
        await here.fill(5)
        await here.rounds()
    clock.reboot(100 * HOUR_MS)
    async with place(disk, clock, fileReservedTime="10", deleteWhen=str(hour_of(clock))) as here:
        await here.rounds()
        clock.advance(HOUR_MS + 60_000)
        await here.rounds()

        assert here.begin >= 4 * MIB


async def test_round_deletes_at_most_ten_files() -> None:
    """Many files that expire at once are deleted over several rounds."""
    clock = FakeClock()
    async with place(None, clock, deleteWhen=str(hour_of(clock)), fileReservedTime="1") as here:
        await here.fill(14)
        await here.rounds()
        before = here.broker.retention.rounds
        clock.advance(24 * HOUR_MS)
        await wait_until(lambda: here.broker.retention.rounds > before)

        assert here.begin == 10 * MIB


async def test_restart_continues_after_deleted_files() -> None:
    """Consumers, offsets and queues are where they were after a clean stop."""
    disk, clock = FaultyDisk(), FakeClock()
    async with place(disk, clock) as here:
        await here.fill(6)
        here.consume(30)
        here.press(95)
        await here.rounds(3)
        begin, end = here.begin, here.end()
        assert begin > 0
        minimum = (await here.client.pull(30)).ext["minOffset"]

    async with place(disk, clock) as here:
        assert (here.begin, here.end()) == (begin, end)
        reply = await here.client.pull(30)
        assert (reply.code, reply.ext["minOffset"]) == (0, minimum)


async def test_failed_deletion_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be unlinked is logged once, and deleted later; nothing else is affected."""
    async with place(deleteUnconsumed="true") as here:
        await here.fill(6)
        here.disk.fail_next("remove", errno.EROFS, count=3)
        here.press(92)
        await here.rounds(5)

        assert here.begin > 0
        assert here.disk.list("/store/commitlog")[0] == f"{here.begin:020d}"
        assert len(find_logged(caplog, "failed to delete expired files; will retry")) == 1
        reply = await here.client.pull(0)
        assert reply.code == 21


async def test_unknown_disk_usage_is_retried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The last known usage stays, the broker continues, and the error is logged once."""
    async with place() as here:
        await here.client.send_ok(b"first")
        real = here.disk.space

        def fail(path: str) -> DiskSpace:
            if path == "/store":
                raise OSError(errno.EIO, "no answer", path)
            return real(path)

        monkeypatch.setattr(here.disk, "space", fail)
        await here.rounds()
        status = here.broker.retention.status
        here.press(95)
        await here.rounds()

        assert here.broker.retention.status == status
        assert len(find_logged(caplog, "failed to read disk usage; will retry")) == 1
        await here.client.send_ok(b"second")
