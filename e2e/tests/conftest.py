"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_cluster import look, making, our_images
from gantry_cluster.cluster import Cluster, Plan
from gantry_cluster.groups import install_operator
from gantry_cluster.places import Folder

LOCK = Path("/run/lock/gantry-cluster-tests")
NODES = 3
HUGE_PAGES = 32


@pytest.fixture(scope="module")
def whole_machine() -> Iterator[None]:
    """A machine carries one cluster: tests of other processes wait here for their turn."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def image_archive() -> Path:
    """Our image as a file, built when there is none of the sources that are here."""
    return our_images.BROKER.fresh()


@pytest.fixture(scope="module")
def cluster(whole_machine: None, image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with our image and some huge pages; afterwards the machine is as it was before."""
    before = look.machine_as_it_is()
    folder = Folder.at(tmp_path_factory.mktemp("cluster") / "here")
    made = making.up(folder, Plan(NODES, HUGE_PAGES), print)
    try:
        assert made.load_image(image_archive) == ["localhost/gantry:latest"]
        yield made
    finally:
        making.down(print)
    assert look.differences(before, look.machine_as_it_is()) == []


@pytest.fixture(scope="session")
def operator_archive(image_archive: Path) -> Path:
    """The operator's image as a file, built when there is none of the sources that are here."""
    return our_images.OPERATOR.fresh()


@pytest.fixture(scope="module")
def operated(cluster: Cluster, operator_archive: Path) -> Cluster:
    """A cluster with the operator, installed by its chart."""
    install_operator(cluster, operator_archive)
    return cluster
