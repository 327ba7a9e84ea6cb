"""The objects that an edit creates and deletes, by the operator's loop on a real API server.

No broker runs there, so none registers at name servers, and shards and slaves are only added: their removal needs the
reports of brokers, and is tested with models (``test_operator_leftovers``).

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
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
from edit_world.rows_of_archives import ARCHIVE
from edit_world.table import ROWS
from kubernetes.client import ApiClient, Configuration
from objects_scene import archive, facts
from operator_world.cluster import ModelClock
from pipelines_scene import resource

from gantry_operator.api import CERTIFICATES, GROUPS, ROUTE_KINDS, Object, ObjectRef, ref_of
from gantry_operator.cache import Cache
from gantry_operator.execute.pruner import PRUNED_KINDS, Pruner
from gantry_operator.group_archive import Archives
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.kubernetes_api import KubernetesApi
from gantry_operator.metrics import Metrics
from gantry_operator.objects import render
from gantry_operator.observe.unschedulable import ClusterPods
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.reconciler import pipeline_cache
from gantry_operator.resource_loop import LoopManager, ResourceLoop
from gantry_operator.sidecars import HttpSidecars
from gantry_operator.watched_resources import WatchedResources
from gantry_spec.manifest.reading import group_of

pytestmark = [
    pytest.mark.needs_api_server,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),  # it made its certificate just now
]

NAMESPACE = "shop"
ONLY_ADDED = {"shards", "slaves"}
"""The fields whose increase is not reverted here: the removal of members needs the reports of brokers."""

CREATING_OR_DELETING = [
    row for row in ROWS if row.effect is not Effect.REFUSED and any(name[0] in "+-" for name in row.changes)
]
"""The edits that create or delete objects: the names of these begin with + or - in the table of edits."""

REVERTIBLE = [row for row in CREATING_OR_DELETING if row.path not in ONLY_ADDED]
SERVED_KINDS = [kind for kind in PRUNED_KINDS if kind not in (*ROUTE_KINDS, CERTIFICATES)]
"""The kinds of pruned objects that this server has: it has neither the Gateway API nor cert-manager."""

ROUNDS_COUNT = 4
"""The rounds of the operator after an edit."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One API server for all tests of this file."""
    with groups_server(tmp_path_factory.mktemp("api")) as made:
        yield made


class NoPages:
    """The port to reports of servers whose pods were never created."""

    async def fetch(self, address: str) -> None:
        return None


def archives() -> Archives:
    """Return the archives of the operator: the one that rows name."""
    document = resource(name=ARCHIVE, brokerGroups=[GROUP], destination={"pvc": {"claimName": ARCHIVE}})
    document["metadata"] |= {"uid": "uid-of-history", "resourceVersion": "1"}
    cache = pipeline_cache()
    cache.put(document)
    return Archives(cache=cache, engine=EngineFacts(image="example.com/pipelines:1"), pages=NoPages())


class OperatedGroup:
    """A group on an API server, and the loop that runs it."""

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
            cluster_pods=ClusterPods(self.api, self.clock), archives=archives(),
        )  # fmt: skip
        self.resources = WatchedResources(LoopManager(context, (NAMESPACE,)))
        self.loop = ResourceLoop((NAMESPACE, GROUP), context)

    async def edit(self, spec: dict[str, Any]) -> None:
        """Write the edit, and run some rounds of the operator."""
        head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": GROUP}}
        path = f"{GROUPS_PATH}/{GROUP}"
        answer: tuple[int, Any] = (409, {})
        while answer[0] == 409:  # the status was written meanwhile: a user's edit is retried then, too
            status, there = self.server.ask("GET", path)
            if status == 200:
                answer = self.server.ask("PUT", path, there | {"spec": spec})
            else:
                answer = self.server.ask("POST", GROUPS_PATH, head | {"spec": spec})
        assert answer[0] in (200, 201), answer
        for _ in range(ROUNDS_COUNT):
            await self.resources.list_all()
            await self.loop.reconcile_once()
            await self.loop.reconciler.settle()
            self.clock.ms += 10_000

    async def existing_objects(self) -> list[Object]:
        """Return the objects of the group on the server."""
        label = f"gantry.dev/group={GROUP}"
        return [one for kind in SERVED_KINDS for one in await self.api.list(kind, NAMESPACE, label)]

    async def rendered_names(self) -> set[str]:
        """Return the objects that are rendered for the present group."""
        document = await self.api.get(ObjectRef(GROUPS, NAMESPACE, GROUP))
        group = group_of({key: value for key, value in document.items() if key != "status"})
        kinds = {kind.name for kind in SERVED_KINDS}
        return {name_of(one) for one in render(group, facts(archive=archive())) if one["kind"] in kinds}

    async def delete(self) -> None:
        """Delete all objects of the group, as the garbage collector of a cluster would."""
        assert self.server.ask("DELETE", f"{GROUPS_PATH}/{GROUP}")[0] == 200
        for one in await self.existing_objects():
            ref = ref_of(one)
            self.server.ask("DELETE", ref.kind.path(ref.namespace, ref.name))
        await self.loop.reconciler.settle()
        self.api.close()


@pytest.fixture
async def operated(server: ApiServer) -> AsyncIterator[OperatedGroup]:
    """Return a group that is deleted after the test."""
    made = OperatedGroup(server)
    yield made
    await made.delete()


async def check(operated: OperatedGroup, row: Row, fields: Fields, *, is_after: bool) -> None:
    """Check that exactly the desired objects exist, with the values of the row."""
    await operated.edit(row.spec(fields))
    there = await operated.existing_objects()

    assert {name_of(one) for one in there} == await operated.rendered_names()
    for shown in row.shown:
        if shown.source is Source.OBJECT and not shown.key.startswith(CLAIM):
            found = object_named(there, shown.key.partition(":")[0])
            assert object_value(found, shown.key) == (shown.after if is_after else shown.before), shown


@pytest.mark.verify
@pytest.mark.parametrize("row", CREATING_OR_DELETING, ids=str)
async def test_edit_creates_and_deletes_objects(operated: OperatedGroup, row: Row) -> None:
    """It does so as in the table."""
    await check(operated, row, row.before, is_after=False)
    await check(operated, row, row.after, is_after=True)


@pytest.mark.verify
@pytest.mark.parametrize("row", REVERTIBLE, ids=str)
async def test_reverted_edit_leaves_no_objects(operated: OperatedGroup, row: Row) -> None:
    """Objects that it created are deleted, and objects that it deleted exist again."""
    await check(operated, row, row.after, is_after=True)
    await check(operated, row, row.before, is_after=False)


@pytest.mark.verify
async def test_without_pruning_external_services_stay(operated: OperatedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: server-side apply alone deletes no object."""

    async def prune_nothing(self: Pruner, rendered: object, owner: str) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Pruner, "prune", prune_nothing)
    row = next(one for one in CREATING_OR_DELETING if str(one) == "access.external.type: closed again")
    await operated.edit(row.spec(row.before))
    await operated.edit(row.spec(row.after))

    assert object_named(await operated.existing_objects(), "Service/orders-0-external") is not None
