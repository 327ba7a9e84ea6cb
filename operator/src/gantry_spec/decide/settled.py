"""An epoch that has a master: promote it, keep it, gather its slaves, and notice when it is gone.

What must be true of a healthy shard is looked at in one order, and the first thing that is not is mended: everybody
follows, the Lease knows whose votes count, then what people, machines and the spec want moved or restarted.
"""

from __future__ import annotations

import msgspec

from gantry_spec.actions import Action, ClearRequest, Fence, Follow, KeepLease, SetElectable, Wait
from gantry_spec.decide import by_hand
from gantry_spec.decide.electing import begin, promote, take, term_of
from gantry_spec.decide.moving import voluntary
from gantry_spec.decide.view import View
from gantry_spec.decide.withheld import withdrawn
from gantry_spec.lease import Goal, LeaseRecord, Term, Voter, next_epoch
from gantry_spec.observed import Process, Report, Role


def settle(view: View) -> list[Action]:
    """What to do in an epoch that has a master by the Lease."""
    report = view.report(view.term.master)
    if view.steady_master is not None:
        return _steady(view, view.steady_master)
    if view.is_past:
        return _begin(view, f"epoch {view.term.epoch} has no master that answers")
    if view.master is not None:
        return _silent(view, view.master)
    if report is None:
        return _silent(view, None)
    epoch = view.record.epoch
    if report.promised_epoch > epoch or max(report.epoch, report.last_epoch) > epoch:
        return [take(view, Goal(why=f"member {view.term.master} knows a newer epoch than {epoch}", may_move=True))]
    if max(report.epoch, report.last_epoch) == epoch:
        if view.fresh(view.term.master) is None:
            return _silent(view, report)
        return _begin(view, f"member {view.term.master} has lost its role")
    if view.fresh(view.term.master) is None and _waited(view, report):
        return _begin(view, f"member {view.term.master} was named for epoch {epoch}, and is silent")
    return [promote(view, report)]


def _begin(view: View, why: str) -> list[Action]:
    return begin(view, why) if view.by_hand is None else by_hand.begin(view, view.by_hand, why)


def _waited(view: View, report: Report | None) -> bool:
    """Whether it has been silent for long enough, since it was named and since it was heard."""
    since_ms = max(view.lease.seen_ms, 0 if report is None else report.asked_ms)
    return view.now_ms - since_ms > view.spec.failover.after


def _silent(view: View, report: Report | None) -> list[Action]:
    """Its master does not answer. Is it gone?"""
    shard, number = view.shard.number, view.term.master
    if not _waited(view, report):
        until_ms = max(view.lease.seen_ms, 0 if report is None else report.asked_ms) + view.spec.failover.after
        return [Wait(shard=shard, why=f"master {number} is silent", until_ms=until_ms)]
    member = view.members.get(number)
    is_stopped = member is not None and member.process in (Process.STOPPED, Process.ABSENT)
    hearing = _hearing(view)
    if hearing and not is_stopped:
        return [Wait(shard=shard, why=f"master {number} does not answer us, and members {hearing} hear it")]
    return _begin(view, f"master {number} is gone")


def _hearing(view: View) -> list[int]:
    """Slaves that say they hear the master: then it is we who are cut off."""
    found = []
    for member, report in view.reports():
        is_slave = (report.role, report.epoch) == (Role.SLAVE, view.term.epoch)
        if is_slave and report.heard_ms is not None and view.fresh(member.number) is not None:
            age_ms = view.now_ms - report.asked_ms + report.heard_ms
            if age_ms <= view.spec.failover.after:
                found.append(member.number)
    return found


def fenced(view: View) -> list[Action]:
    """A person wants no sends on it, and no other master: its slaves follow, and nothing else is done."""
    why = "it is fenced by its annotation"
    master = None if view.lease.record is None else view.steady_master
    gathered = [] if master is None else gather(view, master)
    return [*withdrawn(view, why), *gathered, Wait(shard=view.shard.number, why=f"{why}: nobody is promoted")]


def _steady(view: View, master: Report) -> list[Action]:
    stray = [member.number for member, report in view.reports() if max(report.epochs) > view.term.epoch]
    if stray:
        why = f"members {stray} know a newer epoch than {view.term.epoch}"
        if view.is_past:
            return _begin(view, why)
        return [take(view, Goal(why=why, to=view.term.master, may_move=True))]
    actions = gather(view, master)
    kept = _kept(view, master)
    if kept is not None:
        return [kept, *actions]
    actions += _done_request(view)
    if len(view.record.terms) > 1:
        why = f"epoch {view.term.epoch} does not hold yet what older ones have acknowledged"
        return [*actions, Wait(shard=view.shard.number, why=why)]
    chosen = _electable(view, master) if view.by_hand is None else by_hand.widen(view, view.by_hand)
    if chosen is not None:
        return [chosen, *actions]
    return [*actions, *voluntary(view, master)]


