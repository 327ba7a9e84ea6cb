"""A local group for people: members, what is at risk, what is being done and what is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType

from gantry_cli.local.look import Look, MemberView
from gantry_cli.local.looking import STALE_MS, age_ms
from gantry_cli.local.names import member_name
from gantry_cli.tables import table
from gantry_cli.text import bytes_text, duration_text, time_text
from gantry_spec.ledger import Fault, Ledger

EVENTS_SHOWN: Final = 6
SEEN_LATE_MS: Final = 3_000


def render(look: Look, *, with_events: bool = False) -> Iterator[RenderableType]:
    """Part by part."""
    up_s = (look.at_ms - look.started_at_ms) / 1000
    name_servers = ";".join(look.name_servers)
    yield f"group {look.group}: name servers {name_servers}; supervised for {duration_text(up_s)} by pid {look.pid}"
    if age_ms(look) > STALE_MS:
        yield f"the supervisor has not looked for {duration_text(age_ms(look) / 1000)}: this is old"
    columns = ("member", "role", "epoch", "address", "wrote", "confirmed", "flushed", "behind", "sidecar", "remarks")
    yield table("Members", columns, map(_row, look.members), right=columns[4:8])
    yield from map(_ledger_line, look.ledgers)
    for one in look.conditions:
        is_bad = one.is_so is (one.type in ("Degraded", "Paused", "Progressing"))
        if is_bad or one.is_so is None:
            yield f"{one.type}: {one.reason}{f' ({one.message})' if one.message else ''}"
    yield from look.decision
    if with_events and look.events:
        rows = ((time_text(one.at_ms)[11:], one.text) for one in look.events[-EVENTS_SHOWN:])
        yield table("Lately", ("when", "what"), rows)


def _row(member: MemberView) -> tuple[str, ...]:
    role = (member.role or "no answer").lower() if member.process == "running" else member.process
    remarks = [member.trouble] if member.trouble else []
    if member.missing_bytes:
        remarks.append(f"{bytes_text(member.missing_bytes)} of its log are missing")
    if member.damaged_bytes:
        remarks.append(f"{bytes_text(member.damaged_bytes)} of its log are damaged")
    if member.is_draining:
        remarks.append("drained")
    if member.seen_ago_ms is not None and member.seen_ago_ms > SEEN_LATE_MS:
        remarks.append(f"silent for {duration_text(member.seen_ago_ms / 1000)}")
    if member.starts > 1:
        remarks.append(f"started {member.starts} times")
    return (
        member.name,
        role,
        str(member.epoch or "-"),
        member.address,
        _bytes(member.wrote),
        _bytes(member.confirmed),
        _bytes(member.flushed),
        _bytes(member.behind_bytes),
        member.sidecar_url or "-",
        "; ".join(remarks),
    )


def _bytes(size: int | None) -> str:
    return "-" if size is None else bytes_text(size)


def _risk(ledger: Ledger, fault: Fault) -> str:
    size = ledger.risk(fault).bytes
    return "unknown" if size is None else bytes_text(size)


def _ledger_line(ledger: Ledger) -> str:
    if ledger.master is None or not ledger.is_fresh:
        return f"shard {ledger.shard}: no master that answers"
    losses = (
        ("process", Fault.PROCESS),
        ("machine", Fault.MACHINE),
        ("disk", Fault.DISK),
        ("disk and furthest slave", Fault.SLAVE),
    )
    texts = [f"{what} {_risk(ledger, fault)}" for what, fault in losses]
    master = member_name(ledger.shard, ledger.master)
    return f"shard {ledger.shard}: at risk if {master} lost its " + ", ".join(texts)
