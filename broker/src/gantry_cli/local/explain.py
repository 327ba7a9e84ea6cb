"""`gantry explain`: what would happen if a master of the local group died now, and what is being done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from gantry_cli.examples import examples
from gantry_cli.group_documents import ExplainDocument
from gantry_cli.local.look import Look
from gantry_cli.local.looking import require_look
from gantry_cli.options import data_option
from gantry_cli.output import Form, output_option, show


@click.command(
    epilog=examples(
        ("gantry explain", "who would take over in each shard, and what would be lost"),
        ("gantry explain --output json | jq '.outlook[0].winner'", "for programs"),
    )
)
@data_option
@output_option
def explain(data: Path, form: Form) -> None:
    """Say what would happen if a master of the local group died now.

    Candidates, what blocks each, and the loss in bytes. It is asked of the same functions that would decide, so it is
    what is done, unless the master takes more meanwhile.
    """
    look = require_look(data)
    document = ExplainDocument(at_ms=look.at_ms, group=look.group, decision=look.decision, outlook=look.outlook)
    show(form, document, lambda: lines(look))


def lines(look: Look) -> Iterator[str]:
    """For people."""
    for one in look.outlook:
        yield from one.lines
    yield from look.decision or ("nothing is to be done",)
