"""Our image on real nodes: a name server and a broker with a buffer in huge pages, and clients in other pods.

No operator is involved: the manifests are minimal, and show what image and cluster can do.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_cluster import faults, pods
from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.pods import Namespace, container, pod_spec

pytestmark = [pytest.mark.slow, pytest.mark.needs_cluster, pytest.mark.needs_buildah]

NEVER_MS = 3_600_000
"""The commit interval of the buffer: messages that survive have been replayed."""

BROKER = (
    *("listenPort=10911", "storePathRootDir=/store", "brokerIP1=$(ADDRESS)", "mappedFileSizeCommitLog=2097152"),
    *("transientStorePoolEnable=true", "transientStorePoolSize=2"),
    *(f"commitIntervalCommitLog={NEVER_MS}", f"commitCommitLogThoroughInterval={NEVER_MS}"),
    "commitCommitLogLeastPages=100000",
    "maxMessageSize=65536",
)
IN_HUGE_PAGES = "transientStorePoolPath=/huge"
"""The setting that places the write buffer in huge pages."""

MESSAGES_COUNT = 40
RESTART_SECONDS_MAX = 60.0
"""The limit for a start of the broker."""


def gantry(*words: str, **fields: object) -> Object:
    """Return a container that runs `gantry` as the image does."""
    address = {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return container("main", "", command=["gantry", *words], env=[address], **fields)


def mount(name: str, path: str) -> Object:
    """Return a mount of a volume in a container."""
    return {"name": name, "mountPath": path}


def tcp_probe(port: int) -> Object:
    """Return a readiness probe by a TCP connection."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 1}


def group(cluster: Cluster, name: str, *options: str) -> Namespace:
    """Start a name server, a broker and a client in a namespace of their own."""
    namespace = Namespace(cluster, name).create()
    ports = [{"name": "main", "port": 9876}]
    service = {"metadata": {"name": "names"}, "spec": {"selector": {"app": "names"}, "ports": ports}}
    cluster.api.create(namespace.path("services"), service)
    names = gantry(
        *("nameserver", "--data", "/data"),
        volumeMounts=[mount("data", "/data")],
        readinessProbe=tcp_probe(9876),
    )
    namespace.create_pod("names", pod_spec(names, volumes=[{"name": "data", "emptyDir": {}}]))
    words = [word for option in (*BROKER, *options) for word in ("-o", option)]
    broker = gantry(
        *("broker", "-n", "names:9876", *words),
        volumeMounts=[mount("store", "/store"), mount("huge", "/huge")],
        resources={"limits": {"hugepages-2Mi": "8Mi", "memory": "256Mi", "cpu": "1"}},
        readinessProbe=tcp_probe(10911),
    )
    volumes = [{"name": "store", "emptyDir": {}}, {"name": "huge", "emptyDir": {"medium": "HugePages-2Mi"}}]
    namespace.create_pod("broker", pod_spec(broker, volumes=volumes))
    namespace.create_pod("client", pod_spec(container("main", pods.IDLE)))
    namespace.wait_ready("names", "broker", "client")
    return namespace


def client(namespace: Namespace, *words: str) -> str:
    """Run `gantry` in the client's pod."""
    place = ("exec", "client", f"--namespace={namespace.name}", "--")
    return namespace.cluster.kubectl(*place, "gantry", *words, "-n", "names:9876")


def produce_and_kill(namespace: Namespace) -> list[str]:
    """Send messages, kill the broker's container, wait for its restart; return the messages that can be read then."""
    wait_until("a route", lambda: "broker" in client(namespace, "status", "--json"), RESTART_SECONDS_MAX)
    client(namespace, "topic", "create", "orders")
    # The command exits with 0 only if every message was acknowledged.
    client(namespace, "produce", "orders", *(f"order {number}" for number in range(MESSAGES_COUNT)))

    faults.kill_container(namespace, "broker")
    wait_until("a broker that was started again", lambda: restarts(namespace) == 1, RESTART_SECONDS_MAX)
    namespace.wait_ready("broker")
    return sorted(client(namespace, "consume", "orders").splitlines())


def restarts(namespace: Namespace) -> int:
    """Return how often the broker's container was restarted."""
    pod = namespace.read_pod("broker")
    assert pod is not None
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def test_acknowledged_messages_are_replayed_from_huge_pages_after_kill(cluster: Cluster) -> None:
    """Messages that are not yet in any file are in the pod's huge pages, which survive the container: none is lost."""
    namespace = group(cluster, "durable", IN_HUGE_PAGES)

    assert produce_and_kill(namespace) == sorted(f"order {number}" for number in range(MESSAGES_COUNT))


def test_acknowledged_messages_are_lost_by_the_same_kill_without_huge_pages(cluster: Cluster) -> None:
    """The twin: a buffer in the process's own memory is lost with the process."""
    namespace = group(cluster, "fleeting")

    assert produce_and_kill(namespace) == []


def test_chart_is_installed_and_uninstalled(cluster: Cluster, tmp_path: Path) -> None:
    """The pinned helm works against this cluster, as its administrator."""
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 0.1.0\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: small}\ndata: {word: {{ .Values.word | quote }} }\n"
    )
    path = "/api/v1/namespaces/default/configmaps"

    cluster.helm("install", "small", chart, "--set", "word=hello", "--wait")
    assert cluster.api.get(f"{path}/small")["data"] == {"word": "hello"}

    cluster.helm("uninstall", "small", "--wait")
    assert "small" not in {found["metadata"]["name"] for found in cluster.api.items(path)}
