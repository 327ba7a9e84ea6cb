"""A cluster leaves no trace, after every kind of end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_cluster import faults, lifecycle, machine_state
from gantry_cluster.cluster import HUB, Plan, find
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ClusterError, ClusterIsUp, NoCluster
from gantry_cluster.paths import MACHINE_CLAIM, ROOT, Folder

pytestmark = [pytest.mark.slow, pytest.mark.needs_cluster]

RUN = ROOT / "e2e" / "cluster" / "run.py"
START_SECONDS_MAX = 120.0
"""The limit for the first program of a node to start."""


@pytest.fixture(autouse=True)
def as_before(exclusive_machine: None, tmp_path: Path) -> Iterator[None]:
    """Each of these tests leaves the machine as it was; a cluster of a failed test is ended."""
    before = machine_state.capture_machine_state()
    yield
    if MACHINE_CLAIM.is_dir():
        lifecycle.down(print)
    assert machine_state.differences(before, machine_state.capture_machine_state()) == []


def test_down_leaves_the_machine_as_it_was(tmp_path: Path) -> None:
    """Mounts, devices, routes, filters, groups, settings, processes and huge pages are restored, and the folder is
    gone."""
    before = machine_state.capture_machine_state()
    folder = Folder.at(tmp_path / "here")

    made = lifecycle.up(folder, Plan(nodes=1, huge_pages=8), print)
    during = machine_state.differences(before, machine_state.capture_machine_state())
    assert made.api.is_ready()
    lifecycle.down(print)

    assert {line.partition(":")[0] for line in during} == set(before) - {"filters"}, (
        "expected changes of every kind but filters while a cluster runs"
    )
    assert machine_state.differences(before, machine_state.capture_machine_state()) == []
    assert not folder.root.exists()
    with pytest.raises(NoCluster):
        lifecycle.down(print)


def test_down_works_after_the_folder_was_removed(tmp_path: Path) -> None:
    """If the folder of a running cluster is deleted, as by a cleaner of temporary files, `down` still works."""
    folder = Folder.at(tmp_path / "here")
    lifecycle.up(folder, Plan(nodes=1), print)

    shutil.rmtree(folder.root)
    lifecycle.down(print)


def test_down_ends_a_cluster_with_a_paused_program(tmp_path: Path) -> None:
    """A program that a test paused and forgot does not block the end of the others."""
    made = lifecycle.up(Folder.at(tmp_path / "here"), Plan(nodes=1), print)

    for machine, program in ((HUB, "kube-apiserver"), ("node1", "kubelet")):
        made.machines[machine].programs[program].process.send(signal.SIGSTOP)
    lifecycle.down(print)


def test_second_cluster_is_refused(tmp_path: Path) -> None:
    """The machine carries one cluster; the refusal names the other's folder and how to end it, and changes nothing."""
    first = Folder.at(tmp_path / "first")
    lifecycle.up(first, Plan(nodes=1), print)

    with pytest.raises(ClusterIsUp, match=f"{first.root}.*run.py down"):
        lifecycle.up(Folder.at(tmp_path / "second"), Plan(nodes=1), print)

    assert not (tmp_path / "second").exists()
    assert find().api.is_ready()


def test_down_removes_what_a_killed_up_left_behind(tmp_path: Path) -> None:
    """`up` killed in the middle leaves a journal, and `down` needs nothing else."""
    folder = Folder.at(tmp_path / "here")
    command = [sys.executable, str(RUN), "up", "--nodes", "2", "--huge-pages", "8", "--folder", str(folder.root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ)) as process:
        wait_until("the first node", (folder.logs / "node1-containerd.log").exists, START_SECONDS_MAX)
        process.kill()

    with pytest.raises(NoCluster, match="did not start"):
        find()
    lifecycle.down(print)

    assert not MACHINE_CLAIM.is_dir()


def test_failed_up_undoes_itself_and_keeps_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a node does not start, the machine is restored, and the folder stays with the logs, which show the reason."""

    def fail(*arguments: object) -> None:
        raise ClusterError("the node does not start")

    monkeypatch.setattr(lifecycle, "start_node", fail)
    folder = Folder.at(tmp_path / "here")

    with pytest.raises(ClusterError, match="the node does not start"):
        lifecycle.up(folder, Plan(nodes=1), print)

    assert not MACHINE_CLAIM.is_dir()
    assert (folder.logs / "kube-apiserver.log").stat().st_size > 0


def test_program_of_the_cluster_is_restarted_after_a_kill(tmp_path: Path) -> None:
    """A killed kubelet is started again with the same command."""
    made = lifecycle.up(Folder.at(tmp_path / "here"), Plan(nodes=1), print)
    before = made.machines["node1"].programs["kubelet"]

    faults.kill(made, "node1", "kubelet")
    made.machines["node1"].respawn("kubelet")

    after = made.machines["node1"].programs["kubelet"]
    assert after.command == before.command
    assert after.process.is_alive()
    assert not before.process.is_alive()
