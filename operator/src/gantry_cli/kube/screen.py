"""Shows a group in a cluster on a terminal: shards, brokers, the data at risk, actions, and events.

Parts of it are untrusted: a user who may create events may write any text into them. So control characters are
replaced; the console interprets no text as markup.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import click
from rich.console import RenderableType
from rich.text import Text

from gantry_cli.errors import CliError
from gantry_cli.kube.api_errors import ApiError, cli_error_of, printable
from gantry_cli.kube.cluster import Target, open_group, read_group_again
from gantry_cli.kube.documents import (
    ClusterGroupStatus,
    ClusterMemberStatus,
    ClusterShardStatus,
    GroupEvent,
    KubeExplainDocument,
)
from gantry_cli.kube.group_observer import GroupObserver, document_of, group_from, observed_group, shards_of
from gantry_cli.kube.naming import status_command
from gantry_cli.kube.sidecars import SidecarClient
from gantry_cli.local.group_status import risk_line, size_text
from gantry_cli.output import OutputFormat, show, table
from gantry_cli.progress import spinner, watch
from gantry_cli.text import duration_text
from gantry_spec.cluster_objects import member_pod
from gantry_spec.decide.conditions import is_shown_in_status
from gantry_spec.explain import explain as outlooks_of

EVENTS_SHOWN: Final = 6
"""How many of the latest events are shown."""
SHARD_COLUMNS: Final = ("shard", "master", "epoch", "in sync", "lag", "at risk", "bottleneck", "action")
MEMBER_COLUMNS: Final = ("pod", "role", "epoch", "state", "wrote", "confirmed", "flushed", "lag", "node", "remarks")
STATUSES: Final = {"True": True, "False": False}
"""The status of a condition as a truth value; any other is unknown."""


def render(status: ClusterGroupStatus) -> Iterator[RenderableType]:
    """Yield the parts of a group's status."""
    yield Text(printable(_head(status)))
    if status.shards:
        yield table("Shards", SHARD_COLUMNS, _cells(map(_shard_row, status.shards)), right=("epoch", "in sync"))
    if status.members:
        right = ("epoch", *MEMBER_COLUMNS[4:8])
        yield table("Brokers", MEMBER_COLUMNS, _cells(map(_member_row, status.members)), right=right)
    yield from (Text(printable(line)) for line in _lines(status))
    if status.events:
        yield table("Events", ("time", "reason", "message"), _cells(map(_event_row, status.events[-EVENTS_SHOWN:])))
    yield from (Text(printable(f"not shown: {line}")) for line in status.left_out)


def _lines(status: ClusterGroupStatus) -> Iterator[str]:
    if status.proxies is not None:
        outside = status.proxies.external_endpoint
        yield f"gRPC clients: {status.proxies.endpoint}{f', from outside {outside}' if outside else ''}"
    yield from (risk_line(ledger, partial(member_pod, status.group)) for ledger in status.ledgers)
    for one in status.conditions:
        if is_shown_in_status(one.type, STATUSES.get(one.status), one.message):
            yield f"{one.type} is {one.status}: {one.reason}{f' ({one.message})' if one.message else ''}"
    yield from (f"shard {shard.number}: {shard.election_loss}" for shard in status.shards if shard.election_loss)
    yield from (f"annotation: {name}={text}" for name, text in status.orders.items())
    yield from (f"shard {shard.number}: waiting: {reason}" for shard in status.shards for reason in shard.blocked_by)


