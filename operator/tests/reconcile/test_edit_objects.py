"""What an edit makes appear and go, by the operator's loop on a real API server: then there is just what is asked.

No broker runs there, so nobody registers at name servers, and shards and slaves only come: what makes them go needs the
word of brokers, and is tried with models of them (``test_operator_leftovers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from api_server import GROUPS as GROUPS_PATH
from api_server import ApiServer, groups_server
from edit_world.making import CLAIM
from edit_world.reports import name_of, object_named, object_value
from edit_world.row import GROUP, Effect, Fields, Row, Source
from edit_world.table import ROWS
from kubernetes.client import ApiClient, Configuration
from objects_scene import facts
from operator_world.cluster import ModelClock

from gantry_operator.api import CONFIG_MAPS, GROUPS, Object, Place, place_of
from gantry_operator.cache import Cache
from gantry_operator.execute.leftovers import CLEARED, Leftovers
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.kubernetes_api import KubernetesApi
from gantry_operator.metrics import Metrics
from gantry_operator.objects import render
from gantry_operator.resource_loop import LoopKeeper, ResourceLoop
from gantry_operator.sidecars import HttpSidecars
from gantry_operator.watched_resources import WatchedResources
from gantry_spec.manifest.reading import group_of

pytestmark = [
    pytest.mark.needs_api_server,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),  # it made its certificate just now
]

NAMESPACE = "shop"
KINDS = (*CLEARED, CONFIG_MAPS)
ONLY_COME = {"shards", "slaves"}
COMING = [row for row in ROWS if row.effect is not Effect.REFUSED and any(name[0] in "+-" for name in row.changes)]
GOING = [row for row in COMING if row.path not in ONLY_COME]
STEPS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One for all tests here."""
    with groups_server(tmp_path_factory.mktemp("api")) as made:
        yield made


class Operated:
    """A group on a server, and the loop that runs it."""

    def __init__(self, server: ApiServer) -> None:
        settings = Configuration()
        settings.host, settings.verify_ssl = server.url, False
        settings.api_key = {"authorization": f"Bearer {server.token}"}
        self.server = server
        self.api = KubernetesApi(ApiClient(settings))
        self.clock = ModelClock()
        context = GroupContext(
            cache=Cache(), api=self.api, sidecars=HttpSidecars(), clock=self.clock, metrics=Metrics(),
            base=facts(), render=render, key=bytes(32),
        )  # fmt: skip
        self.resources = WatchedResources(LoopKeeper(context, (NAMESPACE,)))
        self.loop = ResourceLoop((NAMESPACE, GROUP), context)

    async def edit(self, spec: dict[str, Any]) -> None:
        """Write it down, and let the operator come round some times."""
        head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": GROUP}}
        path = f"{GROUPS_PATH}/{GROUP}"
        answer: tuple[int, Any] = (409, {})
        while answer[0] == 409:  # somebody has written the status meanwhile: what a person's edit does then, too
            status, there = self.server.ask("GET", path)
            if status == 200:
                answer = self.server.ask("PUT", path, there | {"spec": spec})
            else:
                answer = self.server.ask("POST", GROUPS_PATH, head | {"spec": spec})
        assert answer[0] in (200, 201), answer
        for _ in range(STEPS):
            await self.resources.list_all()
            await self.loop.step()
            await self.loop.reconciler.settle()
            self.clock.ms += 10_000

    async def there(self) -> list[Object]:
        """What the server has of the group."""
        label = f"gantry.dev/group={GROUP}"
        return [one for kind in KINDS for one in await self.api.list(kind, NAMESPACE, label)]

    async def wanted(self) -> set[str]:
        """What is rendered for the group as it stands there."""
        document = await self.api.get(Place(GROUPS, NAMESPACE, GROUP))
        group = group_of({key: value for key, value in document.items() if key != "status"})
        kinds = {kind.name for kind in KINDS}
        return {name_of(one) for one in render(group, facts()) if one["kind"] in kinds}

    async def end(self) -> None:
        """Nothing of it stays; the group's objects would go with it where a collector runs."""
        assert self.server.ask("DELETE", f"{GROUPS_PATH}/{GROUP}")[0] == 200
        for one in await self.there():
            place = place_of(one)
            self.server.ask("DELETE", place.kind.path(place.namespace, place.name))
        await self.loop.reconciler.settle()
        self.api.close()


@pytest.fixture
async def operated(server: ApiServer) -> AsyncIterator[Operated]:
    """One that is gone after the test."""
    made = Operated(server)
    yield made
    await made.end()


async def check(operated: Operated, row: Row, fields: Fields, *, is_after: bool) -> None:
    """Just what is asked is there, and it says what the row says."""
    await operated.edit(row.spec(fields))
    there = await operated.there()

    assert {name_of(one) for one in there} == await operated.wanted()
    for shown in row.shown:
        if shown.source is Source.OBJECT and not shown.key.startswith(CLAIM):
            found = object_named(there, shown.key.partition(":")[0])
            assert object_value(found, shown.key) == (shown.after if is_after else shown.before), shown


@pytest.mark.verify
@pytest.mark.parametrize("row", COMING, ids=str)
async def test_an_edit_makes_and_takes_away(operated: Operated, row: Row) -> None:
    """As the table says."""
    await check(operated, row, row.before, is_after=False)
    await check(operated, row, row.after, is_after=True)


@pytest.mark.verify
@pytest.mark.parametrize("row", GOING, ids=str)
async def test_an_edit_that_is_taken_back_leaves_nothing(operated: Operated, row: Row) -> None:
    """What it made is gone, and what it took away is there again."""
    await check(operated, row, row.after, is_after=True)
    await check(operated, row, row.before, is_after=False)


@pytest.mark.verify
async def test_without_looking_for_leftovers_a_closed_way_in_stays_open(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: server-side apply alone takes no object away."""

    async def nothing(self: Leftovers, rendered: object, owner: str) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Leftovers, "clear", nothing)
    row = next(one for one in COMING if str(one) == "access.external.type: closed again")
    await operated.edit(row.spec(row.before))
    await operated.edit(row.spec(row.after))

    assert object_named(await operated.there(), "Service/orders-0-external") is not None
