"""Many groups that are created at once: first rounds are limited, and groups with a status do not wait.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

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
from gantry_operator.resource_loop import FIRST_ROUNDS_MAX, LoopManager
from gantry_operator.sidecars import HttpSidecars
from gantry_operator.watched_resources import WatchedResources

NEW = [f"new-{number}" for number in range(3 * FIRST_ROUNDS_MAX)]


class Creation:
    """Groups whose objects are not created before the test allows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = FakeKubernetes()
        self.begun: set[str] = set()
        """The groups whose first object is to be applied."""

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
    async def reconciled(self) -> AsyncIterator[WatchedResources]:
        """Run the loops of all groups until no further first round starts."""
        async with HttpSidecars() as sidecars:
            context = context_of(self.api)
            object.__setattr__(context, "sidecars", sidecars)
            resources = WatchedResources(LoopManager(context))
            await resources.list_all()
            self.api.watchers.append(resources.apply_event)
            resources.start_missing()
            for _ in range(200):
                await asyncio.sleep(0)
            yield resources
            self.answering.set()
            await resources.close()


async def test_first_rounds_of_new_groups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many run at once as there are threads for calls. Waiting groups are not stale, and all get a round later."""
    creation = Creation(monkeypatch)
    async with creation.reconciled() as resources:
        assert len(creation.begun) == FIRST_ROUNDS_MAX == THREADS
        clock = resources.groups.context.clock
        assert isinstance(clock, ModelClock)
        clock.ms += 61_000
        assert all(f"shop/{name}" in resources.describe_stale(60) for name in creation.begun)
        assert not any(
            f"shop/{name}" in resources.describe_stale(60).split(": ")[1].split(", ")
            for name in groups_not_begun(creation)
        )

        creation.answering.set()
        await until(lambda: len(creation.api.of_kind(STATEFUL_SETS)) == 3 * len(NEW), "each has what it needs")
        assert resources.describe_stale(60) == ""


def groups_not_begun(creation: Creation) -> set[str]:
    """Return the groups whose creation has not begun."""
    return set(NEW) - creation.begun


async def test_group_with_a_status_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may need a new master while all first rounds are taken."""
    creation = Creation(monkeypatch)
    known: dict[str, Any] = group_object("known") | {"status": {"phase": "Ready"}}
    creation.api.put(known)
    async with creation.reconciled():
        assert "known" in creation.begun
        assert len(creation.begun) == FIRST_ROUNDS_MAX + 1


async def test_without_the_limit_all_first_rounds_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: all other calls queue behind them."""
    monkeypatch.setattr(resource_loop, "FIRST_ROUNDS_MAX", 100)
    creation = Creation(monkeypatch)
    async with creation.reconciled():
        assert creation.begun == set(NEW)
