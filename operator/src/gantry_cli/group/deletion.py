"""The command `gantry group delete`: delete a consumer group, after a summary and a confirmation."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_group
from gantry_cli.errors import CliError, InvalidInput, NotFoundError, for_same_cluster
from gantry_cli.examples import examples
from gantry_cli.group.documents import DeletedPartDocument, GroupDeletedDocument
from gantry_cli.options import name_server_option, run
from gantry_cli.output import OutputFormat, output_option, show, table
from gantry_client import Admin
from gantry_client.group_deletion import GroupDeletion, plan_group_deletion
from gantry_wire.names import is_system_group


@click.command(
    epilog=examples(
        ("gantry group delete billing --dry-run", "show what would be deleted"),
        ("gantry group delete billing", "ask, then delete"),
        ("gantry group delete billing --yes", "delete without a question, in a script"),
    )
)
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@name_server_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def delete(name: str, name_server: str, dry_run: bool, yes: bool, form: OutputFormat) -> None:
    """Delete a consumer group with its offsets and its waiting retries on every master.

    Its dead letters are kept. The command is refused while consumers of the group are connected, because they would
    create it again. A consumer that starts later begins where it is configured to, as in a new group.
    """
    if is_system_group(name):
        raise InvalidInput(f"{name} is a group of the system; brokers manage it")

    async def plan() -> GroupDeletion:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            return await plan_group_deletion(admin, name)

    async def remove() -> None:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            await admin.groups.delete(name)

    found = run(plan(), name_server, waiting_for=f"querying group {name}")
    if not found.brokers:
        raise NotFoundError(f"no master has a group {name}", for_same_cluster("list the groups: gantry group list"))
    if not dry_run:
        if found.members:
            raise CliError(
                f"group {name} has connected consumers ({found.members})",
                for_same_cluster(f"stop them first; list them: gantry group members {name}"),
            )
        if not yes:
            for part in _lines(found):
                click.echo(part, err=True)
            click.confirm(f'Delete group "{name}"?', abort=True, err=True)
        run(remove(), name_server, waiting_for=f"deleting group {name}")
    document = GroupDeletedDocument(
        group=name, is_dry_run=dry_run, members=found.members,
        parts=[DeletedPartDocument(broker=row.place, what=row.setting, count=row.before or "") for row in found.rows],
    )  # fmt: skip
    show(form, document, lambda: _screen(document, found))


def _lines(found: GroupDeletion) -> Iterator[str]:
    for row in found.rows:
        effect = f"; {row.effect}" if row.effect else ""
        yield f"{row.place}: {row.setting}: {row.before}{effect}"


def _screen(document: GroupDeletedDocument, found: GroupDeletion) -> Iterator[RenderableType]:
    if not document.is_dry_run:
        yield f'Group "{document.group}" deleted'
        return
    rows = ((row.place, row.setting, row.before or "", row.effect) for row in found.rows)
    yield table(f'Group "{document.group}" would be deleted', ("broker", "what", "now", "effect"), rows)
    if found.members:
        yield f"Connected consumers: {found.members}. They must be stopped first."
