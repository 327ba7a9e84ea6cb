"""`gantry explain --capacity`, for a manifest and against an API server over HTTP that has only lists of objects.

The server answers the requests of the real client: lists in pages, and refusals for kinds that a user may not read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, final

import msgspec
import pytest
import yaml
from capacity_scene import ZONE, node, pod, storage_class
from click.testing import CliRunner, Result
from kubectl_scene import write_kubeconfig
from objects_scene import group, rendered

from gantry_cli.kube.capacity_documents import CapacityDocument
from gantry_cli.kube.plugin import cli as plugin
from gantry_cli.main import cli as gantry
from gantry_spec.capacity.needs import workloads_of

Object = dict[str, Any]

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
CLAIMS: Final = "/api/v1/namespaces/shop/persistentvolumeclaims"
VOLUMES: Final = "/api/v1/persistentvolumes"
CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
CAPACITIES: Final = "/apis/storage.k8s.io/v1/csistoragecapacities"
GROUPS: Final = "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups"
PAGES: Object = {"writeBuffer": {"medium": "HugePages-2Mi", "buffers": 2, "segmentSize": "254Mi"}, "slaves": 2}


@final
class Listing:
    """An API server that lists objects. Owned by one test."""

    def __init__(self, folder: Path) -> None:
        self.lists: dict[str, list[Object]] = {}
        """The objects by the path of their list."""

        self.forbidden: set[str] = set()
        self.requests: list[str] = []
        listing = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Suppress the log of requests."""

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                listing.requests.append(path)
                status, document = listing.answer(path, query)
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        write_kubeconfig(self.kubeconfig, f"http://127.0.0.1:{self._server.server_address[1]}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def answer(self, path: str, query: str) -> tuple[int, Object]:
        """Return the answer to a list, two objects in a page, or to a get of one object."""
        if path in self.forbidden:
            text = f'{path} is forbidden: User "jane" cannot list resource "{path.rpartition("/")[2]}"'
            return 403, {"kind": "Status", "message": text}
        if path in self.lists:
            start = int(next((one[9:] for one in query.split("&") if one.startswith("continue=")), "0"))
            found = self.lists[path]
            rest = str(start + 2) if start + 2 < len(found) else ""
            return 200, {"items": found[start : start + 2], "metadata": {"continue": rest}}
        home, _, name = path.rpartition("/")
        one = next((one for one in self.lists.get(home, []) if one["metadata"]["name"] == name), None)
        if one is None:
            return 404, {"kind": "Status", "message": "not found", "details": {"name": name}}
        return 200, one

    def kubectl(self, *words: str) -> Result:
        return CliRunner().invoke(plugin, ["explain", "--kubeconfig", str(self.kubeconfig), "--capacity", *words])

    def document(self, *words: str) -> CapacityDocument:
        """Run the command, and return its document."""
        result = self.kubectl(*words, "-O", "json")
        assert result.stdout, f"{result.output} {result.exc_info}"
        found = msgspec.json.decode(result.stdout, type=CapacityDocument, strict=True)
        assert result.exit_code == (1 if found.verdict == "does not fit" else 0)
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Listing]:
    """A cluster with three nodes, no pods, and a default storage class."""
    made = Listing(tmp_path)
    made.lists = {
        NODES: [node(name, pages="1Gi", zone=name[-1]) for name in ("n1", "n2", "n3")],
        PODS: [], CLAIMS: [], VOLUMES: [], CAPACITIES: [], GROUPS: [],
        CLASSES: [storage_class("fast", is_default=True), storage_class("slow", allowVolumeExpansion=False)],
    }  # fmt: skip
    yield made
    made.close()


def add_group(cluster: Listing, **spec: Any) -> None:
    metadata = {"name": "orders", "namespace": "shop", "uid": "u-1", "generation": 1}
    document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": metadata, "spec": spec}
    cluster.lists[GROUPS].append(document)


def manifest(folder: Path, name: str = "orders", **spec: Any) -> str:
    """Write a manifest, and return its path."""
    document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": name}, "spec": spec}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def without_cluster(*words: str) -> Result:
    return CliRunner().invoke(gantry, ["explain", "--capacity", *words])


# -- without a cluster -------------------------------------------------------------------------------------------------


