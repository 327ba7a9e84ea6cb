"""`gantry doctor bg/GROUP` against a real API server, with sidecars that report what a test plants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pytest
from api_server import api_server
from doctor_scene import check, faults
from kubectl_scene import PODS, Scene, role_of
from scripted_kubelet import Outcome, scripted_kubelet

from gantry_cli.doctor.kube_checks import KubeFacts, decide_kube
from gantry_cli.doctor.results import DoctorDocument
from gantry_cli.doctor.results import Outcome as CheckOutcome
from gantry_cli.kube.documents import ClusterGroupStatus
from gantry_wire.version import VERSION

GIGABYTE: Final = 1 << 30
HEALTHY: Final[Mapping[str, Any]] = {
    "version": VERSION,
    "sidecar": {"version": VERSION},
    "disk": {"total_bytes": 100 * GIGABYTE, "used_bytes": 30 * GIGABYTE},
}
"""What the status of each sidecar has beside the usual fields."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scripted_kubelet() as kubelet, api_server(folder := tmp_path_factory.mktemp("cluster")) as server:
        scene = Scene(server, kubelet, folder)
        scene.prepare()
        yield scene


@pytest.fixture
def scene(cluster: Scene) -> Iterator[Scene]:
    cluster.make_group()
    report(cluster, {})
    yield cluster
    cluster.drop_group()


def report(scene: Scene, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Have every sidecar report the healthy values, with these changes by pod."""

    def run(pod: str, container: str, command: list[str]) -> Outcome | None:
        outcome = scene.run_inside(pod, container, command)
        assert outcome is not None
        answers = json.loads(outcome.output)
        answers["/v1/status"]["body"] |= {**HEALTHY, **changes.get(pod, {})}
        return Outcome(json.dumps(answers).encode())

    scene.kubelet.run = run


def examine(scene: Scene, *words: str) -> DoctorDocument:
    result = scene.gantry("doctor", "bg/orders", "--json", *words)
    assert result.exit_code in (0, 1), result.output
    document = msgspec.json.decode(result.stdout, type=DoctorDocument)
    assert result.exit_code == (1 if document.faults else 0)
    return document


@pytest.mark.needs_api_server
def test_healthy_group_has_no_fault(scene: Scene) -> None:
    """What sidecars and objects show is ok; what only a client can see is skipped, with the command that checks it."""
    found = examine(scene)

    assert (faults(found), found.warnings) == ({}, 0)
    ids = {one.id for one in found.checks if one.outcome == "ok"}
    assert ids == {"name-server", "version", "disk", "huge-pages", "slave-following"}
    assert "gantry doctor -n HOST:PORT" in check(found, "acl").findings[0].remedy


@pytest.mark.needs_api_server
def test_planted_faults_are_found(scene: Scene) -> None:
    """A full disk, another version, a slave with a problem, and an expired certificate, each by its check."""
    full = {"disk": {"total_bytes": 100 * GIGABYTE, "used_bytes": 95 * GIGABYTE}}
    planted: dict[str, dict[str, dict[str, Any]]] = {
        "disk": {PODS[0]: full},
        "version": {PODS[1]: {"version": "0.0.1"}},
        "tls": {PODS[2]: {"certificate_ends_wall_ms": 1}},
    }
    for name, changes in planted.items():
        report(scene, changes)
        assert set(faults(examine(scene))) == {name}
    report(scene, {})
    scene.reported_roles[PODS[3]] = role_of(PODS[3]) | {"problem": "cannot reach the master"}
    assert set(found := faults(examine(scene))) == {"slave-following"}
    assert f"{PODS[3]}: cannot reach the master" in found["slave-following"][0]


@pytest.mark.needs_api_server
def test_without_answers_of_sidecars_nothing_is_ok_by_mistake(scene: Scene) -> None:
    """With --no-exec, disks and versions are skipped."""
    found = examine(scene, "--no-exec", "--only", "disk", "--only", "version")

    assert [(one.id, one.outcome) for one in found.checks] == [("version", "skipped"), ("disk", "skipped")]


def test_unscheduled_huge_pages_are_a_fault() -> None:
    """A pod that requests huge pages and has no node because of them; without them, and with a node, it is ok."""
    status = ClusterGroupStatus(
        at_ms=0, context="c", namespace="shop", group="orders", phase="Ready", ready="1/1", generation=1,
        observed_generation=1, orders={}, shards=[], members=[], name_servers="1/1", proxies=None, ledgers=[],
        conditions=[], events=[], left_out=[],
    )  # fmt: skip

    def outcome(message: str, limits: Mapping[str, str], node: str = "") -> CheckOutcome:
        unscheduled = [{"type": "PodScheduled", "status": "False", "message": message}]
        pod = {
            "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}]},
            "status": {"conditions": [] if node else unscheduled},
        }
        facts = KubeFacts(version=VERSION, status=status, pods={"orders-0-master-0": pod}, sidecars={})
        return decide_kube(facts, ["huge-pages"])[0].outcome

    pages = {"hugepages-2Mi": "3Gi"}
    assert outcome("0/3 nodes are available: 3 Insufficient hugepages-2Mi.", pages) is CheckOutcome.FAULT
    assert outcome("0/3 nodes are available: 3 Insufficient memory.", pages) is CheckOutcome.SKIPPED
    assert outcome("", pages, "machine-1") is CheckOutcome.OK
    assert outcome("0/3 nodes are available", {}) is CheckOutcome.OK
