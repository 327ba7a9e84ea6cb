"""Shards that go, at a bad moment: a master that falls silent may have taken a message that nobody has looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantry_broker.control.server import ControlServer
from gantry_cli.local.access import Access
from gantry_cli.local.acting import LocalActions
from gantry_cli.local.topics import Emptying
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
