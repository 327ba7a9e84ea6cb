"""Three kinds of cluster: which is chosen, what each can do, and what a test gets that asks for more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_cluster import demands, kind
from gantry_cluster.api import Object
from gantry_cluster.capabilities import FOREIGN_NODES, KIND_NODES, OWN_NODES, Capability, lacks
from gantry_cluster.choice import VARIABLE, Choice, Kind, choose, chosen
from gantry_cluster.demands import MARKER
from gantry_cluster.errors import BadChoice, ClusterError
from gantry_cluster.image_names import IMAGE, Images

from gantry_testing import requirements_plugin
from gantry_testing.requirements_plugin import NEEDS, Need

pytest_plugins = ["pytester"]

IMAGES = Images("registry.example:5000/gantry:1", "registry.example:5000/gantry-operator:1")
NOTHING: dict[str, Any] = {"is_kind": False, "kubeconfig": None, "context": "", "broker": "", "operator": ""}
NAMED = {"broker": IMAGES.broker, "operator": IMAGES.operator}
FILE = Path("/somewhere/kubeconfig")

# -- which ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Choice()),
        ({"is_kind": True}, Choice(Kind.IN_CONTAINERS)),
        ({"is_kind": True, **NAMED}, Choice(Kind.IN_CONTAINERS, images=IMAGES)),
        ({"kubeconfig": FILE, **NAMED}, Choice(Kind.FOREIGN, str(FILE), "", IMAGES)),
        ({"kubeconfig": FILE, "context": "east", **NAMED}, Choice(Kind.FOREIGN, str(FILE), "east", IMAGES)),
    ],
    ids=["nodes", "kind", "kind-images", "kubeconfig", "context"],
)
def test_options_choose_a_cluster_and_tests_are_told_the_same(options: dict[str, Any], expected: Choice) -> None:
    """What the command line says is what the tests read from their environment."""
    choice = choose(**NOTHING | options)

    assert choice == expected
    assert chosen(choice.environment()) == choice


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"is_kind": True, "kubeconfig": FILE}, "leave one of them out"),
        ({"context": "east"}, "give --kubeconfig FILE"),
        ({"kubeconfig": FILE}, "name them"),
        ({"kubeconfig": FILE, "broker": IMAGES.broker}, "name both"),
        (NAMED, "leave --image out"),
        ({"is_kind": True, "broker": "gantry:latest", "operator": IMAGES.operator}, "not latest"),
        ({"is_kind": True, "broker": "registry.example:5000/gantry", "operator": IMAGES.operator}, "REPOSITORY:TAG"),
    ],
    ids=["both", "context", "no-images", "one-image", "own-images", "latest", "no-tag"],
)
def test_contradictory_options_are_refused_with_what_to_write(options: dict[str, Any], told: str) -> None:
    """Nothing is begun on a guess."""
    with pytest.raises(BadChoice, match=told):
        choose(**NOTHING | options)


def test_without_a_choice_nodes_are_made_here_and_nonsense_is_refused() -> None:
    """A variable that nobody of ours wrote must not silently mean another cluster."""
    assert chosen({}) == Choice()
    for text in ("nodes", '{"kind": "moon", "images": null}', '{"kind": "nodes"}', "[]"):
        with pytest.raises(BadChoice, match=VARIABLE):
            chosen({VARIABLE: text})


def test_our_image_has_its_name_of_that_cluster_in_every_pod() -> None:
    """Also of containers that run first; foreign images stay."""
    spec: Object = {
        "containers": [{"image": IMAGE, "imagePullPolicy": "Never", "name": "main"}, {"image": "other:1"}],
        "initContainers": [{"image": IMAGE}],
        "nodeName": "a",
    }

    placed = IMAGES.placed(spec)

    ours = {"image": IMAGES.broker, "imagePullPolicy": "IfNotPresent"}
    assert placed["containers"] == [ours | {"name": "main"}, {"image": "other:1"}]
    assert (placed["initContainers"], placed["nodeName"]) == ([ours], "a")
    assert "image.repository=registry.example:5000/gantry-operator" in IMAGES.chart_values()


# -- what it can do ------------------------------------------------------------------------------------------------


def node(name: str, *, is_ready: bool = True, pages: str = "256Mi", taint: str = "", is_closed: bool = False) -> Object:
    """As Kubernetes tells of it."""
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


def test_three_nodes_with_pages_and_a_class_lack_nothing() -> None:
    """More nodes, of which some are closed, do no harm; managed clusters write `34+`."""
    control = node("control", taint="NoSchedule", pages="0")

    assert lacks(**GOOD) == {}
    assert lacks(**GOOD | {"nodes": [control, *THREE], "minor": "34+"}) == {}


@pytest.mark.parametrize(
    ("change", "capability", "told"),
    [
        ({"nodes": THREE[:2]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"nodes": [*THREE[:2], node("c", is_ready=False)]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"nodes": [*THREE[:2], node("c", taint="NoExecute")]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"nodes": [*THREE[:2], node("c", is_closed=True)]}, Capability.RUN_GROUPS, "2 nodes"),
        ({"classes": [{"metadata": {"name": "disk"}}]}, Capability.RUN_GROUPS, "class of storage"),
        ({"minor": "29"}, Capability.RUN_GROUPS, "older"),
        ({"nodes": [*THREE[:2], node("c", pages="32Mi")]}, Capability.HUGE_PAGES, "64 MiB"),
        ({"is_reached": False}, Capability.REACH_NODES, "do not answer"),
    ],
    ids=["two", "not-ready", "tainted", "closed", "no-class", "old", "few-pages", "far"],
)
def test_what_a_cluster_lacks_is_seen(change: dict[str, Any], capability: Capability, told: str) -> None:
    """The twins: each change of a good cluster is told in words."""
    assert told in lacks(**GOOD | change)[capability]


def test_our_own_nodes_can_everything_and_others_less() -> None:
    """Every capability has nodes that have it: no test is skipped everywhere."""
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
from gantry_testing.requirements_plugin import demand
from gantry_cluster.choice import chosen
from gantry_cluster.demands import MARKER, Chosen, needs

HERE = Chosen(chosen(os.environ))

def pytest_configure(config):
    config.addinivalue_line("markers", f"{MARKER}(capability): of a cluster")

def pytest_runtest_setup(item):
    demand(item, needs(item, HERE))
"""


