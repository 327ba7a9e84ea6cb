"""Shards that go, at a bad moment: a master that falls silent may have taken a message that nobody has looked at."""

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
from gantry_cli.local.acting import LocalActions
from gantry_cli.local.group_run import GroupOptions, GroupRun, choose_group
from gantry_cli.local.plan import Wanted
from gantry_cli.local.ports import BROKER, NAME_SERVER, SIDECAR
from gantry_cli.local.running import DetachedFace
from gantry_cli.local.topics import Emptying, LocalTopicReconciler
from gantry_cli.stack import StackDirectory
from gantry_spec import actions as act
from gantry_spec.manifest import Spec
from gantry_spec.observed import ObservedShard, Role
from gantry_status.orders import HaStatus, OrderFailed
from gantry_testing.fake_group import FakeGroup

EMPTY_AT = 1


class FakeBody:
    """A group whose shard 1 goes: nothing was found on it, and its master is asked over a real control socket."""

    def __init__(self, control: str) -> None:
        self.spec = Spec()
        self.emptying = Emptying("crew", "ns:1", Access(), lambda _: None)
        self.emptying._ends[1] = EMPTY_AT
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
async def going(folder: Path, what: str) -> AsyncIterator[FakeBody]:
    group = FakeGroup([1], acks_needed=0)
    group.begin(1)
    member = group.members[1]
    drain = member.drain

    async def drained(timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        if what == "something-came":
            member.send()
        answer = await drain(timeout_ms)
        if what == "does-not-say":
            member.status = silent  # type: ignore[method-assign]
        return answer

    async def silent() -> HaStatus:
        raise OrderFailed("too busy")

    member.drain = drained  # type: ignore[method-assign]
    server = ControlServer(str(folder / "control.sock"), member)
    await server.start()
    try:
        yield FakeBody(server.path)
    finally:
        await server.close()


@pytest.mark.parametrize("what", ["twin", "something-came", "does-not-say"])
async def test_a_master_that_does_not_say_what_it_has_is_not_removed(tmp_path: Path, what: str) -> None:
    """It is drained, and then too busy to answer: a message that came before may be the only one of its kind."""
    async with going(tmp_path, what) as body:
        remove = act.Remove(shard=1, member=1, boot_id="7-1", holds_nothing=True)
        await LocalActions(body, lambda _: None).execute([remove])  # type: ignore[arg-type]

    assert body.removed == ([1] if what == "twin" else [])
    assert body.emptying.is_empty(1, None) is (what == "twin"), "its slaves go after it, and only then"


def test_a_master_that_fell_silent_may_have_taken_something_before() -> None:
    """Nothing was found, then it was killed: between the two it may have acknowledged a message, which slaves have."""
    shards = Emptying("crew", "ns:1", Access(), lambda _: None)
    shards._ends[1] = 7

    before = shards.is_empty(1, None)
    shards.close(1)

    assert (before, shards.is_empty(1, None)) == (False, True)


async def test_topics_are_reconciled_by_the_spec_of_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that comes while shards that go are looked at counts at once, for as long as that may take."""
    ports = tuple((kind, 0) for kind in (NAME_SERVER, BROKER, SIDECAR))
    options = GroupOptions(data=tmp_path, manifest=None, typed=Wanted(ports=ports))
    directory = StackDirectory(tmp_path)
    run = GroupRun(directory, choose_group(options), options, DetachedFace(-1))
    edited, supervisor = msgspec.structs.replace(run.supervisor.spec, shards=2), run.supervisor
    found: list[Spec] = []

    async def keep(self: Emptying, wanted: int, masters: object) -> None:
        supervisor.replace_settings(replace(supervisor.settings, spec=edited))

    async def reconcile(self: LocalTopicReconciler, spec: Spec, masters: object) -> list[str]:
        found.append(spec)
        raise asyncio.CancelledError

    monkeypatch.setattr(Emptying, "keep", keep)
    monkeypatch.setattr(LocalTopicReconciler, "reconcile", reconcile)
    monkeypatch.setattr(group_run, "UPKEEP_S", 0)
    with pytest.raises(asyncio.CancelledError):
        await run._keep_topics()

    assert found == [edited]
