"""A new epoch: taken in the Lease, promised by whoever is there, and given a master.

    settled  --TakeLease-->  electing  --promises, keys over, loss allowed: Crown-->  settled  --Promote-->  a master
                                `-- somebody knows a newer epoch: TakeLease again

Every arrow is a compare-and-swap of the Lease or an order that may be repeated, and which arrow is next follows from
what is seen. So whoever decides may die at any point, and whoever comes next goes on; two at once get in nobody's way.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_spec.actions import Action, Crown, Promise, Promote, TakeLease, Wait
from gantry_spec.ballot import Ballot, Loss
from gantry_spec.decide.view import View
from gantry_spec.gate import may, may_lose
from gantry_spec.lease import EPOCH_STRIDE, Goal, Term, Voter, next_epoch
from gantry_spec.manifest.quantities import bytes_text
from gantry_spec.observed import Process, PromotionRequest, Report, Role

PATIENCE_MS: Final = 2_000
"""How long is waited for promises that are likely to come, though there are enough."""
WAKING_MS: Final = 20_000
"""For how long whoever is wanted is waited for after others have come: all are started at once, and come one by one."""


def take(view: View, goal: Goal, *, likely: int = 0, terms: tuple[Term, ...] | None = None) -> TakeLease:
    """Take a new epoch for an election. Without a Lease it ends in the number of ``likely``, its master to be.

    ``terms``: as they are to be outvoted, where that is not what the record has.
    """
    epoch = next_epoch(view.known_epochs, suffix=likely if view.by_hand is not None else 0)
    terms = view.record.terms if terms is None else terms
    record = msgspec.structs.replace(view.record, epoch=epoch, terms=terms, goal=goal, version="")
    return TakeLease(shard=view.shard.number, expected=view.record.version, record=record, why=goal.why)


def elect(view: View) -> list[Action]:
    """What to do in an epoch that has no master yet."""
    record, epoch = view.record, view.record.epoch
    goal = record.goal or Goal(why="an election")
    if any(
        report.promised_epoch > epoch or max(report.epoch, report.last_epoch) >= epoch for _, report in view.reports()
    ):
        return [take(view, goal, likely=epoch)]
    request = view.shard.request
    if request is not None and request.id != goal.request and view.spec.failover.mode != "Disabled":
        return [take(view, goal_of(request, "it was ordered"), likely=epoch)]
    ballots = view.promised(epoch)
    actions: list[Action] = [*_promises(view, ballots)]
    # Where the role may not move by itself, the last master gets it back among equals, whatever is damaged.
    kept = 0 if view.may_move or record.newest is None else record.newest.master
    is_forced = goal.loss_accepted is None if view.by_hand is None else view.by_hand.is_forced
    outcome = view.count(ballots, wanted=goal.to or kept, is_forced=is_forced)
    if outcome.winner is None:
        return [*actions, Wait(shard=view.shard.number, why=outcome.reason)]
    blocked = _blocked(view, goal, outcome.winner, ballots)
    if blocked is not None:
        return [*actions, blocked]
    if view.by_hand is not None and epoch % EPOCH_STRIDE != outcome.winner.number % EPOCH_STRIDE:
        return [take(view, goal, likely=outcome.winner.number)]
    loss = view.loss(outcome.winner, ballots)
    if any(view.missing(term, ballots) for term in record.terms):
        loss = Loss(loss.at_least, None)
    crown = crown_of(view, outcome.winner, goal, loss)
    verdict = may(crown, view.ledger, view.spec)
    if not verdict.is_allowed:
        return [
            *actions,
            Wait(shard=view.shard.number, why=f"member {outcome.winner.number} could be: {verdict.because}"),
        ]
    return [crown, *actions]


def _promises(view: View, ballots: list[Ballot]) -> list[Promise]:
    """Asked of everybody who had a part in the past and may answer."""
    have = {ballot.number for ballot in ballots}
    return [
        Promise(shard=view.shard.number, member=number, epoch=view.record.epoch)
        for number in sorted((view.record.members | view.electable_members) - have)
        if number in view.members and view.members[number].process not in (Process.STOPPED, Process.ABSENT)
        if view.by_hand is None or view.fresh(number) is not None
    ]


def _blocked(view: View, goal: Goal, winner: Ballot, ballots: list[Ballot]) -> Wait | None:
    """Why nobody is named yet, though somebody could be."""
    record, shard = view.record, view.shard.number
    have = {ballot.number for ballot in ballots}
    asked = record.members | view.electable_members
    likely = sorted(number for number in asked - have if view.fresh(number) is not None)
    until_ms = view.lease.seen_ms + PATIENCE_MS
    if likely and view.now_ms < until_ms:
        return Wait(shard=shard, why=f"members {likely} have not promised yet", until_ms=until_ms)
    first_ms = _awake_since(view, ballots)
    if goal.to in record.members - have and first_ms is not None and view.now_ms < first_ms + WAKING_MS:
        return Wait(shard=shard, why=f"member {goal.to} is waited for", until_ms=first_ms + WAKING_MS)
    for term in record.terms:
        if term.acks_needed == 0 and view.silent_by_ms(term, ballots) is None:
            over_ms = view.keys_over_ms(term, ballots)
            if over_ms is None and view.by_hand is not None and view.by_hand.is_forced:
                continue  # no slave ever gave it a key, and the person knows
            why = f"the master of epoch {term.epoch} may still acknowledge: its Lease or its slaves' grants run"
            return Wait(shard=shard, why=why, until_ms=over_ms or view.lease.seen_ms + record.duration_ms)
    last = record.newest
    if last is not None and winner.number != last.master and not view.may_move:
        why = f"member {winner.number} has more than the last master, and failover.mode is {view.spec.failover.mode}"
        return Wait(shard=shard, why=f"{why}: {_way_out(view)}")
    return None


def _awake_since(view: View, ballots: list[Ballot]) -> int | None:
    """When the first of those who have promised was started, as far as is known."""
    known = [view.members[ballot.number].started_by_ms for ballot in ballots if ballot.number in view.members]
    return min((one for one in known if one is not None), default=None)


def _way_out(view: View) -> str:
    """What a person can do where the role does not move by itself."""
    return "set it to Manual" if view.spec.failover.mode == "Disabled" else "order a promotion"


def crown_of(view: View, winner: Ballot, goal: Goal, loss: Loss) -> Crown:
    """Name the winner."""
    term = term_of(view, winner.number, winner.identity, view.record.epoch, (winner.last_epoch, winner.end))
    term = msgspec.structs.replace(term, loss=-1 if loss.at_most is None else loss.at_most)
    record = msgspec.structs.replace(view.record, terms=(*view.record.terms, term), goal=goal, version="")
    why = f"member {winner.number} is the master of epoch {term.epoch}; {bytes_text(loss.at_most)} lost at most"
    return Crown(shard=view.shard.number, expected=view.record.version, record=record, why=why)


def term_of(view: View, number: int, identity: str, epoch: int, place: tuple[int, int]) -> Term:
    """A new term of a member, and who may be elected after it."""
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
        last_epoch=place[0],
        end=place[1],
    )


def promote(view: View, report: Report) -> Action:
    """Have the one who was named be it, unless it has lost something, or its role, since."""
    term, shard = view.term, view.shard.number
    if term.continues and (report.role, report.epoch) != (Role.MASTER, term.continues):
        return take(view, Goal(why=f"member {term.master} was to go on as the master, and has lost its role"))
    is_later = report.asked_ms >= view.lease.seen_ms
    if is_later and (report.identity != term.identity or report.place < (term.last_epoch, term.end)):
        return take(view, Goal(why=f"member {term.master} has lost something since it was named", may_move=True))
    return Promote(
        shard=shard,
        member=term.master,
        epoch=term.epoch,
        electable=term.numbers,
        last_epoch=term.last_epoch,
        end=term.end,
        continues=term.continues,
        force=view.by_hand is not None and view.by_hand.is_forced,
    )


def begin(view: View, why: str) -> list[Action]:
    """Begin an election, if it can succeed with those who are here now; else say what lacks, and disturb nobody."""
    shard, term, request = view.shard.number, view.term, view.shard.request
    ballots = view.possible()
    is_forced = request is not None and request.loss_accepted is None
    outcome = view.count(ballots, is_forced=is_forced)
    if outcome.winner is None:
        return [Wait(shard=shard, why=f"{why}, and nobody can be elected: {outcome.reason}")]
    is_back = any(ballot.number == term.master for ballot in ballots)
    if not view.may_move and not is_back:
        mode = view.spec.failover.mode
        return [Wait(shard=shard, why=f"{why}, and failover.mode is {mode}: {_way_out(view)}, or start it again")]
    goal = Goal(why=why, may_move=view.may_move) if request is None else goal_of(request, why)
    silent_ms = None if is_back else _silent_then(view)
    loss = view.loss(outcome.winner, ballots, silent_by_ms=silent_ms)
    verdict = may_lose(loss.at_most, view.spec, accepted=goal.loss_accepted)
    if not verdict.is_allowed:
        return [Wait(shard=shard, why=f"{why}; {verdict.because} with member {outcome.winner.number} as the master")]
    return [take(view, goal)]


def goal_of(request: PromotionRequest, why: str) -> Goal:
    """What an epoch is taken for by order of a person."""
    return Goal(why=why, request=request.id, to=request.to or 0, loss_accepted=request.loss_accepted, may_move=True)


def _silent_then(view: View) -> int:
    """Until when the master may acknowledge if the Lease is taken now."""
    member = view.members.get(view.term.master)
    if member is not None and member.process in (Process.STOPPED, Process.ABSENT):
        return view.now_ms if member.stopped_by_ms is None else member.stopped_by_ms
    return view.now_ms + view.record.duration_ms