def gather(view: View, master: Report) -> list[Action]:
    """Everybody else follows. Whoever cannot be told whom loses at least the role that it believes in."""
    actions: list[Action] = []
    for member, report in view.reports():
        if member.number == view.term.master or view.fresh(member.number) is None:
            continue
        if member.number not in view.members_wanted and member.number not in view.record.members:
            continue
        follows = (report.role, report.epoch, report.master)
        if follows == (Role.SLAVE, view.term.epoch, master.ha_address) and master.ha_address:
            continue
        shard, epoch = view.shard.number, view.term.epoch
        if master.ha_address:
            actions.append(Follow(shard=shard, member=member.number, epoch=epoch, master=master.ha_address))
        elif report.role is Role.MASTER:
            actions.append(Fence(shard=shard, member=member.number, epoch=epoch))
    return actions


# -- the Lease ---------------------------------------------------------------------------------------------------------


def _kept(view: View, master: Report) -> KeepLease | None:
    """Put down stores that have come, and forget terms that this one holds."""
    term = msgspec.structs.replace(view.term, electable=_stores(view, master))
    terms: tuple[Term, ...] = (*view.record.terms[:-1], term)
    why = "the stores that have votes are put down"
    if len(terms) > 1 and (term.acks_needed == 0 or master.acked is not None):
        terms, why = (term,), f"epoch {term.epoch} holds all that older ones have acknowledged"
    if terms == view.record.terms:
        return None
    record: LeaseRecord = msgspec.structs.replace(view.record, terms=terms, version="")
    return KeepLease(shard=view.shard.number, expected=view.record.version, record=record, why=why)


def _stores(view: View, master: Report) -> tuple[Voter, ...]:
    """Which store has which vote. One that was never seen is put down at first sight."""
    voters = []
    for voter in view.term.electable:
        report = view.fresh(voter.number)
        identity = voter.identity if report is None or not report.identity else report.identity
        is_known = identity == voter.identity
        voters.append(
            _coming(master, voter, identity) if voter.identity and not is_known else Voter(voter.number, identity)
        )
    return tuple(voters)


def _coming(master: Report, voter: Voter, identity: str) -> Voter:
    """Another store is here: it gets the vote when it has all that the master had when it came."""
    ack = next((one for one in master.slaves if (one.number, one.identity) == (voter.number, identity)), None)
    if ack is None or ack.received is None or master.wrote is None:
        return voter
    if voter.coming != identity:
        return Voter(voter.number, voter.identity, identity, master.wrote)
    return Voter(voter.number, identity) if ack.received >= voter.bar else voter


def _has_all(master: Report, number: int, identity: str) -> bool:
    """Whether the master says that this store has what was confirmed: then it is worth while to let it be elected."""
    bar = master.wrote if master.confirmed is None else master.confirmed
    ack = next((one for one in master.slaves if (one.number, one.identity) == (number, identity)), None)
    return bar is not None and ack is not None and ack.received is not None and ack.received >= bar


def _electable(view: View, master: Report) -> SetElectable | None:
    """Let new slaves be elected once they have everything, and have those that are not wanted be elected no more."""
    term = view.term
    wanted = {number for number in term.numbers if number in view.spec.members}
    wanted |= {
        one.number
        for one in master.slaves
        if one.number in view.spec.members and _has_all(master, one.number, one.identity)
    }
    wanted -= {term.master}
    if wanted == set(term.numbers) or len(wanted) < term.acks_needed or master.is_draining or master.wrote is None:
        return None
    epoch = next_epoch(view.known_epochs)
    new = term_of(view, term.master, term.identity, epoch, master.place)
    stores = {voter.number: voter.identity for voter in term.electable}
    stores |= {one.number: one.identity for one in master.slaves if one.number not in stores}
    new = msgspec.structs.replace(
        new,
        electable=tuple(Voter(number, stores.get(number, "")) for number in sorted(wanted)),
        acks_needed=term.acks_needed,
        continues=term.epoch,
    )
    why = f"{sorted(wanted)} may be elected after member {term.master} from now on"
    goal = Goal(why=why)
    record = msgspec.structs.replace(view.record, epoch=epoch, terms=(term, new), goal=goal, version="")
    return SetElectable(shard=view.shard.number, expected=view.record.version, record=record, why=why)


def _done_request(view: View) -> list[Action]:
    """An order that was obeyed, or came to its end in another way, is taken off the list."""
    request, goal = view.shard.request, view.record.goal
    if view.shard.restore:
        return [ClearRequest(shard=view.shard.number, request=view.shard.restore, why="the shard has begun")]
    if request is None:
        return []
    is_over = goal is not None and goal.request == request.id
    is_so = request.to == view.term.master and not by_hand.is_widened(view)
    is_unknown = request.to is not None and request.to not in view.members_wanted
    is_vain = view.spec.failover.mode == "Disabled" or is_unknown
    if is_over or is_so or is_vain:
        why = f"member {view.term.master} is the master of epoch {view.term.epoch}"
        return [ClearRequest(shard=view.shard.number, request=request.id, why=why)]
    return []