def test_needs_of_a_manifest_are_shown_without_a_cluster(tmp_path: Path) -> None:
    """The figures are those of the rendered pods; the larger groups are compared with this one."""
    result = without_cluster("-f", manifest(tmp_path, **PAGES), "-O", "json")
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(result.stdout, type=CapacityDocument, strict=True)
    brokers = [one for one in workloads_of(rendered(group(**PAGES))) if one.component == "broker"]

    needs = {one.component: one for one in found.needs}
    assert (needs["broker"].pods, needs["broker"].requests) == (
        3, {"cpu": "300m", "memory": "1296Mi", "hugepages-2Mi": "512Mi"}
    )  # fmt: skip
    assert brokers[0].requests["memory"] == 1296 << 20
    assert needs["broker"].limits == {"memory": "1296Mi", "hugepages-2Mi": "512Mi"}
    assert (needs["broker"].volume_size, needs["broker"].storage_class) == ("20Gi", "")
    assert found.totals.requests == {"cpu": "1", "memory": "4144Mi", "hugepages-2Mi": "1536Mi"}
    steps = {one.change: one for one in found.steps}
    assert (steps["one more shard"].pods, steps["one more shard"].volume_size) == (3, "60Gi")
    assert steps["one more slave in each shard"].requests == needs["broker"].requests
    assert (found.verdict, found.nodes, found.context) == ("unknown", [], "")


def test_text_of_a_manifest_has_a_row_for_each_kind_of_pod(tmp_path: Path) -> None:
    """A roll of proxies and the backups of a schedule are mentioned where there are some."""
    result = without_cluster("-f", manifest(tmp_path, proxy={"replicas": 2}, backup={"schedule": "0 3 * * *"}))

    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.split()}
    assert rows["broker"][1:3] == ["2", "300m"] and rows["total"][1] == "6"
    assert "a roll of the proxies needs cpu 100m, memory" in result.stdout
    assert "7 backups of the schedule are kept" in result.stdout


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"resources": {"limits": {"memory": "64Mi"}}}, "too little for a broker"),
        ({"resources": {"requests": {"cpu": "two"}}}, "cpu: 'two' is not a quantity"),
        ({"slavez": 2}, "did you mean slaves?"),
    ],
    ids=["impossible", "no quantity", "unknown field"],
)
def test_manifest_that_cannot_work_is_refused(tmp_path: Path, spec: Object, text: str) -> None:
    """The error names the field, as the operator does in the status."""
    result = without_cluster("-f", manifest(tmp_path, **spec))

    assert result.exit_code == 1 and text in result.output


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    """Each error names the option, and what to do."""
    path = manifest(tmp_path)

    assert "name a manifest with -f FILE" in without_cluster().output
    assert "--data has no effect with --capacity" in without_cluster("-f", path, "--data", "x").output
    alone = CliRunner().invoke(gantry, ["explain", "-f", path])
    assert alone.exit_code == 2 and "--file has no effect without --capacity" in alone.output
    assert "--no-exec has no effect with --capacity" in without_cluster("bg/orders", "--no-exec").output
    assert without_cluster("-f", "missing.yaml").exit_code == 1


# -- with a cluster ----------------------------------------------------------------------------------------------------


def test_group_that_fits_has_a_node_for_each_pod(cluster: Listing) -> None:
    """The document has each node with what is free, and each pod with its node."""
    add_group(cluster, **PAGES)
    cluster.lists[PODS] = [pod("spark", "n1", namespace="bank", requests={"cpu": "1", "memory": "2Gi"})]

    found = cluster.document("orders")

    assert (found.verdict, found.reasons, found.left_out) == ("fits", [], [])
    assert (found.namespace, found.group, found.context) == ("shop", "orders", "admin")
    assert {one.node for one in found.pods if one.component == "broker"} == {"n1", "n2", "n3"}
    first = found.nodes[0]
    assert first.requested == {"cpu": "1", "memory": "2Gi", "pods": "1"}
    assert first.free is not None and (first.free["cpu"], first.free["memory"], first.free["pods"]) == (
        "3", "14Gi", "109"
    )  # fmt: skip
    assert (first.brokers, first.more_brokers, first.limit) == (0, 1, "one broker of a shard")
    [storage] = found.storage
    assert (storage.storage_class, storage.is_default, storage.allows_expansion) == ("fast", True, True)


def test_group_that_does_not_fit_has_reasons_and_exit_code_1(cluster: Listing) -> None:
    """The text has the room of each node, the reason, and that it is an estimate."""
    add_group(cluster, **PAGES)
    cluster.lists[NODES][2]["status"]["allocatable"]["hugepages-2Mi"] = "256Mi"

    result = cluster.kubectl("orders")

    assert result.exit_code == 1
    assert "Group shop/orders does not fit:" in result.stdout
    assert (
        "the 3 brokers of a shard need 3 nodes, each with cpu 300m, memory 1.27Gi, hugepages-2Mi 512Mi:"
        " 2 of 3 nodes (n1, n2) can take one" in result.stdout
    )
    assert "the nearest node, n3, lacks hugepages-2Mi 256Mi" in result.stdout
    assert "This is an estimate; the scheduler decides." in result.stdout
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith((" n3", "n3")))
    assert row[-3:] == ["0", "0", "hugepages-2Mi"]
    assert "one more shard needs 3 pods" in result.stdout and "more: does not fit" in result.stdout


