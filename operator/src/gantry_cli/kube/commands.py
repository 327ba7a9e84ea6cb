"""The commands about one broker group: each is defined once, and mounted by `gantry` and by `kubectl gantry`.

A command acts on a target. With `gantry` that is the group of ``--data`` here or, as ``bg/NAME``, one in a cluster;
`-n` is the name server of clients there. With `kubectl gantry` it is always one in a cluster, named as it is, and `-n`
is the namespace. ``EntryPoint`` holds what differs: arguments, options, and how examples are written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import click

from gantry_cli.errors import Mistyped
from gantry_cli.examples import examples
from gantry_cli.kube import ordering
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.naming import group_word
from gantry_cli.kube.options import (
    cluster_options,
    complete_cluster_group,
    complete_group,
    group_named,
    no_exec,
    target_options,
)
from gantry_cli.kube.ordering import Asked
from gantry_cli.kube.packing import pack_in_cluster
from gantry_cli.kube.screen import show_explanation
from gantry_cli.local.bundle import pack_here
from gantry_cli.local.look import explain_here
from gantry_cli.local.promote import promote_here
from gantry_cli.options import data_option
from gantry_cli.orders import parse_shard
from gantry_cli.output import Form, output_option

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT_S_MAX: Final = 86_400
ONLY_CLUSTERS: Final = "a single broker is fenced by `gantry ha fence`; a local group begins with what is there"


class LocalGroup(NamedTuple):
    """The group that runs on a folder of this machine."""

    data: Path


class ClusterGroup(NamedTuple):
    """A group in a cluster; without a name the only one of its namespace."""

    target: Target
    name: str | None


AnyGroup = LocalGroup | ClusterGroup


# -- how a group is named ----------------------------------------------------------------------------------------------


class EntryPoint(Protocol):
    """How a program names groups."""

    def group(self, *, has_local: bool = True) -> Callable[[F], F]:
        """The argument and the options that name a group; the command gets them as ``group``."""

    def shard(self, words: str, *, has_local: bool = True) -> Callable[[F], F]:
        """The same with a word about a shard behind, which the command gets as ``shard``."""

    def exec_option(self, command: F) -> F:
        """--no-exec."""

    def examples(self, local: tuple[tuple[str, str], ...], *cluster: tuple[str, str]) -> str:
        """``cluster`` ones have {orders} for the group and {shop} for its namespace; ``local`` ones are about here."""


@final
class Gantry:
    """`gantry COMMAND`, for a group of --data, and `gantry COMMAND bg/NAME`, for one in a cluster."""

    def group(self, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options("[bg/GROUP]" if has_local else "bg/GROUP", "", has_local=has_local)

    def shard(self, words: str, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options("[bg/GROUP]" if has_local else "bg/GROUP", words, has_local=has_local)

    def _options(self, group: str, shard: str, *, has_local: bool) -> Callable[[F], F]:
        has_shard = bool(shard)

        def decorate(command: F) -> F:
            @functools.wraps(command)
            def with_group(words: tuple[str, ...], target: Target, data: Path | None = None, **others: Any) -> Any:
                first, rest = _split(words, has_shard)
                name = group_named(first, target)
                if name is None and data is None:
                    raise Mistyped("name the group in the cluster: bg/GROUP SHARD", ONLY_CLUSTERS)
                found: AnyGroup = LocalGroup(data or Path()) if name is None else ClusterGroup(target, name)
                return command(group=found, **rest, **others)

            decorated = cluster_options(with_group)
            if has_local:
                decorated = data_option(decorated)
            metavar = f"{group} {shard}".strip()
            return _words_argument(metavar, complete_cluster_group, is_required=has_shard)(decorated)  # type: ignore[return-value]

        return decorate

    def exec_option(self, command: F) -> F:
        return no_exec("Ask no sidecar of bg/GROUP: that runs a program in its pods.")(command)

    def examples(self, local: tuple[tuple[str, str], ...], *cluster: tuple[str, str]) -> str:
        made = ((words.format(orders="bg/orders", shop="--namespace shop"), meaning) for words, meaning in cluster)
        return examples(*((f"gantry {words}", meaning) for words, meaning in (*local, *made)))


@final
class Kubectl:
    """`kubectl gantry COMMAND`: GROUP may be left out where there is only one, and may be written bg/GROUP."""

    def group(self, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options("[GROUP]", has_shard=False)

    def shard(self, words: str, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options(f"[GROUP] {words}", has_shard=True)

    def _options(self, metavar: str, *, has_shard: bool) -> Callable[[F], F]:
        def decorate(command: F) -> F:
            @functools.wraps(command)
            def with_group(words: tuple[str, ...], target: Target, **others: Any) -> Any:
                first, rest = _split(words, has_shard)
                return command(group=ClusterGroup(target, plain_name(first)), **rest, **others)

            decorated = target_options("-n", "--namespace", context_help="[default: the kubeconfig's]")(with_group)
            return _words_argument(metavar, complete_group, is_required=has_shard)(decorated)  # type: ignore[return-value]

        return decorate

    def exec_option(self, command: F) -> F:
        return no_exec("Ask no sidecar: that runs a program in its pod.")(command)

    def examples(self, local: tuple[tuple[str, str], ...], *cluster: tuple[str, str]) -> str:
        made = ((words.format(orders="orders", shop="-n shop"), meaning) for words, meaning in cluster)
        return examples(*((f"kubectl gantry {words}", meaning) for words, meaning in made))


def _words_argument(metavar: str, complete: Callable[..., Any], *, is_required: bool) -> Callable[[F], F]:
    return click.argument("words", nargs=-1, required=is_required, metavar=metavar, shell_complete=complete)


def _split(words: tuple[str, ...], has_shard: bool) -> tuple[str | None, dict[str, str]]:
    """The group, if it was typed, and the shard behind it. Raises click's UsageError for too many words."""
    most = 2 if has_shard else 1
    if len(words) > most:
        raise click.UsageError(f"too much was typed: {' '.join(words[most:])}")
    if has_shard:
        return (words[0] if len(words) == 2 else None), {"shard": words[-1]}
    return (words[0] if words else None), {}


