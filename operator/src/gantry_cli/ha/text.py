"""The text output of `gantry ha`: a group's status, and the steps and the result of a promotion."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from gantry_cli.ha.group import (
    SPEC,
    CannotPromote,
    Member,
    Observation,
    check_members,
    decide_next_actions,
    request_of,
    shard_of,
)
from gantry_cli.ha.promote import Promoted, Step
from gantry_cli.output import table
from gantry_cli.text import plural, time_text
from gantry_spec.actions import RecordMaster, Refuse
from gantry_spec.ballot import voters_of, votes_needed
from gantry_spec.decide.view import ShardView
from gantry_spec.observed import ObservedLease
from gantry_status.orders import HaRole, HaStatus, Promised, SlaveState
from gantry_status.text import bytes_text


def group_text(observation: Observation) -> Iterator[RenderableType]:
    """Yield the parts of `gantry ha status`."""
    members = observation.members
    answers = [one for one in members if one.status is not None]
    ends = [one.status.wrote for one in answers if one.status is not None and one.status.wrote is not None]
    end = max(ends, default=None)
    columns = ("member", "role", "epoch", "wrote", "flushed", "acked", "confirmed", "last epoch", "follows", "socket")
    if answers:
        yield table("Members", columns, (_member_row(one, end) for one in answers), right=columns[2:8])
    for one in answers:
        assert one.status is not None, "the member has answered"
        if one.status.slaves:
            slave_columns = ("slave", "address", "received", "flushed", "last ack")
            rows = (_slave_row(slave, one.status.wrote) for slave in one.status.slaves)
            yield table(f"Slaves of {one.name}", slave_columns, rows, right=slave_columns[2:])
    for one in answers:
        yield from notes(one)
    for one in members:
        if one.status is None:
            yield f"{one.path} does not answer: {one.failure}"
    if answers:
        yield promotion_outlook(observation)


def notes(member: Member) -> Iterator[str]:
    """Yield remarks about a member: faults, losses, and temporary states."""
    status = member.status
    if status is None:
        return
    if status.problem:
        yield f"{member.name}: {status.problem}"
    for lost in status.missing:
        yield f"{member.name}: log data is missing: [{lost.start}, {lost.end}) ({lost.cause})"
    for lost in status.accepted:
        extent = f"[{lost.start}, {lost.end}) ({lost.cause})"
        when = "" if lost.accepted_ms is None else f", {time_text(lost.accepted_ms)}"
        yield f"{member.name}: accepted loss: {extent}{when}"
    if status.is_draining:
        yield f"{member.name} is drained: it takes no sends until it is promoted, follows or is fenced"
    if status.role is HaRole.MASTER and not status.may_acknowledge:
        yield f"{member.name} may acknowledge nothing: it has no valid grant of a slave and no lease"
    if status.promised_epoch > status.epoch:
        yield f"{member.name} has promised epoch {status.promised_epoch}: it follows no master of a lower epoch"


def promotion_outlook(observation: Observation) -> str:
    """Return which slaves may be promoted and how many votes a failover needs, or why no promotion is possible now."""
    try:
        check_members(observation.members)
    except CannotPromote as error:
        return f"promotion is not possible now: {error}"
    request = request_of(observation.members)
    actions = decide_next_actions(observation, ObservedLease(), request, {}).actions
    refusal = next((one for one in actions if isinstance(one, Refuse)), None)
    if refusal is not None:
        return f"promotion is not possible now: {refusal.why} -- {refusal.remedy}"
    record = next(one.record for one in actions if isinstance(one, RecordMaster))
    term = record.newest
    assert term is not None, "the record was combined from those of the members"
    lease = ObservedLease(record=record)
    view = ShardView(SPEC, shard_of(observation, lease, request), observation.answered_ms)
    voters = [one.number for one in voters_of(term, view.possible_ballots())]
    needed = votes_needed(term)
    what = f"epoch {term.epoch}, slaves {list(term.numbers)} may be promoted"
    acks, votes = plural(term.acks_needed, "ack"), plural(needed, "vote")
    shortage = "" if len(voters) >= needed else " (too few)"
    return f"{what}; sends need {acks}; a failover needs {votes}; members that can vote: {voters}{shortage}"


def step_text(step: Step) -> str:
    """Return the line of one step when it ends."""
    how = "" if step.is_done else "FAILED: "
    return f"  {step.what:<9} {step.member:<24} {step.took_ms:>9.1f} ms  {how}{step.note}".rstrip()


def promoted_text(promoted: Promoted) -> Iterator[str]:
    """Yield the lines of a promotion's result."""
    yield f"{promoted.master} is the master in epoch {promoted.epoch}"
    if promoted.loss:
        yield f"possibly lost: {promoted.loss}"
    if not promoted.is_complete:
        yield f"run `gantry ha promote --to {promoted.number}` again to attach the members that do not follow"


def status_text(status: HaStatus) -> Iterator[RenderableType]:
    """Yield the lines of a broker's status after an order."""
    yield f"{Member('', status).name} is {_role(status)} in epoch {status.epoch}, and has written {status.wrote}"
    yield from notes(Member("", status))


def promised_text(answer: Promised) -> Iterator[RenderableType]:
    """Yield the line of a broker's promise."""
    end = f"its log ends at {answer.end} in epoch {answer.last_epoch}"
    yield f"broker {answer.broker_id} has promised to follow no master below epoch {answer.epoch}; {end}"


def _role(status: HaStatus) -> str:
    return status.role.value.lower()


def _member_row(member: Member, end: int | None) -> tuple[str, ...]:
    status = member.status
    assert status is not None, "only members that answered have a row"
    return (
        member.name,
        _role(status),
        str(status.epoch),
        _behind(status.wrote, end),
        _offset(status.flushed),
        _offset(status.acked),
        _offset(status.confirmed),
        str(status.last_epoch),
        status.master or "-",
        member.path,
    )


def _slave_row(slave: SlaveState, end: int | None) -> tuple[str, ...]:
    age = "-" if slave.ack_age_ms is None else f"{slave.ack_age_ms} ms ago"
    return (str(slave.number), slave.address or "-", _behind(slave.received, end), _behind(slave.flushed, end), age)


def _offset(value: int | None) -> str:
    return "-" if value is None else str(value)


def _behind(value: int | None, end: int | None) -> str:
    if value is None or end is None or end == value:
        return _offset(value)
    return f"{value} (-{bytes_text(end - value)})"
