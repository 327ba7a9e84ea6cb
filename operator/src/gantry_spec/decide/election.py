"""The election of a master: an epoch is taken in the Lease, promised by the members, and given a master.

    settled  --TakeEpoch-->  in election  --RecordMaster-->  settled  --Promote-->  the master serves
                              |      `- after the promises, the end of the old master's grants, and an allowed loss
                              `-- a member knows a newer epoch or has a role in this one, a person requests a promotion,
                                  or a manual promotion elects another member than expected: TakeEpoch again

Every step is a compare-and-swap of the Lease or an order that may be repeated, and the next step follows from the
observed state. So a deciding process may fail at any point and another continues; two at once do no harm.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_spec.actions import Action, Promise, Promote, RecordMaster, TakeEpoch, Wait
from gantry_spec.ballot import Ballot, Loss, necessary_terms
from gantry_spec.decide.view import ShardView
from gantry_spec.gate import check_action, check_loss
from gantry_spec.lease import EPOCH_STRIDE, TERMS_MAX, Goal, LeaseRecord, Term, Voter, next_epoch
from gantry_spec.observed import Process, PromotionRequest, Report, Role
from gantry_status.text import bytes_text

PROMISE_WAIT_MS: Final = 2_000
"""How long an election waits for promises of reachable members although it has enough."""
STARTUP_WAIT_MS: Final = 20_000
"""How long an election waits for the preferred master after the first member has started, as all start together."""

FULL: Final = f"the Lease has {TERMS_MAX} terms, which is the limit, and no master has replaced them"
"""Why no further term can be recorded. A master that gets the acks that it needs replaces all older terms."""


def take_epoch(
    view: ShardView, goal: Goal, *, probable_master: int = 0, terms: tuple[Term, ...] | None = None
) -> TakeEpoch:
    """Return the action that takes a new epoch for an election.

    ``goal`` is the purpose for which it is taken, which the Lease records. Without a Lease the epoch ends in
    ``probable_master``, a member's number. ``terms`` replaces the terms of the record that have to be outvoted.
    """
    epoch = next_epoch(view.known_epochs, suffix=0 if view.manual_request is None else probable_master)
    terms = view.record.terms if terms is None else terms
    record = msgspec.structs.replace(view.record, epoch=epoch, terms=terms, goal=goal, version="")
    return TakeEpoch(shard=view.shard.number, expected=view.record.version, record=record, why=goal.why)


def elect_master(view: ShardView) -> list[Action]:
    """Return the actions in an epoch that has no master yet."""
    record, epoch = view.record, view.record.epoch
    goal = record.goal or Goal(why="an election")
    if any(
        report.promised_epoch > epoch or max(report.epoch, report.last_epoch) >= epoch for _, report in view.reports()
    ):
        return [take_epoch(view, goal, probable_master=epoch % EPOCH_STRIDE)]
    request = view.shard.request
    if request is not None and request.id != goal.promotion_request and view.spec.failover.mode != "Disabled":
        goal = goal_for(request, "a promotion was requested")
        return [take_epoch(view, goal, probable_master=epoch % EPOCH_STRIDE)]
    ballots = view.promised_ballots(epoch)
    actions: list[Action] = [*_promises(view, ballots)]
    # Where the role may not move automatically, the last master wins among equal logs, even with damaged records.
    fallback = 0 if view.may_move or record.newest is None else record.newest.master
    is_forced = goal.loss_accepted is None if view.manual_request is None else view.manual_request.is_forced
    outcome = view.count_ballots(ballots, preferred=goal.to or fallback, is_forced=is_forced)
    if outcome.winner is None:
        return [*actions, Wait(shard=view.shard.number, why=outcome.reason)]
    blocked = _blocking_wait(view, goal, outcome.winner, ballots)
    if blocked is not None:
        return [*actions, blocked]
    if view.manual_request is not None and epoch % EPOCH_STRIDE != outcome.winner.number % EPOCH_STRIDE:
        return [take_epoch(view, goal, probable_master=outcome.winner.number)]
    loss = view.loss(outcome.winner, ballots)
    if any(view.missing_votes(term, ballots) for term in record.terms):
        loss = Loss(loss.at_least, None)
    action = record_master(view, outcome.winner, goal, loss)
    verdict = check_action(action, view.ledger, view.spec)
    if not verdict.is_allowed:
        return [
            *actions,
            Wait(shard=view.shard.number, why=f"member {outcome.winner.number} cannot be master: {verdict.reason}"),
        ]
    return [action, *actions]


def _promises(view: ShardView, ballots: list[Ballot]) -> list[Promise]:
    """Return promise requests to all members of past terms that may answer and have not promised."""
    promised = {ballot.number for ballot in ballots}
    return [
        Promise(shard=view.shard.number, member=number, epoch=view.record.epoch)
        for number in sorted((view.record.members | view.electable_members) - promised)
        if number in view.members and view.members[number].process not in (Process.STOPPED, Process.ABSENT)
        if view.manual_request is None or view.fresh_report(number) is not None
    ]


def _blocking_wait(view: ShardView, goal: Goal, winner: Ballot, ballots: list[Ballot]) -> Wait | None:
    """Return why the winner is not recorded yet; None if it can be."""
    record, shard = view.record, view.shard.number
    if _is_full(record):
        return Wait(shard=shard, why=f"member {winner.number} cannot be recorded as master: {FULL}")
    promised = {ballot.number for ballot in ballots}
    voters = record.members | view.electable_members
    likely = sorted(number for number in voters - promised if view.fresh_report(number) is not None)
    until_ms = view.lease.seen_ms + PROMISE_WAIT_MS
    if likely and view.now_ms < until_ms:
        return Wait(shard=shard, why=f"members {likely} have not promised yet", until_ms=until_ms)
    first_ms = _first_started_ms(view, ballots)
    if goal.to in record.members - promised and first_ms is not None and view.now_ms < first_ms + STARTUP_WAIT_MS:
        return Wait(
            shard=shard, why=f"waiting for member {goal.to}, the preferred master", until_ms=first_ms + STARTUP_WAIT_MS
        )
    for term in record.terms:
        if term.acks_needed == 0 and view.silent_by_ms(term, ballots) is None:
            over_ms = view.lease_and_grant_expire_ms(term, ballots)
            if over_ms is None and view.manual_request is not None and view.manual_request.is_forced:
                continue  # no slave ever gave it a grant, and the person accepts that
            why = f"the master of epoch {term.epoch} may still acknowledge: its Lease or its slaves' grants are valid"
            return Wait(shard=shard, why=why, until_ms=over_ms or view.lease.seen_ms + record.duration_ms)
    last = record.newest
    if last is not None and winner.number != last.master and not view.may_move:
        mode = view.spec.failover.mode
        why = f"member {winner.number} has a longer log than the last master, but failover.mode is {mode}"
        return Wait(shard=shard, why=f"{why}: {_remedy(view)}")
    return None


def _is_full(record: LeaseRecord) -> bool:
    """Return whether the record can hold no further term, which readers would refuse."""
    return len(necessary_terms(record.terms)) >= TERMS_MAX


def _first_started_ms(view: ShardView, ballots: list[Ballot]) -> int | None:
    """Return when the first of the members that have promised was started; None if unknown."""
    known = [view.members[ballot.number].started_by_ms for ballot in ballots if ballot.number in view.members]
    return min((one for one in known if one is not None), default=None)


def _remedy(view: ShardView) -> str:
    """Return what a person can do where the role does not move automatically."""
    return "set it to Manual" if view.spec.failover.mode == "Disabled" else "request a promotion"


def record_master(view: ShardView, winner: Ballot, goal: Goal, loss: Loss) -> RecordMaster:
    """Return the action that records the winner as the master of the epoch."""
    term = new_term(view, winner.number, winner.identity, view.record.epoch, (winner.last_epoch, winner.end))
    most = -1 if loss.at_most is None else loss.at_most
    term = msgspec.structs.replace(term, loss=most, is_loss_unknown=loss.is_unproven)
    record = msgspec.structs.replace(
        view.record, terms=(*necessary_terms(view.record.terms), term), goal=goal, version=""
    )
    lost = f"{bytes_text(loss.at_most)} lost at most"
    if loss.is_unproven:
        lost = "the loss is unknown, since too few members are known to have everything that they acknowledged"
    why = f"member {winner.number} is the master of epoch {term.epoch}; {lost}"
    return RecordMaster(shard=view.shard.number, expected=view.record.version, record=record, why=why)


def new_term(view: ShardView, number: int, identity: str, epoch: int, log_position: tuple[int, int]) -> Term:
    """Return a new term of a member, with the slaves that may be elected after it."""
    stores: dict[int, str] = {}
    for term in view.record.terms:
        stores |= {voter.number: voter.identity for voter in term.electable} | {term.master: term.identity}
    member = view.members[number]
    return Term(
        epoch=epoch,
        master=number,
        identity=identity,
        electable=tuple(Voter(one, stores.get(one, "")) for one in sorted(view.electable_after(number))),
        acks_needed=member.acks_needed,
        last_epoch=log_position[0],
        end=log_position[1],
    )


def promote_master(view: ShardView, report: Report) -> Action:
    """Promote the recorded master, or take a new epoch if it has lost data or its role since the election."""
    term, shard = view.term, view.shard.number
    if term.continues and (report.role, report.epoch) != (Role.MASTER, term.continues):
        return take_epoch(view, Goal(why=f"member {term.master} was to remain master, but has lost its role"))
    is_later = report.asked_ms >= view.lease.seen_ms
    if is_later and (report.identity != term.identity or report.log_position < (term.last_epoch, term.end)):
        return take_epoch(view, Goal(why=f"member {term.master} has lost data since it was elected", may_move=True))
    return Promote(
        shard=shard,
        member=term.master,
        epoch=term.epoch,
        electable=term.numbers,
        last_epoch=term.last_epoch,
        end=term.end,
        continues=term.continues,
        force=view.manual_request is not None and view.manual_request.is_forced,
    )


def begin_election(view: ShardView, why: str) -> list[Action]:
    """Start an election if it can succeed with the reachable members; otherwise wait and change nothing."""
    shard, term, request = view.shard.number, view.term, view.shard.request
    ballots = view.possible_ballots()
    is_forced = request is not None and request.loss_accepted is None
    outcome = view.count_ballots(ballots, is_forced=is_forced)
    if outcome.winner is None:
        return [Wait(shard=shard, why=f"{why}, and no member can be elected: {outcome.reason}")]
    is_master_back = any(ballot.number == term.master for ballot in ballots)
    if not view.may_move and not is_master_back:
        mode = view.spec.failover.mode
        return [
            Wait(shard=shard, why=f"{why}, and failover.mode is {mode}: {_remedy(view)}, or start the master again")
        ]
    if _is_full(view.record):
        return [
            Wait(shard=shard, why=f"{why}, but no other master can be recorded: {FULL}. Start master {term.master}")
        ]
    goal = Goal(why=why, may_move=view.may_move) if request is None else goal_for(request, why)
    silent_ms = None if is_master_back else _acknowledges_until_ms(view)
    loss = view.loss(outcome.winner, ballots, silent_by_ms=silent_ms)
    verdict = check_loss(loss.at_most, view.spec, accepted=goal.loss_accepted)
    if not verdict.is_allowed:
        return [Wait(shard=shard, why=f"{why}; {verdict.reason} with member {outcome.winner.number} as the master")]
    return [take_epoch(view, goal)]


def goal_for(request: PromotionRequest, why: str) -> Goal:
    """Return the goal of an epoch that is taken for a person's request."""
    return Goal(
        why=why, promotion_request=request.id, to=request.to or 0, loss_accepted=request.loss_accepted, may_move=True
    )


def _acknowledges_until_ms(view: ShardView) -> int:
    """Return until when the master may acknowledge if an epoch is taken now."""
    member = view.members.get(view.term.master)
    if member is not None and member.process in (Process.STOPPED, Process.ABSENT):
        return view.now_ms if member.stopped_by_ms is None else member.stopped_by_ms
    return view.now_ms + view.record.duration_ms
