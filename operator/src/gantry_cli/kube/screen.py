"""A group in a cluster for people: shards, brokers, what is at risk, what is done, what happened lately.

Much of it was written by others: whoever may create an event may write anything into it. So nothing in it is taken for
markup, and what would move a terminal's cursor or its title is shown as a mark.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import click
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from gantry_cli.errors import CliError
from gantry_cli.kube.cluster import Target, group_again, open_group
from gantry_cli.kube.documents import EventLook, GroupLook, KubeExplainDocument, MemberLook, ShardLook
from gantry_cli.kube.faults import Refusal, harmless, line_of
from gantry_cli.kube.inside import Inside
from gantry_cli.kube.look import GroupObserver, document_of, group_from, observed, shards_of
from gantry_cli.local.look import risk_line, size_text
from gantry_cli.output import Form, show, table
from gantry_cli.progress import waiting, watch
from gantry_cli.text import duration_text
from gantry_spec.cluster_objects import member_pod
from gantry_spec.decide.conditions import is_remarkable
from gantry_spec.explain import explain as outlooks_of

EVENTS_SHOWN: Final = 6
SHARD_COLUMNS: Final = ("shard", "master", "epoch", "in sync", "lag", "at risk", "waits for", "doing")
MEMBER_COLUMNS: Final = (
    *("pod", "role", "epoch", "state", "wrote", "confirmed", "flushed", "behind", "machine", "remarks"),
)
STATUSES: Final = {"True": True, "False": False}


def render(look: GroupLook) -> Iterator[RenderableType]:
    """Part by part."""
    yield Text(harmless(_head(look)))
    if look.shards:
        yield table("Shards", SHARD_COLUMNS, _cells(map(_shard_row, look.shards)), right=("epoch", "in sync"))
    if look.members:
        right = ("epoch", *MEMBER_COLUMNS[4:8])
        yield table("Brokers", MEMBER_COLUMNS, _cells(map(_member_row, look.members)), right=right)
    yield from (Text(harmless(line)) for line in _lines(look))
    if look.events:
        yield table("Lately", ("when", "what", ""), _cells(map(_event_row, look.events[-EVENTS_SHOWN:])))
    yield from (Text(harmless(f"not seen: {line}")) for line in look.left_out)


def _lines(look: GroupLook) -> Iterator[str]:
    yield from (risk_line(ledger, partial(member_pod, look.group)) for ledger in look.ledgers)
    for one in look.conditions:
        if is_remarkable(one.type, STATUSES.get(one.status), one.message):
            yield f"{one.type} is {one.status}: {one.reason}{f' ({one.message})' if one.message else ''}"
    yield from (f"asked for: {name}={text}" for name, text in look.orders.items())
    yield from (f"shard {shard.number}: waits: {reason}" for shard in look.shards for reason in shard.blocked_by)


def _cells(rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    return ([escape(harmless(cell)) for cell in row] for row in rows)


def explained(document: KubeExplainDocument) -> Iterator[RenderableType]:
    """For people."""
    yield from (Text(harmless(line)) for line in _explained_lines(document))


def _explained_lines(document: KubeExplainDocument) -> Iterator[str]:
    yield from document.lines
    yield from document.decision or ("nothing is to be done",)
    yield from (f"not seen: {line}" for line in document.left_out)
    if document.source == "status":
        yield "this is what the operator has written last; it writes at most every 10 s"


def _head(look: GroupLook) -> str:
    line = f"group {look.namespace}/{look.group} (context {look.context})"
    if not look.phase:
        return f"{line}: no operator has written a status yet; does one run for this namespace?"
    line += f": {look.phase}, shards {look.ready}"
    line += f", name servers {look.name_servers}" if look.name_servers else ""
    if look.observed_generation < look.generation:
        line += f"; generation {look.generation} of the spec has not been looked at (last: {look.observed_generation})"
    return line


def _shard_row(shard: ShardLook) -> tuple[str, ...]:
    risk = shard.at_risk if shard.is_durability_met else f"{shard.at_risk} (more than allowed, or not known)"
    return (
        str(shard.number),
        shard.master or "-",
        str(shard.epoch or "-"),
        str(shard.in_sync),
        shard.lag,
        risk,
        shard.bound or "-",
        shard.action or "-",
    )


def _member_row(member: MemberLook) -> tuple[str, ...]:
    state = "ready" if member.is_ready else member.phase.lower() if member.phase != "Running" else "not ready"
    remarks = [text for text in (member.trouble, member.fault) if text]
    if member.motion not in (None, "moving"):
        remarks.append(f"its process: {member.motion}")
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


def _event_row(event: EventLook) -> tuple[str, str, str]:
    reason = event.reason if event.type == "Normal" else f"{event.reason}!"
    return age_text(event.at), reason, event.message


def age_text(at: str) -> str:
    """How long ago that was."""
    try:
        moment = datetime.datetime.fromisoformat(at)
    except ValueError:
        return at or "-"
    if moment.tzinfo is None:
        return at
    return f"{duration_text((datetime.datetime.now(datetime.UTC) - moment).total_seconds())} ago"


# -- showing it --------------------------------------------------------------------------------------------------------
# Status of a group in a cluster, and what would happen if a master died: looked at, and shown.


ASK_EVERY_S: Final = 5.0
"""Of sidecars while somebody watches: each question starts a program in a pod."""
WATCH_S: Final = 2.0


def show_status(target: Target, name: str | None, form: Form, *, is_watching: bool, may_exec: bool) -> None:
    """For `gantry status bg/GROUP`. Exits with 1 when the group is not available. Raises CliError."""
    if is_watching and form.is_document:
        raise click.UsageError("--watch is for people; a program asks again itself")
    cluster, document = open_group(target, name)
    looker = GroupObserver(
        cluster, Inside(cluster, is_wanted=may_exec), ask_every_s=ASK_EVERY_S if is_watching else 0.0
    )

    def again() -> Iterator[RenderableType]:
        try:
            newest = group_again(cluster, str(document["metadata"]["name"]))
            yield from render(document_of(cluster, looker.look(newest)))
        except Refusal as refusal:  # whoever watches goes on watching: it may be an API server that restarts
            yield f"nothing can be seen now: {refusal.short}"

    if is_watching:
        watch(again, WATCH_S)
        return
    try:
        with waiting("looking"):
            look = document_of(cluster, looker.look(document))
    except Refusal as refusal:
        raise line_of(refusal) from refusal
    show(form, look, lambda: render(look))
    if not is_available(look):
        raise click.exceptions.Exit(1)


def is_available(look: GroupLook) -> bool:
    """Whether every shard acknowledges, as the operator has written it, or nobody has said anything else on purpose."""
    return any(one.type == "Available" and one.status == "True" for one in look.conditions)


def show_explanation(target: Target, name: str | None, form: Form, *, may_exec: bool) -> None:
    """For `gantry explain bg/GROUP`. Raises CliError."""
    cluster, document = open_group(target, name)
    try:
        with waiting("looking"):
            seen = GroupObserver(cluster, Inside(cluster, is_wanted=may_exec)).look(document)
    except Refusal as refusal:
        raise line_of(refusal) from refusal
    group, shards = group_from(document), shards_of(document.get("status") or {})
    is_live = group is not None and any(answer.said for answer in seen.found.answers.values())
    outlook = []
    if group is not None and is_live:
        outlook = list(outlooks_of(group.spec, observed(group, seen.found), time.monotonic_ns() // 1_000_000))
    lines = [line for one in outlook for line in one.lines]
    if not is_live:
        lines = [line for shard in shards for line in shard.if_master_dies]
    if not lines:
        raise CliError(
            "nothing is known: no sidecar answers, and no operator has written a status",
            "see `gantry status`, and whether an operator runs for this namespace",
        )
    decision = [f"shard {shard.number}: waits: {reason}" for shard in shards for reason in shard.blocked_by]
    made = KubeExplainDocument(
        at_ms=time.time_ns() // 1_000_000,
        context=cluster.context,
        namespace=cluster.namespace,
        group=seen.found.name,
        source="sidecars" if is_live else "status",
        decision=[*(shard.action for shard in shards if shard.action), *decision],
        lines=lines,
        outlook=outlook,
        left_out=seen.left_out,
    )
    show(form, made, lambda: explained(made))