def plain_name(text: str | None) -> str | None:
    """`orders` of `orders` and of `bg/orders`. Raises Mistyped for another kind."""
    if text is None or "/" not in text:
        return text
    name = group_word(text)
    if not name:
        raise Mistyped(f"{text!r} names no group", "write its name, or bg/NAME")
    return name


def timeout_option(default_s: float) -> Callable[[F], F]:
    """--timeout, for commands that leave an order and wait for what comes of it."""
    return click.option(
        "--timeout", "timeout_s", type=click.FloatRange(0, TIMEOUT_S_MAX), default=default_s, show_default=True,
        help="How long to wait for it, in seconds; 0 only leaves the order.",
    )  # fmt: skip


# -- the commands ------------------------------------------------------------------------------------------------------


def explain_command(entry: EntryPoint) -> click.Command:
    """`explain`."""

    @click.command(
        epilog=entry.examples(
            (("explain", "who would take over in each shard, and what would be lost"),),
            ("explain {orders} {shop}", "of a group in a Kubernetes cluster"),
            ("explain {orders} {shop} -O json | jq '.outlook[0].winner'", "for programs"),
        )
    )
    @entry.group()
    @entry.exec_option
    @output_option
    def explain(group: AnyGroup, may_exec: bool, form: Form) -> None:
        """Say what would happen if a master of the group died now.

        Candidates, what blocks each, and the loss in bytes. It is asked of the same functions that would decide, so it
        is what is done, unless the master takes more meanwhile. Of a group in a cluster it is counted from what its
        sidecars say now, or, where they may not be asked, shown as the operator has written it last.
        """
        match group:
            case LocalGroup(data):
                explain_here(data, form)
            case ClusterGroup(target, name):
                show_explanation(target, name, form, may_exec=may_exec)

    return explain


def promote_command(entry: EntryPoint) -> click.Command:
    """`promote`."""

    @click.command(
        epilog=entry.examples(
            (
                ("promote 0", "shard 0: whoever is furthest, without losing anything"),
                ("promote 0=2", "shard 0: member 2, which is slave-0-1"),
                ("promote 0 --accept-loss any", "whatever is lost: for when nobody can know it"),
            ),
            ("promote {orders} 0=2 {shop}", "of a group in a cluster: member 2, which is the pod orders-0-slave-0"),
            ("promote {orders} 0 {shop} --accept-loss 64Mi", "though so much may be lost"),
        )
    )
    @entry.shard("SHARD[=MEMBER]")
    @click.option("--accept-loss", default="0", metavar="SIZE|any", help="How much this promotion may lose.")
    @timeout_option(60.0)
    @output_option
    def promote(group: AnyGroup, shard: str, accept_loss: str, timeout_s: float, form: Form) -> None:
        """Move the master's role in a shard of the group.

        The order is the annotation gantry.dev/promote. The master is drained first, and the role moves when a slave
        has everything. When the master is gone, the furthest slave is promoted, if what may be lost is accepted. Until
        then the order stands, and this command waits and says for what. The order stays when it gives up waiting;
        another order for the same shard replaces it.
        """
        match group:
            case LocalGroup(data):
                promote_here(shard, data, accept_loss, timeout_s, form)
            case ClusterGroup(target, name):
                ordering.promote(Asked(target, name, form, timeout_s), shard, accept_loss)

    return promote


