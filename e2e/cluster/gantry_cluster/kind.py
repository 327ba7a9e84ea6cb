"""Nodes in containers, which `kind` makes: for everybody who has docker or podman, and not this machine's root.

The cluster is made of `e2e/kind.yaml` for one run of the tests and deleted after it. Its nodes are given our images
from archives, as they are made by `scripts/image-archive`, or from what docker has. A cluster of the same name that is
there already is left alone, and the run refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gantry_cluster import our_images
from gantry_cluster.choice import Choice
from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError, MissingTool
from gantry_cluster.image_names import BUILT, Images, parse_name
from gantry_cluster.places import ROOT
from gantry_cluster.programs import Say

NAME: Final = "gantry-e2e"
CONFIG: Final = ROOT / "e2e" / "kind.yaml"
MAKE_SECONDS_MAX: Final = 900.0
LOAD_SECONDS_MAX: Final = 300.0
HUGE_PAGES: Final = Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGES_WANTED: Final = 128
PROVIDER: Final = "KIND_EXPERIMENTAL_PROVIDER"


def provider(environment: Mapping[str, str] = os.environ) -> str:
    """The program whose containers the nodes are."""
    return environment.get(PROVIDER) or "docker"


def refuse_if_missing() -> None:
    """Refuse in one line."""
    for name, remedy in (("kind", "https://kind.sigs.k8s.io"), (provider(), f"or set {PROVIDER}=podman")):
        if shutil.which(name) is None:
            raise MissingTool(f"{name} is missing; install it: {remedy}")


@contextmanager
def made(choice: Choice, say: Say) -> Iterator[Choice]:
    """The choice with a cluster that is there, has our images, and is gone in the end."""
    refuse_if_missing()
    _say_pages(say)
    if NAME in run("kind", "get", "clusters").split():
        raise ClusterError(f"a cluster {NAME} is there already; if it is nobody's: kind delete cluster --name {NAME}")
    archives = None if choice.images else (our_images.BROKER.fresh(), our_images.OPERATOR.fresh())
    with tempfile.TemporaryDirectory(prefix="kind-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        words = ("--name", NAME, "--config", CONFIG, "--kubeconfig", kubeconfig, "--wait", "300s")
        say("kind makes a cluster; the first time it fetches the image of its nodes")
        try:
            run("kind", "create", "cluster", *words, seconds_max=MAKE_SECONDS_MAX)
            say("giving its nodes our images")
            yield choice.at(kubeconfig, give_images(choice.images, archives))
        finally:
            run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", kubeconfig)


def _say_pages(say: Say) -> None:
    """A kubelet counts huge pages when it starts, so later is too late."""
    found = int(HUGE_PAGES.read_text()) if HUGE_PAGES.exists() else 0
    if found < HUGE_PAGES_WANTED:
        say(
            f"{found} huge pages are here, tests that need them are skipped;"
            f" for all of them: sysctl vm.nr_hugepages={HUGE_PAGES_WANTED}"
        )


def give_images(images: Images | None, archives: Sequence[Path] | None) -> Images:
    """To every node: those that docker has, or those in archives, by names that are versions."""
    if images is not None:
        run(
            "kind", "load", "docker-image", images.broker, images.operator, "--name", NAME, seconds_max=LOAD_SECONDS_MAX
        )
        return images
    assert archives is not None, "images come from somewhere"
    for archive in archives:
        run("kind", "load", "image-archive", archive, "--name", NAME, seconds_max=LOAD_SECONDS_MAX)
    nodes = run("kind", "get", "nodes", "--name", NAME).split()
    for name in (BUILT.broker, BUILT.operator):
        name_image(nodes, f"{parse_name(name)[0]}:latest", name)
    return BUILT


def name_image(nodes: Sequence[str], known: str, name: str) -> None:
    """Give an image that nodes have another name."""
    if known == name:
        return
    for node in nodes:
        tag = ("ctr", "--namespace=k8s.io", "images", "tag", "--force", known, name)
        run(provider(), "exec", node, *tag)
