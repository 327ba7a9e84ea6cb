"""Decommissioning shards under failures: a master that does not answer may have taken a late message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gantry_broker.control.server import ControlServer
from gantry_cli.local import group_run
from gantry_cli.local.access import Access
from gantry_cli.local.action_executor import LocalActionExecutor
from gantry_cli.local.group_run import GroupRun, UpOptions, choose_group
from gantry_cli.local.plan import LaunchOptions
from gantry_cli.local.ports import BROKER, NAME_SERVER, SIDECAR
from gantry_cli.local.running import DetachedOutput
from gantry_cli.local.topics import CHECK_INTERVAL_S, LocalTopicReconciler, ShardDecommissioner
from gantry_cli.stack import StackDirectory
from gantry_client import ClientError
from gantry_client.admin_brokers import Brokers
from gantry_spec import actions as act
from gantry_spec.manifest import Spec
from gantry_spec.observed import EMPTY_FOR_MS, ObservedShard, Role
from gantry_status.orders import HaStatus, OrderFailed
from gantry_testing.client.cluster import FakeCluster
from gantry_testing.fake_group import FakeGroup

EMPTY_AT = 1


class FakeLocalGroup:
    """A group with a surplus shard 1 that was found empty; its master has a real control socket."""

    def __init__(self, control: str) -> None:
        self.spec = Spec()
        self.decommissioner = ShardDecommissioner("crew", "ns:1", Access(), lambda _: None)
        self.decommissioner._ends[1] = EMPTY_AT
        self.removed: list[int] = []
        self._member = SimpleNamespace(
            broker=SimpleNamespace(boot_id="7-1", is_running=True), report=SimpleNamespace(role=Role.MASTER),
            record=SimpleNamespace(shard=1, number=1), control=control,
        )  # fmt: skip

    def now_ms(self) -> int:
        return 0

    def member(self, shard: int, number: int) -> Any:
        return self._member

    def shard_now(self, shard: int) -> ObservedShard:
        return ObservedShard(number=shard)

    async def remove(self, member: Any) -> None:
        self.removed.append(member.record.number)


@asynccontextmanager
async def local_group_with(folder: Path, what: str) -> AsyncIterator[FakeLocalGroup]:
    """Run a group whose shard 1 is removed, with a fault: `no-fault`, `late-message` or `no-report`."""
    group = FakeGroup([1], acks_needed=0)
    group.begin(1)
    member = group.members[1]
    drain = member.drain

    async def drained(timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus:
        if what == "late-message":
            member.send()
        answer = await drain(timeout_ms)
        if what == "no-report":
            member.status = silent  # type: ignore[method-assign]
        return answer

    async def silent() -> HaStatus:
        raise OrderFailed("too busy")

    member.drain = drained  # type: ignore[method-assign]
    server = ControlServer(str(folder / "control.sock"), member)
    await server.start()
    try:
        yield FakeLocalGroup(server.path)
    finally:
        await server.close()


@pytest.mark.parametrize("what", ["no-fault", "late-message", "no-report"])
async def test_drained_master_that_may_have_a_late_message_is_not_removed(tmp_path: Path, what: str) -> None:
    """A message arrived before the drain, or the drained master does not report whether one did."""
    async with local_group_with(tmp_path, what) as group:
        remove = act.Remove(shard=1, member=1, boot_id="7-1", is_empty=True)
        await LocalActionExecutor(group, lambda _: None).execute([remove])  # type: ignore[arg-type]

    assert group.removed == ([1] if what == "no-fault" else [])
    assert group.decommissioner.is_empty(1, None) is (what == "no-fault"), (
        "expected its slaves to be removed after it, and only then"
    )


def test_silent_master_may_have_taken_a_message_before() -> None:
    """The shard was found empty, then its master was killed; in between it may have acknowledged a message."""
    shards = ShardDecommissioner("crew", "ns:1", Access(), lambda _: None)
    shards._ends[1] = 7

    before = shards.is_empty(1, None)
    shards.mark_closed(1)

    assert (before, shards.is_empty(1, None)) == (False, True)


class UnreliableNameServers:
    """Name servers that fail to withdraw a shard as long as a test wants it, and record what they are asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = True
        self.restored: list[str] = []

        async def forbid_writes(brokers: Brokers, broker: str) -> None:
            if self.is_failing:
                raise ClientError("the second name server does not answer")

        async def allow_writes(brokers: Brokers, broker: str) -> None:
            self.restored.append(broker)

        monkeypatch.setattr(Brokers, "forbid_writes", forbid_writes)
        monkeypatch.setattr(Brokers, "allow_writes", allow_writes)


async def test_old_routes_expire_only_after_the_withdrawal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for producers with old routes begins when every name server has withdrawn the shard."""
    servers, now_s, events = UnreliableNameServers(monkeypatch), [0.0], list[str]()
    async with FakeCluster(("crew-1",)) as cluster:
        shards = ShardDecommissioner("crew", cluster.name_server, Access(), events.append, lambda: now_s[0])
        masters = {1: (cluster.broker("crew-1").address, EMPTY_AT)}
        await shards.reconcile(1, masters)
        failed, servers.is_failing = list(events), False
        now_s[0] += EMPTY_FOR_MS / 1000
        await shards.reconcile(1, masters)
        was_empty = shards.is_empty(1, EMPTY_AT)
        now_s[0] += EMPTY_FOR_MS / 1000
        await shards.reconcile(1, masters)

    assert (was_empty, shards.is_empty(1, EMPTY_AT)) == (False, True)
    assert failed == ["failed to decommission surplus shards: the second name server does not answer"]
    assert events[1:] == ["shard 1 withdrawn from routes: removed from the manifest"]


async def test_partly_withdrawn_shard_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed withdrawal may have reached some name servers, so a shard that is wanted again is restored on all."""
    servers, now_s = UnreliableNameServers(monkeypatch), [0.0]
    async with FakeCluster(("crew-1",)) as cluster:
        shards = ShardDecommissioner("crew", cluster.name_server, Access(), lambda _: None, lambda: now_s[0])
        masters = {1: (cluster.broker("crew-1").address, EMPTY_AT)}
        await shards.reconcile(1, masters)
        for _ in range(2):
            now_s[0] += CHECK_INTERVAL_S
            await shards.reconcile(2, masters)

    assert servers.restored == ["crew-1"]


async def test_topics_are_reconciled_with_the_current_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest change during the check of surplus shards takes effect at once."""
    ports = tuple((kind, 0) for kind in (NAME_SERVER, BROKER, SIDECAR))
    options = UpOptions(data=tmp_path, manifest=None, launch=LaunchOptions(ports=ports))
    directory = StackDirectory(tmp_path)
    run = GroupRun(directory, choose_group(options), options, DetachedOutput(-1))
    edited, supervisor = msgspec.structs.replace(run.supervisor.spec, shards=2), run.supervisor
    found: list[Spec] = []

    async def reconcile_shards(self: ShardDecommissioner, wanted: int, masters: object) -> None:
        supervisor.replace_settings(replace(supervisor.settings, spec=edited))

    async def reconcile(self: LocalTopicReconciler, spec: Spec, masters: object) -> list[str]:
        found.append(spec)
        raise asyncio.CancelledError

    monkeypatch.setattr(ShardDecommissioner, "reconcile", reconcile_shards)
    monkeypatch.setattr(LocalTopicReconciler, "reconcile", reconcile)
    monkeypatch.setattr(group_run, "TOPIC_INTERVAL_S", 0)
    with pytest.raises(asyncio.CancelledError):
        await run._reconcile_topics()

    assert found == [edited]
