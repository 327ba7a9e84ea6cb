"""Faults of nodes, of their network and of the API server affect the cluster, and can be removed again."""

from __future__ import annotations

import http.client
import socket
import sys
import time

import pytest
from gantry_cluster import faults, lifecycle, network, pods
from gantry_cluster.cluster import Cluster, ready_nodes
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.pods import Namespace, container, pod_spec

pytestmark = [pytest.mark.slow, pytest.mark.needs_cluster, pytest.mark.needs_buildah]

READY_SECONDS_MAX = 90.0
"""The limit for nodes to become ready or not ready."""

REACH = "import socket; socket.create_connection(({host!r}, 8080), {seconds}).recv(9)"
SERVE = """
import socket
server = socket.create_server(("", 8080))
while True:
    client, _ = server.accept()
    client.sendall(b"here")
    client.close()
"""


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Namespace:
    """A server on node1 and one on node2; each can also send requests."""
    namespace = Namespace(cluster, "faults").create()
    for number in (1, 2):
        namespace.create_pod(f"on-{number}", pod_spec(container("main", SERVE), nodeName=f"node{number}"))
    namespace.wait_ready("on-1", "on-2")
    return namespace


def reaches(namespace: Namespace, source: str, target: str, seconds: float = 3) -> bool:
    """Return whether one pod gets an answer from another, by its own address."""
    pod = namespace.read_pod(target)
    assert pod is not None
    try:
        namespace.run_python(source, REACH.format(host=pod["status"]["podIP"], seconds=seconds))
    except CommandFailed as error:
        assert "TimeoutError" in str(error) or "No route to host" in str(error), error
        return False
    return True


def wait_ready_nodes(cluster: Cluster, *names: str) -> float:
    """Wait until exactly these nodes are ready; return how many seconds it took."""
    started = time.monotonic()
    wait_until(f"ready nodes {names}", lambda: ready_nodes(cluster.api) == set(names), READY_SECONDS_MAX)
    return time.monotonic() - started


def test_node_with_cut_network_is_not_ready(cluster: Cluster, pair: Namespace) -> None:
    """An unreachable node becomes not ready; its pods run on, and it becomes ready again after the cut."""
    with faults.cut_uplink(cluster, "node2"):
        assert not reaches(pair, "on-1", "on-2")
        print(f"cut -> NotReady: {wait_ready_nodes(cluster, 'node1', 'node3'):.1f} s")
        pod = pair.read_pod("on-2")
        assert pod is not None

    print(f"joined -> Ready: {wait_ready_nodes(cluster, 'node1', 'node2', 'node3'):.1f} s")
    wait_until("the way to on-2", lambda: reaches(pair, "on-1", "on-2"), READY_SECONDS_MAX)
    after = pair.read_pod("on-2")
    assert after is not None
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_node_can_lose_packets_from_one_other_node(cluster: Cluster, pair: Namespace) -> None:
    """Packets from pods of node2 are lost at node1, so its pods get no answer from them; both nodes stay ready."""
    assert reaches(pair, "on-1", "on-2")

    with faults.drop_inbound(cluster, "node1", cluster.plan.network.pods_of(2)):
        assert not reaches(pair, "on-1", "on-2")
        assert ready_nodes(cluster.api) == set(cluster.nodes)

    assert reaches(pair, "on-1", "on-2")


def test_packets_can_be_lost_at_random(cluster: Cluster, pair: Namespace) -> None:
    """With a third of the packets lost, connections still succeed by retransmission; the rule counts dropped
    packets."""
    with faults.drop_inbound(cluster, "node1", cluster.plan.network.pods_of(2), share=0.33):
        assert all(reaches(pair, "on-1", "on-2", seconds=30) for _ in range(3))
        listed = cluster.machines["node1"].run("iptables", "-t", "raw", "-nvL", "PREROUTING")
    [rule] = [line for line in listed.splitlines() if "statistic" in line]

    assert int(rule.split()[0]) > 0


def test_killed_api_server_comes_back_with_its_objects(cluster: Cluster, pair: Namespace) -> None:
    """While the API server is down, pods serve requests; afterwards nodes are ready, and a pod is the same object."""
    pod = pair.read_pod("on-2")
    assert pod is not None

    faults.kill(cluster, "hub", "kube-apiserver")
    try:
        with pytest.raises((OSError, http.client.HTTPException)):
            cluster.api.get("/readyz")
        asked = REACH.format(host=pod["status"]["podIP"], seconds=5)
        cluster.machines["node1"].run(sys.executable, "-c", asked)
    finally:
        cluster.hub.respawn("kube-apiserver")
    wait_until("a ready API server", cluster.api.is_ready, READY_SECONDS_MAX)
    wait_ready_nodes(cluster, *cluster.nodes)

    after = pair.read_pod("on-2")
    assert after is not None
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]


def test_paused_program_does_nothing_and_continues(cluster: Cluster) -> None:
    """A paused API server accepts connections and answers none until it continues."""
    with faults.pause_program(cluster, "hub", "kube-apiserver"):
        with socket.create_connection((network.HUB_ADDRESS, 6443), 3):
            pass
        assert not cluster.api.is_ready()

    wait_until("a ready API server", cluster.api.is_ready, READY_SECONDS_MAX)


def test_crashed_node_is_switched_on_again(cluster: Cluster, pair: Namespace) -> None:
    """A crash ends every process of the node at once; afterwards the same disk is available, and pods start again."""
    wait_ready_nodes(cluster, *cluster.nodes)
    claim = {
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.api.create(pair.path("persistentvolumeclaims"), claim)
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": "kept"}}
    main = container("main", pods.IDLE, volumeMounts=[{"name": "store", "mountPath": "/store"}])
    there = {"nodeSelector": {"kubernetes.io/hostname": "node3"}, "volumes": [volume]}
    stay = [{"operator": "Exists"}]
    pair.create_pod("keeper", pod_spec(main, tolerations=stay, **there))
    pair.wait_ready("keeper")
    pair.run_python("keeper", "open('/store/log', 'w').write('before the crash')")

    faults.crash(cluster, "node3")
    print(f"crash -> NotReady: {wait_ready_nodes(cluster, 'node1', 'node2'):.1f} s")
    lifecycle.revive(cluster, "node3")

    print(f"switched on -> Ready: {wait_ready_nodes(cluster, *cluster.nodes):.1f} s")
    started = time.monotonic()
    wait_until("a keeper that was started again", lambda: restarts(pair, "keeper") > 0, READY_SECONDS_MAX)
    pair.wait_ready("keeper")
    print(f"Ready -> its pod: {time.monotonic() - started:.1f} s")
    assert pair.run_python("keeper", "print(open('/store/log').read())") == "before the crash"


def restarts(namespace: Namespace, name: str) -> int:
    """Return how often a pod's container was restarted."""
    pod = namespace.read_pod(name)
    assert pod is not None
    return int(pod["status"]["containerStatuses"][0]["restartCount"])
