"""The entry point: the list of commands, and the one place where failures become a line and an exit code."""

import contextlib
import importlib
import logging
import os
import platform
import sys
from typing import Final, NamedTuple, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from gantry_cli.errors import failures_as_exit_codes
from gantry_remoting.file_access import limit_new_files
from gantry_wire.version import VERSION

VARIABLE: Final = "_GANTRY_COMPLETE"
"""Where a shell says that it asks for completion."""


class Entry(NamedTuple):
    """Where a command lives, and what the overview says of it."""

    module: str
    name: str
    summary: str


SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Run": {
        "up": Entry("gantry_cli.local.up", "up", "Start a group of brokers here, and prove that it works."),
        "apply": Entry("gantry_cli.local.commands", "apply", "Hand a changed manifest over to the local group."),
        "promote": Entry("gantry_cli.kube.commands", "promote", "Move the master's role in a shard of the group."),
        "fence": Entry(
            "gantry_cli.kube.commands", "fence", "Have a shard in a cluster take no sends, and keep its master."
        ),
        "restore": Entry("gantry_cli.kube.commands", "restore", "Begin a shard with the volumes that are there."),
        "kill": Entry(
            "gantry_cli.local.commands", "kill", "Kill a process of the local group, or have it stand still."
        ),
        "down": Entry("gantry_cli.local.commands", "down", "Stop what `gantry up` started."),
        "nameserver": Entry("gantry_cli.serve", "nameserver", "Run a name server in the foreground."),
        "broker": Entry("gantry_cli.serve", "broker", "Run a broker in the foreground."),
        "sidecar": Entry("gantry_cli.serve", "sidecar", "Run a broker's admin sidecar in the foreground."),
        "ha": Entry("gantry_cli.ha.commands", "ha", "Look at a replicated group and move its master role."),
        "migrate": Entry("gantry_cli.migrate.commands", "migrate", "Take over from a running broker of RocketMQ's."),
    },
    "Look": {
        "status": Entry("gantry_cli.status.commands", "status", "Show name servers, brokers, topics and groups."),
        "explain": Entry(
            "gantry_cli.kube.commands", "explain", "Say what would happen if a master of the group died now."
        ),
        "console": Entry(
            "gantry_cli.local.commands", "console", "Print an address that opens the local group's console."
        ),
        "bundle": Entry("gantry_cli.kube.commands", "bundle", "Pack what explains the group into one file."),
        "topic": Entry("gantry_cli.topic.commands", "topic", "List, create, delete and describe topics."),
        "store": Entry("gantry_cli.store.commands", "store", "Look into the files of a store, ours or RocketMQ's."),
    },
    "Messages": {
        "produce": Entry("gantry_cli.messages.produce", "produce", "Send messages."),
        "consume": Entry("gantry_cli.messages.consume", "consume", "Read messages."),
        "group": Entry(
            "gantry_cli.group.commands", "group", "Look at consumer groups, move them, resend dead letters."
        ),
    },
    "Messages in bulk": {
        "pipeline": Entry("gantry_cli.pipeline", "pipeline", "Archive, audit and measure topics with Spark."),
    },
    "This program": {
        "completion": Entry(
            "gantry_cli.completion",
            "completion",
            "Print what makes a shell complete what you type.",
        ),
    },
    "Inside of containers": {
        "pod": Entry("gantry_cli.pod.commands", "pod", "Run one server as the first process of a container."),
    },
}

EXAMPLES: Final = """\b
Examples:
  gantry up                                    a group on this machine, until Ctrl-C
  gantry kill master-0                         see a slave take over
  gantry produce hello "first message"         send one message
  gantry consume hello                         read everything in the topic
  gantry status -n ns.example:9876             look at any cluster, Java or ours
  gantry status bg/orders --namespace shop     look at a group in a Kubernetes cluster
"""


class Commands(click.Group):
    """Commands by section, imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for entries in SECTIONS.values() for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entries in SECTIONS.values():
            entry = entries.get(cmd_name)
            if entry is not None:
                command = getattr(importlib.import_module(entry.module), entry.name)
                assert isinstance(command, click.Command), "the table names commands"
                importlib.import_module("gantry_wire.structs").ready_structs()  # some commands start threads
                return command
        return None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and summaries from the table: no module is imported for them."""
        entries = [entry for section in SECTIONS.values() for entry in section.items()]
        found = [CompletionItem(name, help=entry.summary) for name, entry in entries if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, entries in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])


def version_text() -> str:
    """`gantry 0.1.0 (Python 3.11.2)`."""
    return f"gantry {VERSION} (Python {platform.python_version()})"


def show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(version_text())
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXAMPLES,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=show_version, help="Show the version."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error", "critical"]),
    default="critical",
    help="Show what the client logs, on standard error.",
)
@click.option(
    "--credentials",
    envvar="GANTRY_CREDENTIALS",
    type=click.Path(dir_okay=False),
    help="File with accessKey and secretKey, for clusters with access control.",
)
@click.option(
    "--signature",
    envvar="GANTRY_SIGNATURE",
    type=click.Choice(["v1", "strict"]),
    default="v1",
    show_default=True,
    help="Sign as RocketMQ's clients do, or strictly, for servers with aclMode=STRICT.",
)
@click.pass_context
def cli(ctx: click.Context, log_level: str, credentials: str | None, signature: str) -> None:
    """Gantry: a message broker for RocketMQ clients.

    Every command has examples: gantry COMMAND --help. Commands that talk to a cluster take the name server's address
    from -n, else from GANTRY_NAMESRV, else from a `gantry up` in this directory, else 127.0.0.1:9876; their account
    from --credentials, else from GANTRY_CREDENTIALS.

    What a command shows is for people; --output json and --output yaml are for programs.

    Exit codes: 0 done, 1 it could not be done, 2 the command was typed wrongly, 3 what was asked for is not there,
    130 interrupted; see docs/exit-codes.md. Every failure is one line on standard error with its remedy.
    """
    if credentials is None and ctx.get_parameter_source("signature") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--signature has no effect without --credentials: give both, or leave it out")
    ctx.meta.update({"gantry.credentials": credentials, "gantry.signature": signature})
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code, or answer a shell that completes what is being typed."""
    if VARIABLE in os.environ:
        importlib.import_module("gantry_cli.completion")  # how we speak with a shell
        with contextlib.suppress(click.ClickException):  # whoever presses Tab has asked for no command
            cli.main(args=arguments, prog_name="gantry", standalone_mode=False)
        sys.exit(0)
    limit_new_files()  # what this process and the servers that it starts keep: messages, tokens, addresses
    with failures_as_exit_codes():
        sys.exit(cli.main(args=arguments, prog_name="gantry", standalone_mode=False) or 0)
