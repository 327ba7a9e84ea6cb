"""The command `gantry status`: a cluster as tables, or as one document."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import click
from click.core import ParameterSource
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError, for_same_cluster
from gantry_cli.examples import examples
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.options import cluster_options, complete_cluster_group, no_exec, parse_group_argument
from gantry_cli.kube.screen import show_status
from gantry_cli.local.group_status import LocalGroupStatus, read_running_status
from gantry_cli.local.group_status import status_screen as local_group_screen
from gantry_cli.options import (
    data_option,
    default_name_server,
    name_server_option,
    refuse_ignored,
    run,
    watch_options,
    watch_screens,
)
from gantry_cli.output import OutputFormat, output_option, show, table
from gantry_cli.progress import spinner
from gantry_cli.stack import StackDirectory, StackRecord
from gantry_cli.status.cluster_view import BrokerView, ClusterView, GroupView, TopicView, no_topics_text, view_cluster
from gantry_cli.status.page import show_page
from gantry_cli.text import (
    certificate_text,
    count_text,
    duration_text,
    plural,
    ranges_text,
    rate_text,
    time_text,
    wait_text,
)
from gantry_client import Admin
from gantry_status.text import bytes_text

REVIVE_LAG_SHOWN_MS: Final = 1_000
"""From which lag on a late redelivery of popped messages is shown: a broker looks for them ten times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """`gantry status`: brokers, topics and groups of a cluster."""

    name_server: str
    local_stack: StackRecord | None
    """The process and the addresses of `gantry up` in this directory, if it runs this cluster."""
    brokers: tuple[BrokerView, ...]
    topics: tuple[TopicView, ...]
    topics_total: int
    """The number of all topics, of which `topics` may have only a part."""
    groups: tuple[GroupView, ...]
    local_group: LocalGroupStatus | None = None
    """The group of `gantry up` in this directory, if it is this cluster, as its supervisor last observed it."""


@click.command(
    epilog=examples(
        ("gantry status", "show the local cluster of `gantry up`"),
        ("gantry status --watch", "refresh every second"),
        ("gantry status -o wide", "show more of each broker"),
        ("gantry status -n ns.example:9876", "show any cluster"),
        ("gantry status --all", "include retry, dead-letter and system topics"),
        ("gantry status --output json | jq .brokers", "print JSON"),
        ("gantry status --page /var/lib/gantry/store/status", "show one broker, even if it does not respond"),
        ("gantry status bg/orders --namespace shop", "show a group in a Kubernetes cluster, as `kubectl gantry` does"),
    )
)
@click.argument("group", required=False, metavar="[bg/GROUP]", shell_complete=complete_cluster_group)
@name_server_option
@data_option
@click.option("--all", "with_internal", is_flag=True, help="Include retry, dead-letter and system topics.")
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the status page of a broker (statusPagePath) instead of querying servers.",
)
@watch_options
@cluster_options
@no_exec("Do not query the sidecars of bg/GROUP: a query runs a program in its pods.")
@output_option
def status(
    group: str | None, target: Target, may_exec: bool,
    name_server: str, data: Path, with_internal: bool, page: Path | None, interval_s: float | None, form: OutputFormat,
) -> None:  # fmt: skip
    """Show name servers, brokers, topics and groups.

    For a local group of `gantry up`, the output also has its members, the data at risk and the actions in progress.

    Rates are averages of each broker over ten seconds; totals count from the start of the broker. If a broker does not
    answer, the exit code is 1.

    For bg/GROUP, a group in a Kubernetes cluster, the output has shards, brokers, the data at risk and the actions in
    progress. If a shard does not acknowledge sends, the exit code is 1.

    With --page, the exit code is 0 if the broker is serving, 4 if it is unresponsive (its process has died or its event
    loop is blocked), 5 if it runs but is not serving or has stopped, 3 if there is no page, and 1 if the page is
    invalid.
    """
    name = parse_group_argument(group, target)
    if name is not None:
        show_status(target, name, form, interval_s=interval_s, may_exec=may_exec)
        return
    if page is not None:
        refuse_ignored("with --page", used={"page", "output", "is_json"})
        raise click.exceptions.Exit(show_page(page, form))
    if click.get_current_context().get_parameter_source("name_server") is ParameterSource.DEFAULT:
        name_server = default_name_server(data)
    observer = ClusterObserver(name_server, data, with_internal=with_internal)
    if interval_s is not None:
        watch_screens(form, interval_s, observer.observe, lambda view: render(view, is_wide=form.is_wide))
        return
    with spinner("querying the cluster"):
        document = observer.observe()
    show(form, document, lambda: render(document, is_wide=form.is_wide))
    if observer.failure is not None:
        raise observer.failure
    if any(broker.failure for broker in document.brokers):
        raise click.exceptions.Exit(1)


