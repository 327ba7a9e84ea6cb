"""The three kinds of cluster: the choice, their capabilities, and what happens to a test that needs more.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_cluster import capability_needs, kind
from gantry_cluster.api import Object
from gantry_cluster.capabilities import FOREIGN_NODES, KIND_NODES, OWN_NODES, Capability, find_missing
from gantry_cluster.capability_needs import MARKER
from gantry_cluster.choice import VARIABLE, Choice, Kind, choose, read_choice
from gantry_cluster.errors import BadChoice, ClusterError
from gantry_cluster.image_names import IMAGE, Images
from gantry_cluster.network import Family

from gantry_testing import requirements_plugin
from gantry_testing.requirements_plugin import NEEDS, Need

pytest_plugins = ["pytester"]

IMAGES = Images("registry.example:5000/gantry:1", "registry.example:5000/gantry-operator:1")
NOTHING: dict[str, Any] = {
    "is_kind": False,
    "kubeconfig": None,
    "context": "",
    "broker": "",
    "operator": "",
    "node_image": "",
}
NAMED = {"broker": IMAGES.broker, "operator": IMAGES.operator}
FILE = Path("/somewhere/kubeconfig")

# -- which ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Choice()),
        ({"family": Family.IPV6}, Choice(family=Family.IPV6)),
        ({"is_kind": True}, Choice(Kind.IN_CONTAINERS)),
        ({"is_kind": True, **NAMED}, Choice(Kind.IN_CONTAINERS, images=IMAGES)),
        ({"is_kind": True, "node_image": "nodes:1"}, Choice(Kind.IN_CONTAINERS, node_image="nodes:1")),
        ({"kubeconfig": FILE, **NAMED}, Choice(Kind.FOREIGN, str(FILE), "", IMAGES)),
        ({"kubeconfig": FILE, "context": "east", **NAMED}, Choice(Kind.FOREIGN, str(FILE), "east", IMAGES)),
    ],
    ids=["nodes", "ipv6", "kind", "kind-images", "kind-nodes", "kubeconfig", "context"],
)
def test_options_choose_the_cluster_that_tests_read(options: dict[str, Any], expected: Choice) -> None:
    """The choice of the command line equals the one that the tests read from their environment."""
    choice = choose(**NOTHING | options)

    assert choice == expected
    assert read_choice(choice.environment()) == choice


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        ({"is_kind": True, "kubeconfig": FILE}, "leave one of them out"),
        ({"context": "east"}, "needs --kubeconfig FILE"),
        ({"kubeconfig": FILE}, "name them"),
        ({"kubeconfig": FILE, "broker": IMAGES.broker}, "give both"),
        (NAMED, "leave --image out"),
        ({"node_image": "nodes:1"}, "--node-image needs --kind"),
        ({"kubeconfig": FILE, **NAMED, "node_image": "nodes:1"}, "--node-image needs --kind"),
        ({"is_kind": True, "family": Family.IPV6}, "for nodes that are made here"),
        ({"kubeconfig": FILE, **NAMED, "family": Family.IPV6}, "for nodes that are made here"),
        ({"is_kind": True, "broker": "gantry:latest", "operator": IMAGES.operator}, "not latest"),
        ({"is_kind": True, "broker": "registry.example:5000/gantry", "operator": IMAGES.operator}, "REPOSITORY:TAG"),
    ],
    ids=[
        *("both", "context", "no-images", "one-image", "own-images", "own-nodes", "their-nodes"),
        *("kind-family", "their-family", "latest", "no-tag"),
    ],
)
def test_contradictory_options_are_refused_with_the_remedy(options: dict[str, Any], expected_text: str) -> None:
    """A missing or contradictory option is not guessed."""
    with pytest.raises(BadChoice, match=expected_text):
        choose(**NOTHING | options)


def test_nodes_are_made_here_by_default_and_bad_values_are_refused() -> None:
    """An invalid variable must not silently choose another cluster."""
    assert read_choice({}) == Choice()
    for text in ("nodes", '{"kind": "moon", "images": null}', '{"kind": "nodes"}', "[]"):
        with pytest.raises(BadChoice, match=VARIABLE):
            read_choice({VARIABLE: text})


def test_our_image_has_the_name_of_the_cluster_in_every_pod() -> None:
    """This includes init containers; other images stay."""
    spec: Object = {
        "containers": [{"image": IMAGE, "imagePullPolicy": "Never", "name": "main"}, {"image": "other:1"}],
        "initContainers": [{"image": IMAGE}],
        "nodeName": "a",
    }

    with_broker_image = IMAGES.with_broker_image(spec)

    ours = {"image": IMAGES.broker, "imagePullPolicy": "IfNotPresent"}
    assert with_broker_image["containers"] == [ours | {"name": "main"}, {"image": "other:1"}]
    assert (with_broker_image["initContainers"], with_broker_image["nodeName"]) == ([ours], "a")
    assert "image.repository=registry.example:5000/gantry-operator" in IMAGES.chart_values()


# -- what it can do ------------------------------------------------------------------------------------------------


def node(name: str, *, is_ready: bool = True, pages: str = "256Mi", taint: str = "", is_closed: bool = False) -> Object:
    """Return a node as Kubernetes reports it."""
    taints = [{"key": "k", "effect": taint}] if taint else []
    return {
        "metadata": {"name": name},
        "spec": {"taints": taints, "unschedulable": is_closed},
        "status": {
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "allocatable": {"hugepages-2Mi": pages},
        },
    }


THREE = [node("a"), node("b"), node("c")]
CLASS = {"metadata": {"name": "disk", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
GOOD: dict[str, Any] = {"nodes": THREE, "classes": [CLASS], "minor": "34", "is_reached": True}


def test_three_nodes_with_huge_pages_and_storage_lack_nothing() -> None:
    """Additional nodes, some of them cordoned, do no harm; managed clusters report `34+`."""
    control = node("control", taint="NoSchedule", pages="0")

    assert find_missing(**GOOD) == {}
    assert find_missing(**GOOD | {"nodes": [control, *THREE], "minor": "34+"}) == {}


@pytest.mark.parametrize(
    ("change", "capability", "expected_text"),
    [
        ({"nodes": THREE[:2]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"nodes": [*THREE[:2], node("c", is_ready=False)]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"nodes": [*THREE[:2], node("c", taint="NoExecute")]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"nodes": [*THREE[:2], node("c", is_closed=True)]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"classes": [{"metadata": {"name": "disk"}}]}, Capability.RUN_GROUPS, "storage class"),
        ({"minor": "29"}, Capability.RUN_GROUPS, "older"),
        ({"nodes": [*THREE[:2], node("c", pages="32Mi")]}, Capability.HUGE_PAGES, "64 MiB"),
        ({"is_reached": False}, Capability.REACH_NODES, "not reachable"),
    ],
    ids=["two", "not-ready", "tainted", "closed", "no-class", "old", "few-pages", "far"],
)
def test_missing_capability_of_a_cluster_is_reported(
    change: dict[str, Any], capability: Capability, expected_text: str
) -> None:
    """Each change that makes a good cluster unusable is reported with its reason."""
    assert expected_text in find_missing(**GOOD | change)[capability]


def test_own_nodes_have_every_capability_and_others_fewer() -> None:
    """Every capability exists on some kind of cluster: no test is skipped everywhere."""
    assert set(Capability) == OWN_NODES
    assert FOREIGN_NODES < KIND_NODES < OWN_NODES


# -- what a test gets ----------------------------------------------------------------------------------------------

Inside = Callable[[Choice, str], pytest.RunResult]
ASKS = f"""
import pytest
pytestmark = pytest.mark.{MARKER}("run_groups")

