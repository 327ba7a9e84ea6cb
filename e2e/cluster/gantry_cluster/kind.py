"""Nodes in containers, made by `kind`: for users who have docker or podman, but not root on this machine.

The cluster is made from `e2e/kind.yaml` for one run of the tests and deleted after it. Gantry's images are loaded into
its nodes, from archives that are built here or from docker. If a cluster of the same name exists already, it is
not touched, and the run is refused.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gantry_cluster import image_builds, node_image
from gantry_cluster.choice import Choice
from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError, MissingTool
from gantry_cluster.image_names import BUILT, Images, parse_name
from gantry_cluster.paths import ROOT
from gantry_cluster.programs import ProgressReporter

NAME: Final = "gantry-e2e"
"""The name of the cluster that `kind` makes."""

IMAGES: Final = (image_builds.BROKER, image_builds.OPERATOR)
"""The images of Gantry that the tests use."""

CONFIG: Final = ROOT / "e2e" / "kind.yaml"
MAKE_SECONDS_MAX: Final = 900.0
LOAD_SECONDS_MAX: Final = 300.0
"""The limits for making a cluster and for loading images."""

REGISTRY_SECONDS_MAX: Final = 5.0
"""The limit for a connection to the registry, from which kind's own node image is pulled."""

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
    node_image_name = choose_node_image(choice.node_image)
    archives = None if choice.images else [image.build_if_stale() for image in IMAGES]
    with tempfile.TemporaryDirectory(prefix="kind-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        image_words = ("--image", node_image_name) if node_image_name else ()
        words = ("--name", NAME, "--config", CONFIG, "--kubeconfig", kubeconfig, "--wait", "300s", *image_words)
        report(
            f"making a cluster with kind; nodes of {node_image_name or 'its own image, which it pulls the first time'}"
        )
        try:
            run("kind", "create", "cluster", *words, seconds_max=MAKE_SECONDS_MAX)
            report("loading Gantry's images into its nodes")
            yield choice.for_made_cluster(kubeconfig, provide_images(choice.images, archives))
        finally:
            run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", kubeconfig)


def choose_node_image(named: str) -> str:
    """Return the node image: the named one, or the one of `make kind-node` if no registry answers and it was built;
    empty for kind's own. An image that was built here is loaded first."""
    if named and named != node_image.name():
        return named
    target = node_image.find_built()
    if target is None:
        if named:
            raise MissingTool(f"{named} is not built; run: make kind-node")
        return ""
    if not named and is_registry_reachable():
        return ""
    node_image.load(provider(), target)
    return node_image.name()


def is_registry_reachable() -> bool:
    """Return whether the registry of docker accepts connections from here; for podman it is assumed."""
    if provider() != "docker":
        return True
    address = urlsplit(run("docker", "info", "--format", "{{.IndexServerAddress}}").strip())
    try:
        with closing(socket.create_connection((address.hostname or "", address.port or 443), REGISTRY_SECONDS_MAX)):
            return True
    except OSError:
        return False


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
