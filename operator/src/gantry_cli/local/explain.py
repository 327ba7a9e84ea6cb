"""`gantry explain`: what would happen if a master of the group died now, and what is being done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from gantry_cli.examples import examples
from gantry_cli.group_documents import ExplainDocument
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.completing import complete_cluster_group
from gantry_cli.kube.options import cluster_options, exec_option, group_named
from gantry_cli.kube.showing import show_explanation
from gantry_cli.local.look import Look
from gantry_cli.local.looking import require_look
from gantry_cli.options import data_option
from gantry_cli.output import Form, output_option, show


@click.command(
    epilog=examples(
        ("gantry explain", "who would take over in each shard, and what would be lost"),
        ("gantry explain --output json | jq '.outlook[0].winner'", "for programs"),
        ("gantry explain bg/orders --namespace shop", "of a group in a Kubernetes cluster"),
    )
)
@click.argument("group", required=False, metavar="[bg/GROUP]", shell_complete=complete_cluster_group)
@data_option
@cluster_options
@exec_option
@output_option
def explain(group: str | None, target: Target, may_exec: bool, data: Path, form: Form) -> None:
    """Say what would happen if a master of the group died now.

    Candidates, what blocks each, and the loss in bytes. It is asked of the same functions that would decide, so it is
    what is done, unless the master takes more meanwhile. Of bg/GROUP it is counted from what its sidecars say now, or,
    where they may not be asked, shown as the operator has written it last.
    """
    name = group_named(group, target)
    if name is not None:
        show_explanation(target, name, form, may_exec=may_exec)
        return
    look = require_look(data)
    document = ExplainDocument(at_ms=look.at_ms, group=look.group, decision=look.decision, outlook=look.outlook)
    show(form, document, lambda: lines(look))


def lines(look: Look) -> Iterator[str]:
    """For people."""
    for one in look.outlook:
        yield from one.lines
    yield from look.decision or ("nothing is to be done",)
