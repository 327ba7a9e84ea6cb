"""Status of a group in a cluster, and what would happen if a master died: looked at, and shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import click
from rich.console import RenderableType

from gantry_cli.errors import CliError
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.documents import GroupLook, KubeExplainDocument
from gantry_cli.kube.faults import Refusal, line_of
from gantry_cli.kube.groups import group_again, open_group
from gantry_cli.kube.inside import Inside
from gantry_cli.kube.look import Looker, document_of, group_from, shards_of
from gantry_cli.kube.screen import explained, render
from gantry_cli.kube.seen import observed
from gantry_cli.output import Form, show
from gantry_cli.progress import waiting, watch
from gantry_spec.explain import explain as outlooks_of

ASK_EVERY_S: Final = 5.0
"""Of sidecars while somebody watches: each question starts a program in a pod."""
WATCH_S: Final = 2.0


def show_status(target: Target, name: str | None, form: Form, *, is_watching: bool, may_exec: bool) -> None:
    """For `gantry status bg/GROUP`. Exits with 1 when the group is not available. Raises CliError."""
    if is_watching and form.is_document:
        raise click.UsageError("--watch is for people; a program asks again itself")
    cluster, document = open_group(target, name)
    looker = Looker(cluster, Inside(cluster, is_wanted=may_exec), ask_every_s=ASK_EVERY_S if is_watching else 0.0)

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
            seen = Looker(cluster, Inside(cluster, is_wanted=may_exec)).look(document)
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