def test_larger_group_is_judged_as_well(cluster: Listing) -> None:
    """A group that fits may not fit with one more slave."""
    add_group(cluster, **PAGES)

    steps = {one.change: one.verdict for one in cluster.document("orders").steps}

    assert steps == {"one more shard": "fits", "one more slave in each shard": "does not fit"}


def test_manifest_is_compared_with_the_cluster_before_it_is_applied(cluster: Listing, tmp_path: Path) -> None:
    """The group need not exist; the file's namespace counts, and contradictions are refused."""
    path = manifest(tmp_path, slaves=3, storage={"storageClassName": "missing"})

    found = cluster.document("-f", path)
    other, same = cluster.kubectl("bills", "-f", path), cluster.kubectl("orders", "-f", path)

    assert found.reasons == [
        "storage class missing not found: its volumes must be created by hand", *found.reasons[1:]
    ] and "the 4 brokers of a shard need 4 nodes" in found.reasons[1]  # fmt: skip
    assert other.exit_code == 2 and "has the group orders, not bills" in other.output
    assert same.exit_code == 1
    assert GROUPS not in cluster.requests
    with_place = yaml.safe_load(Path(path).read_text())
    with_place["metadata"]["namespace"] = "bank"
    Path(path).write_text(yaml.safe_dump(with_place))
    assert "has the namespace bank, not shop" in cluster.kubectl("-f", path, "-n", "shop").output
    cluster.lists["/api/v1/namespaces/bank/persistentvolumeclaims"] = []
    assert cluster.document("-f", path).namespace == "bank"


def test_what_may_not_be_read_makes_the_verdict_unknown(cluster: Listing) -> None:
    """Without all pods, only what no empty node could take is certain."""
    add_group(cluster, **PAGES)
    cluster.forbidden = {PODS, CLASSES}
    cluster.lists["/api/v1/namespaces/shop/pods"] = []

    found = cluster.document("orders")

    assert (found.verdict, found.storage) == ("unknown", [])
    assert found.left_out == [
        "you may not list pods in all namespaces", "you may not list storageclasses in all namespaces"
    ]  # fmt: skip
    assert found.nodes[0].free is None and found.nodes[0].allocatable["cpu"] == "4"
    for one in cluster.lists[NODES]:
        one["status"]["allocatable"]["hugepages-2Mi"] = "0"
    assert cluster.document("orders").verdict == "does not fit"
    cluster.forbidden = {NODES}
    nothing = cluster.document("orders")
    assert (nothing.verdict, nothing.nodes) == ("unknown", [])