@final
class ClusterObserver:
    """An observer of one cluster, which takes a snapshot at each call."""

    def __init__(self, name_server: str, data: Path, *, with_internal: bool) -> None:
        self.failure: CliError | None = None
        """Why the last snapshot has only the local group, and no brokers and topics."""
        self._name_server: Final = name_server
        self._data: Final = data
        self._with_internal: Final = with_internal

    def observe(self) -> ClusterDocument:
        """Take a snapshot. Raises CliError if neither the cluster nor a local group can be observed."""
        record = StackDirectory(self._data).running()
        local = record if record is not None and record.name_server == self._name_server else None
        group = read_running_status(self._data) if local is not None else None
        try:
            self.failure, view = None, run(_query_cluster(self._name_server, self._with_internal), self._name_server)
        except CliError as error:
            if group is None:
                raise
            self.failure = error
            view = ClusterView(name_server=self._name_server, brokers=(), topics=(), topics_total=0, groups=())
        return _document(view, local, group)


async def _query_cluster(name_server: str, with_internal: bool) -> ClusterView:
    async with Admin(name_server, client_settings=client_settings()) as admin:
        return await view_cluster(admin, name_server, with_internal=with_internal)


def _document(view: ClusterView, local: StackRecord | None, group: LocalGroupStatus | None) -> ClusterDocument:
    return ClusterDocument(
        name_server=view.name_server,
        local_stack=local,
        brokers=view.brokers,
        topics=view.topics,
        topics_total=view.topics_total,
        groups=view.groups,
        local_group=group,
    )


def render(view: ClusterDocument, *, is_wide: bool = False) -> Iterator[RenderableType]:
    """Yield the tables and sentences of the screen, with further columns if it is wide."""
    if view.local_group is not None:
        yield from local_group_screen(view.local_group, with_events=True)
    local = view.local_stack
    line = (
        f"Name server {view.name_server}: {plural(len(view.brokers), 'broker')}, {plural(view.topics_total, 'topic')}"
    )
    if local is not None:
        how = "in the background" if local.is_detached else "in a terminal"
        up_s = time.time() - local.started_at_ms / 1000
        line += f"; started by `gantry up` {how} {duration_text(up_s)} ago (pid {local.pid})"
    yield line
    if not view.brokers:
        yield "No brokers registered"
        return
    yield _broker_table(view, is_wide=is_wide)
    for broker in view.brokers:
        yield from _broker_notes(broker)
    if view.topics:
        yield topic_table(view.topics)
    else:
        yield for_same_cluster(no_topics_text(one.address for one in view.brokers))
    if view.topics_total > len(view.topics):
        rest = plural(view.topics_total - len(view.topics), "topic")
        yield f"{rest} not shown; list all with: {for_same_cluster('gantry topic list')}"
    if view.groups:
        yield _group_table(view)


BROKER_COLUMNS: Final = ("broker", "role", "address", "cluster", "version", "in/s", "out/s", "in", "out", "log", "disk")
WIDE_COLUMNS: Final = ("up", "connections", "producers", "consumers", "not flushed", "log begin", "log end")
"""Further columns of brokers."""


