"""The members of a shard: those of the spec are started, others are removed, and lost disks are replaced.

A shard that is scaled in needs its slaves, too: until it is empty, delayed and retried messages are appended to it, and
wait for acks.

A member is removed, and a lost disk is replaced, only if the newest epoch has a master elsewhere, with a recent
report, that has everything that was acknowledged. So the only copy is never deleted without a person's consent. A lost
disk is replaced after ``storage.replaceAfter``, when a person has given it up, or when its machine is out of service.
Where it may hold the only copy, ``storage.replaceAfter`` does not count, and a person must accept any loss as well."""

from __future__ import annotations

from collections.abc import Iterator

from gantry_spec.actions import Action, Remove, ReplaceDisk, Start, Wait
from gantry_spec.decide.view import ShardView
from gantry_spec.manifest.annotations import REPLACE_DISK
from gantry_spec.observed import Disk, Member, Process


def maintain_members(view: ShardView) -> Iterator[Action]:
    """Yield the actions that start, remove and repair the members of a shard."""
    shard = view.shard.number
    for number in view.spec.members:
        member = view.members.get(number)
        if member is not None and member.disk is Disk.LOST:
            yield _replace_lost_disk(view, member)
        elif member is None or member.process in (Process.STOPPED, Process.ABSENT):
            yield Start(shard=shard, member=number)
    for member in view.shard.members:
        if member.number not in view.spec.members and member.process is not Process.ABSENT:
            yield _remove_member(view, member)


def repair_members(view: ShardView) -> Iterator[Action]:
    """Yield the actions that repair a shard that is scaled in: its members start, but none that does not exist."""
    for member in view.shard.members:
        if member.disk is Disk.LOST and member.process is not Process.ABSENT:
            yield _replace_lost_disk(view, member)
        elif member.process is Process.STOPPED:
            yield Start(shard=view.shard.number, member=member.number)


def _reason_to_keep(view: ShardView, number: int) -> str:
    """Return why a member's log may be the only copy of some data; empty if a master elsewhere has everything."""
    if view.lease.record is None or not view.record.is_settled or view.healthy_master is None:
        return "no master with a recent report has everything that was acknowledged"
    return "it is the master" if view.term.master == number else ""


def _replace_lost_disk(view: ShardView, member: Member) -> Action:
    """Return the replacement of a member's lost disk, or the wait before it."""
    shard, number = view.shard.number, member.number
    since_ms, after_ms = member.disk_lost_since_ms, view.spec.storage.replace_after
    is_given_up = number in view.shard.replace_disks
    is_over = bool(after_ms) and since_ms is not None and view.now_ms - since_ms >= after_ms
    if not is_given_up and not is_over:
        how = f"it is replaced after {after_ms}" if after_ms else f"bring it back, or give it up with {REPLACE_DISK}"
        return Wait(shard=shard, why=f"the disk of member {number} is lost: {how}")
    reason, request = _reason_to_keep(view, number), view.shard.request
    is_accepted = bool(reason) and is_given_up and request is not None and request.loss_accepted is None
    if reason and not is_accepted:
        return Wait(shard=shard, why=f"the disk of member {number} is lost and is not replaced: {reason}")
    why = "its disk is lost, and a master elsewhere has everything that was acknowledged"
    if is_accepted:
        why = "its disk is lost, and a person has accepted any loss"
    return ReplaceDisk(shard=shard, member=number, disk_id=member.disk_id, is_accepted=is_accepted, why=why)


def _remove_member(view: ShardView, member: Member) -> Action:
    """Return the removal of a member, or the wait before it."""
    shard, number = view.shard.number, member.number
    reason = _reason_to_keep(view, number)
    if not reason and number in view.record.members:
        reason = "it may still be elected or have a vote"
    if reason:
        return Wait(shard=shard, why=f"member {number} is scaled in, but cannot be removed yet: {reason}")
    why = "it is scaled in, and others have everything that it has"
    return Remove(shard=shard, member=number, boot_id=member.boot_id, why=why)