def fence_command(entry: EntryPoint) -> click.Command:
    """`fence`, which only a group in a cluster knows."""

    @click.command(
        epilog=entry.examples(
            (),
            ("fence {orders} 0 {shop}", "shard 0 takes no sends, and its master stays"),
            ("fence {orders} 0 {shop} --lift", "it takes them again"),
        )
    )
    @entry.shard("SHARD", has_local=False)
    @click.option("--lift", "is_lifted", is_flag=True, help="Take the fence away.")
    @timeout_option(60.0)
    @output_option
    def fence(group: ClusterGroup, shard: str, is_lifted: bool, timeout_s: float, form: Form) -> None:
        """Have a shard in a cluster take no sends, and keep its master.

        What was acknowledged stays and can be read. Producers take the other shards. The order is the annotation
        gantry.dev/fence, which stands until --lift takes the shard out of it; this command waits until it is obeyed.
        """
        asked = Asked(group.target, group.name, form, timeout_s)
        ordering.fence(asked, parse_shard(shard), is_lifted=is_lifted)

    return fence


def restore_command(entry: EntryPoint) -> click.Command:
    """`restore`, which only a group in a cluster knows."""

    @click.command(
        epilog=entry.examples(
            (),
            ("restore {orders} 0 {shop}", "say what may be lost if shard 0 begins with what is there"),
            ("restore {orders} 0 {shop} --yes", "begin"),
        )
    )
    @entry.shard("SHARD", has_local=False)
    @click.option("--yes", "is_confirmed", is_flag=True, help="Give up what no volume has.")
    @timeout_option(300.0)
    @output_option
    def restore(group: ClusterGroup, shard: str, is_confirmed: bool, timeout_s: float, form: Form) -> None:
        """Begin a shard with the volumes that are there.

        For a group that was lost and whose volumes were kept: apply its manifest again, and its operator begins with
        them by itself where they prove that nothing lacks. Where they do not, it waits for this order.
        """
        asked = Asked(group.target, group.name, form, timeout_s)
        ordering.restore(asked, parse_shard(shard), is_confirmed=is_confirmed)

    return restore


def bundle_command(entry: EntryPoint) -> click.Command:
    """`bundle`."""

    @click.command(
        epilog=entry.examples(
            (("bundle", "into gantry-bundle-TIME.tar.gz here"),),
            ("bundle {orders} {shop}", "of a group in a cluster, into gantry-bundle-orders-TIME.tar.gz"),
            ("bundle {orders} {shop} --to /tmp/orders.tar.gz", "elsewhere"),
        )
    )
    @entry.group()
    @entry.exec_option
    @click.option("--to", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                  help="Where it goes [default: gantry-bundle-...-TIME.tar.gz].")  # fmt: skip
    def bundle(group: AnyGroup, may_exec: bool, path: Path | None) -> None:
        """Pack what explains the group into one file.

        Of a group here: manifest, records, decisions, the ends of logs, and each sidecar's own bundle; it may run or
        not. Of a group in a cluster: objects, events, logs, also of containers that have ended, what sidecars pack, and
        the operator's log, as far as you may see them. It holds no secret and no message.
        """
        match group:
            case LocalGroup(data):
                pack_here(data, path)
            case ClusterGroup(target, name):
                pack_in_cluster(target, name, path, may_exec=may_exec)

    return bundle


GANTRY: Final = Gantry()
explain: Final = explain_command(GANTRY)
promote: Final = promote_command(GANTRY)
fence: Final = fence_command(GANTRY)
restore: Final = restore_command(GANTRY)
bundle: Final = bundle_command(GANTRY)
