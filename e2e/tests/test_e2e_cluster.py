"""The cluster of e2e/cluster is a real one: the features that the operator needs work there as on other clusters.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import re
import socket

import pytest
from gantry_cluster import pods
from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused, CommandFailed
from gantry_cluster.pods import Namespace, container, pod_spec
from gantry_cluster.programs import kubernetes_version

pytestmark = [pytest.mark.slow, pytest.mark.needs_cluster, pytest.mark.needs_buildah]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFLICT, UNPROCESSABLE, TOO_MANY_REQUESTS, FORBIDDEN = 409, 422, 429, 403
SERVE = """
import os, socket
server = socket.create_server(("", 8080))
while True:
    client, _ = server.accept()
    client.sendall(os.environ["HOSTNAME"].encode())
    client.close()
"""
ASK = "import socket; print(socket.create_connection(({host!r}, {port}), 3).recv(99).decode())"
FILL = """
import mmap, os
file = os.open("/huge/file", os.O_CREAT | os.O_RDWR)
os.posix_fallocate(file, 0, 4 << 20)
view = mmap.mmap(file, 4 << 20)
view[:5] = b"hello"
print(os.getuid(), view[:5].decode(), os.statvfs("/huge").f_bsize)
"""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Namespace:
    """A namespace that admits only restricted pods."""
    return Namespace(cluster, "life").create()


@pytest.fixture(scope="module")
def asker(namespace: Namespace) -> str:
    """A pod that only sends requests to others."""
    namespace.create_pod("asker", pod_spec(container("main", pods.IDLE)))
    namespace.wait_ready("asker")
    return "asker"


@pytest.fixture(scope="module")
def served(namespace: Namespace) -> Namespace:
    """A StatefulSet of two pods with all parts of a broker: claims, huge pages, memory, a native sidecar, a Service."""
    sidecar = container("sidecar", pods.IDLE, restartPolicy="Always", volumeMounts=[mount("shared", "/shared")])
    volumes = [
        {"name": "huge", "emptyDir": {"medium": "HugePages-2Mi"}},
        {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
    ]
    mounts = [mount("store", "/store"), mount("huge", "/huge"), mount("shared", "/shared")]
    amounts = {"hugepages-2Mi": "8Mi", "memory": "128Mi", "cpu": "50m"}
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    main = container("main", SERVE, volumeMounts=mounts, resources={"limits": amounts}, readinessProbe=probe)
    claim: Object = {
        "metadata": {"name": "store"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    labels = {"app": "web"}
    ports = [{"name": "main", "port": 8080}]
    for name, kind in (("web", {"clusterIP": "None"}), ("web-any", {}), ("web-out", {"type": "NodePort"})):
        body = {"metadata": {"name": name}, "spec": {"selector": labels, "ports": ports, **kind}}
        namespace.cluster.api.create(namespace.path("services"), body)
    namespace.cluster.api.create(
        namespace.path("statefulsets", "apis/apps/v1"),
        {
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "serviceName": "web",
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": pod_spec(main, initContainers=[sidecar], volumes=volumes),
                },
                "volumeClaimTemplates": [claim],
            },
        },
    )
    namespace.wait_ready("web-0", "web-1")
    return namespace


def mount(name: str, path: str) -> Object:
    """Return a mount of a volume in a container."""
    return {"name": name, "mountPath": path}


def definition(kind: str, rules: list[Object]) -> Object:
    """Return a custom resource definition whose `spec.pages` has some rules."""
    spec: Object = {"type": "object", "properties": {"pages": {"type": "integer"}}, "x-kubernetes-validations": rules}
    schema: Object = {"type": "object", "properties": {"spec": spec}}
    version: Object = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.test.gantry.dev"},
        "spec": {
            "group": "test.gantry.dev",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


def define(cluster: Cluster, kind: str, rules: list[Object]) -> str:
    """Create a custom resource definition, wait until it is served, and return the path of its objects."""
    path = f"/apis/test.gantry.dev/v1/namespaces/default/{kind.lower()}s"
    cluster.api.create(DEFINITIONS, definition(kind, rules))

    def is_served() -> bool:
        try:
            return cluster.api.items(path) == []
        except ApiRefused:
            return False

    wait_until(f"{kind} is served", is_served, 30)
    return path


def pages(kind: str, number: int) -> Object:
    """Return an object of such a resource."""
    return {"apiVersion": "test.gantry.dev/v1", "kind": kind, "metadata": {"name": "one"}, "spec": {"pages": number}}


def test_every_node_has_the_pinned_version_and_its_share_of_huge_pages(cluster: Cluster) -> None:
    """Three nodes of the version in go.mod, each with 64 MiB of huge pages."""
    statuses = [node["status"] for node in cluster.api.items("/api/v1/nodes")]

    assert [status["nodeInfo"]["kubeletVersion"] for status in statuses] == [kubernetes_version()] * 3
    assert [status["allocatable"]["hugepages-2Mi"] for status in statuses] == ["64Mi"] * 3
    assert cluster.api.get("/version")["gitVersion"] == kubernetes_version()


def test_rule_in_definition_is_enforced(cluster: Cluster) -> None:
    """A CEL rule refuses what it forbids, at creation and at a change, with its own message; it admits other
    objects."""
    even = {"rule": "self.pages % 2 == 0", "message": "pages come in pairs"}
    fixed = {"rule": "self.pages == oldSelf.pages", "message": "pages stay"}
    path = define(cluster, "Ruled", [even, fixed])

    with pytest.raises(ApiRefused, match="pages come in pairs") as refusal:
        cluster.api.create(path, pages("Ruled", 3))
    assert refusal.value.status == UNPROCESSABLE
    assert cluster.api.items(path) == []

    cluster.api.create(path, pages("Ruled", 4))
    with pytest.raises(ApiRefused, match="pages stay"):
        cluster.api.merge(f"{path}/one", {"spec": {"pages": 6}})


def test_same_objects_are_admitted_without_the_rule(cluster: Cluster) -> None:
    """The twin: the rule was the only reason for the refusal."""
    path = define(cluster, "Free", [])

    cluster.api.create(path, pages("Free", 3))
    cluster.api.merge(f"{path}/one", {"spec": {"pages": 6}})

    assert cluster.api.get(f"{path}/one")["spec"] == {"pages": 6}


def test_one_of_two_writers_of_a_lease_wins(cluster: Cluster) -> None:
    """A Lease is a compare-and-swap: a write to a version that is not the newest is refused."""
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = cluster.api.create(path, {"metadata": {"name": "shard-0"}, "spec": {"holderIdentity": "initial"}})
    first, second = ({**lease, "spec": {"holderIdentity": holder}} for holder in ("first", "second"))

    cluster.api.replace(f"{path}/shard-0", first)
    with pytest.raises(ApiRefused) as refusal:
        cluster.api.replace(f"{path}/shard-0", second)

    assert refusal.value.status == CONFLICT
    assert cluster.api.get(f"{path}/shard-0")["spec"]["holderIdentity"] == "first"


def test_a_restricted_namespace_refuses_a_root_pod(namespace: Namespace) -> None:
    """The standard is enforced where the namespace has its label; all other pods of these tests comply with it."""
    with pytest.raises(ApiRefused, match="restricted") as refusal:
        namespace.create_pod("root", pod_spec(container("main", pods.IDLE), securityContext={"runAsUser": 0}))

    assert refusal.value.status == FORBIDDEN


def test_pod_maps_huge_pages_within_its_limit_only(served: Namespace) -> None:
    """An ordinary user with fsGroup maps huge pages within the limit of the container, and none beyond it."""
    assert served.run_python("web-0", FILL) == f"{pods.USER} hello {2 << 20}"
    with pytest.raises(CommandFailed, match="No space left on device"):
        served.run_python("web-0", FILL.replace("4 << 20", "10 << 20"))


def test_sidecar_starts_before_the_program_and_shares_memory_with_it(served: Namespace) -> None:
    """A native sidecar is an init container that keeps running: it starts before the program, and runs beside it."""
    pod = served.read_pod("web-0")
    assert pod is not None
    [sidecar] = pod["status"]["initContainerStatuses"]
    [main] = pod["status"]["containerStatuses"]

    assert sidecar["ready"] and sidecar["started"]
    assert sidecar["state"]["running"]["startedAt"] <= main["state"]["running"]["startedAt"]
    served.run_python("web-0", "open('/shared/page', 'w').write('a word')")
    assert served.run_python("web-0", "print(open('/shared/page').read())", "sidecar") == "a word"


def test_claim_keeps_its_data_when_its_pod_is_replaced(served: Namespace) -> None:
    """Data on the disk of web-1 is available to the next web-1, on the same node."""
    served.run_python("web-1", "open('/store/log', 'w').write('kept')")
    before = served.read_pod("web-1")
    assert before is not None

    served.cluster.api.delete(f"{served.path('pods')}/web-1")
    wait_until("another web-1", lambda: uid(served, "web-1") not in (None, before["metadata"]["uid"]), 60)
    served.wait_ready("web-1")

    after = served.read_pod("web-1")
    assert after is not None
    assert after["spec"]["nodeName"] == before["spec"]["nodeName"]
    assert served.run_python("web-1", "print(open('/store/log').read())") == "kept"


def uid(namespace: Namespace, name: str) -> str | None:
    """Return the uid of the pod that has the name now."""
    pod = namespace.read_pod(name)
    return None if pod is None else str(pod["metadata"]["uid"])


def test_pod_is_resolved_by_its_name_and_by_its_service(served: Namespace, asker: str) -> None:
    """DNS resolves a pod of a headless Service, and a Service whose connections reach each of its pods."""
    own = ASK.format(host="web-1.web.life.svc.cluster.local", port=8080)
    any_of_them = ASK.format(host="web-any", port=8080)

    assert served.run_python(asker, own) == "web-1"
    assert {served.run_python(asker, any_of_them) for _ in range(12)} == {"web-0", "web-1"}


def test_client_outside_reaches_node_ports_but_no_pod_addresses(served: Namespace) -> None:
    """A client outside reaches a pod through a port of any node, and never by the pod's own address."""
    [port] = [
        entry["nodePort"] for entry in served.cluster.api.get(f"{served.path('services')}/web-out")["spec"]["ports"]
    ]
    pod = served.read_pod("web-0")
    assert pod is not None

    for number in (1, 2, 3):
        with socket.create_connection((served.cluster.plan.network.address(number), port), 5) as client:
            assert re.fullmatch("web-[01]", client.recv(99).decode())
    with pytest.raises(OSError, match="No route to host"):
        socket.create_connection((pod["status"]["podIP"], 8080), 2)


