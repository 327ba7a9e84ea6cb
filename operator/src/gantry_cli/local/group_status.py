"""The status of a local group: a document that its supervisor writes once a second, and how it is read and shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
from rich.console import RenderableType

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.local.records import GroupRecord, member_name
from gantry_cli.local.state import GroupState, read_json_file
from gantry_cli.output import OutputFormat, show, table
from gantry_cli.stack import StackDirectory
from gantry_cli.text import duration_text, time_text
from gantry_spec.decide import Condition
from gantry_spec.decide.conditions import is_shown_in_status
from gantry_spec.explain import Outlook
from gantry_spec.ledger import Fault, Ledger
from gantry_status.text import bytes_text


@final
class Event(msgspec.Struct, frozen=True):
    """An action of the supervisor, or a change that it observed."""

    at_ms: int
    """The time on the wall clock."""
    text: str


@final
class LocalMemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member as the supervisor observed it last."""

    name: str
    """The member's name, such as `master-0`, which it keeps in every role."""
    shard: int
    number: int
    process: str
    """The state of the broker's process: `running` or `stopped`."""
    pid: int | None
    """The process id of the broker; null while it does not run."""
    starts: int
    """How often this supervisor has started the broker, with failed attempts."""
    address: str
    sidecar_url: str
    role: str = ""
    """The role that the broker reports; empty before its first report."""
    epoch: int = 0
    report_age_ms: int | None = None
    """The age of the member's last report; None if it has never reported."""
    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    acked: int | None = None
    confirmed: int | None = None
    behind_bytes: int | None = None
    """The bytes of its master's log that it does not have yet."""
    is_draining: bool = False
    """Whether the broker refuses sends while its log is flushed and replicated."""
    problem: str = ""
    """Why the broker is not in its normal state; empty if it is."""
    missing_bytes: int = 0
    """How many bytes of its log were on its disk and are gone."""
    damaged_bytes: int = 0
    """How many bytes of its log are known to hold no valid record."""


@final
class LocalProxyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One gRPC proxy of the group."""

    name: str
    process: str
    """The state of its process: `running` or `stopped`."""
    pid: int | None
    starts: int
    """How often this supervisor has started it, with failed attempts."""
    address: str
    """The address for RocketMQ 5 SDKs."""
    metrics_url: str


@final
class LocalGroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a group after one round of its supervisor, and what was decided."""

    at_ms: int
    """The time on the wall clock."""
    group: str
    pid: int
    """The process id of the supervisor."""
    started_at_ms: int
    name_servers: list[str]
    members: list[LocalMemberStatus]
    proxies: list[LocalProxyStatus] = []
    """The gRPC proxies."""
    conditions: tuple[Condition, ...]
    ledgers: tuple[Ledger, ...]
    decision: tuple[str, ...]
    """The actions in progress and the conditions that they wait for."""
    outlook: tuple[Outlook, ...]
    """What would happen if a master died now."""
    events: list[Event]
    """The latest events, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainDocument:
    """`gantry explain`: what would happen if a master of the local group died now."""

    at_ms: int
    group: str
    decision: tuple[str, ...]
    """The actions in progress and the conditions that they wait for."""
    outlook: tuple[Outlook, ...]
    """For each shard: which member would take over, what blocks it, what would be lost."""


# -- reading the status ------------------------------------------------------------------------------------------------
# Another process reads what the supervisor wrote last, and how old that is.


STALE_MS: Final = 10_000
"""The age from which a status counts as outdated: its supervisor hangs or has ended."""


def read_running_status(data: Path) -> LocalGroupStatus | None:
    """Return the status of the group that runs in a folder; None if none runs, or before its first round.

    The last status of a supervisor that was killed is deleted by the next one as it starts. Raises CliError for a
    damaged file.
    """
    if not StackDirectory(data).is_running():
        return None
    return read_json_file(GroupState(data).decision_file, LocalGroupStatus, "try again: it is rewritten every second")


def require_status(data: Path) -> LocalGroupStatus:
    """Return what ``read_running_status`` returns. Raises NotFoundError if none runs, CliError before a first round."""
    status = read_running_status(data)
    if status is None and StackDirectory(data).is_running():
        raise CliError(f"the group in {data} is starting and has no status yet", "try again in a few seconds")
    if status is None:
        raise NotFoundError(f"no group runs in {data}", "start one with `gantry up`, or name its folder with --data")
    return status


def require_group(data: Path) -> GroupRecord:
    """Return the record of the group that runs in a folder. Raises NotFoundError if none runs."""
    state = GroupState(data)
    record = state.read_group() if StackDirectory(data).is_running() else None
    if record is None:
        raise NotFoundError(f"no group runs in {data}", "start one with `gantry up`, or name its folder with --data")
    return record


def status_age_ms(status: LocalGroupStatus) -> int:
    """Return the age of a status in milliseconds."""
    return max(0, time.time_ns() // 1_000_000 - status.at_ms)


def require_alive(status: LocalGroupStatus) -> None:
    """Raise CliError when the supervisor has stopped observing, since it would not execute any order."""
    if status_age_ms(status) > STALE_MS:
        age_s = status_age_ms(status) / 1000
        raise CliError(f"the supervisor (pid {status.pid}) has not updated its status for {age_s:.0f} s", "see its log")


def show_local_explanation(data: Path, form: OutputFormat) -> None:
    """Print what would happen if a master of a local group died now, and what its supervisor is doing.

    Raises CliError if the supervisor has stopped observing: the forecast would be outdated, and nothing would happen.
    """
    status = require_status(data)
    require_alive(status)
    document = ExplainDocument(at_ms=status.at_ms, group=status.group, decision=status.decision, outlook=status.outlook)
    show(form, document, lambda: explanation_lines(status))


def explanation_lines(status: LocalGroupStatus) -> Iterator[str]:
    """Yield the lines of `gantry explain` for a terminal."""
    for one in status.outlook:
        yield from one.lines
    yield from status.decision or ("No actions pending",)


# -- showing the status ------------------------------------------------------------------------------------------------
# The status on a terminal: members, the data at risk, actions in progress and the conditions that they wait for.


EVENTS_SHOWN: Final = 6
REPORT_LATE_MS: Final = 3_000
"""The age of a member's report from which the screen shows that age."""


