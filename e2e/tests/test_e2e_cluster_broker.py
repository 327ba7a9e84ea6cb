"""Our image on real nodes: a name server and a broker with a buffer in huge pages, and clients in other pods.

There is no operator in this: the manifests are as small as they can be, and say what image and cluster are able to.
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
"""The buffer is not committed by itself for so long: what survives has been replayed."""

BROKER = (
    *("listenPort=10911", "storePathRootDir=/store", "brokerIP1=$(ADDRESS)", "mappedFileSizeCommitLog=2097152"),
    *("transientStorePoolEnable=true", "transientStorePoolSize=2"),
    *(f"commitIntervalCommitLog={NEVER_MS}", f"commitCommitLogThoroughInterval={NEVER_MS}"),
    "commitCommitLogLeastPages=100000",
    "maxMessageSize=65536",
)
IN_HUGE_PAGES = "transientStorePoolPath=/huge"
MESSAGES = 40
RESTART_SECONDS_MAX = 60.0


def gantry(*words: str, **fields: object) -> Object:
    """A container that runs `gantry` as the image does."""
    address = {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return container("main", "", command=["gantry", *words], env=[address], **fields)


def mount(name: str, path: str) -> Object:
    """A volume in a container."""
    return {"name": name, "mountPath": path}


def answers(port: int) -> Object:
    """Ready is who can be connected to."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 1}


def group(cluster: Cluster, name: str, *options: str) -> Namespace:
    """A name server, a broker and a client in a namespace of their own."""
    space = Namespace(cluster, name).make()
    ports = [{"name": "main", "port": 9876}]
    service = {"metadata": {"name": "names"}, "spec": {"selector": {"app": "names"}, "ports": ports}}
    cluster.api.create(space.path("services"), service)
    names = gantry(
        *("nameserver", "--data", "/data"),
        volumeMounts=[mount("data", "/data")],
        readinessProbe=answers(9876),
    )
    space.pod("names", pod_spec(names, volumes=[{"name": "data", "emptyDir": {}}]))
    words = [word for option in (*BROKER, *options) for word in ("-o", option)]
    broker = gantry(
        *("broker", "-n", "names:9876", *words),
        volumeMounts=[mount("store", "/store"), mount("huge", "/huge")],
        resources={"limits": {"hugepages-2Mi": "8Mi", "memory": "256Mi", "cpu": "1"}},
        readinessProbe=answers(10911),
    )
    volumes = [{"name": "store", "emptyDir": {}}, {"name": "huge", "emptyDir": {"medium": "HugePages-2Mi"}}]
    space.pod("broker", pod_spec(broker, volumes=volumes))
    space.pod("client", pod_spec(container("main", pods.IDLE)))
    space.wait_ready("names", "broker", "client")
    return space


def client(space: Namespace, *words: str) -> str:
    """Run `gantry` in the client's pod."""
    place = ("exec", "client", f"--namespace={space.name}", "--")
    return space.cluster.kubectl(*place, "gantry", *words, "-n", "names:9876")


def produce_and_kill(space: Namespace) -> list[str]:
    """Send messages, kill the broker's container, wait for the next; what there is to read then."""
    wait_until("a route", lambda: "broker" in client(space, "status", "--json"), RESTART_SECONDS_MAX)
    client(space, "topic", "create", "orders")
    # Ends with 0 only when every message was acknowledged.
    client(space, "produce", "orders", *(f"order {number}" for number in range(MESSAGES)))

    faults.kill_container(space, "broker")
    wait_until("a broker that was started again", lambda: restarts(space) == 1, RESTART_SECONDS_MAX)
    space.wait_ready("broker")
    return sorted(client(space, "consume", "orders").splitlines())


def restarts(space: Namespace) -> int:
    """How often the broker's container was started again."""
    pod = space.read_pod("broker")
    assert pod is not None
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def test_what_was_acknowledged_is_replayed_from_huge_pages_after_kill_9(cluster: Cluster) -> None:
    """Messages that no file has yet are in the pod's huge pages, which outlive the container: none is lost."""
    space = group(cluster, "durable", IN_HUGE_PAGES)

    assert produce_and_kill(space) == sorted(f"order {number}" for number in range(MESSAGES))


def test_without_the_huge_pages_the_same_kill_loses_them(cluster: Cluster) -> None:
    """The twin: a buffer in the process's own memory dies with it."""
    space = group(cluster, "fleeting")

    assert produce_and_kill(space) == []


def test_a_chart_is_installed_and_taken_away(cluster: Cluster, tmp_path: Path) -> None:
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
