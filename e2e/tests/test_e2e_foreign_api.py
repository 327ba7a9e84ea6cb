"""A foreign cluster with the real kubectl and a token, as far as an API server without nodes can be one.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import TOKEN, ApiServer, api_server
from gantry_cluster.api import Object
from gantry_cluster.capabilities import DEFAULT_CLASS, Capability
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.errors import ClusterError
from gantry_cluster.foreign import ClusterNotOwned, ForeignCluster, open_cluster
from gantry_cluster.image_names import Images

from gantry_testing.programs import kubernetes_program
from gantry_testing.requirements_plugin import Need, require_needs

pytestmark = [pytest.mark.verify, pytest.mark.needs_api_server, pytest.mark.needs_helm]

KUBECTL = Need("kubectl", lambda: None if has_kubectl() else "no kubectl", "scripts/kubernetes kubectl")
IMAGES = Images("example.com/gantry:1", "example.com/gantry-operator:1")
NODES = "/api/v1/nodes"


def has_kubectl() -> bool:
    """Return whether kubectl is where tests of clusters search it."""
    return kubernetes_program("kubectl") is not None or shutil.which("kubectl") is not None


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server for all of these tests."""
    with api_server(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def choice(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path) -> Choice:
    """A kubeconfig whose current context is invalid, with another context for the server."""
    require_needs(request.node, [KUBECTL])
    clusters = {"here": server.url, "nowhere": "https://127.0.0.1:1"}
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "nowhere",
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}} for name in clusters],
        "clusters": [
            {"name": name, "cluster": {"server": url, "insecure-skip-tls-verify": True}}
            for name, url in clusters.items()
        ],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
    }  # fmt: skip
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    return Choice(Kind.FOREIGN, str(file), "here", IMAGES)


def add_node(cluster: ForeignCluster, name: str) -> None:
    """Create a node that reports itself ready; there is no kubelet."""
    cluster.api.create(NODES, {"metadata": {"name": name}})
    cluster.api.merge(f"{NODES}/{name}", {"spec": {"taints": None}})
    status: Object = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.254"}],
        "capacity": {"hugepages-2Mi": "64Mi"},
        "allocatable": {"hugepages-2Mi": "64Mi"},
    }
    cluster.api.merge(f"{NODES}/{name}/status", {"status": status})


def test_missing_capabilities_are_reported(choice: Choice) -> None:
    """At first everything is missing; with nodes and a storage class, only what the API cannot pretend."""
    with open_cluster(choice) as cluster:
        assert set(cluster.find_missing()) == {Capability.RUN_GROUPS, Capability.HUGE_PAGES, Capability.REACH_NODES}

        for name in ("a", "b", "c"):
            add_node(cluster, name)
        metadata = {"name": "disk", "annotations": {DEFAULT_CLASS: "true"}}
        disk = {"metadata": metadata, "provisioner": "example.com/disk"}
        cluster.api.create("/apis/storage.k8s.io/v1/storageclasses", disk)

        assert cluster.nodes == ["a", "b", "c"]
        assert set(cluster.find_missing()) == {Capability.REACH_NODES}
        assert "gantry" not in cluster.kubectl("get", "namespaces")


def test_context_selects_the_cluster(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of all these tests: the current context of the same file is invalid, which is reported."""
    monkeypatch.setattr("gantry_cluster.foreign.ANSWER_SECONDS_MAX", 1.0)

    with (
        pytest.raises(ClusterError, match="cannot be reached"),
        open_cluster(Choice(Kind.FOREIGN, choice.kubeconfig, "", IMAGES)),
    ):
        pass


def test_namespace_of_the_operator_is_detected(choice: Choice) -> None:
    """A cluster with this namespace has an operator and is refused."""
    with open_cluster(choice) as cluster:
        cluster.refuse_if_used()
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "gantry-system"}})

        with pytest.raises(ClusterNotOwned, match="gantry-system"):
            cluster.refuse_if_used()
