"""`kubectl gantry`: the commands about groups in a cluster, as users of kubectl expect them.

kubectl runs an executable `kubectl-gantry` for `kubectl gantry`, and `kubectl_complete-gantry` for the Tab key. The
commands are those of ``gantry_cli.kube.commands``, mounted with kubectl's way to name a group. Only `status` is written
here, since `gantry status` is about any cluster of clients.
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
    Kubectl,
    bundle_command,
    explain_command,
    fence_command,
    promote_command,
    restore_command,
)
from gantry_cli.kube.screen import show_status
from gantry_cli.output import Form, output_option

PROGRAM: Final = "kubectl gantry"
DIRECTIVE_NO_FILES: Final = 4
"""What kubectl reads behind the names: offer no files besides."""

KUBECTL: Final = Kubectl()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        ("kubectl gantry status orders -n shop", "who is the master, how far is everybody, what is at risk"),
        ("kubectl gantry explain orders", "what would happen if a master died now"),
    ),
)
def cli() -> None:
    """Groups of Gantry brokers in this cluster: look at them, and order what a person may order.

    GROUP may be left out where a namespace has only one. What is done is done by the operator; these commands act with
    your own rights, which docs/kubectl.md lists, and read no Secret.

    Exit codes: 0 done, 1 it could not be done or the group is not available, 2 typed wrongly, 3 there is no such group.
    """


@cli.command(
    epilog=examples(
        ("kubectl gantry status orders", "one look"),
        ("kubectl gantry status orders -n shop --watch", "as it changes"),
        ("kubectl gantry status orders -O json | jq .members", "for programs"),
    )
)
@KUBECTL.group()
@KUBECTL.exec_option
@click.option("--watch", "-w", "is_watching", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@output_option
def status(group: ClusterGroup, may_exec: bool, is_watching: bool, form: Form) -> None:
    """Show shards, brokers, what is at risk, and what is being done.

    From the group's status, its pods, and what every sidecar says now. The exit code is 1 when a shard does not
    acknowledge.
    """
    show_status(group.target, group.name, form, is_watching=is_watching, may_exec=may_exec)


for build in (explain_command, promote_command, fence_command, restore_command, bundle_command):
    cli.add_command(build(KUBECTL))


def main() -> NoReturn:
    """The plugin itself."""
    with failures_as_exit_codes():
        sys.exit(cli.main(prog_name=PROGRAM, standalone_mode=False) or 0)


def complete() -> NoReturn:
    """What kubectl asks for behind the Tab key: one name a line, what it means behind a tab, and a directive."""
    words = sys.argv[1:]
    with contextlib.suppress(click.ClickException, IndexError), contextlib.redirect_stderr(None):
        completer = ShellComplete(cli, {}, PROGRAM, "_")
        for item in completer.get_completions(words[:-1], words[-1]):
            print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(f":{DIRECTIVE_NO_FILES}")
    sys.stdout.flush()
    os._exit(0)  # whatever hangs, hangs in what nobody waits for
