"""`kubectl gantry`: the commands about groups in a cluster, with kubectl's conventions.

kubectl runs the executable `kubectl-gantry` for `kubectl gantry`, and `kubectl_complete-gantry` for shell completion.
The commands are those of ``gantry_cli.kube.commands``, with kubectl's way to name a group. Only `status` is defined
here, since `gantry status` also shows clusters outside Kubernetes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final, NoReturn

import click
from click.shell_completion import ShellComplete

from gantry_cli.errors import failures_as_exit_codes
from gantry_cli.examples import examples
from gantry_cli.kube.commands import (
    ClusterGroup,
    KubectlEntryPoint,
    backup_command,
    bundle_command,
    explain_command,
    fence_command,
    promote_command,
    restore_command,
)
from gantry_cli.kube.console import kubectl_console
from gantry_cli.kube.screen import show_status
from gantry_cli.options import watch_options
from gantry_cli.output import OutputFormat, output_option
from gantry_remoting.file_access import limit_new_files

PROGRAM: Final = "kubectl gantry"
DIRECTIVE_NO_FILES: Final = 4
"""The directive after the suggestions: kubectl adds no file names."""

KUBECTL: Final = KubectlEntryPoint()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        ("kubectl gantry status orders -n shop", "show the masters, the lag of slaves, and the data at risk"),
        ("kubectl gantry explain orders", "what would happen if a master died now"),
    ),
)
def cli() -> None:
    """Show groups of Gantry brokers in this cluster, and give them orders.

    GROUP may be left out if the namespace has only one. The operator executes the orders; these commands act with your
    own rights, which docs/kubectl.md lists, and never read a Secret.

    Exit codes: 0 success, 1 failure or the group is not available, 2 invalid usage, 3 not found, 130 interrupted.
    """


@cli.command(
    epilog=examples(
        ("kubectl gantry status orders", "show the status once"),
        ("kubectl gantry status orders -n shop --watch", "show it again every two seconds"),
        ("kubectl gantry status orders -O json | jq .members", "for programs"),
    )
)
@KUBECTL.group()
@KUBECTL.exec_option
@watch_options
@output_option
def status(group: ClusterGroup, may_exec: bool, interval_s: float | None, form: OutputFormat) -> None:
    """Show shards, brokers, the data at risk, and actions in progress.

    Combines the group's status, its pods, and the present answers of all sidecars. The exit code is 1 when a shard does
    not acknowledge sends, also if it is fenced or hibernated, and when there is no status yet.
    """
    show_status(group.target, group.name, form, interval_s=interval_s, may_exec=may_exec)


for build in (explain_command, promote_command, fence_command, restore_command, backup_command, bundle_command):
    cli.add_command(build(KUBECTL))
cli.add_command(kubectl_console)


def main() -> NoReturn:
    """Run the plugin as a program, and exit with its code."""
    limit_new_files()  # a bundle holds logs and addresses
    with failures_as_exit_codes():
        sys.exit(cli.main(prog_name=PROGRAM, standalone_mode=False) or 0)


def complete() -> NoReturn:
    """Print shell completions for kubectl: a suggestion and its help per line, then a directive."""
    words = sys.argv[1:]
    with contextlib.suppress(click.ClickException, IndexError), contextlib.redirect_stderr(None):
        completer = ShellComplete(cli, {}, PROGRAM, "_")
        for item in completer.get_completions(words[:-1], words[-1]):
            print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(f":{DIRECTIVE_NO_FILES}")
    sys.stdout.flush()
    os._exit(0)  # does not wait for threads that may hang
