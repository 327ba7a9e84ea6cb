"""`gantry fence` and `gantry restore`: orders that only a group in a cluster knows."""

from __future__ import annotations

import click

from gantry_cli.errors import Mistyped
from gantry_cli.examples import examples
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.completing import complete_cluster_group
from gantry_cli.kube.options import cluster_options, group_before
from gantry_cli.kube.ordering import fence as fence_in_cluster
from gantry_cli.kube.ordering import restore as restore_in_cluster
from gantry_cli.kube.ordering import shard_number
from gantry_cli.kube.waiting import Asked
from gantry_cli.output import Form


@click.command(
    epilog=examples(
        ("gantry fence bg/orders 0 --namespace shop", "shard 0 takes no sends, and its master stays"),
        ("gantry fence bg/orders 0 --namespace shop --lift", "it takes them again"),
    )
)
@click.argument("words", nargs=-1, required=True, metavar="bg/GROUP SHARD", shell_complete=complete_cluster_group)
@cluster_options
@click.option("--lift", "is_lifted", is_flag=True, help="Take the fence away.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, 86_400), default=60.0, show_default=True,
              help="How long to wait for it, in seconds; 0 only leaves the order.")  # fmt: skip
def fence(words: tuple[str, ...], target: Target, is_lifted: bool, timeout_s: float) -> None:
    """Have a shard in a cluster take no sends, and keep its master.

    What was acknowledged stays and can be read. Producers take the other shards. The order is the annotation
    gantry.dev/fence, which stands until --lift takes the shard out of it; this command waits until it is obeyed.
    """
    group = group_before(words, target)
    if group is None:
        raise Mistyped(
            "name the group in the cluster: bg/GROUP SHARD", "a single broker is fenced by `gantry ha fence`"
        )
    fence_in_cluster(Asked(target, group, Form.TABLE, timeout_s), shard_number(words[-1]), is_lifted=is_lifted)


@click.command(
    epilog=examples(
        ("gantry restore bg/orders 0 --namespace shop", "say what may be lost if shard 0 begins with what is there"),
        ("gantry restore bg/orders 0 --namespace shop --yes", "begin"),
    )
)
@click.argument("words", nargs=-1, required=True, metavar="bg/GROUP SHARD", shell_complete=complete_cluster_group)
@cluster_options
@click.option("--yes", "is_confirmed", is_flag=True, help="Give up what no volume has.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, 86_400), default=300.0, show_default=True,
              help="How long to wait for it, in seconds; 0 only leaves the order.")  # fmt: skip
def restore(words: tuple[str, ...], target: Target, is_confirmed: bool, timeout_s: float) -> None:
    """Begin a shard with the volumes that are there.

    For a group that was lost and whose volumes were kept: apply its manifest again, and its operator begins with
    them by itself where they prove that nothing lacks. Where they do not, it waits for this order.
    """
    group = group_before(words, target)
    if group is None:
        raise Mistyped("name the group in the cluster: bg/GROUP SHARD", "a local group begins with what is there")
    asked = Asked(target, group, Form.TABLE, timeout_s)
    restore_in_cluster(asked, shard_number(words[-1]), is_confirmed=is_confirmed)
