"""`gantry status`: the cluster on one screen, or as one JSON document."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import click
from click.core import ParameterSource
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.options import cluster_options, complete_cluster_group, group_named, no_exec
from gantry_cli.kube.screen import show_status
from gantry_cli.local.look import Look, running_look
from gantry_cli.local.look import render as render_group
from gantry_cli.options import data_option, default_name_server, name_server_option, refuse_ignored, run
from gantry_cli.output import Form, output_option, show, table
from gantry_cli.progress import waiting, watch
from gantry_cli.stack import StackDirectory, StackRecord
from gantry_cli.status.cluster_view import BrokerView, ClusterView, GroupView, TopicView, view_cluster
from gantry_cli.status.page import show_page
from gantry_cli.text import bytes_text, certificate_text, count_text, duration_text, missing_text, rate_text, time_text
from gantry_client import Admin


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """`gantry status`: a cluster."""

    name_server: str
    local_stack: StackRecord | None
    """The `gantry up` here, if it is that cluster."""
    brokers: tuple[BrokerView, ...]
    topics: tuple[TopicView, ...]
    topics_total: int
    groups: tuple[GroupView, ...]
    local_group: Look | None = None
    """The group of `gantry up` here, if it is that cluster, as its supervisor saw it last."""


@click.command(
    epilog=examples(
        ("gantry status", "the cluster of `gantry up` here"),
        ("gantry status --watch", "the same, as it changes"),
        ("gantry status -n ns.example:9876", "any cluster"),
        ("gantry status --all", "with retry, dead letter and system topics"),
        ("gantry status --output json | jq .brokers", "for programs"),
        ("gantry status --page /var/lib/gantry/store/status", "what one broker says, though it may not answer"),
        ("gantry status bg/orders --namespace shop", "a group in a Kubernetes cluster; `kubectl gantry` is the same"),
    )
)
@click.argument("group", required=False, metavar="[bg/GROUP]", shell_complete=complete_cluster_group)
@name_server_option
@data_option
@click.option("--all", "with_internal", is_flag=True, help="Show retry, dead letter and system topics, too.")
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read a broker's status page (statusPagePath) instead; asks nobody.",
)
@click.option("--watch", "is_watching", is_flag=True, help="Show it again every second, until Ctrl-C.")
@cluster_options
@no_exec("Ask no sidecar of bg/GROUP: that runs a program in its pods.")
@output_option
def status(
    group: str | None, target: Target, may_exec: bool,
    name_server: str, data: Path, with_internal: bool, page: Path | None, is_watching: bool, form: Form,
) -> None:  # fmt: skip
    """Show name servers, brokers, topics and groups.

    Of a group that `gantry up` runs here its members are shown, too, what is at risk, and what is being done.

    Rates are each broker's own averages over ten seconds; totals count since the broker started. A broker that does not
    answer is shown as such, and the exit code is then 1.

    Of bg/GROUP, a group in a Kubernetes cluster, shards and brokers are shown, what is at risk, and what is being done;
    the exit code is 1 when a shard does not acknowledge.

    With --page the exit code says how the broker is: 0 serving, 4 silent (dead, or its event loop stands still), 5 it
    lives and does not serve, or has ended; 3 there is no page, 1 it cannot be read.
    """
    name = group_named(group, target)
    if name is not None:
        show_status(target, name, form, is_watching=is_watching, may_exec=may_exec)
        return
    if page is not None:
        refuse_ignored("with --page", used={"page", "output", "is_json"})
        raise click.exceptions.Exit(show_page(page, form))
    if click.get_current_context().get_parameter_source("name_server") is ParameterSource.DEFAULT:
        name_server = default_name_server(data)
    if is_watching and form.is_document:
        raise click.UsageError("--watch is for people; a program asks again itself")
    seeing = Seeing(name_server, data, with_internal=with_internal)
    if is_watching:
        watch(lambda: render(seeing.look()))
        return
    with waiting("asking everybody"):
        document = seeing.look()
    show(form, document, lambda: render(document))
    if seeing.failure is not None:
        raise seeing.failure
    if any(broker.failure for broker in document.brokers):
        raise click.exceptions.Exit(1)


@final
class Seeing:
    """One cluster, looked at once or again and again."""

    def __init__(self, name_server: str, data: Path, *, with_internal: bool) -> None:
        self.failure: CliError | None = None
        """Why only the group here could be shown, and not what its brokers say."""
        self._name_server: Final = name_server
        self._data: Final = data
        self._with_internal: Final = with_internal

    def look(self) -> ClusterDocument:
        """As it is now. Raises CliError when there is nothing to see."""
        record = StackDirectory(self._data).running()
        local = record if record is not None and record.name_server == self._name_server else None
        group = running_look(self._data) if local is not None else None
        try:
            self.failure, view = None, run(_ask(self._name_server, self._with_internal), self._name_server)
        except CliError as error:
            if group is None:
                raise
            self.failure = error
            view = ClusterView(name_server=self._name_server, brokers=(), topics=(), topics_total=0, groups=())
        return _document(view, local, group)


async def _ask(name_server: str, with_internal: bool) -> ClusterView:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        return await view_cluster(admin, name_server, with_internal=with_internal)


def _document(view: ClusterView, local: StackRecord | None, group: Look | None) -> ClusterDocument:
    return ClusterDocument(
        name_server=view.name_server,
        local_stack=local,
        brokers=view.brokers,
        topics=view.topics,
        topics_total=view.topics_total,
        groups=view.groups,
        local_group=group,
    )


def render(view: ClusterDocument) -> Iterator[RenderableType]:
    """The screen, part by part."""
    if view.local_group is not None:
        yield from render_group(view.local_group, with_events=True)
    local = view.local_stack
    line = f"name server {view.name_server}: {len(view.brokers)} broker(s), {view.topics_total} topic(s)"
    if local is not None:
        how = "in the background" if local.is_detached else "in a terminal"
        up_s = time.time() - local.started_at_ms / 1000
        line += f"; started by `gantry up` {how} {duration_text(up_s)} ago (pid {local.pid})"
    yield line
    if not view.brokers:
        yield "no broker is registered"
        return
    yield _broker_table(view)
    for broker in view.brokers:
        yield from _remarks(broker)
    yield _topic_table(view) if view.topics else "no topics yet: gantry topic create NAME, or just produce to one"
    if view.topics_total > len(view.topics):
        yield f"and {view.topics_total - len(view.topics)} more topics: gantry topic list"
    if view.groups:
        yield _group_table(view)


def _broker_table(view: ClusterDocument) -> RenderableType:
    columns = ("broker", "role", "address", "cluster", "version", "in/s", "out/s", "in", "out", "log", "disk")
    return table("Brokers", columns, map(_broker_row, view.brokers), right=columns[5:])


def _broker_row(broker: BrokerView) -> tuple[str, ...]:
    address, facts = broker.address, broker.facts
    role = "master" if address.is_master else f"slave {address.broker_id}"
    who = (address.name, role, address.address, address.cluster)
    if facts is None:
        return (*who, "no answer", "-", "-", "-", "-", "-", "-")
    return (
        *who,
        facts.version,
        rate_text(facts.puts_per_s),
        rate_text(facts.gets_per_s),
        count_text(facts.puts),
        count_text(facts.gets),
        bytes_text(facts.stored_bytes),
        "-" if facts.disk_used_ratio is None else f"{facts.disk_used_ratio:.0%}",
    )


def _remarks(broker: BrokerView) -> Iterator[str]:
    """What is worth a line of its own."""
    name, facts = broker.address.name, broker.facts
    if broker.failure:
        yield f"{name} ({broker.address.address}) does not answer: {broker.failure}"
    if facts is not None and facts.changed_settings:
        yield f"{name} was changed at run time: {facts.changed_settings.replace(';', ', ')}"
    if facts is not None and facts.missing_bytes:
        missing = missing_text(facts.missing_bytes, facts.missing)
        yield (
            f"{name} ({broker.address.address}) has lost log data: {missing}; "
            "sends are refused, delayed messages and transactions wait; see gantry ha accept-loss"
        )
    if facts is not None and facts.damaged_records:
        damaged = missing_text(facts.damaged_bytes, facts.damaged)
        yield f"{name} ({broker.address.address}) has damaged messages: {count_text(facts.damaged_records)} ({damaged})"
    if facts is not None and facts.certificate_ends_at_ms is not None:
        until = certificate_text(facts.certificate_ends_at_ms, int(time.time() * 1000))
        yield f"{name} ({broker.address.address}) has a certificate: {until}"


def _topic_table(view: ClusterDocument) -> RenderableType:
    columns = ("topic", "brokers", "last message", "queues", "messages", "end offsets")
    rows = (
        (
            topic.name,
            topic.failure or ", ".join(topic.brokers),
            "never" if topic.last_message_ms is None else time_text(topic.last_message_ms),
            str(topic.queues),
            count_text(topic.messages),
            count_text(topic.end_offset_total),
        )
        for topic in view.topics
    )
    return table("Topics", columns, rows, right=columns[3:])


def _group_table(view: ClusterDocument) -> RenderableType:
    columns = ("group", "topic", "members", "consumed", "lag")
    rows = (
        (g.name, g.topic, str(g.members), count_text(g.consumed_offset_total), count_text(g.lag)) for g in view.groups
    )
    return table("Groups", columns, rows, right=columns[2:])
