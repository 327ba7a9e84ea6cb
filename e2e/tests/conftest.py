"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import final

import pytest
from gantry_cluster import image_builds, lifecycle, machine_state
from gantry_cluster.capability_needs import MARKER, ChosenCluster, list_needs
from gantry_cluster.choice import read_choice
from gantry_cluster.cluster import Cluster, Plan, find
from gantry_cluster.errors import NoCluster
from gantry_cluster.groups import has_operator, install_operator, remove_operator
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.paths import Folder, default_folder
from gantry_interop import java

from gantry_testing.requirements_plugin import require_needs

LOCK = Path("/run/lock/gantry-cluster-tests")
KEEP_VARIABLE = "GANTRY_KEEP_CLUSTER"
"""With this variable set, an existing cluster is used as it is, and none is removed: for developers of these tests."""
NODES = 3
HUGE_PAGES = 32


CHOSEN = pytest.StashKey[ChosenCluster]()


def pytest_configure(config: pytest.Config) -> None:
    """Read which cluster was chosen, and register the markers of tests that run on it."""
    config.addinivalue_line("markers", f"{MARKER}(capability, ...): skipped, and counted, where the cluster cannot")
    config.addinivalue_line("markers", "release: part of `scripts/e2e --kind -m release`, which runs before a release")
    chosen = config.stash[CHOSEN] = ChosenCluster(read_choice(os.environ))
    config.add_cleanup(chosen.close)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: skip tests that cannot run here, and compile the Java side for the first test that needs it.

    The compile time must not count for the test, which has a time limit.
    """
    require_needs(item, list_needs(item, item.config.stash[CHOSEN]))
    if item.get_closest_marker("needs_java") is not None:
        java.build()


@final
class SharedCluster:
    """The cluster with the operator that all tests of groups share; it is ended before another test needs the
    machine."""

    def __init__(self, folder: Path, chosen: ChosenCluster) -> None:
        self._folder = folder
        self._chosen = chosen
        self._end = ExitStack()
        self._cluster: Cluster | None = None
        self.loaded_images: dict[str, str] = {}
        """Additional images that were loaded into the nodes, by the name of their sources."""

    def operator_cluster(self, operator: Path | None) -> Cluster:
        """Return the cluster, made and provided with the operator on first use."""
        if self._cluster is None:
            self._cluster = (
                self._open_foreign_cluster()
                or self._find_kept_cluster()
                or self._make_cluster(image_builds.BROKER.build_if_stale())
            )
            if not has_operator(self._cluster):
                install_operator(self._cluster, operator)
        return self._cluster

    def end(self) -> None:
        """End the cluster, and check that the machine was restored, unless the cluster is foreign or to be kept."""
        self._cluster = None
        self.loaded_images.clear()
        self._end.close()

    def _open_foreign_cluster(self) -> Cluster | None:
        """Open a foreign cluster. What is made there is removed at the end, unless it is to be kept; the cluster
        stays."""
        if self._chosen.is_made_here:
            return None
        found = self._chosen.foreign()
        if KEEP_VARIABLE not in os.environ:
            found.refuse_if_used()
            self._end.callback(remove_operator, found)
        return found

    def _find_kept_cluster(self) -> Cluster | None:
        if KEEP_VARIABLE not in os.environ:
            return None
        try:
            return find()
        except NoCluster:
            return None

    def _make_cluster(self, image: Path) -> Cluster:
        with ExitStack() as end:  # After a failure the next test of groups must not wait for this lock.
            lock = end.enter_context(LOCK.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = machine_state.capture_machine_state()
            made = lifecycle.up(Folder.at(self._folder), Plan(NODES, HUGE_PAGES, self._chosen.choice.family), print)
            if KEEP_VARIABLE not in os.environ:
                end.callback(self._end_cluster, before)
            assert made.load_image(image) == ["localhost/gantry:latest"]
            self._end.push(end.pop_all())
        return made

    def _end_cluster(self, before: dict[str, list[str]]) -> None:
        lifecycle.down(print)
        assert machine_state.differences(before, machine_state.capture_machine_state()) == []


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SharedCluster]:
    """The shared cluster, made when the first test of groups needs it."""
    folder = default_folder() if KEEP_VARIABLE in os.environ else tmp_path_factory.mktemp("groups") / "here"
    shared = SharedCluster(folder, pytestconfig.stash[CHOSEN])
    yield shared
    shared.end()


@pytest.fixture(scope="module")
def exclusive_machine(shared_cluster: SharedCluster) -> Iterator[None]:
    """Exclusive use of the machine, which carries one cluster: tests of other processes wait here."""
    shared_cluster.end()
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def image_archive() -> Path:
    """Gantry's image as a file, built if it is stale."""
    return image_builds.BROKER.build_if_stale()


@pytest.fixture(scope="module")
def cluster(
    exclusive_machine: None, image_archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three nodes with Gantry's image and some huge pages; afterwards the machine is restored."""
    before = machine_state.capture_machine_state()
    folder = Folder.at(tmp_path_factory.mktemp("cluster") / "here")
    made = lifecycle.up(folder, Plan(NODES, HUGE_PAGES), print)
    try:
        assert made.load_image(image_archive) == ["localhost/gantry:latest"]
        yield made
    finally:
        lifecycle.down(print)
    assert machine_state.differences(before, machine_state.capture_machine_state()) == []


@pytest.fixture(scope="session")
def operator_archive(pytestconfig: pytest.Config) -> Path | None:
    """The operator's image as a file, built if it is stale; None for other clusters, which have or pull it."""
    return image_builds.OPERATOR.build_if_stale() if pytestconfig.stash[CHOSEN].is_made_here else None


@pytest.fixture
def operator_cluster(shared_cluster: SharedCluster, operator_archive: Path | None) -> Cluster:
    """A cluster with the operator, installed by its chart."""
    return shared_cluster.operator_cluster(operator_archive)


@pytest.fixture
def namespaces(operator_cluster: Cluster) -> Iterator[NamespaceFactory]:
    """Namespaces that are deleted after the test, because two processors can run only a few groups."""
    found = NamespaceFactory(operator_cluster)
    yield found
    found.delete_all()


@pytest.fixture
def pipelines_image(operator_cluster: Cluster, shared_cluster: SharedCluster) -> str:
    """The name of the pipelines' image on the nodes, loaded once and only if a test needs it."""
    if "pipelines" not in shared_cluster.loaded_images:
        [shared_cluster.loaded_images["pipelines"]] = operator_cluster.load_image(
            image_builds.PIPELINES.build_if_stale()
        )
    return shared_cluster.loaded_images["pipelines"]
