"""`scripts/e2e`: the tests of groups, on whichever cluster was asked for.

What the cluster needs of this machine is asked before anything is made, and refused in one sentence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from gantry_cluster import kind, requirements
from gantry_cluster.capabilities import Capability
from gantry_cluster.choice import Choice, Kind, choose
from gantry_cluster.errors import ClusterError, MissingTool
from gantry_cluster.foreign import opened
from gantry_cluster.places import ROOT
from gantry_cluster.programs import Say, programs

TESTS: Final = "e2e/tests/test_e2e_group*.py"
REQUIRE: Final = {
    Kind.NODES: "root,go,buildah,cluster",
    Kind.IN_CONTAINERS: "cluster",
    Kind.FOREIGN: "cluster",
}
"""What is promised to the tests: nothing is left out on nodes made here, nor elsewhere what any cluster can do."""

BUILDERS: Final = ("buildah", "debootstrap")


@click.command("groups", context_settings={"ignore_unknown_options": True})
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A cluster of yours.")
@click.option("--context", default="", help="Which of the kubeconfig; else its current one.")
@click.option("--kind", "is_kind", is_flag=True, help="A cluster that kind makes of e2e/kind.yaml, and deletes after.")
@click.option("--image", default="", metavar="REPO:TAG", help="The broker's image, where nodes fetch it.")
@click.option("--operator-image", default="", metavar="REPO:TAG", help="The operator's.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST ARGUMENTS]...")
def command(
    kubeconfig: Path | None, context: str, is_kind: bool, image: str, operator_image: str, words: tuple[str, ...]
) -> None:
    """Install the operator, apply groups, use them, break them: end-to-end, on one of three kinds of cluster.

    \b
      scripts/e2e                          three nodes in namespaces of this machine. Every test runs. Needs root, Go,
                                           containerd and buildah; builds Kubernetes (8 minutes) and our images, once.
      scripts/e2e --kind                   nodes in containers, made by kind and deleted after. Needs kind 0.30 or
                                           newer, docker (or podman), kubectl, helm; and buildah for our images, or
                                           --image and --operator-image for two that docker has.
      scripts/e2e --kubeconfig FILE --image REPO:TAG --operator-image REPO:TAG
                                           a cluster that is there. Needs kubectl and helm here; there: Kubernetes
                                           1.30, three nodes that take pods, a default class of storage, a user who
                                           may do everything. Not one that others need: nodes are cordoned, and the
                                           operator must not be there yet, because it is taken away in the end.

    A test says what it needs of the cluster: crash a node, huge pages, ... Where the cluster cannot do that, the test
    is skipped, and the table at the end says how many and where they would run. On our own nodes nothing is skipped.

    Everything else goes to pytest:

    \b
      scripts/e2e -k deleted               only tests with that word
      scripts/e2e --kind --collect-only    which there are
      GANTRY_KEEP_CLUSTER=1 scripts/e2e    leave cluster and operator there, and use them as they are next time
    """
    choice = choose(is_kind=is_kind, kubeconfig=kubeconfig, context=context, broker=image, operator=operator_image)
    sys.exit(run_on(choice, words, click.echo))


def run_on(choice: Choice, words: Sequence[str], say: Say) -> int:
    """Have the cluster, and run the tests; pytest's exit code. Raises ``ClusterError``."""
    if choice.kind is Kind.NODES:
        requirements.refuse_if_missing()
        _refuse_without_builders()
        programs(say)
        return _tests(choice, words)
    if choice.kind is Kind.FOREIGN:
        _refuse_if_useless(choice)
        return _tests(choice, words)
    if choice.images is None:
        _refuse_without_builders()
    with kind.made(choice, say) as made:
        return _tests(made, words)


def _refuse_without_builders() -> None:
    absent = [name for name in BUILDERS if shutil.which(name) is None]
    if absent:
        raise MissingTool(f"no image can be built here: on Debian: apt-get install {' '.join(absent)}")


def _refuse_if_useless(choice: Choice) -> None:
    """Before pytest starts: the cluster answers and can carry groups."""
    with opened(choice) as cluster:
        reason = cluster.lacks().get(Capability.RUN_GROUPS)
        if reason is not None:
            raise ClusterError(f"this cluster cannot carry the tests: {reason}")


def _tests(choice: Choice, words: Sequence[str]) -> int:
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(TESTS))
    environment = {**os.environ, "GANTRY_REQUIRE": REQUIRE[choice.kind], **choice.environment()}
    pytest = (sys.executable, "-m", "pytest", "--slow", "-s", *files, *words)
    return subprocess.run(pytest, cwd=ROOT, env=environment, check=False).returncode
