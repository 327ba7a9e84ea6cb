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
from gantry_cli.local.acting import Hands
from gantry_cli.local.emptying import Emptying
from gantry_spec import actions as act
from gantry_spec.manifest import Spec
from gantry_spec.observed import ObservedShard, Role
from gantry_testing.fake_group import FakeGroup

EMPTY_AT = 0


class FakeBody:
    """A group whose shard 1 goes: nothing was found on it, and its master is asked over a real control socket."""

    def __init__(self, control: str, *, answers: bool, wrote: int) -> None:
        self.spec = Spec()
        self.emptying = Emptying("crew", "ns:1", Access(), lambda _: None)
        self.emptying._ends[1] = EMPTY_AT
        self.removed: list[int] = []
        self.wrote: int | None = None
        self._answers, self._wrote = answers, wrote
        self._member = SimpleNamespace(
            broker=SimpleNamespace(boot_id="7-1", is_running=True), report=SimpleNamespace(role=Role.MASTER),
            record=SimpleNamespace(shard=1, number=1), control=control, look=self._look, is_answering=False,
        )  # fmt: skip

    async def _look(self) -> None:
        self._member.is_answering, self.wrote = self._answers, self._wrote if self._answers else None

    def now_ms(self) -> int:
        return 0

    def member(self, shard: int, number: int) -> Any:
        return self._member

    def shard_now(self, shard: int) -> ObservedShard:
        return ObservedShard(number=shard)

    def holds_nothing(self, shard: int) -> bool:
        return self.emptying.is_empty(shard, self.wrote)

    async def remove(self, member: Any) -> None:
        self.removed.append(member.record.number)


@asynccontextmanager
async def going(folder: Path, *, answers: bool, wrote: int) -> AsyncIterator[FakeBody]:
    group = FakeGroup([1], acks_needed=0)
    group.begin(1)
    server = ControlServer(str(folder / "control.sock"), group.members[1])
    await server.start()
    try:
        yield FakeBody(server.path, answers=answers, wrote=wrote)
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("answers", "wrote", "goes"), [(True, EMPTY_AT, True), (True, 9, False), (False, 9, False)],
    ids=["twin", "something-came", "does-not-say"],
)  # fmt: skip
async def test_a_master_that_does_not_say_what_it_has_is_not_removed(
    tmp_path: Path, answers: bool, wrote: int, goes: bool
) -> None:
    """It is drained, and then too busy to answer: a message that came before may be the only one of its kind."""
    async with going(tmp_path, answers=answers, wrote=wrote) as body:
        remove = act.Remove(shard=1, member=1, boot_id="7-1", holds_nothing=True)
        await Hands(body, lambda _: None).do([remove])  # type: ignore[arg-type]

    assert body.removed == ([1] if goes else [])
    assert body.emptying.is_empty(1, None) is goes, "its slaves go after it, and only then"


def test_a_master_that_fell_silent_may_have_taken_something_before() -> None:
    """Nothing was found, then it was killed: between the two it may have acknowledged a message, which slaves have."""
    shards = Emptying("crew", "ns:1", Access(), lambda _: None)
    shards._ends[1] = 7

    before = shards.is_empty(1, None)
    shards.close(1)

    assert (before, shards.is_empty(1, None)) == (False, True)
