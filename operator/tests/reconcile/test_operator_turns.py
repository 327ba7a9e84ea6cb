"""Many groups that are created at once: some are made while others wait, and nobody waits who is known already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until
from test_operator_process import context_of, group_object

from gantry_operator import resource_loop
from gantry_operator.api import STATEFUL_SETS, Object, labels_of
from gantry_operator.kubernetes_api import THREADS
from gantry_operator.objects.names import GROUP_LABEL
from gantry_operator.resource_loop import TURNS, LoopKeeper
from gantry_operator.sidecars import HttpSidecars
from gantry_operator.watched_resources import WatchedResources

NEW = [f"new-{number}" for number in range(3 * TURNS)]


class Creation:
    """Groups whose objects are not answered for before somebody says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = FakeKubernetes()
        self.begun: set[str] = set()
        """Groups of which something was to be applied."""

        self.answering = asyncio.Event()
        self._apply = self.api.apply
        monkeypatch.setattr(self.api, "apply", self._slowly)
        for name in NEW:
            self.api.put(group_object(name))

    async def _slowly(self, document: Object) -> Object:
        self.begun.add(labels_of(document)[GROUP_LABEL])
        await self.answering.wait()
        return await self._apply(document)

    @asynccontextmanager
    async def looked_after(self) -> AsyncIterator[WatchedResources]:
        """All of them, until none begins any more by itself."""
        async with HttpSidecars() as sidecars:
            context = context_of(self.api)
            object.__setattr__(context, "sidecars", sidecars)
            resources = WatchedResources(LoopKeeper(context))
            await resources.list_all()
            self.api.watchers.append(resources.take)
            resources.start_missing()
            for _ in range(200):
                await asyncio.sleep(0)
            yield resources
            self.answering.set()
            await resources.close()


async def test_new_groups_are_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread for calls is idle or wanted twice; whoever waits is not called stuck, and everybody's turn comes."""
    creation = Creation(monkeypatch)
    async with creation.looked_after() as resources:
        assert len(creation.begun) == TURNS == THREADS
        clock = resources.groups.context.clock
        assert isinstance(clock, ModelClock)
        clock.ms += 61_000
        assert all(f"shop/{name}" in resources.stale(60) for name in creation.begun)
        assert not any(f"shop/{name}" in resources.stale(60).split(": ")[1].split(", ") for name in waiting(creation))

        creation.answering.set()
        await until(lambda: len(creation.api.of_kind(STATEFUL_SETS)) == 3 * len(NEW), "each has what it needs")
        assert resources.stale(60) == ""


def waiting(creation: Creation) -> set[str]:
    return set(NEW) - creation.begun


async def test_a_group_that_is_known_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has looked after it before: it may need another master, while every turn is taken."""
    creation = Creation(monkeypatch)
    known: dict[str, Any] = group_object("known") | {"status": {"phase": "Ready"}}
    creation.api.put(known)
    async with creation.looked_after():
        assert "known" in creation.begun
        assert len(creation.begun) == TURNS + 1


async def test_without_turns_all_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: whatever else is to be asked queues behind all of them."""
    monkeypatch.setattr(resource_loop, "TURNS", 100)
    creation = Creation(monkeypatch)
    async with creation.looked_after():
        assert creation.begun == set(NEW)
