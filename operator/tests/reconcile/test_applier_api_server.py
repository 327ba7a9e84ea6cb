"""Changes of a StatefulSet that a real API server rejects: it is recreated only if a new one would be accepted.

No controller runs there, so the test itself removes the finalizer with which the API server orphans the pods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from api_server import ApiServer
from kubernetes.client import ApiClient, Configuration
from objects_scene import broker_sets, group, rendered
from operator_world.cluster import ModelClock

from gantry_operator.api import Object, ref_of, uid_of
from gantry_operator.cache import Cache
from gantry_operator.execute.applier import RETRY_MS, Applier
from gantry_operator.kubernetes_api import KubernetesApi

pytestmark = [
    pytest.mark.needs_api_server,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),  # it made its certificate just now
]

MERGE = "application/merge-patch+json"
INVALID: dict[str, Any] = {"template": {"tolerations": [{"key": "dedicated", "operator": "Sometimes"}]}}
"""An edit that our CRD accepts, and that the API server rejects in the template of a pod."""

LARGER: dict[str, Any] = {"storage": {"size": "200Gi"}}
"""An edit that changes an immutable field of the StatefulSet."""


def stateful_set(**spec: Any) -> Object:
    """Return a rendered StatefulSet of a group."""
    return broker_sets(rendered(group("applied", **spec)))["applied-0-master"]


class Applied:
    """A StatefulSet on the API server, and the applier that has created it."""

    def __init__(self, server: ApiServer) -> None:
        settings = Configuration()
        settings.host, settings.verify_ssl = server.url, False
        settings.api_key = {"authorization": f"Bearer {server.token}"}
        self.server = server
        self.api = KubernetesApi(ApiClient(settings))
        self.clock = ModelClock()
        self.applier = Applier(("shop", "applied"), Cache(), self.api, self.clock)
        self.ref = ref_of(stateful_set())
        self.path = self.ref.kind.path(self.ref.namespace, self.ref.name)

    async def apply(self, **spec: Any) -> None:
        """Apply the StatefulSet of a spec, later than the last time."""
        self.clock.ms += RETRY_MS
        await self.applier.apply([stateful_set(**spec)])

    def finish_orphaning(self) -> None:
        """Remove the finalizer of a deleted StatefulSet, as the garbage collector does when its pods are orphans."""
        status, answer = self.server.ask("PATCH", self.path, {"metadata": {"finalizers": None}}, MERGE)
        assert status == 200 and answer["metadata"]["deletionTimestamp"], answer


@pytest.fixture
async def applied(groups_api: ApiServer) -> AsyncIterator[Applied]:
    """Return a StatefulSet that is deleted after the test."""
    made = Applied(groups_api)
    await made.apply()
    assert made.applier.problems == {}
    yield made
    groups_api.ask("PATCH", made.path, {"metadata": {"finalizers": None}}, MERGE)
    groups_api.ask("DELETE", made.path)
    made.api.close()


@pytest.mark.parametrize("spec", [INVALID, INVALID | LARGER], ids=["invalid", "invalid and immutable"])
async def test_invalid_edit_does_not_delete_a_stateful_set(applied: Applied, spec: dict[str, Any]) -> None:
    """Another one would be rejected, too: the StatefulSet stays as it is, and the field is reported."""
    before = await applied.api.get(applied.ref)

    await applied.apply(**spec)

    after = await applied.api.get(applied.ref)
    assert (uid_of(after), after["metadata"].get("deletionTimestamp")) == (uid_of(before), None)
    assert after["spec"] == before["spec"]
    assert "spec.template.spec.tolerations[0].operator" in applied.applier.problems[str(applied.ref)]


async def test_edit_of_only_immutable_fields_recreates_a_stateful_set(applied: Applied) -> None:
    """The pods are orphaned, and the new StatefulSet has the new template of claims."""
    before = await applied.api.get(applied.ref)

    await applied.apply(**LARGER)
    assert (await applied.api.get(applied.ref))["metadata"]["finalizers"] == ["orphan"]
    applied.finish_orphaning()
    await applied.apply(**LARGER)

    after = await applied.api.get(applied.ref)
    assert uid_of(after) != uid_of(before)
    [claim] = [one for one in after["spec"]["volumeClaimTemplates"] if one["metadata"]["name"] == "data"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"
    assert applied.applier.problems == {}
