"""The command line: `e2e/cluster/run.py --help`.

Exit codes: 0 done, 2 refused or failed with a sentence that says why.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from gantry_cluster import cluster as clusters
from gantry_cluster import group_tests, making
from gantry_cluster.errors import ClusterError
from gantry_cluster.network import NODES_MAX
from gantry_cluster.places import Folder, default_folder
from gantry_cluster.programs import ALONE, PACKAGES, programs

MEBIBYTE = 1 << 20


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


@click.group()
def commands() -> None:
    """A Kubernetes cluster of real nodes on this one machine, each in namespaces of its own. Needs root."""


@commands.command()
@click.argument("names", nargs=-1, type=click.Choice([*PACKAGES]), metavar="[PROGRAM]...")
@click.option("--alone", is_flag=True, help=f"Those that need no cluster: {', '.join(ALONE)}.")
def build(names: tuple[str, ...], alone: bool) -> None:
    """Only build the programs, or some of them; `up` does it too when they are missing."""
    click.echo(programs(_say, names or (ALONE if alone else tuple(PACKAGES))).folder)


@commands.command()
@click.option(
    "--nodes", type=click.IntRange(0, NODES_MAX), default=3, show_default=True, help="How many; 0 is an API alone."
)
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Where everything it writes goes.")
@click.option(
    "--huge-pages", type=click.IntRange(0), default=0, show_default=True, help="Pages of 2 MiB for each node."
)
def up(nodes: int, folder: Path | None, huge_pages: int) -> None:
    """Make a cluster and return when its nodes are ready."""
    place = Folder.at(folder or default_folder())
    making.up(place, clusters.Plan(nodes, huge_pages), _say)
    click.echo(f"export KUBECONFIG={place.kubeconfig}")


@commands.command()
@click.option("--keep", is_flag=True, help="Keep logs and stores.")
def down(keep: bool) -> None:
    """End the cluster and leave the machine as it was."""
    making.down(_say, keep)


@commands.command()
def status() -> None:
    """What runs, and how much memory each program holds."""
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
    """Where the administrator's kubeconfig lies."""
    click.echo(clusters.find().folder.kubeconfig)


@commands.command("load-image")
@click.argument("archive", type=click.Path(path_type=Path))
def load_image(archive: Path) -> None:
    """Give every node the image in an archive that docker or buildah has saved."""
    for name in clusters.find().load_image(archive):
        click.echo(name)


@commands.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl(words: tuple[str, ...]) -> None:
    """Run the kubectl of the cluster as its administrator."""
    cluster = clusters.find()
    program = str(cluster.programs["kubectl"])
    os.execv(program, [program, f"--kubeconfig={cluster.folder.kubeconfig}", *words])


commands.add_command(group_tests.command)


def main() -> None:
    """Run a command; a refusal is one sentence."""
    try:
        commands()
    except ClusterError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(2)
