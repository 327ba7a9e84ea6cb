"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import final

import pytest
from gantry_cluster import look, making, our_images
from gantry_cluster.choice import chosen
from gantry_cluster.cluster import Cluster, Plan, find
from gantry_cluster.demands import MARKER, Chosen, needs
from gantry_cluster.errors import NoCluster
from gantry_cluster.groups import has_operator, install_operator, remove_operator
from gantry_cluster.places import Folder, default_folder
from gantry_cluster.spaces import Spaces
from gantry_interop import java

from gantry_testing.requirements_plugin import demand

LOCK = Path("/run/lock/gantry-cluster-tests")
KEEP = "GANTRY_KEEP_CLUSTER"
"""With this variable set a cluster that is there is used as it is, and stays: for whoever works on these tests."""
NODES = 3
HUGE_PAGES = 32


CHOSEN = pytest.StashKey[Chosen]()


def pytest_configure(config: pytest.Config) -> None:
    """Which cluster was chosen, and the marker of tests that run on it."""
    config.addinivalue_line("markers", f"{MARKER}(capability, ...): skipped, and counted, where the cluster cannot")
    chosen_here = config.stash[CHOSEN] = Chosen(chosen(os.environ))
    config.add_cleanup(chosen_here.close)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: skip what cannot run here, and compile the Java side for the first test that needs it.

    Its seconds are not the test's, which has a limit.
    """
    demand(item, needs(item, item.config.stash[CHOSEN]))
    if item.get_closest_marker("needs_java") is not None:
        java.build()


@final
class SharedCluster:
    """The cluster with the operator that all tests of groups share; ended before another test wants the machine."""

    def __init__(self, folder: Path, chosen_here: Chosen) -> None:
        self._folder = folder
        self._chosen = chosen_here
        self._end = ExitStack()
        self._cluster: Cluster | None = None
        self.given: dict[str, str] = {}
        """Images that nodes were given besides, by the name of their sources."""

    def operated(self, operator: Path | None) -> Cluster:
        """It, made and given the operator by the first who asks."""
        if self._cluster is None:
            self._cluster = self._foreign() or self._kept() or self._made(our_images.BROKER.fresh())
            if not has_operator(self._cluster):
                install_operator(self._cluster, operator)
        return self._cluster

    def end(self) -> None:
        """The machine is as it was before."""
        self._cluster = None
        self.given.clear()
        self._end.close()

    def _foreign(self) -> Cluster | None:
        """What is made there goes in the end, unless it is to be kept; the cluster stays."""
        if self._chosen.is_made_here:
            return None
        found = self._chosen.foreign()
        if KEEP not in os.environ:
            found.refuse_if_used()
            self._end.callback(remove_operator, found)
        return found

    def _kept(self) -> Cluster | None:
        if KEEP not in os.environ:
            return None
        try:
            return find()
        except NoCluster:
            return None

    def _made(self, image: Path) -> Cluster:
        lock = self._end.enter_context(LOCK.open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = look.machine_as_it_is()
        made = making.up(Folder.at(self._folder), Plan(NODES, HUGE_PAGES), print)
        if KEEP not in os.environ:
            self._end.callback(self._down, before)
        assert made.load_image(image) == ["localhost/gantry:latest"]
        return made

    def _down(self, before: dict[str, list[str]]) -> None:
        making.down(print)
        assert look.differences(before, look.machine_as_it_is()) == []


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SharedCluster]:
    """Made when a test of groups asks for it."""
    folder = default_folder() if KEEP in os.environ else tmp_path_factory.mktemp("groups") / "here"
    shared = SharedCluster(folder, pytestconfig.stash[CHOSEN])
    yield shared
    shared.end()


@pytest.fixture(scope="module")
def whole_machine(shared_cluster: SharedCluster) -> Iterator[None]:
    """A machine carries one cluster: tests of other processes wait here for their turn."""
    shared_cluster.end()
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
def operator_archive(pytestconfig: pytest.Config) -> Path | None:
    """The operator's image as a file, built when there is none of the sources that are here; other clusters have it."""
    return our_images.OPERATOR.fresh() if pytestconfig.stash[CHOSEN].is_made_here else None


@pytest.fixture
def operated(shared_cluster: SharedCluster, operator_archive: Path | None) -> Cluster:
    """A cluster with the operator, installed by its chart."""
    return shared_cluster.operated(operator_archive)


@pytest.fixture
def spaces(operated: Cluster) -> Iterator[Spaces]:
    """Namespaces that go with the test: two processors carry only so many groups."""
    found = Spaces(operated)
    yield found
    found.end()


@pytest.fixture
def pipelines_image(operated: Cluster, shared_cluster: SharedCluster) -> str:
    """The name of the image of pipelines on nodes, which are given it once; only tests that need it ask."""
    if "pipelines" not in shared_cluster.given:
        [shared_cluster.given["pipelines"]] = operated.load_image(our_images.PIPELINES.fresh())
    return shared_cluster.given["pipelines"]
