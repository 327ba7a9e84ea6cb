"""The command `scripts/e2e`: runs the tests of groups on the chosen cluster.

The requirements of the cluster are checked before anything is made. A missing one is reported in one line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from gantry_cluster import kind, own_docker, requirements
from gantry_cluster.capabilities import Capability
from gantry_cluster.choice import Choice, Kind, choose
from gantry_cluster.errors import BadChoice, ClusterError, MissingTool
from gantry_cluster.foreign import link_clients, open_cluster
from gantry_cluster.network import Family
from gantry_cluster.paths import ROOT
from gantry_cluster.programs import ProgressReporter, programs

TESTS: Final = "e2e/tests/test_e2e_group*.py"
"""The tests of groups."""

REQUIRE: Final = {
    Kind.NODES: "root,go,buildah,cluster",
    Kind.IN_CONTAINERS: "cluster",
    Kind.FOREIGN: "cluster",
}
"""What is promised to the tests: no skip on nodes made here, and elsewhere no skip of a test that runs on every
cluster."""

BUILDERS: Final = ("buildah", "debootstrap")
"""The programs that build images."""


@click.command("groups", context_settings={"ignore_unknown_options": True})
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Kubeconfig of an existing cluster.",
)
@click.option("--context", default="", help="Context in the kubeconfig; default: its current one.")
@click.option(
    "--kind", "is_kind", is_flag=True, help="Make a cluster with kind from e2e/kind.yaml, and delete it at the end."
)
@click.option(
    "--node-image",
    default="",
    metavar="REPO:TAG",
    help="The nodes' image, with --kind; default: that of `make kind-node` where no registry answers, else kind's own.",
)
@click.option(
    "--ip-family",
    "family",
    type=click.Choice([one.value for one in Family]),
    default=Family.IPV4.value,
    show_default=True,
    help="Family of all addresses of pods and Services, on nodes that are made here.",
)
@click.option("--image", default="", metavar="REPO:TAG", help="The broker's image, which the nodes can pull.")
@click.option(
    "--operator-image", default="", metavar="REPO:TAG", help="The operator's image, which the nodes can pull."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST ARGUMENTS]...")
def command(
    kubeconfig: Path | None,
    context: str,
    is_kind: bool,
    node_image: str,
    family: str,
    image: str,
    operator_image: str,
    words: tuple[str, ...],
) -> None:
    """Run the end-to-end tests: install the operator, apply groups, use them and inject faults.

    \b
      scripts/e2e                          three nodes in namespaces of this machine. Every test runs. Needs root, Go,
                                           control groups of version 1, containerd, runc, iptables, buildah and
                                           debootstrap; builds Kubernetes (8 minutes) and Gantry's images, once.
      scripts/e2e --ip-family IPv6         the same, and pods have no IPv4 address but that of loopback
      scripts/e2e --kind                   nodes in containers, made by kind and deleted after. Needs kind 0.30 or
                                           newer, docker (or podman), kubectl, helm; and buildah for Gantry's images,
                                           or --image and --operator-image for two that docker has. Where no docker
                                           engine answers, one is started in a sandbox, with nodes of the image
                                           that `make kind-node` builds: needs root, Go and control groups of
                                           version 1, and no registry.
      scripts/e2e --kubeconfig FILE --image REPO:TAG --operator-image REPO:TAG
                                           an existing cluster. Needs kubectl and helm here; there: Kubernetes
                                           1.30, three nodes that accept pods, a default storage class, a user with
                                           all permissions. Use no cluster that others need: nodes are cordoned.
                                           The operator must not be installed, because it is removed at the end.

    A test declares what it needs of the cluster: crash a node, huge pages, ... Where the cluster lacks that, the test
    is skipped, and the table at the end shows how many and where they would run. On nodes made here no test is skipped.

    All other arguments are passed to pytest:

    \b
      scripts/e2e -k deleted               run only the tests with that word
      scripts/e2e e2e/tests/test_e2e_group_life.py             run only those of a file
      scripts/e2e --kind --collect-only    list the tests
      GANTRY_KEEP_CLUSTER=1 scripts/e2e    keep cluster and operator, and use them again in the next run
    """
    choice = choose(
        is_kind=is_kind,
        kubeconfig=kubeconfig,
        context=context,
        broker=image,
        operator=operator_image,
        node_image=node_image,
        family=Family(family),
    )
    sys.exit(run_on(choice, words, click.echo))


def run_on(choice: Choice, words: Sequence[str], report: ProgressReporter) -> int:
    """Make or open the cluster and run the tests; return pytest's exit code. Raises ``ClusterError``."""
    if choice.kind is Kind.NODES:
        requirements.refuse_if_missing()
        _refuse_if_builders_missing()
        programs(report)
        return _tests(choice, words)
    if choice.kind is Kind.FOREIGN:
        _refuse_if_unsuitable(choice)
        return _tests(choice, words)
    if own_docker.is_needed():
        if choice.images is not None:
            raise BadChoice("no docker engine answers that could have these images; leave --image out, or start docker")
        return own_docker.run_tests(words, choice.node_image, report)
    if choice.images is None and not all(one.is_fresh() for one in kind.IMAGES):
        _refuse_if_builders_missing()
    with tempfile.TemporaryDirectory() as folder:
        link_clients(Path(folder) / "bin")  # raises if kubectl or helm is missing
    with kind.make_cluster(choice, report) as made_cluster:
        return _tests(made_cluster, words)


def _refuse_if_builders_missing() -> None:
    absent = [name for name in BUILDERS if shutil.which(name) is None]
    if absent:
        raise MissingTool(f"no image can be built here; on Debian: apt-get install {' '.join(absent)}")


def _refuse_if_unsuitable(choice: Choice) -> None:
    """Check, before pytest starts, that the cluster answers and can run groups."""
    with open_cluster(choice) as cluster:
        reason = cluster.find_missing().get(Capability.RUN_GROUPS)
        if reason is not None:
            raise ClusterError(f"this cluster cannot run the tests: {reason}")


def default_files(words: Sequence[str]) -> list[str]:
    """Return the files of all tests, or none if the arguments of pytest name a file."""
    if any(word.partition("::")[0].endswith(".py") for word in words):
        return []
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(TESTS))


def _tests(choice: Choice, words: Sequence[str]) -> int:
    environment = {**os.environ, "GANTRY_REQUIRE": REQUIRE[choice.kind], **choice.environment()}
    pytest = (sys.executable, "-m", "pytest", "--slow", "-s", *default_files(words), *words)
    return subprocess.run(pytest, cwd=ROOT, env=environment, check=False).returncode
