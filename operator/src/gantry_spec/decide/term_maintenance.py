"""Maintenance of a term: promote its master, attach the slaves, update the voters, and detect the master's failure.

If a member knows a newer epoch than a healthy master, a new epoch is taken, and none of the following is done. In all
other decisions about a healthy shard, members that do not follow the master are ordered to do so. In addition, the
first of these steps that is due is taken: record in the Lease which stores have votes, and drop old terms; wait while
the newest term does not contain what older ones acknowledged; change the electable set; and then the planned changes
for people, machines and the spec. A person's request that is done is removed unless voters or terms are written.
"""

from __future__ import annotations

import msgspec

from gantry_spec.actions import Action, ClearRequest, Fence, Follow, SetElectable, UpdateTerms, Wait
from gantry_spec.decide import manual_promotion
from gantry_spec.decide.election import begin_election, new_term, promote_master, take_epoch
from gantry_spec.decide.planned_changes import plan_change
from gantry_spec.decide.view import ShardView
from gantry_spec.decide.withdrawal import withdraw_masters
from gantry_spec.lease import Goal, LeaseRecord, Term, Voter, next_epoch
from gantry_spec.observed import Process, Report, Role


def maintain_term(view: ShardView) -> list[Action]:
    """Return the actions in an epoch that has a recorded master."""
    report = view.report(view.term.master)
    if view.healthy_master is not None:
        return _maintain_healthy(view, view.healthy_master)
    if view.is_from_members:
        return _start_election(view, f"epoch {view.term.epoch} has no master that answers")
    if view.master is not None:
        return _handle_silent_master(view, view.master)
    if report is None:
        return _handle_silent_master(view, None)
    epoch = view.record.epoch
    if report.promised_epoch > epoch or max(report.epoch, report.last_epoch) > epoch:
        return [
            take_epoch(view, Goal(why=f"member {view.term.master} knows a newer epoch than {epoch}", may_move=True))
        ]
    if max(report.epoch, report.last_epoch) == epoch:
        if view.fresh_report(view.term.master) is None:
            return _handle_silent_master(view, report)
        return _start_election(view, f"member {view.term.master} has lost its role")
    if view.fresh_report(view.term.master) is None and _has_timed_out(view, report):
        return _start_election(view, f"member {view.term.master} was elected for epoch {epoch}, but does not answer")
    return [promote_master(view, report)]


def _start_election(view: ShardView, why: str) -> list[Action]:
    return (
        begin_election(view, why)
        if view.manual_request is None
        else manual_promotion.begin_election(view, view.manual_request, why)
    )


def _has_timed_out(view: ShardView, report: Report | None) -> bool:
    """Return whether ``failover.after`` has passed since the master's last report and since it was recorded."""
    since_ms = max(view.lease.seen_ms, 0 if report is None else report.asked_ms)
    return view.now_ms - since_ms > view.spec.failover.after


def _handle_silent_master(view: ShardView, report: Report | None) -> list[Action]:
    """Return the actions while the master does not answer: wait, or start an election."""
    shard, number = view.shard.number, view.term.master
    if not _has_timed_out(view, report):
        until_ms = max(view.lease.seen_ms, 0 if report is None else report.asked_ms) + view.spec.failover.after
        return [Wait(shard=shard, why=f"master {number} does not answer", until_ms=until_ms)]
    member = view.members.get(number)
    is_stopped = member is not None and member.process in (Process.STOPPED, Process.ABSENT)
    in_contact = _slaves_in_contact(view)
    if in_contact and not is_stopped:
        return [
            Wait(
                shard=shard,
                why=f"master {number} does not answer the observer, but slaves {in_contact} are connected to it",
            )
        ]
    return _start_election(view, f"master {number} has failed")


def _slaves_in_contact(view: ShardView) -> list[int]:
    """Return the slaves that report contact with the master: then the observer is partitioned, not the master."""
    found = []
    for member, report in view.reports():
        is_slave = (report.role, report.epoch) == (Role.SLAVE, view.term.epoch)
        if is_slave and report.heartbeat_age_ms is not None and view.fresh_report(member.number) is not None:
            age_ms = view.now_ms - report.asked_ms + report.heartbeat_age_ms
            if age_ms <= view.spec.failover.after:
                found.append(member.number)
    return found


def keep_fenced(view: ShardView) -> list[Action]:
    """Keep a fenced shard closed: the master refuses sends, the slaves follow, and no member is promoted."""
    why = "the shard is fenced"
    master = None if view.lease.record is None else view.healthy_master
    slave_orders = [] if master is None else attach_slaves(view, master)
    return [
        *withdraw_masters(view, why),
        *slave_orders,
        Wait(shard=view.shard.number, why=f"{why}: no member is promoted"),
    ]


def _maintain_healthy(view: ShardView, master: Report) -> list[Action]:
    """Return the actions while the master is healthy; see the module's docstring for their order."""
    ahead = [member.number for member, report in view.reports() if max(report.epochs) > view.term.epoch]
    if ahead:
        why = f"members {ahead} know a newer epoch than {view.term.epoch}"
        if view.is_from_members:
            return _start_election(view, why)
        return [take_epoch(view, Goal(why=why, to=view.term.master, may_move=True))]
    actions = attach_slaves(view, master)
    updated = _update_terms(view, master)
    if updated is not None:
        return [updated, *actions]
    actions += _clear_done_request(view)
    if len(view.record.terms) > 1:
        why = f"epoch {view.term.epoch} does not contain yet what older epochs acknowledged"
        return [*actions, Wait(shard=view.shard.number, why=why)]
    changed = (
        _set_electable(view, master)
        if view.manual_request is None
        else manual_promotion.extend_electable(view, view.manual_request)
    )
    if changed is not None:
        return [changed, *actions]
    return [*actions, *plan_change(view, master)]


