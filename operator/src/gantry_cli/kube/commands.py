"""The commands about one broker group: each is defined once, and used by `gantry` and by `kubectl gantry`.

With `gantry` a command acts on the local group of ``--data`` or, with ``bg/NAME``, on a group in a cluster; `fence` and
`restore` are for clusters only. `-n` is the name server of clients, so it does not name a namespace. With `kubectl
gantry` it always acts on a group in a cluster, named without a prefix, and `-n` is the namespace. ``EntryPoint`` has
the differences: arguments, options, and the form of examples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import click

from gantry_cli.errors import InvalidInput
from gantry_cli.examples import examples
from gantry_cli.kube import backups, cluster_orders
from gantry_cli.kube.capacity import show_cluster_capacity, show_manifest_capacity
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.cluster_bundle import write_cluster_bundle
from gantry_cli.kube.cluster_orders import OrderOptions
from gantry_cli.kube.naming import group_name_in
from gantry_cli.kube.options import (
    cluster_options,
    complete_cluster_group,
    complete_group,
    no_exec,
    parse_group_argument,
    target_options,
)
from gantry_cli.kube.screen import show_explanation
from gantry_cli.local.bundle import write_local_bundle
from gantry_cli.local.group_status import show_local_explanation
from gantry_cli.local.promote import promote_in_folder
from gantry_cli.options import data_option, refuse_ignored
from gantry_cli.orders import parse_shard
from gantry_cli.output import OutputFormat, output_option

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT_S_MAX: Final = 86_400
ONLY_CLUSTERS: Final = "for a single broker use `gantry ha fence`; a local group needs no restore"
"""The remedy for a local group, where the command does not apply."""


class LocalGroup(NamedTuple):
    """The group that runs in a folder of this machine."""

    data: Path
    """The folder of the group, which `gantry up` got as ``--data``."""


class ClusterGroup(NamedTuple):
    """A group in a cluster; without a name, the only one of its namespace."""

    target: Target
    name: str | None


AnyGroup = LocalGroup | ClusterGroup


# -- naming a group ----------------------------------------------------------------------------------------------------


class EntryPoint(Protocol):
    """The way in which a program names groups."""

    def group(self, *, has_local: bool = True) -> Callable[[F], F]:
        """Add the argument and the options that name a group; the command gets them as ``group``."""

    def shard(self, words: str, *, has_local: bool = True) -> Callable[[F], F]:
        """Add the same and an argument for a shard, which the command gets as ``shard``."""

    def optional_shard(self, words: str) -> Callable[[F], F]:
        """Add a group in a cluster, which must be named, and an optional shard, which is None without one."""

    def exec_option(self, command: F) -> F:
        """Add the option --no-exec to a command."""

    def examples(self, local: tuple[tuple[str, str], ...], *cluster: tuple[str, str]) -> str:
        """Return the examples. Those of ``cluster`` have {orders} for the group and {shop} for its namespace."""


@final
class GantryEntryPoint:
    """`gantry COMMAND` for a local group of --data, and `gantry COMMAND bg/NAME` for a group in a cluster."""

    def group(self, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options("[bg/GROUP]" if has_local else "bg/GROUP", "", has_local=has_local)

    def shard(self, words: str, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options("[bg/GROUP]" if has_local else "bg/GROUP", words, has_local=has_local)

    def optional_shard(self, words: str) -> Callable[[F], F]:
        return self._options("bg/GROUP", f"[{words}]", has_local=False)

    def _options(self, group: str, shard: str, *, has_local: bool) -> Callable[[F], F]:
        has_shard, is_optional = bool(shard), shard.startswith("[")

        def decorate(command: F) -> F:
            @functools.wraps(command)
            def with_group(words: tuple[str, ...], target: Target, data: Path | None = None, **others: Any) -> Any:
                first, rest = _split(words, has_shard, is_optional=is_optional)
                name = parse_group_argument(first, target)
                if name is None and data is None:
                    raise InvalidInput("name the group in the cluster: bg/GROUP SHARD", ONLY_CLUSTERS)
                found: AnyGroup = LocalGroup(data or Path()) if name is None else ClusterGroup(target, name)
                return command(group=found, **rest, **others)

            decorated = cluster_options(with_group)
            if has_local:
                decorated = data_option(decorated)
            metavar = f"{group} {shard}".strip()
            return _words_argument(metavar, complete_cluster_group, is_required=has_shard)(decorated)  # type: ignore[return-value]

        return decorate

    def exec_option(self, command: F) -> F:
        return no_exec("Do not query the sidecars of bg/GROUP: a query runs a program in its pods.")(command)

    def examples(self, local: tuple[tuple[str, str], ...], *cluster: tuple[str, str]) -> str:
        made = ((words.format(orders="bg/orders", shop="--namespace shop"), meaning) for words, meaning in cluster)
        return examples(*((f"gantry {words}", meaning) for words, meaning in (*local, *made)))


@final
class KubectlEntryPoint:
    """`kubectl gantry COMMAND`: GROUP may be left out where there is only one, and may be written bg/GROUP."""

    def group(self, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options("[GROUP]", has_shard=False)

    def shard(self, words: str, *, has_local: bool = True) -> Callable[[F], F]:
        return self._options(f"[GROUP] {words}", has_shard=True)

    def optional_shard(self, words: str) -> Callable[[F], F]:
        return self._options(f"[GROUP] [{words}]", has_shard=True, is_optional=True)

    def _options(self, metavar: str, *, has_shard: bool, is_optional: bool = False) -> Callable[[F], F]:
        def decorate(command: F) -> F:
            @functools.wraps(command)
            def with_group(words: tuple[str, ...], target: Target, **others: Any) -> Any:
                first, rest = _split(words, has_shard, is_optional=is_optional)
                return command(group=ClusterGroup(target, plain_name(first)), **rest, **others)

            decorated = target_options("-n", "--namespace", context_help="[default: the kubeconfig's]")(with_group)
            return _words_argument(metavar, complete_group, is_required=has_shard)(decorated)  # type: ignore[return-value]

        return decorate

    def exec_option(self, command: F) -> F:
        return no_exec("Do not query the sidecars: a query runs a program in their pods.")(command)

    def examples(self, local: tuple[tuple[str, str], ...], *cluster: tuple[str, str]) -> str:
        made = ((words.format(orders="orders", shop="-n shop"), meaning) for words, meaning in cluster)
        return examples(*((f"kubectl gantry {words}", meaning) for words, meaning in made))


def _words_argument(metavar: str, complete: Callable[..., Any], *, is_required: bool) -> Callable[[F], F]:
    return click.argument("words", nargs=-1, required=is_required, metavar=metavar, shell_complete=complete)


def _split(
    words: tuple[str, ...], has_shard: bool, *, is_optional: bool = False
) -> tuple[str | None, dict[str, str | None]]:
    """Return the group, if one was given, and the shard. Raises click's UsageError for too many arguments.

    A single word is the shard; where the shard ``is_optional``, it is the group unless it begins with a digit.
    """
    most = 2 if has_shard else 1
    if len(words) > most:
        raise click.UsageError(f"unexpected arguments: {' '.join(words[most:])}")
    if is_optional and len(words) == 1 and not words[0][:1].isdigit():
        return words[0], {"shard": None}
    if has_shard:
        return (words[0] if len(words) == 2 else None), {"shard": words[-1]}
    return (words[0] if words else None), {}


def plain_name(text: str | None) -> str | None:
    """Return `orders` for `orders` and for `bg/orders`. Raises InvalidInput for another kind."""
    if text is None or "/" not in text:
        return text
    name = group_name_in(text)
    if not name:
        raise InvalidInput(f"{text!r} is not the name of a group", "write NAME or bg/NAME")
    return name


def timeout_option(default_s: float) -> Callable[[F], F]:
    """Return the option --timeout of commands that give an order and wait for its result."""
    return click.option(
        "--timeout", "timeout_s", type=click.FloatRange(0, TIMEOUT_S_MAX), default=default_s, show_default=True,
        help="How long to wait for the result, in seconds; 0 only gives the order.",
    )  # fmt: skip


# -- the commands ------------------------------------------------------------------------------------------------------


def explain_command(entry: EntryPoint) -> click.Command:
    """Return the command `explain` of an entry point."""

    @click.command(
        epilog=entry.examples(
            (
                ("explain", "show which member would take over in each shard, and what would be lost"),
                ("explain --capacity -f group.yaml", "show what the pods of a manifest need"),
            ),
            ("explain {orders} {shop}", "show it for a group in a Kubernetes cluster"),
            ("explain {orders} {shop} -O json | jq '.outlook[0].winner'", "for programs"),
            ("explain {orders} {shop} --capacity", "show what its pods need, and what each node can take"),
            ("explain {orders} {shop} --capacity -f group.yaml", "the same for a manifest before it is applied"),
        )
    )
    @entry.group()
    @entry.exec_option
    @click.option("--capacity", "is_capacity", is_flag=True,
                  help="Show the resources that the group needs, and the room on the nodes.")  # fmt: skip
    @click.option("-f", "--file", "manifest", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                  help="With --capacity, the manifest [default: that of the group in the cluster].")  # fmt: skip
    @output_option
    def explain(group: AnyGroup, may_exec: bool, is_capacity: bool, manifest: Path | None, form: OutputFormat) -> None:
        """Explain what would happen if a master of the group died now.

        Shows the candidates, what blocks each, and the loss in bytes. The result comes from the functions that decide a
        failover. It is exact if the master is known to have acknowledged nothing after this moment. For a group in a
        cluster it is calculated from the present answers of its sidecars, or, if there are none, taken from the
        operator's latest status.

        With --capacity, shows instead what the pods of the group need in a cluster: the figures are those of the
        objects that the operator applies. For a group in a cluster it also shows the room on each node, and whether
        all pods fit; the exit code is 1 if they do not. This is an estimate: the scheduler decides.
        """
        if is_capacity:
            refuse_ignored("with --capacity", ignored={"may_exec", "data"})
            _show_capacity(group, manifest, form)
            return
        refuse_ignored("without --capacity", ignored={"manifest"})
        match group:
            case LocalGroup(data):
                show_local_explanation(data, form)
            case ClusterGroup(target, name):
                show_explanation(target, name, form, may_exec=may_exec)

    return explain


def _show_capacity(group: AnyGroup, manifest: Path | None, form: OutputFormat) -> None:
    match group:
        case ClusterGroup(target, name):
            show_cluster_capacity(target, name, manifest, form)
        case LocalGroup() if manifest is not None:
            show_manifest_capacity(manifest, form)
        case LocalGroup():
            raise InvalidInput("--capacity needs a group", "name a manifest with -f FILE, or a cluster's with bg/GROUP")


def promote_command(entry: EntryPoint) -> click.Command:
    """Return the command `promote` of an entry point."""

    @click.command(
        epilog=entry.examples(
            (
                ("promote 0", "promote the best slave of shard 0, without loss"),
                ("promote 0=2", "promote member 2 of shard 0, which is slave-0-1"),
                ("promote 0 --accept-loss any", "accept any loss, also an unknown one"),
            ),
            ("promote {orders} 0=2 {shop}", "promote member 2 in a cluster, which is the pod orders-0-slave-0"),
            ("promote {orders} 0 {shop} --accept-loss 64Mi", "accept a loss of up to 64 MiB"),
        )
    )
    @entry.shard("SHARD[=MEMBER]")
    @click.option("--accept-loss", default="0", metavar="SIZE|any", help="How much this promotion may lose.")
    @timeout_option(60.0)
    @output_option
    def promote(group: AnyGroup, shard: str, accept_loss: str, timeout_s: float, form: OutputFormat) -> None:
        """Move the master role in a shard of the group.

        The order is the annotation gantry.dev/promote. The master is drained first, and the role moves when a slave
        has caught up. If the master has failed, the slave with the longest log is promoted, provided that the possible
        loss is accepted. Until then the order is pending, and this command prints the conditions that it waits for. If
        the wait times out, the order stays pending; another order for the same shard replaces it.
        """
        match group:
            case LocalGroup(data):
                promote_in_folder(shard, data, accept_loss, timeout_s, form)
            case ClusterGroup(target, name):
                cluster_orders.promote(OrderOptions(target, name, form, timeout_s), shard, accept_loss)

    return promote


def fence_command(entry: EntryPoint) -> click.Command:
    """Return the command `fence` of an entry point, which is only for groups in a cluster."""

    @click.command(
        epilog=entry.examples(
            (),
            ("fence {orders} 0 {shop}", "stop sends to shard 0, and keep its master"),
            ("fence {orders} 0 {shop} --lift", "let shard 0 take sends again"),
        )
    )
    @entry.shard("SHARD", has_local=False)
    @click.option("--lift", "is_lifted", is_flag=True, help="Lift the fence.")
    @timeout_option(60.0)
    @output_option
    def fence(group: ClusterGroup, shard: str, is_lifted: bool, timeout_s: float, form: OutputFormat) -> None:
        """Stop sends to a shard in a cluster, and keep its master.

        Acknowledged messages stay and can be read. Producers use the other shards. The order is the annotation
        gantry.dev/fence, which stays until --lift removes the shard from it; this command waits until it is in effect.
        """
        options = OrderOptions(group.target, group.name, form, timeout_s)
        cluster_orders.fence(options, parse_shard(shard), is_lifted=is_lifted)

    return fence


def restore_command(entry: EntryPoint) -> click.Command:
    """Return the command `restore` of an entry point, which is only for groups in a cluster."""

    @click.command(
        epilog=entry.examples(
            (),
            ("restore {orders} 0 {shop}", "show what may be lost if shard 0 starts with its present volumes"),
            ("restore {orders} 0 {shop} --yes", "start it"),
            ("restore {orders}-again {shop} --from {orders}", "create a group from the last backup of another one"),
            ("restore {orders}-again {shop} --from {orders}/20261129-0300", "create it from a certain backup"),
        )
    )
    @entry.optional_shard("SHARD")
    @click.option("--from", "source", metavar="GROUP[/BACKUP]", help="Create the group from this backup.")
    @click.option("--yes", "is_confirmed", is_flag=True, help="Accept the loss of data that is on no volume.")
    @timeout_option(300.0)
    @output_option
    def restore(
        group: ClusterGroup, shard: str | None, source: str | None, is_confirmed: bool, timeout_s: float,
        form: OutputFormat,
    ) -> None:  # fmt: skip
        """Start a shard with its volumes, or restore a backup.

        With SHARD, for a group that was deleted and whose volumes were kept: apply its manifest again, and the operator
        starts each shard whose volumes prove that no data is missing. A shard without that proof waits for this order.

        With --from, the group must not exist. It gets the manifest and the data of the backup: everything that was
        acknowledged up to the point of each shard. The command creates a claim for the first member of each shard from
        its snapshot, and the group; slaves copy the log. It can be repeated after an interruption.
        """
        options = OrderOptions(group.target, group.name, form, timeout_s)
        if source is not None:
            if shard is not None:
                raise InvalidInput("--from restores all shards of a backup", "leave out SHARD")
            backups.restore_backup(options, source.removeprefix("bg/"))
        elif shard is None:
            raise InvalidInput("name a SHARD to start, or a backup to restore with --from")
        else:
            cluster_orders.restore(options, parse_shard(shard), is_confirmed=is_confirmed)

    return restore


def backup_command(entry: EntryPoint) -> click.Command:
    """Return the command `backup` of an entry point, which is only for groups in a cluster."""

    @click.command(
        epilog=entry.examples(
            (),
            ("backup {orders} {shop}", "make a backup now, named by the time"),
            ("backup {orders} {shop} --name before-upgrade", "give it a name"),
            ("backup {orders} {shop} --timeout 0", "order it, and do not wait"),
        )
    )
    @entry.group(has_local=False)
    @click.option("--name", default="", metavar="NAME", help="The name of the backup [default: the time].")
    @timeout_option(600.0)
    @output_option
    def backup(group: ClusterGroup, name: str, timeout_s: float, form: OutputFormat) -> None:
        """Make a backup of a group in a cluster.

        The group runs meanwhile. In each shard a broker writes its tables, flushes its log, and records the position;
        then the operator orders a VolumeSnapshot of its volume. The backup has everything up to these positions, which
        the command prints. The cluster needs a CSI driver with snapshots. A backup that you have ordered is kept until
        you delete its snapshots. `spec.backup` makes backups on a schedule, and deletes old ones of these.
        """
        backups.make_backup(OrderOptions(group.target, group.name, form, timeout_s), name)

    return backup


def bundle_command(entry: EntryPoint) -> click.Command:
    """Return the command `bundle` of an entry point."""

    @click.command(
        epilog=entry.examples(
            (("bundle", "write gantry-bundle-TIME.tar.gz here"),),
            ("bundle {orders} {shop}", "write gantry-bundle-orders-TIME.tar.gz for a group in a cluster"),
            ("bundle {orders} {shop} --to /tmp/orders.tar.gz", "write another file"),
        )
    )
    @entry.group()
    @entry.exec_option
    @click.option("--to", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                  help="The file to write [default: gantry-bundle-...-TIME.tar.gz].")  # fmt: skip
    def bundle(group: AnyGroup, may_exec: bool, path: Path | None) -> None:
        """Pack everything needed to diagnose the group into one file.

        For a local group, running or not: manifest, records, decisions, the ends of logs, and each sidecar's own
        bundle. For a group in a cluster: objects, events, logs, also of ended containers, the sidecars' own bundles,
        and the operator's log, as far as you may read them. The file has no secret and no message.
        """
        match group:
            case LocalGroup(data):
                write_local_bundle(data, path)
            case ClusterGroup(target, name):
                write_cluster_bundle(target, name, path, may_exec=may_exec)

    return bundle


GANTRY: Final = GantryEntryPoint()
explain: Final = explain_command(GANTRY)
promote: Final = promote_command(GANTRY)
fence: Final = fence_command(GANTRY)
restore: Final = restore_command(GANTRY)
backup: Final = backup_command(GANTRY)
bundle: Final = bundle_command(GANTRY)
