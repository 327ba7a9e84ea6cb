"""`kubectl gantry`: the commands about groups in a cluster, as users of kubectl expect them.

kubectl runs an executable `kubectl-gantry` for `kubectl gantry`, and `kubectl_complete-gantry` for the Tab key. Here
`-n` is the namespace and a group is named as it is, so these are commands of their own, over the functions that
`gantry status bg/GROUP` and its sisters call.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
from click.shell_completion import ShellComplete

from gantry_cli.errors import Mistyped, failures_as_exit_codes
from gantry_cli.examples import examples
from gantry_cli.kube import ordering
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.completing import complete_group
from gantry_cli.kube.naming import group_word
from gantry_cli.kube.options import target_options
from gantry_cli.kube.packing import pack_and_say
from gantry_cli.kube.showing import show_explanation, show_status
from gantry_cli.kube.waiting import Asked
from gantry_cli.output import Form, output_option

PROGRAM: Final = "kubectl gantry"
DIRECTIVE_NO_FILES: Final = 4
"""What kubectl reads behind the names: offer no files besides."""

F = TypeVar("F", bound=Callable[..., Any])


where_options: Final = target_options("-n", "--namespace", context_help="[default: the kubeconfig's]")


def group_argument(command: F) -> F:
    """GROUP, which may be left out where there is only one, and may be written bg/GROUP."""
    return click.argument(
        "group", required=False, shell_complete=complete_group, callback=lambda _c, _p, value: plain_name(value)
    )(command)


def plain_name(text: str | None) -> str | None:
    """`orders` of `orders` and of `bg/orders`. Raises Mistyped for another kind."""
    if text is None or "/" not in text:
        return text
    name = group_word(text)
    if not name:
        raise Mistyped(f"{text!r} names no group", "write its name, or bg/NAME")
    return name


no_exec = click.option(
    "--no-exec", "may_exec", is_flag=True, flag_value=False, default=True,
    help="Ask no sidecar: that runs a program in its pod.",
)  # fmt: skip
timeout = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, 86_400), default=60.0, show_default=True,
    help="How long to wait for it, in seconds; 0 only leaves the order.",
)  # fmt: skip


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
@group_argument
@where_options
@no_exec
@click.option("--watch", "-w", "is_watching", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@output_option
def status(group: str | None, target: Target, may_exec: bool, is_watching: bool, form: Form) -> None:
    """Show shards, brokers, what is at risk, and what is being done.

    From the group's status, its pods, and what every sidecar says now. The exit code is 1 when a shard does not
    acknowledge.
    """
    show_status(target, group, form, is_watching=is_watching, may_exec=may_exec)


@cli.command(
    epilog=examples(
        ("kubectl gantry explain orders", "who would take over, and what would be lost"),
        ("kubectl gantry explain orders -O json | jq '.outlook[0].winner'", "for programs"),
    )
)
@group_argument
@where_options
@no_exec
@output_option
def explain(group: str | None, target: Target, may_exec: bool, form: Form) -> None:
    """Say what would happen if a master died now.

    Candidates, what blocks each, and the loss in bytes, counted from what sidecars say now by the functions by which
    the operator decides; where they may not be asked, as the operator has written it last.
    """
    show_explanation(target, group, form, may_exec=may_exec)


@cli.command(
    epilog=examples(
        ("kubectl gantry promote orders 0", "shard 0: whoever is furthest, without losing anything"),
        ("kubectl gantry promote orders 0=2", "member 2, which is the pod orders-0-slave-0"),
        ("kubectl gantry promote orders 0 --accept-loss 64Mi", "though so much may be lost"),
    )
)
@click.argument("words", nargs=-1, required=True, metavar="[GROUP] SHARD[=MEMBER]", shell_complete=complete_group)
@where_options
@click.option("--accept-loss", default="0", metavar="SIZE|any", help="How much this promotion may lose.")
@timeout
@output_option
def promote(words: tuple[str, ...], target: Target, accept_loss: str, timeout_s: float, form: Form) -> None:
    """Move the master's role in a shard, and wait until it is so.

    The order is the annotation gantry.dev/promote. It stands when this command gives up waiting.
    """
    group, shard = group_and_shard(words)
    ordering.promote(Asked(target, group, form, timeout_s), shard, accept_loss)


@cli.command(
    epilog=examples(
        ("kubectl gantry fence orders 0", "shard 0 takes no sends, and its master stays"),
        ("kubectl gantry fence orders 0 --lift", "it takes them again"),
    )
)
@click.argument("words", nargs=-1, required=True, metavar="[GROUP] SHARD", shell_complete=complete_group)
@where_options
@click.option("--lift", "is_lifted", is_flag=True, help="Take the fence away.")
@timeout
@output_option
def fence(words: tuple[str, ...], target: Target, is_lifted: bool, timeout_s: float, form: Form) -> None:
    """Have a shard take no sends and keep its master, until the fence is lifted.

    The order is the annotation gantry.dev/fence, which stands until --lift takes the shard out of it.
    """
    group, shard = group_and_shard(words)
    ordering.fence(Asked(target, group, form, timeout_s), ordering.shard_number(shard), is_lifted=is_lifted)


@cli.command(
    epilog=examples(
        ("kubectl gantry restore orders 0", "say what may be lost if shard 0 begins with what is there"),
        ("kubectl gantry restore orders 0 --yes", "begin"),
    )
)
@click.argument("words", nargs=-1, required=True, metavar="[GROUP] SHARD", shell_complete=complete_group)
@where_options
@click.option("--yes", "is_confirmed", is_flag=True, help="Give up what no volume has.")
@timeout
@output_option
def restore(words: tuple[str, ...], target: Target, is_confirmed: bool, timeout_s: float, form: Form) -> None:
    """Begin a shard of a group that was lost with the volumes that were kept.

    The operator does that by itself where they prove that nothing lacks, and waits for this order where they do not.
    """
    group, shard = group_and_shard(words)
    asked = Asked(target, group, form, timeout_s)
    ordering.restore(asked, ordering.shard_number(shard), is_confirmed=is_confirmed)


@cli.command(
    epilog=examples(
        ("kubectl gantry bundle orders", "into gantry-bundle-orders-TIME.tar.gz here"),
        ("kubectl gantry bundle orders --to /tmp/orders.tar.gz", "elsewhere"),
    )
)
@group_argument
@where_options
@no_exec
@click.option("--to", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where it goes.")
def bundle(group: str | None, target: Target, may_exec: bool, path: Path | None) -> None:
    """Pack what explains a group into one file.

    Objects, events, logs, also of containers that have ended, what sidecars pack, and the operator's log. No Secret is
    read, and what looks like one is taken out.
    """
    pack_and_say(target, group, path, may_exec=may_exec)


def group_and_shard(words: tuple[str, ...]) -> tuple[str | None, str]:
    """The last word is the shard. Raises click's UsageError for too many."""
    if len(words) > 2:
        raise click.UsageError(f"too much was typed: {' '.join(words[2:])}")
    return (plain_name(words[0]) if len(words) == 2 else None), words[-1]


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
