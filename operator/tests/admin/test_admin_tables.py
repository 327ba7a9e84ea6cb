"""Topics and groups from the broker, and the same from its files while it is stalled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_admin.errors import Problem
from gantry_admin.inventory import QueueEnds, _queues_on_disk, inventory_from_disk, make_inventory
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles
from gantry_store_files import QueueBounds, StoreIdentity, encode_sealed
from gantry_store_files.store_identity import Epoch
from gantry_store_files.table_copies import Edition, encode_table
from gantry_testing.local import GROUP, TOPIC, Dialogue
from gantry_wire import RequestCode
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.names import SCHEDULE_TOPIC, SYSTEM_GROUPS
from gantry_wire.properties import DELAY_LEVEL, format_properties

CONSUMED = 4


def offsets_of(consumed: int) -> dict[str, Any]:
    """The table of consumer offsets with one group in it."""
    return {"offsetTable": {f"{TOPIC}@{GROUP}": {"0": consumed}}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    """Ten messages in one queue, of which a group has consumed four."""
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker, sidecar_process(store) as sidecar:
        broker.send(10)
        asyncio.run(commit_offset(broker.address))
        yield broker, sidecar


async def commit_offset(address: str) -> None:
    """Create the consumer group, and commit an offset of it."""
    dialogue = await Dialogue.open(address)
    group = {"groupName": GROUP, "consumeEnable": True}
    await dialogue.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(CONSUMED)}
    await dialogue.ask_json(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    await dialogue.close()


@pytest.mark.verify
def test_messages_that_are_stored_in_system_topics_are_counted(tmp_path: Path) -> None:
    """A delayed message is in one of RocketMQ's system topics until it is due, and its shard is not empty."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path) as sidecar:
        broker.send(1, properties=format_properties({DELAY_LEVEL: "18"}))
        seen: list[dict[str, Any]] = []

        def is_counted() -> bool:
            seen.append(sidecar.get("/v1/topics").json())
            return bool((seen[-1].get("system_messages") or {}).get(SCHEDULE_TOPIC))

        wait_for(is_counted, "the delayed message is counted")

    assert seen[-1]["system_messages"][SCHEDULE_TOPIC] == 1
    assert SCHEDULE_TOPIC not in {topic["name"] for topic in seen[-1]["topics"]}


def lag_in(document: dict[str, Any]) -> int | None:
    """Of the group, as far as it is known."""
    return next((int(group["lag"]) for group in document.get("groups", []) if group["name"] == GROUP), None)


