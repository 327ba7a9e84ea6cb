"""The entry point of the command line: the table of commands, and the conversion of failures to exit codes."""

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

import gantry_speedups
from gantry_cli.errors import failures_as_exit_codes
from gantry_remoting.file_access import limit_new_files
from gantry_wire.version import VERSION

COMPLETION_VARIABLE: Final = "_GANTRY_COMPLETE"
"""The environment variable with which a shell requests completion."""


class CommandEntry(NamedTuple):
    """The module and attribute of a command, and its summary in the overview."""

    module: str
    name: str
    summary: str


COMMAND_SECTIONS: Final[dict[str, dict[str, CommandEntry]]] = {
    "Run": {
        "up": CommandEntry(
            "gantry_cli.local.up", "up", "Start a group of brokers on this machine, and check that it works."
        ),
        "apply": CommandEntry("gantry_cli.local.commands", "apply", "Apply a changed manifest to the local group."),
        "promote": CommandEntry("gantry_cli.kube.commands", "promote", "Move the master role in a shard of the group."),
        "fence": CommandEntry(
            "gantry_cli.kube.commands", "fence", "Stop sends to a shard in a cluster, and keep its master."
        ),
        "restore": CommandEntry(
            "gantry_cli.kube.commands",
            "restore",
            "Start a shard with its volumes, or restore a backup.",
        ),
        "backup": CommandEntry("gantry_cli.kube.commands", "backup", "Make a backup of a group in a cluster."),
        "kill": CommandEntry("gantry_cli.local.commands", "kill", "Kill or suspend a process of the local group."),
        "down": CommandEntry("gantry_cli.local.commands", "down", "Stop what `gantry up` started."),
        "nameserver": CommandEntry("gantry_cli.serve", "nameserver", "Run a name server in the foreground."),
        "broker": CommandEntry("gantry_cli.serve", "broker", "Run a broker in the foreground."),
        "sidecar": CommandEntry("gantry_cli.serve", "sidecar", "Run a broker's admin sidecar in the foreground."),
        "proxy": CommandEntry("gantry_cli.serve", "proxy", "Run a gRPC proxy for RocketMQ 5 SDKs in the foreground."),
        "ha": CommandEntry("gantry_cli.ha.commands", "ha", "Show a replicated group and move its master role."),
        "migrate": CommandEntry("gantry_cli.migrate.commands", "migrate", "Migrate from a running RocketMQ broker."),
    },
    "Inspect": {
        "status": CommandEntry(
            "gantry_cli.status.commands", "status", "Show name servers, brokers, topics and groups."
        ),
        "doctor": CommandEntry(
            "gantry_cli.doctor.commands", "doctor", "Find common set-up faults, and show the remedy of each."
        ),
        "explain": CommandEntry(
            "gantry_cli.kube.commands", "explain", "Explain what would happen if a master of the group died now."
        ),
        "console": CommandEntry(
            "gantry_cli.kube.console", "console", "Open the console of a group, or a list of several groups."
        ),
        "bundle": CommandEntry(
            "gantry_cli.kube.commands", "bundle", "Pack everything needed to diagnose the group into one file."
        ),
        "topic": CommandEntry("gantry_cli.topic.commands", "topic", "List, create, delete and describe topics."),
        "store": CommandEntry("gantry_cli.store.commands", "store", "Inspect, verify and repair the files of a store."),
    },
    "Messages": {
        "produce": CommandEntry("gantry_cli.messages.produce", "produce", "Send messages."),
        "consume": CommandEntry("gantry_cli.messages.consume", "consume", "Read messages."),
        "search": CommandEntry("gantry_cli.messages.search", "search", "Search the messages of a topic."),
        "message": CommandEntry(
            "gantry_cli.message.commands", "message", "Show what became of a stored message, or send it again."
        ),
        "group": CommandEntry(
            "gantry_cli.group.commands",
            "group",
            "Show, reset and delete consumer groups; resend dead letters.",
        ),
    },
    "Bulk processing": {
        "pipeline": CommandEntry("gantry_cli.pipeline", "pipeline", "Archive, audit and analyze topics with Spark."),
    },
    "Shell": {
        "completion": CommandEntry(
            "gantry_cli.completion",
            "completion",
            "Generate a shell completion script.",
        ),
    },
    "Containers": {
        "pod": CommandEntry("gantry_cli.pod.commands", "pod", "Run one server as the first process of a container."),
    },
}

EXAMPLES: Final = """\b
Examples:
  gantry up                                    start a group on this machine, until Ctrl-C
  gantry kill master-0                         kill the master; a slave takes over
  gantry produce hello "first message"         send one message
  gantry consume hello                         read all messages of the topic
  gantry status -n ns.example:9876             show any cluster, RocketMQ or Gantry
  gantry status bg/orders --namespace shop     show a group in a Kubernetes cluster
"""


class CommandGroup(click.Group):
    """The root command: commands by section, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for entries in COMMAND_SECTIONS.values() for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entries in COMMAND_SECTIONS.values():
            entry = entries.get(cmd_name)
            if entry is not None:
                command = getattr(importlib.import_module(entry.module), entry.name)
                assert isinstance(command, click.Command), "the table holds only commands"
                importlib.import_module("gantry_wire.structs").make_structs_ready()  # some commands start threads
                return command
        return None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return names and summaries from the table, without importing the modules of the commands."""
        entries = [entry for section in COMMAND_SECTIONS.values() for entry in section.items()]
        found = [CompletionItem(name, help=entry.summary) for name, entry in entries if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, entries in COMMAND_SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])


def version_text() -> str:
    """Return the versions and the path that runs: `gantry 0.1.0 (Python 3.11.2, compiled hot path)`."""
    return f"gantry {VERSION} (Python {platform.python_version()}, {gantry_speedups.describe()})"


def show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(version_text())
        ctx.exit()


@click.group(
    cls=CommandGroup,
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
    help="Lowest level of log messages to write to standard error.",
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
    help="Signature scheme: v1 as in RocketMQ's clients, or strict for servers with aclMode=STRICT.",
)
@click.pass_context
def cli(ctx: click.Context, log_level: str, credentials: str | None, signature: str) -> None:
    """Gantry: a message broker for RocketMQ clients.

    Run gantry COMMAND --help for examples of a command. Commands that connect to a cluster take the address of the name
    server from -n, else from GANTRY_NAMESRV, else from a `gantry up` in this directory, else 127.0.0.1:9876. They take
    their account from --credentials, else from GANTRY_CREDENTIALS.

    Output is formatted for people by default; -o wide shows more, and -o json or -o yaml is for programs.

    Exit codes: 0 success, 1 failure, 2 invalid usage, 3 not found, 130 interrupted; see docs/exit-codes.md. A
    failure is reported on standard error, with a remedy if one is known.
    """
    if credentials is None and ctx.get_parameter_source("signature") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--signature has no effect without --credentials: set both or neither")
    ctx.meta.update({"gantry.credentials": credentials, "gantry.signature": signature})
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code, or answer a completion request of a shell."""
    if COMPLETION_VARIABLE in os.environ:
        importlib.import_module("gantry_cli.completion")  # registers the completion classes
        with contextlib.suppress(click.ClickException):  # the user pressed Tab and ran no command
            cli.main(args=arguments, prog_name="gantry", standalone_mode=False)
        sys.exit(0)
    limit_new_files()  # files of this process and its servers hold messages, tokens and addresses
    with failures_as_exit_codes():
        sys.exit(cli.main(args=arguments, prog_name="gantry", standalone_mode=False) or 0)