def _broker_table(view: ClusterDocument, *, is_wide: bool) -> RenderableType:
    columns = BROKER_COLUMNS + (WIDE_COLUMNS if is_wide else ())
    rows = (_broker_row(one) + (_wide_cells(one) if is_wide else ()) for one in view.brokers)
    return table("Brokers", columns, rows, right=columns[5:])


def _wide_cells(broker: BrokerView) -> tuple[str, ...]:
    facts = broker.facts
    if facts is None:
        return ("-",) * len(WIDE_COLUMNS)
    up_s = None if facts.started_at_ms is None else time.time() - facts.started_at_ms / 1000
    counts = (facts.connections, facts.producer_groups, facts.consumer_groups)
    return (
        "-" if up_s is None else duration_text(up_s),
        *("-" if number is None else count_text(number) for number in counts),
        bytes_text(facts.flush_behind_bytes),
        count_text(facts.log_begin),
        count_text(facts.log_end),
    )


def _broker_row(broker: BrokerView) -> tuple[str, ...]:
    address, facts = broker.address, broker.facts
    role = "master" if address.is_master else f"slave {address.broker_id}"
    identity = (address.name, role, address.address, address.cluster)
    if facts is None:
        return (*identity, "no answer", "-", "-", "-", "-", "-", "-")
    return (
        *identity,
        facts.version,
        rate_text(facts.puts_per_s),
        rate_text(facts.gets_per_s),
        count_text(facts.puts),
        count_text(facts.gets),
        bytes_text(facts.stored_bytes),
        "-" if facts.disk_used_ratio is None else f"{facts.disk_used_ratio:.0%}",
    )


def _broker_notes(broker: BrokerView) -> Iterator[str]:
    """Yield a sentence for each problem or notable state of a broker."""
    name, facts = broker.address.name, broker.facts
    if broker.failure:
        yield f"{name} ({broker.address.address}) does not respond: {broker.failure}"
    if facts is not None and facts.changed_settings:
        yield f"{name} has settings changed at run time: {facts.changed_settings.replace(';', ', ')}"
    if facts is not None and facts.missing_bytes:
        missing = ranges_text(facts.missing_bytes, facts.missing)
        yield (
            f"{name} ({broker.address.address}) has lost log data: {missing}; "
            "sends are refused, delayed messages and transactions are on hold; see gantry ha accept-loss"
        )
    if facts is not None and facts.damaged_records:
        damaged = ranges_text(facts.damaged_bytes, facts.damaged)
        yield f"{name} ({broker.address.address}) has damaged messages: {count_text(facts.damaged_records)} ({damaged})"
    if facts is not None and facts.pop_inflight:
        text = f"{name} ({broker.address.address}) has {plural(facts.pop_inflight, 'popped message')} not acked"
        late = f"; redelivery is {duration_text(facts.pop_revive_lag_ms / 1000)} late"
        is_late = facts.pop_revive_lag_ms >= REVIVE_LAG_SHOWN_MS
        yield f"{text} (from {plural(facts.pop_checkpoints, 'pop')}){late if is_late else ''}"
    if facts is not None and facts.certificate_ends_at_ms is not None:
        until = certificate_text(facts.certificate_ends_at_ms, int(time.time() * 1000))
        yield f"{name} ({broker.address.address}) certificate {until}"


def topic_table(topics: Iterable[TopicView]) -> RenderableType:
    """Return the table of topics, with their queues and messages."""
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
        for topic in topics
    )
    return table("Topics", columns, rows, right=columns[3:])


def _group_table(view: ClusterDocument) -> RenderableType:
    columns = ("group", "topic", "members", "consumed", "lag", "waiting")
    rows = (
        (g.name, g.topic, str(g.members), count_text(g.consumed_offset_total), count_text(g.lag), wait_text(g.lag_s))
        for g in view.groups
    )
    return table("Groups", columns, rows, right=columns[2:])
