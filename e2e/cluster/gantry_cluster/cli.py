"""The command line of `e2e/cluster/run.py`.

Exit codes: 0 success, 2 refused or failed with an error message; `groups` ends with the code of pytest, `kubectl` with
that of kubectl.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from gantry_cluster import cluster as clusters
from gantry_cluster import group_tests, kind, lifecycle, own_docker
from gantry_cluster.errors import ClusterError
from gantry_cluster.network import NODES_MAX, Family
from gantry_cluster.paths import Folder, default_folder
from gantry_cluster.programs import ALONE, NODES, PACKAGES, programs

MEBIBYTE = 1 << 20


def _report_progress(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


@click.group()
def commands() -> None:
    """Run a Kubernetes cluster of real nodes on this machine, each in its own namespaces. Needs root."""


@commands.command()
@click.argument("names", nargs=-1, type=click.Choice([*PACKAGES]), metavar="[PROGRAM]...")
@click.option("--alone", is_flag=True, help=f"Only the programs that need no cluster: {', '.join(ALONE)}.")
def build(names: tuple[str, ...], alone: bool) -> None:
    """Build the programs, or some of them. `up` also builds them if they are missing."""
    click.echo(programs(_report_progress, names or (ALONE if alone else NODES)).folder)


@commands.command()
@click.option(
    "--nodes",
    type=click.IntRange(0, NODES_MAX),
    default=3,
    show_default=True,
    help="Number of nodes; 0 starts only the control plane.",
)
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Folder for all files of the cluster.")
@click.option(
    "--huge-pages", type=click.IntRange(0), default=0, show_default=True, help="Number of 2 MiB pages for each node."
)
@click.option(
    "--ip-family",
    "family",
    type=click.Choice([one.value for one in Family]),
    default=Family.IPV4.value,
    show_default=True,
    help="Family of all addresses of pods and Services.",
)
def up(nodes: int, folder: Path | None, huge_pages: int, family: str) -> None:
    """Make a cluster and return when its nodes are ready."""
    place = Folder.at(folder or default_folder())
    lifecycle.up(place, clusters.Plan(nodes, huge_pages, Family(family)), _report_progress)
    click.echo(f"export KUBECONFIG={place.kubeconfig}")


@commands.command()
@click.option("--keep", is_flag=True, help="Keep the cluster's folder: logs, stores and keys.")
def down(keep: bool) -> None:
    """End the cluster and restore the machine."""
    lifecycle.down(_report_progress, keep)


@commands.command()
def status() -> None:
    """Show what runs, and how much memory each program uses."""
    cluster = clusters.find()
    ready = clusters.ready_nodes(cluster.api) if cluster.api.is_ready() else set()
    click.echo(f"{cluster.folder.root}, API server {'ready' if cluster.api.is_ready() else 'NOT READY'}")
    for machine in cluster.machines.values():
        is_hub = machine.name == clusters.HUB
        word = "" if is_hub else ("ready" if machine.name in ready else "NOT READY")
        click.echo(f"{machine.name:<8} process {machine.init.pid} {word if machine.is_alive() else 'DEAD'}")
        for name, program in machine.programs.items():
            process = program.process
            alive = f"{process.resident_bytes() // MEBIBYTE:>5} MiB" if process.is_alive() else "DEAD"
            click.echo(f"  {name:<24} {process.pid:>8} {alive}")


@commands.command()
def kubeconfig() -> None:
    """Print the path of the administrator's kubeconfig."""
    click.echo(clusters.find().folder.kubeconfig)


@commands.command("load-image")
@click.argument("archive", type=click.Path(path_type=Path))
def load_image(archive: Path) -> None:
    """Load an image from an archive of docker or buildah into every node."""
    for name in clusters.find().load_image(archive):
        click.echo(name)


@commands.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl(words: tuple[str, ...]) -> None:
    """Run the cluster's kubectl as its administrator."""
    cluster = clusters.find()
    program = str(cluster.programs["kubectl"])
    os.execv(program, [program, f"--kubeconfig={cluster.folder.kubeconfig}", *words])


@commands.command("build-images")
def build_images() -> None:
    """Build Gantry's images as archives, if their sources have changed. Needs root, buildah and debootstrap."""
    for image in kind.IMAGES:
        click.echo(image.build_if_stale())


@commands.command("kind-node")
def kind_node() -> None:
    """Build the image of nodes of kind as an archive, if its sources have changed. Needs root and Go."""
    click.echo(own_docker.build_node_image(_report_progress))


commands.add_command(group_tests.command)


def main() -> None:
    """Run a command. An error of a cluster is printed without a traceback; it may have several lines of a log."""
    try:
        commands()
    except ClusterError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(2)
