"""Topics and groups that shall exist: made and changed on a master, left alone on a slave, never deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_admin.topics_file import TopicsFileReconciler
from gantry_client import Admin, SubscriptionGroupConfig
from gantry_client.topic_reconciler import group_change, topic_change
from gantry_status.orders import HaRole, HaStatus
from gantry_wire.commands.admin import TopicConfig


@pytest.mark.parametrize(
    ("there", "made"),
    [
        (None, (4, 4, 6)),
        (TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4), None),
        (TopicConfig(topic_name="T", read_queue_nums=9, write_queue_nums=4), None),
        (TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2, perm=4), (4, 4, 4)),
        (TopicConfig(topic_name="T", read_queue_nums=9, write_queue_nums=9), (9, 4, 6)),
    ],
    ids=["not there", "as it should be", "to be emptied", "too few", "too many: they can be read until they are empty"],
)
def test_only_the_queues_of_a_topic_are_changed(there: TopicConfig | None, made: tuple[int, int, int] | None) -> None:
    """And no queue that may hold messages is removed."""
    change = topic_change("T", 4, there)

    assert (change and (change.read_queue_nums, change.write_queue_nums, change.perm)) == made


def test_only_the_retries_of_a_group_are_changed() -> None:
    """All other settings of the group are kept."""
    there = SubscriptionGroupConfig(group_name="G", consume_broadcast_enable=False)

    assert group_change("G", 16, there) is None
    changed = group_change("G", 3, there)
    assert changed is not None
    assert (changed.retry_max_times, changed.consume_broadcast_enable) == (3, False)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerChild, SidecarChild, Path]]:
    """A broker, its sidecar, and the file of wanted topics and groups."""
    declared = tmp_path / "declared"
    write(declared, 4)
    options = ("--topics-file", str(declared))
    with broker_process(tmp_path / "store") as broker, sidecar_process(broker.store, *options) as sidecar:
        yield broker, sidecar, declared


def write(path: Path, queues: int) -> None:
    """Write the file, with the field names of the manifest."""
    document = {"topics": [{"name": "orders", "queues": queues}], "groups": [{"name": "billing", "retryMax": 3}]}
    path.write_text(json.dumps(document))


def queues_of(broker: BrokerChild) -> int | None:
    """Return the queues of the topic; None before the topic and the group are as in the file."""

    async def ask() -> int | None:
        async with Admin(broker.address) as admin:
            topic = (await admin.brokers.topic_table(broker.address)).get("orders")
            group = (await admin.brokers.group_table(broker.address)).get("billing")
            return topic.write_queue_nums if topic and group and group.retry_max_times == 3 else None

    return asyncio.run(ask())


@pytest.mark.verify
def test_master_is_reconciled_with_the_file(pair: tuple[BrokerChild, SidecarChild, Path]) -> None:
    """Missing topics and groups are created, and changes of the file are applied, without any restart."""
    broker, sidecar, declared = pair
    wait_for(lambda: queues_of(broker) == 4, "topic and group are there")

    write(declared, 6)

    wait_for(lambda: queues_of(broker) == 6, "the topic has more queues")
    declared.write_text("{")
    wait_for(
        lambda: "failed to reconcile topics and subscription groups" in sidecar.child.log, "an invalid file is reported"
    )
    assert queues_of(broker) == 6


@pytest.mark.parametrize("role", [HaRole.SLAVE, HaRole.UNASSIGNED, None])
async def test_only_a_master_is_reconciled(role: HaRole | None, tmp_path: Path) -> None:
    """A slave has the tables of its master and is not even asked. A master is asked."""
    declared = tmp_path / "declared"
    asked: list[int] = []
    write(declared, 4)

    async def connected() -> tuple[Admin, str]:
        asked.append(1)
        raise OSError("connection refused")

    reconciler = TopicsFileReconciler(declared, lambda: None if role is None else HaStatus(role=role), connected)
    await reconciler.step()
    assert not asked

    reconciler = TopicsFileReconciler(declared, lambda: HaStatus(role=HaRole.MASTER), connected)
    await reconciler.step()
    assert asked