def test_simple(): ...

@pytest.mark.{MARKER}("crash_nodes")
def test_rough(): ...

def unmarked(): ...
"""
CONFTEST = """
import os
from gantry_testing.requirements_plugin import require_needs
from gantry_cluster.choice import read_choice
from gantry_cluster.capability_needs import MARKER, ChosenCluster, list_needs

HERE = ChosenCluster(read_choice(os.environ))

def pytest_configure(config):
    config.addinivalue_line("markers", f"{MARKER}(capability): of a cluster")

def pytest_runtest_setup(item):
    require_needs(item, list_needs(item, HERE))
"""


@pytest.fixture
def inside(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """The test file above, run with a chosen cluster that lacks nothing that is probed."""
    pytester.makeini("[pytest]")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(ASKS)
    for name in ("cluster", "buildah"):
        monkeypatch.setitem(NEEDS, name, Need(name, lambda: None, "none"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(capability_needs.ChosenCluster, "foreign", lambda here: ProbedCluster())

    def run(choice: Choice, promised: str) -> pytest.RunResult:
        monkeypatch.setenv("GANTRY_REQUIRE", promised)
        for name, value in choice.environment().items():
            monkeypatch.setenv(name, value)
        return pytester.runpytest_inprocess("-p", requirements_plugin.__name__, "--strict-markers")

    return run


class ProbedCluster:
    """A cluster that lacks nothing, or cannot be reached."""

    fault = ""

    def find_missing(self) -> dict[Capability, str]:
        """Return no missing capability, or the fault."""
        if self.fault:
            raise ClusterError(self.fault)
        return {}


def test_missing_capability_skips_the_test_and_is_counted(inside: Inside) -> None:
    """Other tests run, and the table shows where the rest would run; the promise of a cluster does not fail it."""
    result = inside(Choice(Kind.FOREIGN, "file", "", IMAGES), "cluster")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*not run here*", "crash_nodes *1  not supported by a foreign cluster* scripts/e2e *"])


def test_no_test_is_skipped_on_own_nodes(inside: Inside) -> None:
    """The same tests all run."""
    inside(Choice(), "cluster").assert_outcomes(passed=2)


def test_skip_on_own_nodes_is_a_failure(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: nodes without one of their capabilities break what GANTRY_REQUIRE demands."""
    monkeypatch.setattr("gantry_cluster.choice.CAPABILITIES_MAX", {Kind.NODES: OWN_NODES - {Capability.CRASH_NODES}})

    result = inside(Choice(), "cluster")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*GANTRY_REQUIRE promises cluster, but not supported by nodes made here*"])


def test_unreachable_cluster_fails_its_tests(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a cluster was named, no test may pass or be skipped without it."""
    monkeypatch.setattr(ProbedCluster, "fault", "no answer")

    result = inside(Choice(Kind.FOREIGN, "file", "", IMAGES), "cluster")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*GANTRY_REQUIRE promises cluster, but no answer*"])


# -- kind ----------------------------------------------------------------------------------------------------------


def test_kind_is_configured_with_three_workers_with_huge_pages() -> None:
    """Every field exists in kind's configuration, and each worker has the machine's pages."""
    content = yaml.safe_load(kind.CONFIG.read_text())

    assert (content["kind"], content["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert set(content) == {"kind", "apiVersion", "nodes"}
    workers = [one for one in content["nodes"] if one["role"] == "worker"]
    assert [one["role"] for one in content["nodes"] if one not in workers] == ["control-plane"]
    assert (
        workers
        == [{"role": "worker", "extraMounts": [{"hostPath": "/dev/hugepages", "containerPath": "/dev/hugepages"}]}] * 3
    )
