"""The lag of a group in seconds with a real broker: it grows, is measured from the files, and survives restarts.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_admin import metrics_lag
from gantry_admin.errors import Problem
from gantry_admin.inventory import Inventory, QueueEnds, QueueLag
from gantry_admin.inventory_cache import InventoryCache
from gantry_admin.lag_history import LagHistory, LagPoint, open_file
from gantry_admin.lag_monitor import FILE_NAME, LagMonitor
from gantry_admin.lag_times import StoredAt, StoreTimes, read_store_times
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles
from gantry_status.clocks import Moment
from gantry_store_files import QueueBounds
from gantry_testing.local import GROUP, TOPIC, Dialogue
from gantry_wire import RequestCode

CONSUMED = 4
SENT = 10


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    """Ten messages in one queue, of which a group has consumed four."""
    with broker_process(tmp_path_factory.mktemp("store")) as started:
        started.send(SENT)
        asyncio.run(commit(started.address, CONSUMED))
        yield started


async def commit(address: str, offset: int) -> None:
    """Create the consumer group, and commit an offset of it."""
    dialogue = await Dialogue.open(address)
    group = {"groupName": GROUP, "consumeEnable": True}
    await dialogue.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    await dialogue.ask_json(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    await dialogue.close()


def row_of(sidecar: SidecarChild) -> dict[str, Any]:
    """Return the group's row; empty while it is unknown."""
    groups = sidecar.get("/v1/groups").json().get("groups", [])
    return next((dict(row) for row in groups if row["name"] == GROUP), {})


def wait_s(sidecar: SidecarChild) -> float:
    """Return the lag in seconds, when it is known."""
    wait_for(lambda: row_of(sidecar).get("lag_s") is not None, "the store time is read")
    return float(row_of(sidecar)["lag_s"])


def known_points(sidecar: SidecarChild, query: str = f"?group={GROUP}&topic={TOPIC}") -> list[list[Any]]:
    """Return the recorded points of the group that are known."""
    series = sidecar.get(f"/v1/lag{query}").json()["series"]
    return [point for one in series for point in one["points"] if point[1] is not None]


def test_lag_in_seconds_is_the_age_of_the_oldest_message_and_grows(broker: BrokerChild) -> None:
    """It is the time since the message at the group's offset was stored, with a running and with a stopped broker."""
    with sidecar_process(broker.store, "--open-reads") as sidecar:
        first = wait_s(sidecar)
        [message] = sidecar.get(f"/v1/queues/{TOPIC}/0/messages?from={CONSUMED}&count=1").json()["messages"]
        age_s = time.time() - message["stored_wall_ms"] / 1000
        assert first <= age_s + 0.1 and age_s - first < 60
        wait_for(lambda: wait_s(sidecar) > first + 0.5, "the lag grows")
        row = row_of(sidecar)
        assert (row["lag"], row["queues"][0]["lag"], row["is_behind"]) == (SENT - CONSUMED, SENT - CONSUMED, False)
        assert row["queues"][0]["lag_s"] == pytest.approx(row["lag_s"])

        table = broker.store / "config/consumerOffset.json"
        wait_for(lambda: table.exists() and GROUP.encode() in table.read_bytes(), "the offset is saved")
        before = wait_s(sidecar)
        broker.child.send(signal.SIGSTOP)
        try:
            wait_for(lambda: sidecar.get("/v1/groups").json().get("source") == "disk", "the disk is read")
            wait_for(lambda: wait_s(sidecar) > before, "the lag grows while the broker is stopped")
        finally:
            broker.child.send(signal.SIGCONT)


