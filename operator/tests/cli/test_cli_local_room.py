"""What costs one process or one try, and never the group: a disk that is full, an account that cannot be read."""

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
from gantry_cli.local.topics import Emptying, LocalTopicReconciler
from gantry_cli.processes import ServerProcess
from gantry_client.topic_reconciler import INTERVAL_S, MasterTerm
from gantry_testing.client.cluster import FakeCluster
from gantry_wire.commands.admin import TopicConfig


def terms(cluster: FakeCluster, shards: int, epoch: int = 1) -> list[MasterTerm]:
    """The masters of the first shards."""
    return [MasterTerm(cluster.broker(f"crew-{n}").address, f"store-{n}", epoch) for n in range(shards)]


@pytest.mark.verify
async def test_a_full_disk_costs_one_process_and_not_the_group(tmp_path: Path) -> None:
    """Its settings cannot be written: it is told, tried again, and runs when there is room; nobody else is stopped."""
    told: list[str] = []
    tries: list[int] = []

    def arguments() -> Sequence[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return ["-c", "pass"]

    child = ServerProcess(
        "master-0", "timeit", arguments, tmp_path / "log", policy=local_restart_policy(), now_ms=now_ms,
        report=told.append,
    )  # fmt: skip
    child.start()
    task = asyncio.create_task(child.run())
    try:
        async with asyncio.timeout(180):
            while len(tries) < 2 and not task.done():  # noqa: ASYNC110 - a process starts
                await asyncio.sleep(0.05)
            while not child.is_running and not task.done():  # noqa: ASYNC110 - and can be told to end
                await asyncio.sleep(0.01)
    finally:
        await child.stop()
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(result, asyncio.CancelledError), "whoever keeps it goes on"
    assert told[0] == "master-0 cannot be started: [Errno 28] No space left on device"


async def test_an_account_that_cannot_be_read_is_told_and_ends_nothing(tmp_path: Path) -> None:
    """Somebody edits the file while a failover goes on: topics wait for it, and shards that go; brokers run on."""
    told: list[str] = []
    access = Access(credentials=tmp_path / "credentials")
    (tmp_path / "credentials").write_text("accessKey\n")

    lines = await LocalTopicReconciler("ns:1", access).reconcile(
        group_of("{topics: [{name: orders}]}").spec, [MasterTerm("b:1", "a", 1)]
    )
    await Emptying("crew", "ns:1", access, told.append).keep(1, {1: ("b:1", 7)})

    assert lines[0].startswith("topics and groups of the spec: ") and "credentials" in lines[0]
    assert told[0].startswith("shards that go: ") and "credentials" in told[0]


async def test_what_a_person_set_for_a_topic_stays(tmp_path: Path) -> None:
    """The spec says how many queues: permission, order, and queues that are still read are left as they are."""
    async with FakeCluster(("crew-0",)) as cluster:
        state = cluster.broker("crew-0").state
        state.cluster = "crew-cluster"
        state.topics["orders"] = TopicConfig(
            topic_name="orders", read_queue_nums=9, write_queue_nums=2, perm=4, order=True
        )
        spec = group_of("{topics: [{name: orders, queues: 3}]}").spec
        told = await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 1))
        assert told == ["topic orders has 3 queues on each shard"]
        found = state.topics["orders"]
        assert (found.write_queue_nums, found.read_queue_nums, found.perm, found.order) == (3, 9, 4, True)

        assert await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 1)) == []
        state.topics.clear()
        assert await LocalTopicReconciler(cluster.name_server, Access()).reconcile(spec, terms(cluster, 1)) != []
        assert (state.topics["orders"].perm, state.topics["orders"].read_queue_nums) == (6, 3)


async def test_what_an_administrator_set_for_a_group_survives_a_change_of_masters() -> None:
    """The spec says how often a message is delivered again; every other setting stays, on each broker its own."""
    async with FakeCluster(("crew-0", "crew-1")) as cluster:
        states = [cluster.broker(name).state for name in ("crew-0", "crew-1")]
        for state in states:
            state.cluster = "crew-cluster"
        spec = group_of("{shards: 2, groups: [{name: billing, retryMax: 5}]}").spec
        reconciler = LocalTopicReconciler(cluster.name_server, Access())
        assert await reconciler.reconcile(spec, terms(cluster, 1)) == [
            "consumer group billing is delivered to 5 times again"
        ]
        tuned = msgspec.structs.replace(
            states[0].groups["billing"], consume_enable=False, consume_timeout_minute=60, attributes={"a": "b"}
        )
        states[0].groups["billing"] = tuned

        assert await reconciler.reconcile(spec, terms(cluster, 2)) != [], "another shard has a master now"
        assert states[0].groups["billing"] == tuned

        fewer = group_of("{shards: 2, groups: [{name: billing, retryMax: 3}]}").spec
        assert await reconciler.reconcile(fewer, terms(cluster, 2)) == [
            "consumer group billing is delivered to 3 times again"
        ]
        assert states[0].groups["billing"] == msgspec.structs.replace(tuned, retry_max_times=3)
        assert states[1].groups["billing"].retry_max_times == 3
        restarted = LocalTopicReconciler(cluster.name_server, Access())
        assert await restarted.reconcile(fewer, terms(cluster, 2)) == [], (
            "a supervisor that begins anew changes nothing"
        )


async def test_a_topic_is_changed_only_on_the_broker_where_it_differs() -> None:
    """What an administrator set on one broker is not copied to the others."""
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


@pytest.mark.parametrize("cause", ["interval", "epoch", "identity"])
async def test_a_topic_that_is_missing_is_created_again(cause: str) -> None:
    """After a failover at once, since a new master's table may be old; otherwise at the next comparison."""
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