def attach_slaves(view: ShardView, master: Report) -> list[Action]:
    """Order all other members to follow the master. Without its address another master is at least fenced."""
    actions: list[Action] = []
    for member, report in view.reports():
        if member.number == view.term.master or view.fresh_report(member.number) is None:
            continue
        if member.number not in view.expected_members and member.number not in view.record.members:
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


def _update_terms(view: ShardView, master: Report) -> UpdateTerms | None:
    """Return the action that records new stores of voters and drops terms that the newest one replaces."""
    term = msgspec.structs.replace(view.term, electable=_current_voters(view, master))
    terms: tuple[Term, ...] = (*view.record.terms[:-1], term)
    why = "the stores of the voters are recorded"
    if len(terms) > 1 and (term.acks_needed == 0 or master.acked is not None):
        terms, why = (term,), f"epoch {term.epoch} replaces all older epochs"
    if terms == view.record.terms:
        return None
    record: LeaseRecord = msgspec.structs.replace(view.record, terms=terms, version="")
    return UpdateTerms(shard=view.shard.number, expected=view.record.version, record=record, why=why)


def _current_voters(view: ShardView, master: Report) -> tuple[Voter, ...]:
    """Return the voters with their stores. The store of a voter without one is recorded when first observed."""
    voters = []
    for voter in view.term.electable:
        report = view.fresh_report(voter.number)
        identity = voter.identity if report is None or not report.identity else report.identity
        is_known = identity == voter.identity
        voters.append(
            _replacement_voter(master, voter, identity)
            if voter.identity and not is_known
            else Voter(voter.number, identity)
        )
    return tuple(voters)


def _replacement_voter(master: Report, voter: Voter, identity: str) -> Voter:
    """Return the voter after its store was replaced: the new store gets the vote when it has received up to ``bar``."""
    ack = next((one for one in master.slaves if (one.number, one.identity) == (voter.number, identity)), None)
    if ack is None or ack.received is None or master.wrote is None:
        return voter
    if voter.coming != identity:
        return Voter(voter.number, voter.identity, identity, master.wrote)
    return Voter(voter.number, identity) if ack.received >= voter.bar else voter


def _has_confirmed(master: Report, number: int, identity: str) -> bool:
    """Return whether the master reports that a store has everything confirmed, so that it may become electable."""
    bar = master.wrote if master.confirmed is None else master.confirmed
    ack = next((one for one in master.slaves if (one.number, one.identity) == (number, identity)), None)
    return bar is not None and ack is not None and ack.received is not None and ack.received >= bar


def _set_electable(view: ShardView, master: Report) -> SetElectable | None:
    """Make new slaves electable once they have all that is confirmed, and removed members no longer electable."""
    term = view.term
    electable_numbers = {number for number in term.numbers if number in view.spec.members}
    electable_numbers |= {
        one.number
        for one in master.slaves
        if one.number in view.spec.members and _has_confirmed(master, one.number, one.identity)
    }
    electable_numbers -= {term.master}
    if (
        electable_numbers == set(term.numbers)
        or len(electable_numbers) < term.acks_needed
        or master.is_draining
        or master.wrote is None
    ):
        return None
    epoch = next_epoch(view.known_epochs)
    new = new_term(view, term.master, term.identity, epoch, master.log_position)
    stores = {voter.number: voter.identity for voter in term.electable}
    stores |= {one.number: one.identity for one in master.slaves if one.number not in stores}
    new = msgspec.structs.replace(
        new,
        electable=tuple(Voter(number, stores.get(number, "")) for number in sorted(electable_numbers)),
        acks_needed=term.acks_needed,
        continues=term.epoch,
    )
    why = f"{sorted(electable_numbers)} may be elected after member {term.master} from now on"
    goal = Goal(why=why)
    record = msgspec.structs.replace(view.record, epoch=epoch, terms=(term, new), goal=goal, version="")
    return SetElectable(shard=view.shard.number, expected=view.record.version, record=record, why=why)


def _clear_done_request(view: ShardView) -> list[Action]:
    """Return the action that removes a request that is done or can never be done."""
    request, goal = view.shard.request, view.record.goal
    if view.shard.restore:
        return [ClearRequest(shard=view.shard.number, request=view.shard.restore, why="the shard is restored")]
    if request is None:
        return []
    is_over = goal is not None and goal.promotion_request == request.id
    is_same = request.to == view.term.master and not manual_promotion.changes_electable(view)
    is_unknown = request.to is not None and request.to not in view.expected_members
    is_dropped = not (is_over or is_same)
    if not is_dropped:
        why = f"member {view.term.master} is the master of epoch {view.term.epoch}"
    elif view.spec.failover.mode == "Disabled":
        why = "request dropped: failover.mode is Disabled"
    elif is_unknown:
        why = f"request dropped: member {request.to} does not exist"
    else:
        return []
    return [ClearRequest(shard=view.shard.number, request=request.id, why=why, is_dropped=is_dropped)]
