"""Which brokers there are: those of the spec run, others go once nothing rests on them, lost disks are replaced.

A member is removed, and a lost disk given up, only when the newest epoch has a fresh master elsewhere that holds all
that was acknowledged, so never the only copy. A lost disk is waited for: until ``storage.replaceAfter`` is over, or
somebody has said that it will not come back. Where it may be the only copy, he has to accept that loss, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from gantry_spec.actions import Action, Remove, ReplaceDisk, Start, Wait
from gantry_spec.decide.view import View
from gantry_spec.observed import Disk, Member, Process


def processes(view: View) -> Iterator[Action]:
    """Who starts, who goes, whose disk is replaced."""
    shard = view.shard.number
    for number in view.spec.members:
        member = view.members.get(number)
        if member is not None and member.disk is Disk.LOST:
            yield _lost(view, member)
        elif member is None or member.process in (Process.STOPPED, Process.ABSENT):
            yield Start(shard=shard, member=number)
    for member in view.shard.members:
        if member.number not in view.spec.members and member.process is not Process.ABSENT:
            yield _leaving(view, member)


def _holder(view: View, number: int) -> str:
    """Why a member's log may be the only copy of something; empty if it is not: a master was elected with all of it."""
    if view.lease.record is None or not view.record.is_settled or view.steady_master is None:
        return "no fresh master holds all that was acknowledged"
    return "it is the master" if view.term.master == number else ""


def _lost(view: View, member: Member) -> Action:
    shard, number = view.shard.number, member.number
    since_ms, after_ms = member.disk_lost_since_ms, view.spec.storage.replace_after
    is_given_up = number in view.shard.replace_disks
    is_over = bool(after_ms) and since_ms is not None and view.now_ms - since_ms >= after_ms
    if not is_given_up and not is_over:
        how = f"it is waited for {after_ms}" if after_ms else "say that it is given up, or bring it back"
        return Wait(shard=shard, why=f"the disk of member {number} is lost: {how}")
    reason, request = _holder(view, number), view.shard.request
    is_accepted = bool(reason) and is_given_up and request is not None and request.loss_accepted is None
    if reason and not is_accepted:
        return Wait(shard=shard, why=f"the disk of member {number} is lost, and is not replaced: {reason}")
    why = "its disk is lost, and a master elsewhere has all that was acknowledged"
    if is_accepted:
        why = "its disk is lost, and a person has accepted whatever is lost with it"
    return ReplaceDisk(shard=shard, member=number, disk_id=member.disk_id, is_accepted=is_accepted, why=why)


def _leaving(view: View, member: Member) -> Action:
    shard, number = view.shard.number, member.number
    reason = _holder(view, number)
    if not reason and number in view.record.members:
        reason = "it may still be elected, or have a vote"
    if reason:
        return Wait(shard=shard, why=f"member {number} is scaled away, and stays for now: {reason}")
    why = "it is scaled away, and others have all that it has"
    return Remove(shard=shard, member=number, boot_id=member.boot_id, why=why)
