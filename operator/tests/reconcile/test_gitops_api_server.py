"""GitOps at a real API server: what is applied by Argo CD, Flux or kubectl shows no drift after the operator's work.

Every resource is applied, reconciled by the operator's own loop, and applied again, which keeps the resource version.
Only the first repeated apply of an explicit `spec: {}` makes a new one, with the same content; later ones keep it.

A twin repeats a test with an operator that changes the spec, and finds the drift: so the test can fail.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, path_of
from charts_scene import GROUP as CHART_OF_GROUPS
from charts_scene import OPERATOR, ROOT, documents
from gitops_scene import judge
from kubernetes.client import ApiClient, Configuration
from operator_world.cluster import ModelClock
from pipelines_scene import ROLE, resource

from gantry_operator.api import GROUPS, PIPELINES, STATUS_MANAGER, Object, ObjectRef
from gantry_operator.cache import Cache
from gantry_operator.errors import SidecarUnavailable
from gantry_operator.execute.scheduler import patch_requests
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.kubernetes_api import KubernetesApi
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.observe.unschedulable import ClusterPods
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.reconciler import PipelineContext, pipeline_cache
from gantry_operator.resource_loop import ResourceLoop
from gantry_operator.sidecars import Peer
from gantry_spec.executor import Expected
from gantry_spec.manifest.annotations import without_request
from gantry_status.orders import AnyOrder
from gantry_testing.programs import kubernetes_program

pytestmark = [
    pytest.mark.needs_api_server,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),  # it made its certificate just now
]

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
ARGO_CD, FLUX = "argocd-controller", "kustomize-controller"
KIND = {kind.name: kind for kind in (GROUPS, *PIPELINES)}
TRACKING = "argocd.argoproj.io/tracking-id"
ROUNDS = 3


def sample(path: Path) -> list[Object]:
    """Return the resources of our kinds in a file, in the namespace of the tests."""
    found = [one for one in yaml.safe_load_all(path.read_text()) if one and one["kind"] in KIND]
    for one in found:
        one["metadata"]["namespace"] = "shop"
    return found


def group(name: str = "written", spec: Mapping[str, Any] | None = None, **annotations: str) -> Object:
    """Return a group as it is in a Git repository."""
    head: Object = {"name": name, "namespace": "shop"}
    head |= {"annotations": {f"gantry.dev/{key}": text for key, text in annotations.items()}} if annotations else {}
    document: Object = {"apiVersion": GROUPS.api_version, "kind": GROUPS.name, "metadata": head}
    return document | ({} if spec is None else {"spec": dict(spec)})


WRITTEN: dict[str, Object] = {
    "no spec": group(),
    "empty spec": group(spec={}),
    "empty parts": group(spec={"nameServers": {}, "replication": {}, "storage": {}, "topics": []}),
    "defaults": group(spec={"shards": 1, "slaves": 1, "replication": {"mode": "Sync"}}),
    "bytes": group(spec={"storage": {"size": "21474836480"}, "resources": {"limits": {"memory": "4294967296"}}}),
    "units": group(spec={"storage": {"size": "20480Mi"}, "resources": {"limits": {"memory": "4096Mi"}}}),
    "number of CPUs": group(spec={"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 0.5, "memory": "4Gi"}}}),
    "text of CPUs": group(spec={"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "500m", "memory": "4Gi"}}}),
    "durations": group(spec={"flush": {"interval": "1000ms"}, "durability": {"maxAtRisk": "60s"}}),
    "states": group(fence="0", hibernate="false"),
    "everything that pipelines default": resource(name="written"),
    **{
        f"{path.stem} {number}": one
        for path in sorted((ROOT / "manifests/samples").rglob("*.yaml"))
        for number, one in enumerate(sample(path))
    },
}
"""Resources as users write them."""


class NoSidecars:
    """The port to sidecars of groups whose pods were never created."""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        raise SidecarUnavailable(f"{peer.host} does not answer")

    topics = status

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        raise SidecarUnavailable(f"{peer.host} does not answer")


class Cluster:
    """The API server with the operator's loop of one resource, whose rounds the test runs."""

    def __init__(self, server: ApiServer) -> None:
        settings = Configuration()
        settings.host, settings.verify_ssl = server.url, False
        settings.api_key = {"authorization": f"Bearer {server.token}"}
        self.server, self.api, self.clock = server, KubernetesApi(ApiClient(settings)), ModelClock()

    def apply(self, document: Object, manager: str = ARGO_CD, *, is_dry: bool = False) -> Object:
        """Apply a resource on the server side, as Argo CD and Flux do; a conflict of ownership is an error.

        Argo CD adds an annotation by which it finds what it has applied.
        """
        if manager == ARGO_CD:
            head = document["metadata"]
            annotations = {TRACKING: f"orders:{document['kind']}", **head.get("annotations", {})}
            document = document | {"metadata": head | {"annotations": annotations}}
        flags = f"?fieldManager={manager}{'&dryRun=All' if is_dry else ''}"
        status, answer = self.server.ask("PATCH", self.path(document) + flags, document, APPLY)
        assert status in (200, 201), answer
        return dict(answer)

    def present(self, document: Object) -> Object:
        """Return the resource as it is on the API server."""
        status, answer = self.server.ask("GET", self.path(document))
        assert status == 200, answer
        return dict(answer)

    def path(self, document: Object) -> str:
        kind = KIND.get(document["kind"])
        return path_of(document) if kind is None else kind.path("shop", document["metadata"]["name"])

    async def reconcile(self, document: Object) -> Object:
        """Run the operator until it has written the status; return the resource."""
        kind, name = KIND[document["kind"]], document["metadata"]["name"]
        found = await self.api.get(ObjectRef(kind, "shop", name))
        groups = GroupContext(
            cache=Cache(), api=self.api, sidecars=NoSidecars(), clock=self.clock, metrics=Metrics(),
            base=Facts(image="gantry:test"), render=render, key=b"k" * 32,
            cluster_pods=ClusterPods(self.api, self.clock),
        )  # fmt: skip
        loop: ResourceLoop[Any]
        if kind == GROUPS:
            groups.cache.apply_event(None, found)
            loop = ResourceLoop(("shop", name), groups)
        else:
            pipelines = PipelineContext(
                cache=pipeline_cache(), groups=groups.cache, api=self.api, pages=NoPages(), clock=self.clock,
                metrics=Metrics(), engine=EngineFacts(image="pipelines:1", executors_role=ROLE),
            )  # fmt: skip
            pipelines.cache.apply_event(None, found)
            [key] = pipelines.cache.owner_keys()
            loop = ResourceLoop(key, pipelines)
        for _ in range(ROUNDS):
            self.clock.ms += 20_000
            await loop.reconcile_once()
        await loop.reconciler.close()
        done = self.present(document)
        assert done["status"]["observedGeneration"] == done["metadata"]["generation"], "the operator wrote no status"
        return done

    def kubectl(self, verb: str, document: Object, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `kubectl apply` or `kubectl diff` on the client side, with the annotation of what was applied last."""
        program = kubernetes_program("kubectl")
        assert program is not None  # it is a part of needs_api_server
        words = [str(program), verb, "-f", "-", f"--server={self.server.url}", f"--token={self.server.token}"]
        words += ["--insecure-skip-tls-verify", "--kubeconfig=/dev/null", "--namespace=shop", *options]
        return subprocess.run(words, input=json.dumps(document), capture_output=True, text=True, timeout=120)


class NoPages:
    """The port to drivers whose pods were never created."""

    async def fetch(self, address: str) -> dict[str, Any] | None:
        raise AssertionError(f"no pod has the address {address}")


@pytest.fixture
def cluster(groups_api: ApiServer) -> Iterator[Cluster]:
    """Return the API server that all tests share; the resources of a test are deleted after it."""
    made = Cluster(groups_api)
    yield made
    for kind in KIND.values():
        for one in groups_api.ask("GET", kind.path("shop"))[1]["items"]:
            groups_api.ask("DELETE", kind.path("shop", one["metadata"]["name"]))
    made.api.close()


def fields_of(resource: Object, manager: str) -> Mapping[str, Any]:
    """Return the fields that a manager owns, without those of the status."""
    found = [one for one in resource["metadata"]["managedFields"] if one["manager"] == manager]
    return {} if not found else found[0]["fieldsV1"]


def drift(before: Object, after: Object) -> Object:
    """Return the parts of two versions that differ, without their versions; empty if an apply has changed nothing."""
    left, right = content(before), content(after)
    return {name: (left.get(name), right.get(name)) for name in left | right if left.get(name) != right.get(name)}


def content(resource: Object) -> Object:
    """Return a resource with all metadata at its top, except its version and the times of writes.

    The API server lists the managers in the order of these times.
    """
    metadata = {name: one for name, one in resource["metadata"].items() if name != "resourceVersion"}
    metadata["managedFields"] = [
        {name: value for name, value in one.items() if name != "time"}
        for one in sorted(metadata.get("managedFields", []), key=lambda one: (one["manager"], one["operation"]))
    ]
    rest = {name: one for name, one in resource.items() if name != "metadata"}
    return rest | {f"metadata.{name}": one for name, one in metadata.items()}


def version(resource: Object) -> str:
    return str(resource["metadata"]["resourceVersion"])


def managers(resource: Object) -> dict[str, str]:
    """Return who owns fields of a resource, with the subresource that each wrote."""
    return {one["manager"]: one.get("subresource", "") for one in resource["metadata"]["managedFields"]}


@pytest.mark.verify(quick=6)
@pytest.mark.parametrize("document", WRITTEN.values(), ids=WRITTEN)
async def test_applied_resource_has_no_drift(cluster: Cluster, document: Object) -> None:
    """Neither a repeated apply nor a dry run changes anything, and the operator owns nothing but the status."""
    first = cluster.apply(document)
    done = await cluster.reconcile(document)

    assert drift(done, cluster.apply(document, is_dry=True)) == {}
    again = cluster.apply(document)
    assert drift(done, again) == {}
    assert version(again) == version(done) or document.get("spec") == {}
    assert version(cluster.apply(document)) == version(again)
    assert (done["spec"], done["metadata"]["generation"]) == (first["spec"], 1)
    assert managers(done) == {ARGO_CD: "", STATUS_MANAGER: "status"}
    assert fields_of(done, STATUS_MANAGER).keys() == {"f:status"}
    assert fields_of(done, ARGO_CD) == fields_of(first, ARGO_CD)


@pytest.mark.verify(quick=3)
@pytest.mark.parametrize("document", WRITTEN.values(), ids=WRITTEN)
async def test_client_side_apply_has_no_drift(cluster: Cluster, document: Object) -> None:
    """`kubectl diff` finds nothing, and a repeated `kubectl apply` changes nothing."""
    assert (done := cluster.kubectl("apply", document)).returncode == 0, done.stderr
    before = await cluster.reconcile(document)

    found = cluster.kubectl("diff", document)
    again = cluster.kubectl("apply", document)

    assert (found.returncode, found.stdout) == (0, ""), found.stdout + found.stderr
    assert again.stdout.rstrip().endswith("unchanged"), again.stdout + again.stderr
    assert drift(before, cluster.present(document)) == {}


async def test_operator_that_edits_a_spec_would_cause_drift(cluster: Cluster) -> None:
    """The twin: a change of a field that the manifest sets is found by all three comparisons."""
    document = group(spec={"slaves": 1})
    cluster.apply(document, FLUX)
    await cluster.reconcile(document)
    patch = {"spec": {"slaves": 2}}
    status, edited = cluster.server.ask("PATCH", f"{cluster.path(document)}?fieldManager=x", patch, MERGE)
    assert status == 200, edited

    forced = f"{cluster.path(document)}?fieldManager={FLUX}&force=true&dryRun=All"
    planned = cluster.server.ask("PATCH", forced, document, APPLY)[1]

    assert {"spec", "metadata.generation"} <= drift(edited, planned).keys()
    assert cluster.server.ask("PATCH", forced.replace("&force=true", ""), document, APPLY)[0] == 409
    assert cluster.kubectl("diff", document).returncode == 1


async def test_finished_order_leaves_no_drift(cluster: Cluster) -> None:
    """An order of `kubectl gantry` and its removal by the operator do not concern the manifest's owner."""
    document = group(spec={"slaves": 1}, fence="0")
    cluster.apply(document)
    order = {"metadata": {"annotations": {"gantry.dev/promote": "0=2"}}}
    path = cluster.path(document)
    status, ordered = cluster.server.ask("PATCH", f"{path}?fieldManager=gantry-cli", order, MERGE)
    assert status == 200, ordered

    kept = cluster.apply(document)
    await cluster.reconcile(document)
    change = without_request(kept["metadata"]["annotations"], "0=2")
    removed = await patch_requests(cluster.api, cluster.present(document), change)

    assert kept["metadata"]["annotations"].keys() == {"gantry.dev/promote", "gantry.dev/fence", TRACKING}
    assert removed["metadata"]["annotations"].keys() == {"gantry.dev/fence", TRACKING}
    assert drift(cluster.present(document), cluster.apply(document)) == {}


async def test_order_in_a_repository_comes_back(cluster: Cluster) -> None:
    """Documented limit: a request that the manifest contains is a difference as soon as it was carried out."""
    document = group(spec={"slaves": 1}, promote="0=2")
    cluster.apply(document)
    await cluster.reconcile(document)
    present = cluster.present(document)
    change = without_request(present["metadata"]["annotations"], "0=2")
    done = await patch_requests(cluster.api, present, change)

    assert done["metadata"]["annotations"].keys() == {TRACKING}
    assert cluster.apply(document, is_dry=True)["metadata"]["annotations"]["gantry.dev/promote"] == "0=2"


@pytest.mark.needs_gitops_judge
@pytest.mark.parametrize("kind", sorted(KIND))
async def test_new_resource_is_not_ready(cluster: Cluster, kind: str) -> None:
    """The API server gives a new resource the status of one that no operator has observed; it takes none from users."""
    document = group() if kind == GROUPS.name else resource(kind, "written")
    created = cluster.apply(document)

    assert created["status"]["observedGeneration"] == -1
    assert judge([created])[0][:2] == ("Progressing", "InProgress")
    done = await cluster.reconcile(document)
    edit = {"spec": {"suspend": True} if kind != GROUPS.name else {"shards": 2}}
    status, edited = cluster.server.ask("PATCH", cluster.path(document), edit, MERGE)
    assert (status, edited["status"]) == (200, done["status"])
    assert judge([edited])[0][:2] == ("Progressing", "InProgress")


# -- charts ------------------------------------------------------------------------------------------------------------


@pytest.mark.needs_helm
@pytest.mark.parametrize("chart", [OPERATOR, CHART_OF_GROUPS], ids=["operator", "group"])
def test_rendered_chart_has_no_drift(cluster: Cluster, chart: Path) -> None:
    """Argo CD renders charts without a cluster: two renderings are equal, and applying both changes nothing."""
    options = ("--skip-tests", "--namespace", "gantry-system" if chart == OPERATOR else "shop")
    first, second = (documents(chart, *options, release="orders") for _ in range(2))
    assert first == second and first

    for one in first:
        cluster.apply(one)
        stored, again = cluster.present(one), cluster.apply(one)
        assert drift(stored, again) == {}, one["kind"]
        assert version(again) == version(stored) or one.get("spec") == {}, one["kind"]
        assert version(cluster.apply(one, is_dry=True)) == version(again), one["kind"]


@pytest.mark.parametrize("chart", [OPERATOR, CHART_OF_GROUPS], ids=["operator", "group"])
def test_templates_use_nothing_that_changes(chart: Path) -> None:
    """No template asks the cluster, draws a random value, or takes the time; the only hooks are tests."""
    for path in sorted((chart / "templates").rglob("*.*")):
        text = path.read_text()
        for word in ("lookup ", "rand", "now ", "uuidv4", "genCA", "genSelfSigned", "genPrivateKey", "htpasswd"):
            assert not any(word in part.partition("}}")[0] for part in text.split("{{")[1:]), (path.name, word)
        assert "helm.sh/hook" not in text or path.parent.name == "tests", path.name
