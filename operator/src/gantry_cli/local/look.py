"""What a supervisor lets others see of a group: one document, written after each of its looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
from rich.console import RenderableType

from gantry_cli.errors import Absent, CliError
from gantry_cli.local.state import GroupRecord, GroupState, member_name, read_whole
from gantry_cli.output import Form, show, table
from gantry_cli.stack import StackDirectory
from gantry_cli.text import bytes_text, duration_text, time_text
from gantry_spec.decide import Condition
from gantry_spec.decide.conditions import is_remarkable
from gantry_spec.explain import Outlook
from gantry_spec.ledger import Fault, Ledger


@final
class Event(msgspec.Struct, frozen=True):
    """Something that was done, or happened."""

    at_ms: int
    """On the wall clock."""
    text: str


@final
class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One member as it was seen last."""

    name: str
    shard: int
    number: int
    process: str
    pid: int | None
    starts: int
    address: str
    sidecar_url: str
    role: str = ""
    epoch: int = 0
    seen_ago_ms: int | None = None
    """How old this is; None if it never was seen."""
    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    acked: int | None = None
    confirmed: int | None = None
    behind_bytes: int | None = None
    """What its master has more."""
    is_draining: bool = False
    trouble: str = ""
    missing_bytes: int = 0
    """Of its log, that were on its disk and are gone."""
    damaged_bytes: int = 0
    """Of its log, known to hold no good record now."""


@final
class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a group, and what was decided."""

    at_ms: int
    """On the wall clock."""
    group: str
    pid: int
    started_at_ms: int
    name_servers: list[str]
    members: list[MemberView]
    conditions: tuple[Condition, ...]
    ledgers: tuple[Ledger, ...]
    decision: tuple[str, ...]
    """What is being done, and waited for."""
    outlook: tuple[Outlook, ...]
    """What would happen if a master died now."""
    events: list[Event]
    """What was done and has happened lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainDocument:
    """`gantry explain`: what would happen if a master of the group here died now."""

    at_ms: int
    group: str
    decision: tuple[str, ...]
    """What is being done, and waited for."""
    outlook: tuple[Outlook, ...]
    """For each shard: who would take over, what blocks it, what would be lost."""


# -- reading it from another process -----------------------------------------------------------------------------------
# Looking at a local group from another process: what its supervisor wrote down last, and how old that is.


STALE_MS: Final = 10_000


def running_look(data: Path) -> Look | None:
    """The newest look of the group that runs on a folder; None if none does. Raises CliError when it is damaged."""
    if not StackDirectory(data).is_running():
        return None
    return read_whole(GroupState(data).decision_file, Look, "it is written again at once; try again")


def require_look(data: Path) -> Look:
    """The same. Raises Absent."""
    look = running_look(data)
    if look is None:
        raise Absent(f"no group runs on {data}", "start one with `gantry up`, or name its folder with --data")
    return look


def require_group(data: Path) -> GroupRecord:
    """The processes of the group that runs on a folder. Raises Absent."""
    state = GroupState(data)
    record = state.read_group() if StackDirectory(data).is_running() else None
    if record is None:
        raise Absent(f"no group runs on {data}", "start one with `gantry up`, or name its folder with --data")
    return record


def age_ms(look: Look) -> int:
    """How long ago it was."""
    return max(0, time.time_ns() // 1_000_000 - look.at_ms)


def require_alive(look: Look) -> None:
    """Raise CliError when the supervisor looks no more: nobody would obey."""
    if age_ms(look) > STALE_MS:
        raise CliError(f"the supervisor (pid {look.pid}) has not looked for {age_ms(look) / 1000:.0f} s", "see its log")


def explain_here(data: Path, form: Form) -> None:
    """For `gantry explain`: what would happen if a master of the group died now, and what is being done."""
    look = require_look(data)
    document = ExplainDocument(at_ms=look.at_ms, group=look.group, decision=look.decision, outlook=look.outlook)
    show(form, document, lambda: explained(look))


def explained(look: Look) -> Iterator[str]:
    """The same for people."""
    for one in look.outlook:
        yield from one.lines
    yield from look.decision or ("nothing is to be done",)


# -- showing it to people ----------------------------------------------------------------------------------------------
# A local group for people: members, what is at risk, what is being done and what is waited for.


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
    yield from (risk_line(ledger, member_name) for ledger in look.ledgers)
    for one in look.conditions:
        if is_remarkable(one.type, one.is_so, one.message):
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
        size_text(member.wrote),
        size_text(member.confirmed),
        size_text(member.flushed),
        size_text(member.behind_bytes),
        member.sidecar_url or "-",
        "; ".join(remarks),
    )


def size_text(size: int | None) -> str:
    """A number of bytes, or a dash if nobody knows it."""
    return "-" if size is None else bytes_text(size)


def risk_line(ledger: Ledger, name_of: Callable[[int, int], str]) -> str:
    """What a shard would lose with its master; ``name_of`` returns what a member of a shard is called."""
    if ledger.master is None or not ledger.is_fresh:
        return f"shard {ledger.shard}: no master that answers"
    faults = (
        ("process", Fault.PROCESS),
        ("machine", Fault.MACHINE),
        ("disk", Fault.DISK),
        ("disk and furthest slave", Fault.SLAVE),
    )
    sizes = ((what, ledger.risk(fault).bytes) for what, fault in faults)
    texts = [f"{what} {'unknown' if size is None else bytes_text(size)}" for what, size in sizes]
    return f"shard {ledger.shard}: at risk if {name_of(ledger.shard, ledger.master)} lost its " + ", ".join(texts)