def test_group_without_lag_waits_for_zero_seconds(tmp_path: Path) -> None:
    """All is consumed; a new message then waits since it was stored, not since the last commit."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path) as sidecar:
        broker.send(1)
        asyncio.run(commit(broker.address, 1))
        wait_for(lambda: row_of(sidecar).get("lag") == 0, "the offset is known")
        assert row_of(sidecar)["lag_s"] == 0
        began_s = time.monotonic()
        broker.send(1)
        wait_for(lambda: row_of(sidecar).get("lag") == 1, "the message is known")
        assert 0 <= wait_s(sidecar) <= time.monotonic() - began_s


def points_in(state: Path) -> list[LagPoint]:
    """Return the points of the group in the file of a sidecar."""
    history, now_ms = LagHistory(), time.time_ns() // 1_000_000
    history.restore(open_file((state / FILE_NAME).read_bytes()), now_ms)
    rows = history.window((GROUP, TOPIC), now_ms - 3_600_000, 1_000, 3_601)
    return [row._replace(at_ms=0) for row in rows if row.lag is not None]


def test_history_survives_restart_and_kill_of_the_sidecar(broker: BrokerChild, tmp_path: Path) -> None:
    """The points of the first sidecar are those of the next ones, also after SIGKILL."""
    state = tmp_path / "state"
    with sidecar_process(broker.store, "--state", str(state)) as sidecar:
        wait_for(lambda: known_points(sidecar) != [], "the first sample is recorded")
        assert sidecar.get("/v1/status").json()["lag_history"] == {
            "kept_in": "file", "reason": None, "series_left_out": 0,
        }  # fmt: skip
        sidecar.child.send(signal.SIGTERM)
        sidecar.child.process.wait(60)
    assert [path.name for path in state.iterdir()] == [FILE_NAME]
    first = points_in(state)
    assert first != []
    for number in (signal.SIGKILL, signal.SIGTERM):
        with sidecar_process(broker.store, "--state", str(state)) as sidecar:
            wait_for(lambda: known_points(sidecar) != [], "the file is loaded")
            sidecar.child.send(number)
            sidecar.child.process.wait(60)
        assert points_in(state)[: len(first)] == first


@pytest.mark.verify
def test_history_without_a_directory_ends_with_the_sidecar(broker: BrokerChild) -> None:
    """Twin: without --state the next sidecar has only its own points, and the status says so."""
    with sidecar_process(broker.store) as sidecar:
        wait_for(lambda: known_points(sidecar) != [], "the first sample is recorded")
        first = known_points(sidecar)[0]
        assert sidecar.get("/v1/status").json()["lag_history"]["kept_in"] == "memory"
    with sidecar_process(broker.store) as sidecar:
        wait_for(lambda: known_points(sidecar) != [], "the first sample is recorded")
        assert known_points(sidecar)[0][2] > first[2]


def test_answer_about_lag_is_bounded_and_validated(broker: BrokerChild) -> None:
    """Points are at regular intervals; unknown names give no series, and invalid ones are refused."""
    with sidecar_process(broker.store) as sidecar:
        answer = sidecar.get("/v1/lag?minutes=60&points=30").json()
        whole = sidecar.get(f"/v1/lag?group={GROUP}").json()
        assert (answer["resolution_s"], whole["resolution_s"]) == (120, 300)
        wait_for(lambda: known_points(sidecar) != [], "the first sample is recorded")
        [series] = sidecar.get("/v1/lag?minutes=60&points=30").json()["series"]
        times = [point[0] for point in series["points"]]
        assert times == list(range(times[0], times[0] + 30 * 120_000, 120_000))
        assert sidecar.get("/v1/lag?group=other").json()["series"] == []
        for query in ("group=a b", "topic=../etc", "minutes=0", "minutes=100000", "points=0", "points=100000"):
            assert sidecar.get(f"/v1/lag?{query}").status_code == 422


def test_metrics_have_the_lag_by_queue(broker: BrokerChild) -> None:
    """In messages and in seconds; a group that waits for seconds only is not behind."""
    with sidecar_process(broker.store) as sidecar:
        wait_s(sidecar)
        text = sidecar.get("/metrics").text
    labels = f'group="{GROUP}",queue="0",topic="{TOPIC}"'
    seconds = re.search(rf"^gantry_consumer_lag_seconds{{{labels}}} (\S+)$", text, re.MULTILINE)
    assert seconds is not None and float(seconds[1]) > 0
    assert f"gantry_consumer_lag_messages{{{labels}}} {SENT - CONSUMED}.0" in text
    assert f'gantry_consumer_group_behind{{group="{GROUP}",topic="{TOPIC}"}} 0.0' in text
    assert "gantry_consumer_lag_queues_left_out 0.0" in text


# -- store times -------------------------------------------------------------------------------------------------------


class Files:
    """A store whose messages before ``begin`` are deleted; a message at offset N was stored at N seconds."""

    def __init__(self, begin: int = 0) -> None:
        self.begin, self.reads = begin, 0

    def stored_at(self, topic: str, queue_id: int, offset: int, begin: int) -> int | None:
        self.reads += 1
        if topic == "broken":
            raise Problem(503, "a file of the log is missing")
        return offset * 1000 if offset >= self.begin else None

    def bounds(self, topic: str, queue_id: int, begin: int, end: int) -> QueueBounds:
        return QueueBounds(self.begin, 1_000)


def inventory_of(consumed: dict[tuple[str, int], int]) -> Inventory:
    """Return the inventory of one group; each queue ends at 1000."""
    queues: dict[str, dict[int, QueueEnds]] = {}
    for topic, queue_id in consumed:
        queues.setdefault(topic, {})[queue_id] = QueueEnds(0, 1_000, None)
    return Inventory(topics={}, queues=queues, groups=(GROUP,), consumed={GROUP: consumed}, topics_left_out=0)


def times_of(files: Files) -> StoreTimes:
    """Return store times at 2000 seconds."""
    return StoreTimes(cast("StoreFiles", files), lambda: Span(0, 100), clock=lambda: Moment(0, 2_000_000))


def waits(times: StoreTimes, consumed: dict[tuple[str, int], int]) -> list[float | None]:
    """Return the lag in seconds of each queue."""
    return [one.lag_s for one in times.queues(inventory_of(consumed), GROUP)]


def test_store_times_are_read_once_for_each_offset() -> None:
    """A group that does not move costs one read; a new offset costs another; a queue without lag none."""

    async def run() -> None:
        files = Files()
        times = times_of(files)
        for _ in range(3):
            await times.refresh(inventory_of({("t", 0): 100, ("t", 1): 1_000}), 5.0)
        assert files.reads == 1
        assert waits(times, {("t", 0): 100, ("t", 1): 1_000}) == [1_900.0, 0.0]
        await times.refresh(inventory_of({("t", 0): 300}), 5.0)
        assert files.reads == 2
        assert waits(times, {("t", 0): 300}) == [1_700.0]

    asyncio.run(run())


def test_last_known_time_stands_in_until_the_next_is_read() -> None:
    """At a later offset the lag is at most the last known one; at an earlier one it is unknown."""

    async def run() -> None:
        times = times_of(Files())
        await times.refresh(inventory_of({("t", 0): 100}), 5.0)
        assert waits(times, {("t", 0): 200}) == [1_900.0]
        assert waits(times, {("t", 0): 50}) == [None]

    asyncio.run(run())


def test_deleted_message_is_replaced_by_the_oldest_one_that_exists() -> None:
    """Retention has deleted it since the inventory was made. One that cannot be read is unknown."""
    missing = [
        ((GROUP, "t", 0), QueueLag("t", 0, 10, 1_000, 990)),
        ((GROUP, "broken", 0), QueueLag("broken", 0, 10, 1_000, 990)),
    ]
    found = read_store_times(cast("StoreFiles", Files(begin=40)), Span(0, 100), missing)

    assert found == {(GROUP, "t", 0): StoredAt(10, 40_000), (GROUP, "broken", 0): None}


def test_reads_are_bounded_in_time() -> None:
    """Without time left nothing is read, and what was not read stays unknown; with time all is."""
    missing = [((GROUP, "t", number), QueueLag("t", number, 10, 1_000, 990)) for number in range(50)]
    files = cast("StoreFiles", Files())

    assert read_store_times(files, Span(0, 100), missing, seconds_max=-1.0) == {}
    assert len(read_store_times(files, Span(0, 100), missing)) == 50


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_of_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues with the longest waits have samples, and the others are counted; with room all have them."""

    async def samples(queues_max: int) -> tuple[set[str], float]:
        monkeypatch.setattr(metrics_lag, "QUEUES_MAX", queues_max)
        inventory = inventory_of({("t", number): 100 * number for number in range(5)})
        times = times_of(Files())
        await times.refresh(inventory, 5.0)
        monitor = LagMonitor(cast("InventoryCache", None), times, None)
        found = {family.name: family.samples for family in metrics_lag.lag_metrics(inventory, monitor)}
        [left_out] = found["gantry_consumer_lag_queues_left_out"]
        return {one.labels["queue"] for one in found["gantry_consumer_lag_seconds"]}, left_out.value

    assert asyncio.run(samples(2)) == ({"0", "1"}, 3)
    assert asyncio.run(samples(5)) == ({"0", "1", "2", "3", "4"}, 0)
