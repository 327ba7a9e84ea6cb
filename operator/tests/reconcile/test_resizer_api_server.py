"""Resizes of a running broker at a real API server: what it accepts changes the pod, and what it refuses needs a roll.

No kubelet runs there: the test reports the state of the container itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from api_server import ApiServer, path_of
from kubernetes.client import ApiClient, Configuration
from objects_scene import broker_sets, group, rendered
from operator_world.cluster import ModelClock

from gantry_operator.api import PODS, Object, ObjectRef
from gantry_operator.cache import Cache
from gantry_operator.execute.resizer import REFUSALS_MAX, RETRY_MS, SETTLE_MS, Resizer
from gantry_operator.kubernetes_api import KubernetesApi
from gantry_operator.objects.names import RESIZING_ANNOTATION, RESOURCES_ANNOTATION
from gantry_operator.observe.group_objects import GroupObjects

pytestmark = [
    pytest.mark.needs_api_server,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),  # it made its certificate just now
]

MERGE = "application/merge-patch+json"
NAME = "sized-0-master"
POD = ObjectRef(PODS, "shop", f"{NAME}-0")
SMALL: dict[str, Any] = {"limits": {"memory": "1Gi", "cpu": "1"}, "requests": {"memory": "512Mi", "cpu": "250m"}}
LARGE: dict[str, Any] = {"limits": {"memory": "2Gi", "cpu": "2"}, "requests": {"memory": "1Gi", "cpu": "1500m"}}


NODE: Object = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "uid": "n", "resourceVersion": "1"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip
"""The machine of the pod, which is not on the API server."""


class Sized:
    """A group's StatefulSet and the pod of its master, which runs by its status."""

    def __init__(self, server: ApiServer) -> None:
        settings = Configuration()
        settings.host, settings.verify_ssl = server.url, False
        settings.api_key = {"authorization": f"Bearer {server.token}"}
        self.server, self.cache = server, Cache()
        self.api = KubernetesApi(ApiClient(settings))
        self.clock = ModelClock()
        self.cache.put(NODE)
        self.resizer = Resizer(GroupObjects(("shop", "sized"), self.cache), self.api, self.clock)

    def apply(self, **spec: Any) -> Object:
        """Apply the StatefulSet and the account of its pods, and return the StatefulSet."""
        objects = rendered(group("sized", **spec))
        for one in objects:
            if one["kind"] == "ServiceAccount":
                assert self.server.apply(path_of(one), one)[0] in (200, 201)
        found = broker_sets(objects)[NAME]
        status, answer = self.server.apply(path_of(found), found)
        assert status in (200, 201), answer
        self.cache.put(answer)
        made: Object = answer
        return made

    def create_pod(self, home: Object) -> None:
        """Create the pod as a StatefulSet would, on a machine."""
        template = home["spec"]["template"]
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{POD.name}"}}
        spec = template["spec"] | {"nodeName": "node-a", "volumes": [*template["spec"]["volumes"], claim]}
        head = template["metadata"] | {"name": POD.name, "namespace": "shop"}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}
        status, answer = self.server.ask("POST", PODS.path("shop"), document)
        assert status == 201, answer
        self.report("Running")

    def report(self, phase: str, **more: Any) -> None:
        """Report a state of the container as kubelet does."""
        path = PODS.path("shop", POD.name)
        spec = self.server.ask("GET", path)[1]["spec"]
        container = {
            "name": "broker", "ready": True, "restartCount": 0, "image": "x", "imageID": "x",
            "state": {"running": {}}, "resources": spec["containers"][0]["resources"],
        }  # fmt: skip
        change = {"status": {"phase": phase, "containerStatuses": [container]} | more}
        status, answer = self.server.ask("PATCH", f"{path}/status", change, MERGE)
        assert status == 200, answer
        self.cache.put(answer)

    async def pod(self) -> Object:
        """Return the pod on the API server."""
        return await self.api.get(POD)


@pytest.fixture
async def sized(groups_api: ApiServer) -> AsyncIterator[Sized]:
    """Return a running pod, which is deleted with its StatefulSet after the test."""
    made = Sized(groups_api)
    made.create_pod(made.apply(resources=SMALL))
    yield made
    groups_api.ask("DELETE", f"{PODS.path('shop', POD.name)}?gracePeriodSeconds=0")
    groups_api.ask("DELETE", f"/apis/apps/v1/namespaces/shop/statefulsets/{NAME}")
    made.api.close()


async def test_pod_with_the_resources_of_its_template_is_left_alone(sized: Sized) -> None:
    """The API server writes both in the same form."""
    assert await sized.resizer.resize() == []
    assert not sized.resizer.must_restart(0, await sized.pod())


async def test_running_pod_gets_the_resources_of_the_edited_template(sized: Sized) -> None:
    """CPU and memory change and nothing else, and the template's hash is still that of the pod."""
    before = await sized.pod()
    home = sized.apply(resources=LARGE)

    [text] = await sized.resizer.resize()

    after = await sized.pod()
    wanted = home["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert after["spec"]["containers"][0]["resources"] == wanted
    assert wanted["limits"]["memory"] == "2064Mi"
    assert wanted["requests"]["cpu"] == "1500m"
    for pod in (before, after):
        del pod["spec"]["containers"][0]["resources"]
    assert after["spec"] == before["spec"]
    marks = after["metadata"]["annotations"]
    assert marks.pop(RESIZING_ANNOTATION) == home["spec"]["template"]["metadata"]["annotations"][RESOURCES_ANNOTATION]
    assert marks == before["metadata"]["annotations"]
    assert POD.name in text
    assert "limits memory 1040Mi" in text
    assert await sized.resizer.resize() == []
    assert sized.resizer.waits == [f"pod {POD.name} is being resized"]

    sized.report("Running")
    for _ in range(SETTLE_MS // 1_000):
        sized.clock.ms += 1_000
        assert await sized.resizer.resize() == []
    assert sized.resizer.waits == []
    done = await sized.pod()
    assert done["metadata"]["annotations"] == home["spec"]["template"]["metadata"]["annotations"]
    assert not sized.resizer.must_restart(0, done)


async def test_resources_that_a_pod_cannot_get_need_a_restart(sized: Sized) -> None:
    """The API server does not remove the limit of a running container."""
    sized.apply(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "512Mi", "cpu": "250m"}})

    for _ in range(REFUSALS_MAX):
        assert not sized.resizer.must_restart(0, await sized.pod())
        assert await sized.resizer.resize() == []
        sized.clock.ms += RETRY_MS
    assert sized.resizer.must_restart(0, await sized.pod())

    sized.apply(resources=LARGE)
    assert not sized.resizer.must_restart(0, await sized.pod()), "another edit is tried again"
    assert len(await sized.resizer.resize()) == 1


async def test_huge_pages_are_no_part_of_a_resize(sized: Sized) -> None:
    """They change with the write buffers, whose edit is a roll: the hash of the template is another one."""
    before = sized.apply(resources=SMALL)
    after = sized.apply(resources=SMALL, writeBuffer={"medium": "HugePages-2Mi", "segmentSize": "8Mi"})

    marks = [one["spec"]["template"]["metadata"]["annotations"]["gantry.dev/template"] for one in (before, after)]
    assert marks[0] != marks[1]
    assert await sized.resizer.resize() == []
