"""Nodes in containers, made by `kind`: for users who have docker or podman, but not root on this machine.

The cluster is made from `e2e/kind.yaml` for one run of the tests and deleted after it. Gantry's images are loaded into
its nodes, from archives that are built here or from docker. If a cluster of the same name exists already, it is
not touched, and the run is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gantry_cluster import image_builds
from gantry_cluster.choice import Choice
from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError, MissingTool
from gantry_cluster.image_names import BUILT, Images, parse_name
from gantry_cluster.paths import ROOT
from gantry_cluster.programs import ProgressReporter

NAME: Final = "gantry-e2e"
"""The name of the cluster that `kind` makes."""

CONFIG: Final = ROOT / "e2e" / "kind.yaml"
MAKE_SECONDS_MAX: Final = 900.0
LOAD_SECONDS_MAX: Final = 300.0
"""The limits for making a cluster and for loading images."""

HUGE_PAGES: Final = Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGES_WANTED: Final = 128
"""The number of huge pages of 2 MiB with which no test is skipped."""

PROVIDER: Final = "KIND_EXPERIMENTAL_PROVIDER"
"""The variable with which `kind` uses another container program."""


def provider(environment: Mapping[str, str] = os.environ) -> str:
    """Return the container program that runs the nodes: docker, or what the variable names."""
    return environment.get(PROVIDER) or "docker"


def refuse_if_missing() -> None:
    """Raise ``MissingTool`` if a program is missing."""
    for name, remedy in (("kind", "https://kind.sigs.k8s.io"), (provider(), f"or set {PROVIDER}=podman")):
        if shutil.which(name) is None:
            raise MissingTool(f"{name} is missing; install it: {remedy}")


@contextmanager
def make_cluster(choice: Choice, report: ProgressReporter) -> Iterator[Choice]:
    """Make a cluster, load Gantry's images, and delete the cluster at the end. Yields the completed choice."""
    refuse_if_missing()
    _report_huge_pages(report)
    if NAME in run("kind", "get", "clusters").split():
        raise ClusterError(
            f"a cluster {NAME} exists already; if it is not in use, delete it: kind delete cluster --name {NAME}"
        )
    archives = None if choice.images else (image_builds.BROKER.build_if_stale(), image_builds.OPERATOR.build_if_stale())
    with tempfile.TemporaryDirectory(prefix="kind-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        words = ("--name", NAME, "--config", CONFIG, "--kubeconfig", kubeconfig, "--wait", "300s")
        report("making a cluster with kind; the first time it pulls the node image")
        try:
            run("kind", "create", "cluster", *words, seconds_max=MAKE_SECONDS_MAX)
            report("loading Gantry's images into its nodes")
            yield choice.for_made_cluster(kubeconfig, provide_images(choice.images, archives))
        finally:
            run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", kubeconfig)


def _report_huge_pages(report: ProgressReporter) -> None:
    """Report missing huge pages. A kubelet counts them when it starts, so they must be reserved before."""
    found = int(HUGE_PAGES.read_text()) if HUGE_PAGES.exists() else 0
    if found < HUGE_PAGES_WANTED:
        report(
            f"{found} huge pages on this machine; tests that need them are skipped;"
            f" to run them: sysctl vm.nr_hugepages={HUGE_PAGES_WANTED}"
        )


def provide_images(images: Images | None, archives: Sequence[Path] | None) -> Images:
    """Load images into every node, from docker or from archives, with names that have a version."""
    if images is not None:
        run(
            "kind", "load", "docker-image", images.broker, images.operator, "--name", NAME, seconds_max=LOAD_SECONDS_MAX
        )
        return images
    assert archives is not None, "expected archives, because no images were named"
    for archive in archives:
        run("kind", "load", "image-archive", archive, "--name", NAME, seconds_max=LOAD_SECONDS_MAX)
    nodes = run("kind", "get", "nodes", "--name", NAME).split()
    for name in (BUILT.broker, BUILT.operator):
        tag_image(nodes, f"{parse_name(name)[0]}:latest", name)
    return BUILT


def tag_image(nodes: Sequence[str], known: str, name: str) -> None:
    """Give an image on the nodes another name."""
    if known == name:
        return
    for node in nodes:
        tag = ("ctr", "--namespace=k8s.io", "images", "tag", "--force", known, name)
        run(provider(), "exec", node, *tag)
