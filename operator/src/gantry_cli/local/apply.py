"""`gantry apply`: hand a changed manifest over to the group that runs."""

from __future__ import annotations

from pathlib import Path

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.local.editing import immovable, read_manifest
from gantry_cli.local.looking import require_alive, require_look
from gantry_cli.local.state import GroupState
from gantry_cli.options import data_option
from gantry_spec.manifest import changes


@click.command(
    epilog=examples(
        ("gantry apply -f group.yaml", "more slaves, other topics: what has changed is done step by step"),
        ("gantry apply -f group.yaml --dry-run", "only say what is wrong with it"),
    )
)
@click.option("-f", "--file", "manifest", required=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The changed manifest.")  # fmt: skip
@data_option
@click.option("--dry-run", is_flag=True, help="Change nothing.")
def apply(manifest: Path, data: Path, dry_run: bool) -> None:
    """Hand a changed manifest over to the local group.

    Whatever may not change is refused, with the path of its field. The rest is done by the supervisor, with the same
    care as in a cluster: one broker after another, and nothing that was acknowledged is lost.
    """
    look = require_look(data)
    require_alive(look)
    state = GroupState(data)
    old, (new, text) = state.read_manifest(), read_manifest(manifest)
    if old is not None:
        problems = [*map(str, changes(old, new)), *immovable(old, new)]
        if problems:
            raise CliError("; ".join(problems))
    if dry_run:
        click.echo("it can be handed over")
        return
    state.write_manifest(text)
    click.echo(f"handed over to group {look.group}; see `gantry status --watch`")
