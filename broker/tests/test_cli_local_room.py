"""What costs one process or one try, and never the group: a disk that is full, an account that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from local_group_kit import group_of

from gantry_cli.local.access import Access
from gantry_cli.local.child import Child
from gantry_cli.local.clock import now_ms
from gantry_cli.local.emptying import Emptying
from gantry_cli.local.topics import Upkeep
from gantry_client.testing.cluster import FakeCluster
from gantry_wire.commands.admin import TopicConfig


async def test_a_full_disk_costs_one_process_and_not_the_group(tmp_path: Path) -> None:
    """Its settings cannot be written: it is told, tried again, and runs when there is room; nobody else is stopped."""
    told: list[str] = []
    tries: list[int] = []

    def arguments() -> Sequence[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return ["-c", "pass"]

    child = Child("master-0", "timeit", arguments, tmp_path / "log", now_ms, told.append, lambda: None)
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

    lines = await Upkeep("crew", "ns:1", access).keep(group_of("{topics: [{name: orders}]}").spec, (0,))
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
        told = await Upkeep("crew", cluster.name_server, Access()).keep(spec, (0,))
        assert told == ["topic orders has 3 queues on each shard"]
        found = state.topics["orders"]
        assert (found.write_queue_nums, found.read_queue_nums, found.perm, found.order) == (3, 9, 4, True)

        assert await Upkeep("crew", cluster.name_server, Access()).keep(spec, (0,)) == []
        state.topics.clear()
        assert await Upkeep("crew", cluster.name_server, Access()).keep(spec, (0,)) != []
        assert (state.topics["orders"].perm, state.topics["orders"].read_queue_nums) == (6, 3)
