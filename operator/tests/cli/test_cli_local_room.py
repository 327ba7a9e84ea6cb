"""Failures that affect one process or attempt and never the group, and the topics and groups that a spec creates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from local_group_kit import group_of

from gantry_cli.local.access import Access
from gantry_cli.local.member import local_restart_policy
from gantry_cli.local.state import now_ms
from gantry_cli.local.topics import LocalTopicReconciler, ShardDecommissioner
from gantry_cli.processes import ServerProcess
from gantry_client.topic_reconciler import INTERVAL_S, MasterTerm
from gantry_testing.client.cluster import FakeCluster
from gantry_wire.codes import RequestCode
from gantry_wire.commands.admin import CreateTopic, TopicConfig


def terms(cluster: FakeCluster, shards: int, epoch: int = 1) -> list[MasterTerm]:
    """Return the terms of the masters of the first shards."""
    return [MasterTerm(cluster.broker(f"crew-{n}").address, f"store-{n}", epoch) for n in range(shards)]


@pytest.mark.verify
async def test_full_disk_affects_one_process_and_not_the_group(tmp_path: Path) -> None:
    """Its settings cannot be written: that is reported, the start is retried, and no other process stops."""
    events: list[str] = []
    tries: list[int] = []

    def arguments() -> Sequence[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return ["-c", "pass"]

    child = ServerProcess(
        "master-0", "timeit", arguments, tmp_path / "log", policy=local_restart_policy(), now_ms=now_ms,
        report=events.append,
    )  # fmt: skip
    child.start()
    task = asyncio.create_task(child.run())
    try:
        async with asyncio.timeout(180):
            while len(tries) < 2 and not task.done():  # noqa: ASYNC110 - a process starts
                await asyncio.sleep(0.05)
            while not child.is_running and not task.done():  # noqa: ASYNC110 - and can be stopped
                await asyncio.sleep(0.01)
    finally:
        await child.stop()
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(result, asyncio.CancelledError), "its task has ended"
    assert events[0] == "master-0 failed to start: [Errno 28] No space left on device"


async def test_unreadable_account_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    """While the file is being edited, topics and surplus shards wait for it, and brokers keep running."""
    events: list[str] = []
    access = Access(credentials=tmp_path / "credentials")
    (tmp_path / "credentials").write_text("accessKey\n")

    lines = await LocalTopicReconciler("ns:1", access).reconcile(
        group_of("{topics: [{name: orders}]}").spec, [MasterTerm("b:1", "a", 1)]
    )
    await ShardDecommissioner("crew", "ns:1", access, events.append).reconcile(1, {1: ("b:1", 7)})

    assert lines[0].startswith("failed to reconcile topics and groups of the spec: ") and "credentials" in lines[0]
    assert events[0].startswith("failed to decommission surplus shards: ") and "credentials" in events[0]


async def test_topic_settings_of_a_person_are_kept(tmp_path: Path) -> None:
    """The spec determines the number of queues; permission, order and queues still being read are kept."""
    async with FakeCluster(("crew-0",)) as cluster:
        state = cluster.broker("crew-0").state
        state.cluster = "crew-cluster"
        state.topics["orders"] = TopicConfig(
            topic_name="orders", read_queue_nums=9, write_queue_nums=2, perm=4, order=True
        )
        spec = group_of("{topics: [{name: orders, queues: 3}]}").spec
        events = await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 1))
        assert events == ["topic orders has 3 queues on each shard"]
        found = state.topics["orders"]
        assert (found.write_queue_nums, found.read_queue_nums, found.perm, found.order) == (3, 9, 4, True)

        assert await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 1)) == []
        state.topics.clear()
        assert await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 1)) != []
        assert (state.topics["orders"].perm, state.topics["orders"].read_queue_nums) == (6, 3)


async def test_group_settings_of_an_administrator_survive_a_new_master() -> None:
    """The spec determines the number of retries; every other setting stays, on each broker its own."""
    async with FakeCluster(("crew-0", "crew-1")) as cluster:
        states = [cluster.broker(name).state for name in ("crew-0", "crew-1")]
        for state in states:
            state.cluster = "crew-cluster"
        spec = group_of("{shards: 2, groups: [{name: billing, retryMax: 5}]}").spec
        reconciler = LocalTopicReconciler(cluster.name_server, Access())
        assert await reconciler.reconcile(spec, terms(cluster, 1)) == ["consumer group billing has at most 5 retries"]
        tuned = msgspec.structs.replace(
            states[0].groups["billing"], consume_enable=False, consume_timeout_minute=60, attributes={"a": "b"}
        )
        states[0].groups["billing"] = tuned

        assert await reconciler.reconcile(spec, terms(cluster, 2)) != [], (
            "expected a change, because another shard has a master now"
        )
        assert states[0].groups["billing"] == tuned

        fewer = group_of("{shards: 2, groups: [{name: billing, retryMax: 3}]}").spec
        assert await reconciler.reconcile(fewer, terms(cluster, 2)) == ["consumer group billing has at most 3 retries"]
        assert states[0].groups["billing"] == msgspec.structs.replace(tuned, retry_max_times=3)
        assert states[1].groups["billing"].retry_max_times == 3
        restarted = LocalTopicReconciler(cluster.name_server, Access())
        assert await restarted.reconcile(fewer, terms(cluster, 2)) == [], "a restarted supervisor has changed something"


async def test_topic_is_changed_only_on_brokers_where_it_differs() -> None:
    """Settings that an administrator made on one broker are not copied to others."""
    async with FakeCluster(("crew-0", "crew-1")) as cluster:
        states = [cluster.broker(name).state for name in ("crew-0", "crew-1")]
        for state, perm, queues in zip(states, (4, 6), (3, 2), strict=True):
            state.cluster = "crew-cluster"
            state.topics["orders"] = TopicConfig(
                topic_name="orders", read_queue_nums=queues, write_queue_nums=queues, perm=perm, order=perm == 4
            )
        before = dict(states[0].topics)
        spec = group_of("{shards: 2, topics: [{name: orders, queues: 3}]}").spec

        assert await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 2)) != []

        assert dict(states[0].topics) == before
        changed = states[1].topics["orders"]
        assert (changed.write_queue_nums, changed.perm, changed.order) == (3, 6, False)


async def test_missing_topic_gets_the_attributes_of_the_other_shards() -> None:
    """The new shard's topic has them all. A change of the queues sends none, since brokers refuse some changes."""
    async with FakeCluster(("crew-0", "crew-1")) as cluster:
        states = [cluster.broker(name).state for name in ("crew-0", "crew-1")]
        attributes = {"message.type": "FIFO", "cleanup.policy": "DELETE"}
        states[0].topics["orders"] = TopicConfig(
            topic_name="orders", read_queue_nums=2, write_queue_nums=2, attributes=attributes
        )
        spec = group_of("{shards: 2, topics: [{name: orders, queues: 3}]}").spec

        assert await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 2)) != []

        assert [state.topics["orders"].write_queue_nums for state in states] == [3, 3]
        assert [state.topics["orders"].attributes for state in states] == [attributes, attributes]
        change, creation = (
            CreateTopic.read(command.ext)
            for name in ("crew-0", "crew-1")
            for command in cluster.broker(name).requests
            if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC
        )
        assert (change.attributes, creation.attributes) == (None, "+message.type=FIFO,+cleanup.policy=DELETE")


@pytest.mark.parametrize("cause", ["interval", "epoch", "identity"])
async def test_missing_topic_is_created_again(cause: str) -> None:
    """At once after a failover, since a new master's table may be old; otherwise at the next comparison."""
    async with FakeCluster(("crew-0",)) as cluster:
        topics, now_s = cluster.broker("crew-0").state.topics, [0.0]
        spec = group_of("{topics: [{name: orders, queues: 3}]}").spec
        reconciler = LocalTopicReconciler(cluster.name_server, Access(), lambda: now_s[0])
        [term] = terms(cluster, 1)
        assert await reconciler.reconcile(spec, [term]) != []
        topics.clear()
        assert await reconciler.reconcile(spec, [term]) == []

        now_s[0] += INTERVAL_S if cause == "interval" else 0
        term = {"epoch": term._replace(epoch=2), "identity": term._replace(identity="other")}.get(cause, term)

        assert await reconciler.reconcile(spec, [term]) == ["topic orders has 3 queues on each shard"]
        assert topics["orders"].write_queue_nums == 3
