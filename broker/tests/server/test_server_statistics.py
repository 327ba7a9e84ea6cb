"""Statistics by topic and group: RocketMQ's counters in RocketMQ's windows, at no cost for a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.stats import BOUNDS_MS, DailyTotals, PutTimes, Totals
from gantry_broker.server.core.topic_statistics import IDLE_MS_MAX, Snapshot, TopicStatistics
from gantry_broker.store.consume_queue import Tally
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import (
    GROUP,
    TOPIC,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
    truncate_log,
    wait_until,
)
from gantry_wire import RequestCode
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.message import decode_records, parse_offset_message_id

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

pytestmark = pytest.mark.usefixtures("clock")


class Counted:
    """Statistics of counters that the test sets."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tallies: dict[str, Tally] = {}
        self.statistics = TopicStatistics(
            self.clock, "cluster", lambda: self.tallies, lambda topic: topic.startswith("rmq_sys_")
        )

    def put(self, topic: str, count: int, size: int) -> None:
        tally = self.tallies.setdefault(topic, Tally())
        tally.count += count
        tally.size += size

    def run(self, duration_ms: int, *, step_ms: int = 10 * SECOND) -> None:
        """Let time pass, with a tick in each step."""
        for _ in range(duration_ms // step_ms):
            self.clock.advance(step_ms)
            self.tick()

    def tick(self) -> int:
        """Return how many counters were read."""
        return sum(1 for _ in self.statistics.tick())

    def find(self, name: str, key: str) -> tuple[Snapshot, ...]:
        found = self.statistics.find(name, key)
        assert found is not None, f"{name} {key} does not exist"
        return found


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_unused_counter_does_not_exist(counted: Counted) -> None:
    """A counter does not exist before its first count, nor under a name that RocketMQ does not have."""
    counted.tick()
    assert counted.statistics.find("TOPIC_PUT_NUMS", "orders") is None
    counted.put("orders", 1, 100)
    assert counted.statistics.find("TOPIC_PUT_NUMS", "orders") == (Snapshot(),) * 3
    assert counted.statistics.find("NOTHING_NUMS", "orders") is None
    assert counted.statistics.find("", "") is None


def test_minute_window_covers_six_readings(counted: Counted) -> None:
    """A steady rate is measured exactly; counts older than a minute are in the hour but not in the minute."""
    counted.tick()
    for _ in range(6):
        counted.put("orders", 20, 2_000)
        counted.run(10 * SECOND)
    minute, _, _ = counted.find("TOPIC_PUT_NUMS", "orders")
    assert minute == Snapshot(120, 2.0, 1.0)
    assert counted.find("TOPIC_PUT_SIZE", "orders")[0] == Snapshot(12_000, 200.0, 100.0)

    counted.run(MINUTE)
    assert counted.find("TOPIC_PUT_NUMS", "orders")[0] == Snapshot(0, 0.0, 0.0)
    counted.run(10 * MINUTE)
    assert counted.find("TOPIC_PUT_NUMS", "orders")[1].sum == 120
    assert counted.statistics.rate("TOPIC_PUT_NUMS", "orders") == 0.0


def test_hour_and_day_windows_have_own_readings(counted: Counted) -> None:
    """Every ten minutes, and every hour; a day later nothing of it is left."""
    counted.tick()
    counted.put("orders", 60, 600)
    counted.run(2 * HOUR, step_ms=10 * MINUTE)
    minute, hour, day = counted.find("TOPIC_PUT_NUMS", "orders")
    assert (minute.sum, hour.sum, day.sum) == (0, 0, 60)
    counted.run(23 * HOUR, step_ms=HOUR)
    assert [one.sum for one in counted.find("TOPIC_PUT_NUMS", "orders")] == [0, 0, 0]


def test_unused_counters_are_removed_after_a_day_but_totals_stay(counted: Counted) -> None:
    """Names come from clients: they do not pile up. Totals are of this start, however long ago."""
    counted.tick()
    counted.put("orders", 1, 100)
    counted.statistics.new_pull_tally("g", "orders", 0).add(1, 100, 0)
    counted.run(IDLE_MS_MAX + 2 * HOUR, step_ms=HOUR)

    assert counted.statistics.find("TOPIC_PUT_NUMS", "orders") is None
    assert counted.statistics.find("GROUP_GET_NUMS", "orders@g") is None
    assert counted.statistics.totals() == Totals(1, 1)
    counted.put("orders", 1, 100)
    counted.run(10 * SECOND)
    assert counted.find("TOPIC_PUT_NUMS", "orders")[0].sum == 1


def test_late_tick_takes_one_reading(counted: Counted) -> None:
    """A loop that was busy for a minute takes one reading, not six at once: their moments would be wrong."""
    counted.tick()
    counted.put("orders", 6, 600)
    counted.clock.advance(MINUTE)
    assert counted.tick() > 0
    assert counted.tick() == 0
    assert counted.find("TOPIC_PUT_NUMS", "orders")[0] == Snapshot(6, 0.6, 1.0)


def test_deleted_topic_removes_its_counters(counted: Counted) -> None:
    """Those of its readers, too; another topic whose name begins with the same letters keeps its own."""
    counted.tick()
    for topic in ("orders", "orders2"):
        counted.put(topic, 1, 1)
        counted.statistics.new_pull_tally("g", topic, 3).add(1, 1, 4)
        counted.statistics.count_send_back("g", topic)
    counted.run(10 * SECOND)
    del counted.tallies["orders"]
    counted.statistics.collect()

    of_gets = {"GROUP_GET_NUMS": "{}@g", "GROUP_GET_LATENCY": "3@{}@g", "SNDBCK_PUT_NUMS": "{}@g"}
    for name, key in {"TOPIC_PUT_NUMS": "{}", **of_gets}.items():
        assert counted.statistics.find(name, key.format("orders")) is None
        assert counted.find(name, key.format("orders2"))[0].sum > 0

    counted.statistics.forget_group("g")
    assert counted.statistics.find("GROUP_GET_SIZE", "orders2@g") is None
    assert counted.find("TOPIC_PUT_SIZE", "orders2")[0].sum == 1


def test_recreated_topic_counts_from_zero(counted: Counted) -> None:
    """Its counters start again, even without a reading between deletion and creation."""
    counted.tick()
    counted.put("orders", 5, 5)
    counted.run(10 * SECOND)
    counted.tallies["orders"] = Tally()
    counted.put("orders", 2, 2)
    counted.run(10 * SECOND)
    assert counted.find("TOPIC_PUT_NUMS", "orders")[0].sum == 2
    assert counted.statistics.totals().put == 7


def test_batch_counts_as_one_call(counted: Counted) -> None:
    """The average for each call is that of requests, as in RocketMQ."""
    counted.tick()
    counted.put("orders", 10, 1_000)
    counted.statistics.count_batch("orders", 9)
    counted.run(10 * SECOND)
    assert counted.find("TOPIC_PUT_NUMS", "orders")[0] == Snapshot(10, 1.0, 5.0)


def test_system_topics_count_in_one_of_two_totals(counted: Counted) -> None:
    """BROKER_PUT_NUMS counts all topics, and its counterpart only user topics; both under the cluster's name."""
    counted.tick()
    counted.put("orders", 2, 2)
    counted.put("rmq_sys_x", 3, 3)
    for topic in ("orders", "rmq_sys_x"):
        counted.statistics.new_pull_tally("g", topic, 0).add(1, 1, 0)
    counted.run(10 * SECOND)
    sums = {name: counted.find(name, "cluster")[0].sum for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")}
    users = {name: counted.find(f"{name}_WITHOUT_SYSTEM_TOPIC", "cluster")[0].sum for name in sums}
    assert sums == {"BROKER_PUT_NUMS": 5, "BROKER_GET_NUMS": 2}
    assert users == {"BROKER_PUT_NUMS": 2, "BROKER_GET_NUMS": 1}


# ------- in a broker


async def read_statistics(client: Dialogue, name: str, key: str) -> Any:
    return await client.ask_json(315, {"statsName": name, "statsKey": key})


def read_counters(broker: Broker, clock: FakeClock) -> None:
    """Advance ten seconds, and take a reading."""
    clock.advance(10 * SECOND)
    assert sum(1 for _ in broker.core.topic_statistics.tick()) > 0


async def test_code_315_answers_in_javas_format(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """Sum, rate and average of minute, hour and day; a counter that does not exist is code 1, with its name."""
    missing = await client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Nowhere"})
    assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <Nowhere> not exist")
    assert (await client.ask(315, {"statsName": "TOPIC_PUT_NUMS"})).code == 1

    for _ in range(3):
        await client.send_ok(b"x")
    read_counters(broker, clock)
    found = await read_statistics(client, "TOPIC_PUT_NUMS", TOPIC)
    assert set(found) == {"statsMinute", "statsHour", "statsDay"}
    assert found["statsMinute"] == {"sum": 3, "tps": 0.3, "avgpt": 1.0}
    size = await read_statistics(client, "TOPIC_PUT_SIZE", TOPIC)
    assert size["statsMinute"]["sum"] == broker.store.log.wrote
    assert (await client.ask_json(202, {"topic": TOPIC}))["topicPutTps"] == 0.3


async def test_pulls_are_counted_by_group_and_topic(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """With their messages and bytes; a pull that found nothing is in no counter."""
    for _ in range(4):
        await client.send_ok(b"x")
    sizes = [len((await client.pull(offset)).body) for offset in (0, 2)]
    await client.pull(4)
    read_counters(broker, clock)

    key = f"{TOPIC}@{GROUP}"
    assert (await read_statistics(client, "GROUP_GET_NUMS", key))["statsMinute"] == {"sum": 6, "tps": 0.6, "avgpt": 3.0}
    assert (await read_statistics(client, "GROUP_GET_SIZE", key))["statsMinute"]["sum"] == sum(sizes)
    assert (await read_statistics(client, "BROKER_GET_NUMS", "TestCluster"))["statsMinute"]["sum"] == 6
    assert (await client.ask_json(208, {"consumerGroup": GROUP, "topic": TOPIC}))["consumeTps"] == 0.6
    assert (await read_statistics(client, "GROUP_GET_LATENCY", f"0@{key}"))["statsMinute"]["tps"] >= 0
    assert (await client.ask(315, {"statsName": "GROUP_GET_LATENCY", "statsKey": f"1@{key}"})).code == 1


async def test_message_sent_back_counts_for_its_topic(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """SNDBCK_PUT_NUMS counts it for the message's own topic, not for the retry topic.

    Level 4 is 30 s: the message is not due during the test.
    """
    reply = await client.send_ok(b"x")
    back = {"offset": str(parse_offset_message_id(reply["msgId"])[2]), "group": GROUP, "delayLevel": "4"}
    assert (await client.ask(36, back)).code == 0
    read_counters(broker, clock)

    assert (await read_statistics(client, "SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"))["statsMinute"]["sum"] == 1
    # It waits where delayed messages wait, and that is where RocketMQ counts it, too.
    assert (await read_statistics(client, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"))["statsMinute"]["sum"] == 1
    assert (await client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": f"%RETRY%{GROUP}"})).code == 1


async def test_message_sent_back_again_counts_for_its_topic(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """A message that is read from the retry topic and sent back counts for the topic that it was sent to."""

    def is_retried() -> bool:
        queue = broker.store.queues.get(f"%RETRY%{GROUP}", 0)
        return queue is not None and queue.readable_end == 1

    async def send_back(topic: str) -> None:
        [message] = await client.read(topic=topic)
        back = {"offset": str(message.physical_offset), "group": GROUP, "delayLevel": "1"}
        assert (await client.ask(36, back)).code == 0

    await client.send_ok(b"x")
    await send_back(TOPIC)
    clock.advance(2 * SECOND)
    await wait_until(is_retried)
    await send_back(f"%RETRY%{GROUP}")
    read_counters(broker, clock)

    assert (await read_statistics(client, "SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"))["statsMinute"]["sum"] == 2
    missing = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": f"%RETRY%{GROUP}@{GROUP}"}
    assert (await client.ask(315, missing)).code == 1


async def test_batches_and_delays_count_for_the_topic_that_stores_them(
    broker: Broker, client: Dialogue, clock: FakeClock
) -> None:
    """A batch of three is three messages in one call; a delayed message counts again when it is delivered."""
    entries = [BatchEntry(flag=0, body=b"x", properties=properties_text(n=str(number)).encode()) for number in range(3)]
    assert (await client.send(encode_batch(entries), code=RequestCode.SEND_BATCH_MESSAGE, batch="true")).code == 0
    await client.send_ok(b"later", properties=properties_text(DELAY="1"), topic="Late")
    read_counters(broker, clock)
    assert (await read_statistics(client, "TOPIC_PUT_NUMS", TOPIC))["statsMinute"] == {
        "sum": 3,
        "tps": 0.3,
        "avgpt": 3.0,
    }
    assert (await client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Late"})).code == 1

    clock.advance(2_000)
    await wait_until(lambda: broker.store.queues.get("Late", 0) is not None)
    await wait_until(lambda: broker.core.topic_statistics.find("TOPIC_PUT_NUMS", "Late") is not None)


async def test_deleted_topic_and_group_have_no_statistics(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """As in RocketMQ with autoDeleteUnusedStats=true."""
    await client.send_ok(b"x")
    await client.pull(0)
    read_counters(broker, clock)
    assert (await client.ask(207, {"groupName": GROUP})).code == 0
    assert (await client.ask(315, {"statsName": "GROUP_GET_NUMS", "statsKey": f"{TOPIC}@{GROUP}"})).code == 1
    assert (await client.ask(215, {"topic": TOPIC})).code == 0
    assert (await client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC})).code == 1


async def test_slave_counts_reads_but_not_replicated_messages(tmp_path: Path) -> None:
    """Its master was asked to store it."""
    async with running_broker(tmp_path / "master") as master, dialogue(master) as client:
        follow = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.settings.ha_address}
        async with running_broker(tmp_path / "slave", disk=None, clock=None, **follow) as slave:
            await client.send_ok(b"x")
            await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)
            async with dialogue(slave) as reader:
                reply = await reader.pull(0)
                assert len(decode_records(reply.body)) == 1
            assert slave.core.topic_statistics.find("TOPIC_PUT_NUMS", TOPIC) is None
            assert slave.core.topic_statistics.find("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}") is not None
            assert master.core.topic_statistics.find("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}") is None


# ------- further values of brokerStatus


async def test_truncation_does_not_change_the_bytes_counted_as_put(broker: Broker, client: Dialogue) -> None:
    """A truncation moves the end of the log back; each message that is appended here counts, also a truncated one."""
    await client.send_ok(b"kept")
    end = broker.store.log.wrote
    await client.send_ok(b"cut off")
    put = broker.core.stats.put_bytes
    await truncate_log(broker, end)
    async with dialogue(broker) as again:
        await again.send_ok(b"new")

    assert broker.core.stats.put_bytes == put + broker.store.log.wrote - end


def test_put_times_cover_the_last_whole_minute() -> None:
    """In RocketMQ's thirteen classes, each where its time belongs."""
    times = PutTimes()
    times.rotate(100.0)
    took_ms = (0.2, 1, 9, 10, 49, 50, 99, 150, 499, 500, 999, 1_000, 1_999, 2_500, 3_500, 4_500, 9_999, 10_000, 70_000)
    for elapsed_ms in took_ms:
        times.record(elapsed_ms / 1000, 2)
    times.rotate(159.0)
    assert {part.rpartition(":")[2] for part in times.format_distribution().split()} == {"0"}
    times.rotate(160.0)

    found_counts = dict(part.rsplit(":", 1) for part in times.format_distribution().split(" ") if part)
    assert found_counts == {
        "[<=0ms]": "2", "[0~10ms]": "4", "[10~50ms]": "4", "[50~100ms]": "4", "[100~200ms]": "2", "[200~500ms]": "2",
        "[500ms~1s]": "4", "[1~2s]": "4", "[2~3s]": "2", "[3~4s]": "2", "[4~5s]": "2", "[5~10s]": "2", "[10s~]": "4",
    }  # fmt: skip
    assert times.max_ms == 70_000


def test_put_latency_percentiles() -> None:
    """With 999 quick puts and a slow one, 99% are within a millisecond, and the maximum is not."""
    times = PutTimes()
    times.rotate(100.0)
    times.record(0.0001, 999)
    times.record(0.305, 1)
    times.rotate(200.0)
    assert times.percentile_ms(0.99) <= 1.0
    assert 300 <= times.percentile_ms(1.0) <= 350
    assert PutTimes().percentile_ms(0.99) == 0.0
    assert list(BOUNDS_MS) == sorted(set(BOUNDS_MS))


def test_day_starts_once_at_local_midnight() -> None:
    """Yesterday's beginning is kept; a clock that is set back begins no day, and neither does the start."""
    days, day = DailyTotals(), 24 * HOUR
    start = 1_700_000_000_000
    assert not days.is_new_day(start)
    assert not days.is_new_day(start - 3 * day)
    assert days.is_new_day(start + day)
    days.start_day(Totals(5, 3))
    assert not days.is_new_day(start + day)
    assert not days.is_new_day(start)
    assert days.is_new_day(start + 2 * day)
    days.start_day(Totals(9, 4))
    assert (days.yesterday_morning, days.today_morning) == (Totals(5, 3), Totals(9, 4))


async def test_runtime_info_has_every_field_of_rocketmq(broker: Broker, client: Dialogue, clock: FakeClock) -> None:
    """Every key of code 28 that a broker of 5.3.3 has, but for those that carry a path or a level in their names."""
    await client.send_ok(b"x")
    await client.pull(0)
    clock.advance(24 * HOUR)
    await wait_until(lambda: broker.core.stats.days.today_morning == Totals(1, 1))
    await client.send_ok(b"x")
    table = (await client.ask_json(28))["table"]

    assert set(KEYS_OF_533.split()) <= set(table)
    assert all(isinstance(value, str) for value in table.values())
    assert (table["msgPutTotalTodayNow"], table["msgPutTotalTodayMorning"]) == ("2", "1")
    assert table["msgGetTotalYesterdayMorning"] == "0"
    assert (table["brokerActive"], table["remainHowManyDataToCommit"]) == ("true", "0 B")
    assert table["commitLogDirCapacity"].startswith("Total : ")
    assert len(table["getTotalTps"].split()) == 3


KEYS_OF_533 = """
bootTimestamp brokerActive brokerVersion brokerVersionDesc commitLogDirCapacity commitLogDiskRatio
commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer
earliestMessageTimeStamp EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity getFoundTps
getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps litePullThreadPoolQueueCapacity
litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize msgGetTotalTodayMorning
msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99 putLatency999 putMessageAverageSize
putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal
putMessageTimesTotal putTps queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
queryThreadPoolQueueSize remainHowManyDataToCommit remainHowManyDataToFlush remainTransientStoreBufferNumbs
runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize
startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind
timerReadBehind ackThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize
"""
"""Read from a broker of 5.3.3. Its thread pools do not exist here: all their values are zero, except for the capacities
of `send` and `pull`, which are settings."""