def test_eviction_that_a_budget_forbids_is_refused(served: Namespace) -> None:
    """A budget without allowed disruptions protects the pod; without the budget the same eviction succeeds."""
    budgets = served.path("poddisruptionbudgets", "apis/policy/v1")
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
    served.cluster.api.create(budgets, {"metadata": {"name": "web"}, "spec": spec})
    eviction: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-0"}}
    path = f"{served.path('pods')}/web-0/eviction"
    before = uid(served, "web-0")

    with pytest.raises(ApiRefused, match="disruption budget") as refusal:
        served.cluster.api.create(path, eviction)
    assert refusal.value.status == TOO_MANY_REQUESTS
    assert uid(served, "web-0") == before

    served.cluster.api.delete(f"{budgets}/web")
    served.cluster.api.create(path, eviction)
    wait_until("another web-0", lambda: uid(served, "web-0") not in (None, before), 60)
    served.wait_ready("web-0")


def test_deleted_claim_removes_its_disk(served: Namespace) -> None:
    """Deleting a claim deletes its volume and the folder of the volume."""
    claims = served.path("persistentvolumeclaims")
    body: Object = {
        "metadata": {"name": "brief"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    served.cluster.api.create(claims, body)
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": "brief"}}
    served.create_pod(
        "brief", pod_spec(container("main", pods.IDLE, volumeMounts=[mount("store", "/s")]), volumes=[volume])
    )
    served.wait_ready("brief")
    name = served.cluster.api.get(f"{claims}/brief")["spec"]["volumeName"]
    [folder] = served.cluster.folder.root.glob(f"disks/*/{name}")

    served.cluster.api.delete(f"{served.path('pods')}/brief")
    served.cluster.api.delete(f"{claims}/brief")

    wait_until("the end of the folder", lambda: not folder.exists(), 60)