def status_screen(status: LocalGroupStatus, *, with_events: bool = False) -> Iterator[RenderableType]:
    """Yield the parts of a group's status for a terminal."""
    up_s = (status.at_ms - status.started_at_ms) / 1000
    name_servers = ";".join(status.name_servers)
    yield f"group {status.group}: name servers {name_servers}; supervised for {duration_text(up_s)} by pid {status.pid}"
    if status_age_ms(status) > STALE_MS:
        age = duration_text(status_age_ms(status) / 1000)
        yield f"the supervisor has not updated its status for {age}: the following is outdated"
    columns = ("member", "role", "epoch", "address", "wrote", "confirmed", "flushed", "lag", "sidecar", "remarks")
    yield table("Members", columns, map(_row, status.members), right=columns[4:8])
    for proxy in status.proxies:
        restarts = f", started {proxy.starts} times" if proxy.starts > 1 else ""
        yield f"gRPC {proxy.name}: {proxy.address}, {proxy.process}{restarts}"
    yield from (risk_line(ledger, member_name) for ledger in status.ledgers)
    for one in status.conditions:
        if is_shown_in_status(one.type, one.is_true, one.message):
            yield f"{one.type}: {one.reason}{f' ({one.message})' if one.message else ''}"
    yield from (f"shard {one.shard}: {one.election_loss}" for one in status.outlook if one.election_loss)
    yield from status.decision
    if with_events and status.events:
        rows = ((time_text(one.at_ms)[11:], one.text) for one in status.events[-EVENTS_SHOWN:])
        yield table("Events", ("time", "event"), rows)


def _row(member: LocalMemberStatus) -> tuple[str, ...]:
    role = (member.role or "no answer").lower() if member.process == "running" else member.process
    remarks = [member.problem] if member.problem else []
    if member.missing_bytes:
        remarks.append(f"{bytes_text(member.missing_bytes)} of its log are missing")
    if member.damaged_bytes:
        remarks.append(f"{bytes_text(member.damaged_bytes)} of its log are damaged")
    if member.is_draining:
        remarks.append("drained")
    if member.report_age_ms is not None and member.report_age_ms > REPORT_LATE_MS:
        remarks.append(f"last report {duration_text(member.report_age_ms / 1000)} ago")
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
    """Return a size in bytes as text, or a dash if it is unknown."""
    return "-" if size is None else bytes_text(size)


def risk_line(ledger: Ledger, name_of: Callable[[int, int], str]) -> str:
    """Return what a shard would lose with its master. ``name_of`` returns the name of a shard's member."""
    if ledger.master is None or not ledger.is_fresh:
        return f"shard {ledger.shard}: no master answers"
    faults = (
        ("process", Fault.PROCESS),
        ("machine", Fault.MACHINE),
        ("disk", Fault.DISK),
        ("disk and furthest slave", Fault.SLAVE),
    )
    sizes = ((what, ledger.risk(fault).bytes) for what, fault in faults)
    texts = [f"{what} {'unknown' if size is None else bytes_text(size)}" for what, size in sizes]
    return f"shard {ledger.shard}: at risk if {name_of(ledger.shard, ledger.master)} lost its " + ", ".join(texts)