@pytest.fixture
def inside(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """The small file above, run where a cluster was chosen, which lacks nothing that is looked at."""
    pytester.makeini("[pytest]")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(ASKS)
    for name in ("cluster", "buildah"):
        monkeypatch.setitem(NEEDS, name, Need(name, lambda: None, "none"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(demands.Chosen, "foreign", lambda here: Unlooked())

    def run(choice: Choice, promised: str) -> pytest.RunResult:
        monkeypatch.setenv("GANTRY_REQUIRE", promised)
        for name, value in choice.environment().items():
            monkeypatch.setenv(name, value)
        return pytester.runpytest_inprocess("-p", requirements_plugin.__name__, "--strict-markers")

    return run


class Unlooked:
    """A cluster that lacks nothing, or cannot be reached."""

    fault = ""

    def lacks(self) -> dict[Capability, str]:
        """Nothing, or the fault."""
        if self.fault:
            raise ClusterError(self.fault)
        return {}


def test_what_a_cluster_cannot_do_is_skipped_loudly_and_counted(inside: Inside) -> None:
    """With what it can do run, and with where the rest would run; a promise of the cluster does not fail it."""
    result = inside(Choice(Kind.FOREIGN, "file", "", IMAGES), "cluster")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*not run here*", "crash_nodes *1  a cluster of somebody else cannot* scripts/e2e *"])


def test_on_our_own_nodes_nothing_is_skipped(inside: Inside) -> None:
    """The same tests, all run."""
    inside(Choice(), "cluster").assert_outcomes(passed=2)


def test_a_skip_on_our_own_nodes_is_a_failure(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: were a capability taken from them, the promise of a cluster would be broken."""
    monkeypatch.setattr("gantry_cluster.choice.MOST", {Kind.NODES: OWN_NODES - {Capability.CRASH_NODES}})

    result = inside(Choice(), "cluster")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*GANTRY_REQUIRE promises cluster, but nodes made here cannot*"])


def test_a_cluster_that_does_not_answer_fails_what_was_asked_of_it(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names a cluster wants to know: nothing is green there."""
    monkeypatch.setattr(Unlooked, "fault", "nobody answers")

    result = inside(Choice(Kind.FOREIGN, "file", "", IMAGES), "cluster")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*GANTRY_REQUIRE promises cluster, but nobody answers*"])


# -- kind ----------------------------------------------------------------------------------------------------------


def test_kind_is_asked_for_three_workers_with_huge_pages() -> None:
    """Every field is one that kind knows, and each worker has the machine's pages."""
    content = yaml.safe_load(kind.CONFIG.read_text())

    assert (content["kind"], content["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert set(content) == {"kind", "apiVersion", "nodes"}
    workers = [one for one in content["nodes"] if one["role"] == "worker"]
    assert [one["role"] for one in content["nodes"] if one not in workers] == ["control-plane"]
    assert (
        workers
        == [{"role": "worker", "extraMounts": [{"hostPath": "/dev/hugepages", "containerPath": "/dev/hugepages"}]}] * 3
    )