def _cells(rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    return ([printable(cell) for cell in row] for row in rows)


def render_explanation(document: KubeExplainDocument) -> Iterator[RenderableType]:
    """Yield the lines of `gantry explain bg/GROUP`."""
    yield from (Text(printable(line)) for line in _explanation_lines(document))


def _explanation_lines(document: KubeExplainDocument) -> Iterator[str]:
    yield from document.lines
    yield from document.decision or ("No actions pending",)
    yield from (f"not shown: {line}" for line in document.left_out)
    if document.source == "status":
        yield "this is the operator's latest status; it is updated at most every 10 s"


def _head(status: ClusterGroupStatus) -> str:
    line = f"group {status.namespace}/{status.group} (context {status.context})"
    if not status.phase:
        return f"{line}: no status yet; check that an operator runs for this namespace"
    line += f": {status.phase}, shards {status.ready}"
    line += f", name servers {status.name_servers}" if status.name_servers else ""
    line += f", proxies {status.proxies.ready}/{status.proxies.desired}" if status.proxies is not None else ""
    if status.observed_generation < status.generation:
        line += f"; generation {status.generation} of the spec not observed yet (last: {status.observed_generation})"
    return line


def _shard_row(shard: ClusterShardStatus) -> tuple[str, ...]:
    risk = shard.at_risk if shard.is_durability_met else f"{shard.at_risk} (more than allowed, or unknown)"
    return (
        str(shard.number),
        shard.master or "-",
        str(shard.epoch or "-"),
        str(shard.in_sync),
        shard.lag,
        risk,
        shard.bottleneck or "-",
        shard.action or "-",
    )


def _member_row(member: ClusterMemberStatus) -> tuple[str, ...]:
    state = "ready" if member.is_ready else member.phase.lower() if member.phase != "Running" else "not ready"
    remarks = [text for text in (member.problem, member.fault) if text]
    if member.loop_state not in (None, "running"):
        remarks.append(f"its process: {member.loop_state}")
    if not member.is_ready and member.readiness:
        remarks.append(member.readiness)
    if member.is_draining:
        remarks.append("drained")
    if member.restarts:
        remarks.append(f"restarted {member.restarts} times")
    return (
        member.pod,
        (member.role or member.label or "-").lower(),
        str(member.epoch or "-"),
        state,
        *(size_text(size) for size in (member.wrote, member.confirmed, member.flushed, member.behind_bytes)),
        member.node or "-",
        "; ".join(remarks),
    )


def _event_row(event: GroupEvent) -> tuple[str, str, str]:
    reason = event.reason if event.type == "Normal" else f"{event.reason}!"
    return age_text(event.at), reason, event.message


def age_text(at: str) -> str:
    """Return how long ago a time of Kubernetes was, or the text itself if it cannot be parsed."""
    try:
        moment = datetime.datetime.fromisoformat(at)
    except ValueError:
        return at or "-"
    if moment.tzinfo is None:
        return at
    return f"{duration_text((datetime.datetime.now(datetime.UTC) - moment).total_seconds())} ago"


# -- status and explanation --------------------------------------------------------------------------------------------
# Observes a group in a cluster, and shows its status, or what would happen if a master died.


REQUEST_INTERVAL_S: Final = 5.0
"""The interval between requests to sidecars with --watch: each request starts a program in a pod."""
WATCH_INTERVAL_S: Final = 2.0
"""The shortest interval of --watch: each refresh makes several requests to the API server."""


def show_status(
    target: Target, name: str | None, form: OutputFormat, *, interval_s: float | None, may_exec: bool
) -> None:
    """Show `gantry status bg/GROUP`. Exits with 1 when the group is not available. Raises CliError."""
    if interval_s is not None and form.is_document:
        raise click.UsageError("--watch shows text only: leave out --output, or call the command repeatedly")
    cluster, document = open_group(target, name)
    request_interval_s = 0.0 if interval_s is None else max(REQUEST_INTERVAL_S, interval_s)
    client = SidecarClient(cluster, is_wanted=may_exec)
    observer = GroupObserver(cluster, client, request_interval_s=request_interval_s)

    def render_newest() -> Iterator[RenderableType]:
        try:
            newest = read_group_again(cluster, str(document["metadata"]["name"]))
            yield from render(document_of(cluster, observer.observe(newest)))
        except ApiError as error:  # keep watching: the API server may only be restarting
            yield f"status unavailable: {error.short}"

    if interval_s is not None:
        watch(render_newest, max(WATCH_INTERVAL_S, interval_s))
        return
    try:
        with spinner("reading the status"):
            status = document_of(cluster, observer.observe(document))
    except ApiError as error:
        raise cli_error_of(error) from error
    show(form, status, lambda: render(status))
    if not is_available(status):
        raise click.exceptions.Exit(1)


def is_available(status: ClusterGroupStatus) -> bool:
    """Return whether the operator's condition Available is True: every shard has a master that can acknowledge sends.

    It is not True while a shard is fenced or the group is hibernated on purpose, or before there is a status.
    """
    return any(one.type == "Available" and one.status == "True" for one in status.conditions)


def show_explanation(target: Target, name: str | None, form: OutputFormat, *, may_exec: bool) -> None:
    """Show `gantry explain bg/GROUP`. Raises CliError."""
    cluster, document = open_group(target, name)
    try:
        with spinner("reading the status"):
            observation = GroupObserver(cluster, SidecarClient(cluster, is_wanted=may_exec)).observe(document)
    except ApiError as error:
        raise cli_error_of(error) from error
    group, shards = group_from(document), shards_of(document.get("status") or {})
    is_live = group is not None and any(answer.documents for answer in observation.objects.answers.values())
    outlook = []
    if group is not None and is_live:
        value = observed_group(group, observation.objects)
        outlook = list(outlooks_of(group.spec, value, time.monotonic_ns() // 1_000_000))
    lines = [line for one in outlook for line in one.lines]
    if not is_live:
        lines = [line for shard in shards for line in shard.if_master_dies]
    if not lines:
        see = f"see {status_command(cluster.namespace, observation.objects.name)}"
        raise CliError(
            "nothing is known: no sidecar answers, and no operator has written a status",
            f"{see}, and check that an operator runs for this namespace",
        )
    decision = [f"shard {shard.number}: waiting: {reason}" for shard in shards for reason in shard.blocked_by]
    made = KubeExplainDocument(
        at_ms=time.time_ns() // 1_000_000,
        context=cluster.context,
        namespace=cluster.namespace,
        group=observation.objects.name,
        source="sidecars" if is_live else "status",
        decision=[*(shard.action for shard in shards if shard.action), *decision],
        lines=lines,
        outlook=outlook,
        left_out=observation.left_out,
    )
    show(form, made, lambda: render_explanation(made))
