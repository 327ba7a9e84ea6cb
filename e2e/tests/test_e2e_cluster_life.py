"""A cluster comes and goes without a trace, however its making ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_cluster import faults, look, making
from gantry_cluster.cluster import HUB, Plan, find
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ClusterError, ClusterIsUp, NoCluster
from gantry_cluster.places import CLAIM, ROOT, Folder

pytestmark = [pytest.mark.slow, pytest.mark.needs_cluster]

RUN = ROOT / "e2e" / "cluster" / "run.py"
SECONDS_MAX = 120.0


@pytest.fixture(autouse=True)
def as_before(whole_machine: None, tmp_path: Path) -> Iterator[None]:
    """Each of these tests leaves the machine as it was, also when it fails."""
    before = look.machine_as_it_is()
    yield
    if CLAIM.is_dir():
        making.down(print)
    assert look.differences(before, look.machine_as_it_is()) == []


def test_down_leaves_the_machine_as_it_was(tmp_path: Path) -> None:
    """Mounts, devices, routes, filters, groups, settings, processes and huge pages; and the folder is gone."""
    before = look.machine_as_it_is()
    folder = Folder.at(tmp_path / "here")

    made = making.up(folder, Plan(nodes=1, huge_pages=8), print)
    during = look.differences(before, look.machine_as_it_is())
    assert made.api.is_ready()
    making.down(print)

    assert {line.partition(":")[0] for line in during} == set(before) - {"filters"}, "the look sees what a cluster does"
    assert look.differences(before, look.machine_as_it_is()) == []
    assert not folder.root.exists()
    with pytest.raises(NoCluster):
        making.down(print)


def test_a_folder_that_was_removed_takes_nothing_of_the_journal_along(tmp_path: Path) -> None:
    """Somebody deletes the folder of a running cluster, as cleaners of temporary files do; `down` works still."""
    folder = Folder.at(tmp_path / "here")
    making.up(folder, Plan(nodes=1), print)

    shutil.rmtree(folder.root)
    making.down(print)


def test_down_ends_a_cluster_with_a_stopped_program(tmp_path: Path) -> None:
    """A program that a test stopped and forgot does not hold the others."""
    made = making.up(Folder.at(tmp_path / "here"), Plan(nodes=1), print)

    for machine, program in ((HUB, "kube-apiserver"), ("node1", "kubelet")):
        made.machines[machine].programs[program].process.send(signal.SIGSTOP)
    making.down(print)


def test_a_second_cluster_is_refused(tmp_path: Path) -> None:
    """The machine carries one; the refusal names the other's folder and how to end it, and harms nothing."""
    first = Folder.at(tmp_path / "first")
    making.up(first, Plan(nodes=1), print)

    with pytest.raises(ClusterIsUp, match=f"{first.root}.*run.py down"):
        making.up(Folder.at(tmp_path / "second"), Plan(nodes=1), print)

    assert not (tmp_path / "second").exists()
    assert find().api.is_ready()


def test_what_a_killed_up_left_behind_is_cleared_away(tmp_path: Path) -> None:
    """`up` killed in the middle leaves a journal, and `down` needs nothing else."""
    folder = Folder.at(tmp_path / "here")
    command = [sys.executable, str(RUN), "up", "--nodes", "2", "--huge-pages", "8", "--folder", str(folder.root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ)) as process:
        wait_until("the first node", (folder.logs / "node1-containerd.log").exists, SECONDS_MAX)
        process.kill()

    with pytest.raises(NoCluster, match="never came up"):
        find()
    making.down(print)

    assert not CLAIM.is_dir()


def test_an_up_that_fails_undoes_itself_and_keeps_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a node does not start, nothing stays but the logs, which say why."""

    def fail(*arguments: object) -> None:
        raise ClusterError("the node does not start")

    monkeypatch.setattr(making, "start_node", fail)
    folder = Folder.at(tmp_path / "here")

    with pytest.raises(ClusterError, match="the node does not start"):
        making.up(folder, Plan(nodes=1), print)

    assert not CLAIM.is_dir()
    assert (folder.logs / "kube-apiserver.log").stat().st_size > 0


def test_a_program_of_the_cluster_can_be_killed_and_started_again(tmp_path: Path) -> None:
    """A kubelet that was killed comes back with the same command."""
    made = making.up(Folder.at(tmp_path / "here"), Plan(nodes=1), print)
    before = made.machines["node1"].programs["kubelet"]

    faults.kill(made, "node1", "kubelet")
    made.machines["node1"].respawn("kubelet")

    after = made.machines["node1"].programs["kubelet"]
    assert after.words == before.words
    assert after.process.is_alive()
    assert not before.process.is_alive()