@pytest.mark.verify
def test_lag_is_reported_with_its_source(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Ten sent, four consumed: a lag of six, requested from the broker a moment ago."""
    _, sidecar = pair
    seen: list[dict[str, Any]] = []

    def is_asked() -> bool:
        seen.append(sidecar.get("/v1/groups").json())
        return seen[-1].get("source") == "broker" and lag_in(seen[-1]) == 10 - CONSUMED

    wait_for(is_asked, "the broker reports it")
    document = seen[-1]

    assert document["age_ms"] <= 120_000, "of now, as far as a busy machine knows it"
    [group] = [one for one in document["groups"] if one["name"] == GROUP]
    assert group["queues"] == [{"topic": TOPIC, "queue_id": 0, "consumed": CONSUMED, "end": 10, "lag": 6, "lag_s": ANY}]


@pytest.mark.verify
def test_tables_are_read_from_disk_while_the_broker_is_stopped(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """The tables it last saved and its queue files give the same lag, and the source is shown."""
    broker, sidecar = pair
    wait_for(lambda: GROUP.encode() in table_file(broker.store, "consumerOffset"), "offsets are saved")
    broker.child.send(signal.SIGSTOP)
    try:
        wait_for(lambda: sidecar.get("/v1/groups").json().get("source") == "disk", "the disk is read")
        document = sidecar.get("/v1/groups").json()
    finally:
        broker.child.send(signal.SIGCONT)

    [group] = [one for one in document["groups"] if one["name"] == GROUP]
    assert group["lag"] == 10 - CONSUMED


def table_file(store: Path, name: str) -> bytes:
    """Return the file of one of the broker's tables; empty if it does not exist."""
    path = store / "config" / f"{name}.json"
    return path.read_bytes() if path.exists() else b""


@pytest.mark.verify
def test_damaged_table_is_read_from_its_copy(pair: tuple[BrokerChild, SidecarChild], tmp_path: Path) -> None:
    """The valid copy is read; no messages beyond the limit are counted."""
    broker, _ = pair
    wait_for(lambda: TOPIC.encode() in table_file(broker.store, "topics"), "the table is saved")
    store = tmp_path / "copy"
    (store / "config").mkdir(parents=True)
    (store / "config/topics.json.bak").write_bytes(table_file(broker.store, "topics"))
    (store / "config/topics.json").write_bytes(b'{"topicConfigTable":{"Topic')
    (store / "consumequeue").symlink_to(broker.store / "consumequeue")
    (store / "commitlog").symlink_to(broker.store / "commitlog")
    whole = inventory_from_disk(StoreFiles(store), Span(0, broker.log_end), set())
    half = inventory_from_disk(StoreFiles(store), Span(0, broker.log_end // 2), set())

    assert whole.queues[TOPIC][0].end == 10
    assert half.queues[TOPIC][0].end == 5


@pytest.mark.parametrize(
    "current",
    [
        encode_table(offsets_of(3), Edition("", 1)),
        encode_table(offsets_of(7), Edition("", 3)).replace(b":7", b":8"),
        encode_table(offsets_of(9), Edition("bbbbbbbb", 9)),
    ],
    ids=["older", "a-flipped-bit", "of-another-store"],
)
def test_table_is_read_from_the_copy_that_the_broker_would_use(tmp_path: Path, current: bytes) -> None:
    """A file that was rolled back, damaged or taken from another store would set every group back, or forward."""
    (tmp_path / "config").mkdir()
    identity = StoreIdentity(uuid="a" * 32, generation=1, epochs=[Epoch(1, 0)])
    (tmp_path / "store.json").write_bytes(encode_sealed(identity))
    (tmp_path / "config/consumerOffset.json").write_bytes(current)
    (tmp_path / "config/consumerOffset.json.bak").write_bytes(encode_table(offsets_of(5), Edition("aaaaaaaa", 2)))

    found = inventory_from_disk(StoreFiles(tmp_path), Span(0, 0), set())

    assert found.consumed == {GROUP: {(TOPIC, 0): 5}}


def test_queue_whose_newest_message_cannot_be_read_has_an_unknown_time() -> None:
    """Its bounds are still known, and the other queues and topics are reported."""

    class Files:
        def queue_ids(self, topic: str) -> list[int]:
            return [0, 1]

        def bounds(self, topic: str, queue_id: int, begin: int, end: int) -> QueueBounds:
            return QueueBounds(3, 5)

        def stored_at(self, topic: str, queue_id: int, offset: int, begin: int) -> int:
            if queue_id == 0:
                raise Problem(503, "a file of the log is missing")
            return 17

    found = _queues_on_disk(cast("StoreFiles", Files()), "orders", TopicConfig(topic_name="orders"), Span(0, 100))

    assert (found[0], found[1]) == (QueueEnds(3, 5, None), QueueEnds(3, 5, 17))


def test_system_groups_are_left_out() -> None:
    """RocketMQ's own groups are left out, whether they are in the table of groups or have committed offsets."""
    groups = {GROUP, *SYSTEM_GROUPS}
    offsets = {f"{TOPIC}@{group}": {0: 1} for group in groups}

    found = make_inventory({}, groups, offsets, {}, 0)

    assert (found.groups, set(found.consumed)) == ((GROUP,), {GROUP})