def test_volumes_bind_pods_and_may_not_grow(cluster: Listing, tmp_path: Path) -> None:
    """A local volume keeps its pod, and a class without expansion refuses a larger size."""
    claim = {"metadata": {"name": "data-orders-0-master-0", "namespace": "shop"},
             "spec": {"volumeName": "pv-1", "storageClassName": "slow",
                      "resources": {"requests": {"storage": "20Gi"}}}}  # fmt: skip
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}
    cluster.lists[CLAIMS] = [claim]
    cluster.lists[VOLUMES] = [
        {"metadata": {"name": "pv-1"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}
    ]

    found = cluster.document("-f", manifest(tmp_path))
    larger = cluster.document("-f", manifest(tmp_path, storage={"size": "30Gi"}))

    assert {one.pod: one.node for one in found.pods}["orders-0-master-0"] == "n2"
    assert found.verdict == "fits"
    assert larger.reasons == ["volumes of 20Gi cannot grow to 30Gi: storage class slow does not allow expansion"]


def test_published_storage_capacity_is_shown_and_honoured(cluster: Listing, tmp_path: Path) -> None:
    """A driver that has room in one zone only makes the slave of the other zones impossible."""
    cluster.lists[CAPACITIES] = [
        {"metadata": {"name": f"c-{zone}"}, "storageClassName": "fast", "capacity": size,
         "nodeTopology": {"matchLabels": {ZONE: zone}}}
        for zone, size in (("1", "100Gi"), ("2", "1Gi"), ("3", "0"))
    ]  # fmt: skip

    result = cluster.kubectl("-f", manifest(tmp_path))

    assert result.exit_code == 1
    assert "topology.kubernetes.io/zone=1: 100Gi left for volumes" in result.stdout
    assert "storage class fast has 1Gi there for a volume, 20Gi are needed" in result.stdout


def test_cluster_without_a_default_class_needs_a_named_one(cluster: Listing, tmp_path: Path) -> None:
    """Otherwise its claims would stay pending."""
    cluster.lists[CLASSES] = [storage_class("slow")]

    found = cluster.document("-f", manifest(tmp_path))

    assert found.reasons == ["the cluster has no default storage class, and the manifest names none"]
    assert cluster.document("-f", manifest(tmp_path, storage={"storageClassName": "slow"})).verdict == "fits"


def test_gantry_has_the_same_command(cluster: Listing, tmp_path: Path) -> None:
    """`gantry explain bg/GROUP --capacity` shows the same text."""
    add_group(cluster)
    words = ["explain", "bg/orders", "--capacity", "--kubeconfig", str(cluster.kubeconfig)]

    other = CliRunner().invoke(gantry, words)

    assert other.exit_code == 0, other.output
    assert other.stdout == cluster.kubectl("orders").stdout
    assert "Group shop/orders fits. This is an estimate" in other.stdout


def runtime_class(name: str, memory: str = "256Mi", **scheduling: Any) -> Object:
    """Return a RuntimeClass with an overhead for each pod."""
    return {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name,
        "overhead": {"podFixed": {"cpu": "100m", "memory": memory}}, "scheduling": scheduling,
    }  # fmt: skip


def test_overhead_of_a_runtime_class_is_added_to_planned_pods(cluster: Listing, tmp_path: Path) -> None:
    """Its node selector and tolerations apply, too: so the API server completes the pods when it creates them."""
    plain = cluster.document("-f", manifest(tmp_path))
    assert RUNTIME_CLASSES not in cluster.requests
    tainted = {"taints": [{"key": "sandbox", "value": "yes", "effect": "NoSchedule"}]}
    for one in cluster.lists[NODES][:2]:
        one["metadata"]["labels"]["runtime"] = "kata"
        one["spec"] |= tainted
    tolerations = [{"key": "sandbox", "operator": "Exists"}]
    cluster.lists[RUNTIME_CLASSES] = [
        runtime_class("kata", nodeSelector={"runtime": "kata"}, tolerations=tolerations), runtime_class("huge", "64Gi")
    ]  # fmt: skip

    found = cluster.document("-f", manifest(tmp_path, template={"runtimeClassName": "kata"}))
    huge = cluster.document("-f", manifest(tmp_path, template={"runtimeClassName": "huge"}))

    needs, before = ({one.component: one.requests for one in each.needs} for each in (found, plain))
    assert (before["broker"], needs["broker"]) == (
        {"cpu": "300m", "memory": "1296Mi"}, {"cpu": "400m", "memory": "1552Mi"}
    )  # fmt: skip
    assert needs["nameserver"] == before["nameserver"]
    assert {one.node for one in found.pods if one.component == "broker"} == {"n1", "n2"}
    assert (plain.verdict, found.verdict, huge.verdict) == ("fits", "fits", "does not fit")


def test_runtime_class_must_exist(cluster: Listing, tmp_path: Path) -> None:
    """The API server refuses pods of a missing one, so none of them would be created."""
    cluster.lists[RUNTIME_CLASSES] = []

    found = cluster.document("-f", manifest(tmp_path, template={"runtimeClassName": "kata"}))

    assert found.reasons == ["runtime class kata not found: the API server refuses its pods; create it"]


def test_overhead_of_running_pods_counts_where_runtime_classes_cannot_be_read(cluster: Listing, tmp_path: Path) -> None:
    """A running broker stays where it is; without any pod of the class the verdict is unknown."""
    cluster.forbidden = {RUNTIME_CLASSES}
    path = manifest(tmp_path, slaves=0, replication={"mode": "Async"}, template={"runtimeClassName": "kata"})
    assert (cluster.document("-f", path).verdict, cluster.document("-f", path).left_out) == (
        "unknown", ["you may not list runtimeclasses in all namespaces"]
    )  # fmt: skip
    [broker] = [one for one in workloads_of(rendered(group(slaves=0, replication={"mode": "Async"})))
                if one.component == "broker" and one.pods]  # fmt: skip
    present: Object = {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}, "metadata": {
        "name": broker.pods[0], "namespace": "shop", "labels": dict(broker.labels)}}  # fmt: skip
    sandbox = {"runtimeClassName": "kata", "overhead": {"memory": "256Mi"}, "nodeName": "n3"}
    cluster.lists[PODS] = [present | {"spec": {**broker.spec, **sandbox}}]

    found = cluster.document("-f", path)

    [one] = [one for one in found.pods if one.component == "broker"]
    assert (found.verdict, one.node, one.is_running) == ("fits", "n3", True)


def test_group_that_does_not_exist_is_not_found(cluster: Listing) -> None:
    """The exit code is that of other commands, and no reason is made up."""
    result = cluster.kubectl("bills")

    assert result.exit_code == 3 and "group bills not found in namespace shop" in result.output
