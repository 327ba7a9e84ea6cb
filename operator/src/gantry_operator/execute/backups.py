"""Makes the backups of one group: on its schedule, and on request.

    due -> for each shard: the broker marks a point -> VolumeSnapshot of its volume -> ready -> expired ones deleted

A slave is chosen where one has everything that the master had when the backup began, else the master. Snapshots that
exist are never made again, so that the next operator continues a backup where this one ended: all that is known about
backups is in them (``gantry_spec.backups``). The work runs beside the rounds of the group, since a driver may take
minutes, and no failover may wait for it. After a failure nothing is asked of the API server for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, final

import msgspec
from cronsim import CronSim, CronSimError

from gantry_operator.api import SNAPSHOTS, Kubernetes, ObjectRef, labels_of, uid_of
from gantry_operator.clock import Clock, format_time, parse_time
from gantry_operator.errors import Conflict, NoBackupSource, NotFound, OperatorError
from gantry_operator.event_recorder import BACKED_UP, BACKUP_FAILED, Event
from gantry_operator.observe.group_objects import GroupObjects
from gantry_operator.sidecars import Sidecars
from gantry_spec.backups import (
    BACKUP_LABEL,
    GROUP_UID_LABEL,
    Backup,
    Point,
    Snapshot,
    Source,
    Steps,
    backups_of,
    next_steps,
    snapshot_document,
)
from gantry_spec.cluster_objects import GROUP_LABEL
from gantry_spec.decide.decision import Condition
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import Backup as BackupSpec
from gantry_spec.manifest.status import BackupStatus, ShardPoint
from gantry_spec.observed import ObservedGroup, ObservedShard, Report, Role
from gantry_status.orders import Flush

log = logging.getLogger(__name__)

POLL_MS: Final = 5_000
"""The time between two lists of the snapshots while a backup is being made."""

IDLE_MS: Final = 600_000
"""The same while no backup is due."""

RETRY_MS: Final = 30_000
"""The time after a failure before a backup is continued. Nothing shortens it."""

STALLED_MS: Final = 3_600_000
"""After this time without a complete backup, the ones that are due count as failed."""

FRESH_MS: Final = 5_000
"""The age up to which the report of a broker, and the heartbeat of its master, are used."""


class Due(NamedTuple):
    """The backup that is due, and the next one."""

    name: str = ""
    """Empty if none is due."""

    next_at: datetime | None = None
    is_scheduled: bool = False


def due(schedule: str, backups: Sequence[Backup], since: datetime, now: datetime, request: str = "") -> Due:
    """Return the backup that is due: the one that is requested, else the last one of the schedule, unless complete.

    ``since`` is when the group was created: no earlier time counts. Raises ``CronSimError`` for an invalid schedule.
    """
    complete = {one.name for one in backups if one.is_complete}
    next_at = None if not schedule else next(CronSim(schedule, now))
    if request and request not in complete:
        return Due(request, next_at)
    if not schedule:
        return Due()
    after = now.replace(microsecond=0) + timedelta(seconds=1)  # this second counts
    last = next(CronSim(schedule, after, reverse=True))
    name = scheduled_name(last)
    return Due(name if last >= since and name not in complete else "", next_at, is_scheduled=True)


def scheduled_name(at: datetime) -> str:
    """Return the name of the backup of a schedule."""
    return at.strftime("%Y%m%d-%H%M")


class BackupRound(NamedTuple):
    """What a step of the work needs to know."""

    group: BrokerGroup
    token: str
    request: str
    created_at: str
    """When the group was created, as a time of Kubernetes."""

    manifest: Mapping[str, Any]
    """The spec as it is in the cluster."""

    before: Mapping[str, Any]
    """The status of the group before the round."""


@final
class GroupBackups:
    """The backups of one group. Owned by the task of the group's loop, which closes it."""

    def __init__(
        self, objects: GroupObjects, api: Kubernetes, sidecars: Sidecars, clock: Clock,
        observed: Callable[[], ObservedGroup], wake: Callable[[], None],
    ) -> None:  # fmt: skip
        """``observed`` returns the newest observation, ``wake`` starts the next round early."""
        self.done_request = ""
        """The name of a requested backup that is complete; its request can be removed."""

        self._events: list[Event] = []
        self._objects: Final = objects
        self._api: Final = api
        self._sidecars: Final = sidecars
        self._clock: Final = clock
        self._observed: Final = observed
        self._wake: Final = wake
        self._backups: list[Backup] = []
        self._due = Due()
        self._problem = ""
        self._is_known = False
        """Whether the snapshots were listed since this operator has begun."""

        self._since_ms: int | None = None
        """When the first backup became due since the last complete one; None if none is due."""

        self._spec = BackupSpec()
        self._next_ms = 0
        self._retry_ms = 0
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<GroupBackups {'/'.join(self._objects.key)} due={self._due.name!r}>"

    def step(self, about: BackupRound) -> None:
        """Start the next step of the work if it is due and none is under way. Returns at once."""
        if about.request != self.done_request:
            self.done_request = ""
        now_ms, spec = self._clock.now_ms(), about.group.spec.backup
        if self._task is not None or now_ms < self._retry_ms:
            return
        if not spec.schedule and not about.request and not self._has_backups(about.before):
            self._due, self._problem, self._since_ms = Due(), "", None
            self._is_known = True  # there is nothing to list
            return
        is_other = about.request not in ("", self._due.name, self.done_request) or spec != self._spec
        has_come = self._due.next_at is not None and self._clock.wall() >= self._due.next_at
        if now_ms < self._next_ms and not is_other and not has_come:
            return
        self._spec = spec
        self._task = asyncio.create_task(self._run(about), name=f"gantry-backup-{'/'.join(self._objects.key)}")
        self._task.add_done_callback(self._on_done)

    async def settle(self) -> None:
        """Wait until no step is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Cancel the work that is under way. The next operator continues it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        taken, self._events = self._events, []
        return taken

    def status(self, before: Mapping[str, Any]) -> BackupStatus:
        """Return the status of the backups. Until the snapshots were listed it is that of the operator before."""
        if not self._is_known:
            return _status_in(before)
        complete = [one for one in self._backups if one.is_complete]
        last = complete[-1] if complete else None
        return BackupStatus(
            last="" if last is None else last.name,
            last_at="" if last is None else last.created_at,
            points=[] if last is None else _points(last),
            running=self._due.name,
            next_at="" if self._due.next_at is None else format_time(self._due.next_at),
            count=len(complete),
        )

    def condition(self, before: Mapping[str, Any]) -> Condition | None:
        """Return the condition ``BackedUp``; None for a group that never had a backup and needs none."""
        name, since_ms = self._due.name, self._since_ms
        problem = self._problem
        if not problem and since_ms is not None and self._clock.now_ms() - since_ms >= STALLED_MS:
            problem = "; ".join(["no backup was completed since it was due", *self._errors()])
        if problem:
            text = f"backup {name}: {problem}" if name else problem
            return Condition(type="BackedUp", is_true=False, reason="Failed", message=text)
        if not self._is_known:
            return _condition_in(before)
        if name:
            return Condition(type="BackedUp", is_true=None, reason="Running", message=f"backup {name} is being made")
        if any(one.is_complete for one in self._backups):
            return Condition(type="BackedUp", is_true=True, reason="Complete")
        return None

    def _has_backups(self, before: Mapping[str, Any]) -> bool:
        return bool(self._backups) or bool((before.get("backup") or {}).get("count"))

    def _errors(self) -> list[str]:
        """Return what drivers say about the snapshots of the backup that is due."""
        due_now = [one for one in self._backups if one.name == self._due.name]
        found = [one for backup in due_now for one in backup.snapshots.values() if not one.is_ready]
        return [f"snapshot {one.name}: {one.error or 'not ready'}" for one in found]

    # -- the work ------------------------------------------------------------------------------------------------------

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            log.error("unexpected error while making backup", exc_info=task.exception())
            self._next_ms = self._retry_ms = self._clock.now_ms() + RETRY_MS

    async def _run(self, about: BackupRound) -> None:
        """Make one step: list the snapshots, delete those that have expired, make those that are missing."""
        if about.request:
            self._due = self._due._replace(name=about.request, is_scheduled=False)  # what a failure is about
        try:
            was_known, before = self._is_known, {one.name for one in self._backups if one.is_complete}
            invalid = await self._refresh(about)
            due_now = self._due
            steps = self._steps(about, due_now)
            for snapshot in steps.removed:
                await self._api.delete(ObjectRef(SNAPSHOTS, self._objects.key[0], snapshot.name), uid=snapshot.uid)
            if due_now.name and not steps.removed:  # what was deleted may still be there
                await self._make(about, due_now, steps)
            if due_now.name or steps.removed:
                await self._refresh(about)
            self._report_complete(about, before if was_known else None)
            if invalid is not None:
                raise invalid
            self._problem = ""
        except CronSimError as error:
            self._fail(f"spec.backup.schedule {about.group.spec.backup.schedule!r} is invalid: {error}")
        except OperatorError as error:
            self._fail(_explain(error))
        else:
            self._next_ms = self._clock.now_ms() + (POLL_MS if self._due.name or steps.removed else IDLE_MS)
            self._wake()

    async def _refresh(self, about: BackupRound) -> CronSimError | None:
        """List the snapshots of this group, and not of an earlier one of its name; find out which backup is due.

        Return why the schedule is invalid, which does not keep a request from being due.
        """
        namespace, name = self._objects.key
        selector = f"{GROUP_LABEL}={name},{GROUP_UID_LABEL}={about.group.metadata.uid}"
        self._backups = backups_of(await self._api.list(SNAPSHOTS, namespace, selector))
        self._is_known = True
        since = parse_time(about.created_at) or datetime.min.replace(tzinfo=UTC)
        schedule, now_ms = about.group.spec.backup.schedule, self._clock.now_ms()
        invalid: CronSimError | None = None
        try:
            self._due = due(schedule, self._backups, since, self._clock.wall(), about.request)
        except CronSimError as error:
            self._due, invalid = due("", self._backups, since, self._clock.wall(), about.request), error
        if not self._due.name:
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        return invalid

    def _steps(self, about: BackupRound, due_now: Due) -> Steps:
        spec = about.group.spec
        return next_steps(self._backups, due_now.name, spec.shards, spec.backup.keep, self._is_stale)

    def _is_stale(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot that is not cut has lost its point.

        Its volume was replaced, or another master has begun a term, and may have cut the log in it.
        """
        if snapshot.point is None:
            return True
        claim = self._objects.claim(snapshot.shard, snapshot.point.member)
        shard = next((one for one in self._observed().shards if one.number == snapshot.shard), None)
        record = None if shard is None or shard.lease is None else shard.lease.record
        is_other_term = record is not None and record.epoch != snapshot.point.term
        return is_other_term or (claim is not None and uid_of(claim) != snapshot.claim_uid)

    async def _make(self, about: BackupRound, due_now: Due, steps: Steps) -> None:
        """Mark a point in each shard that has no snapshot, and make the snapshot. Raises ``OperatorError``."""
        problems = []
        for number in steps.missing:
            try:
                await self._make_one(about, due_now, number)
            except OperatorError as error:
                problems.append(f"shard {number}: {_explain(error)}")
        if problems:
            raise NoBackupSource("; ".join(problems))

    async def _make_one(self, about: BackupRound, due_now: Due, number: int) -> None:
        shard = next((one for one in self._observed().shards if one.number == number), None)
        if shard is None:
            raise NoBackupSource("it does not exist yet")
        member, point = await self._mark(about, due_now.name, shard)
        claim = self._objects.claim(number, member)
        if claim is None:
            raise NoBackupSource(f"the claim of member {member} is unknown")
        namespace, group = self._objects.key
        source = Source(namespace, group, about.group.metadata.uid, claim["metadata"]["name"], uid_of(claim))
        document = snapshot_document(
            source, due_now.name, number, snapshot_class=about.group.spec.backup.snapshot_class_name, point=point,
            shards=about.group.spec.shards, is_scheduled=due_now.is_scheduled,
            manifest=msgspec.json.encode(dict(about.manifest)).decode() if number == 0 else "",
        )  # fmt: skip
        try:
            await self._api.create(document)
        except Conflict:
            await self._check_existing(document)

    async def _check_existing(self, document: Mapping[str, Any]) -> None:
        """Raise ``NoBackupSource`` unless the snapshot that exists is the one that was to be made."""
        name = document["metadata"]["name"]
        try:
            found = await self._api.get(ObjectRef(SNAPSHOTS, self._objects.key[0], name))
        except NotFound as error:
            raise NoBackupSource(f"snapshot {name} was just deleted") from error
        wanted, labels = labels_of(document), labels_of(found)
        is_ours = all(labels.get(label) == wanted[label] for label in (GROUP_UID_LABEL, BACKUP_LABEL))
        if not is_ours or found["metadata"].get("deletionTimestamp"):
            raise NoBackupSource(f"snapshot {name} exists already, and is being deleted or belongs to another group")

    async def _mark(self, about: BackupRound, name: str, shard: ObservedShard) -> tuple[int, Point]:
        """Let a member mark a point: a slave that then has all that the master has now, else the master.

        The master is the one that the shard's Lease names: one of an earlier epoch may still report its role. Raises
        ``OperatorError``.
        """
        record = None if shard.lease is None else shard.lease.record
        newest = None if record is None else record.newest
        oldest_ms = self._clock.now_ms() - FRESH_MS
        reports = {one.number: one.report for one in shard.members if one.report and one.report.asked_ms >= oldest_ms}
        master = None if newest is None else reports.get(newest.master)
        if record is None or newest is None or not record.is_settled:
            raise NoBackupSource("it has no master now")
        if master is None or master.role is not Role.MASTER or master.epoch != newest.epoch:
            raise NoBackupSource("its master has not reported just now")
        end = master.wrote or 0
        slaves = [number for number, report in reports.items() if _is_source(report, master)]
        for member in sorted(slaves, key=lambda number: -(reports[number].flushed or 0))[:1]:
            try:
                point = await self._order_point(about, name, shard.number, member, newest.epoch)
            except OperatorError as error:
                log.info("slave could not mark a backup", extra={"member": member, "reason": str(error)})
            else:
                if point.flushed >= end:
                    return member, point
        if master.damaged_bytes or master.missing:
            raise NoBackupSource("the log of its master is damaged, and no slave has everything")
        point = await self._order_point(about, name, shard.number, newest.master, newest.epoch)
        if point.flushed < end:
            raise NoBackupSource("its master has changed")
        return newest.master, point

    async def _order_point(self, about: BackupRound, name: str, shard: int, member: int, term: int) -> Point:
        peer = self._objects.peer(shard, member, about.token)
        if peer is None:
            raise NoBackupSource(f"member {member} has no address")
        answer = await self._sidecars.order(peer, Flush(backup=name))
        flushed, last_epoch = answer.get("flushed"), answer.get("last_epoch")
        if not isinstance(flushed, int) or not isinstance(last_epoch, int):
            raise NoBackupSource(f"the sidecar of member {member} is of a version that marks no points")
        marked_at = format_time(self._clock.wall())
        return Point(member=member, last_epoch=last_epoch, flushed=flushed, marked_at=marked_at, term=term)

    def _report_complete(self, about: BackupRound, before: set[str] | None) -> None:
        """Record an event for a backup that has become complete, unless it may have been so before this operator."""
        for one in self._backups:
            if not one.is_complete:
                continue
            if one.name == about.request:
                self.done_request = one.name
            if before is not None and one.name not in before:
                self._since_ms = None
                self._events.append(Event(BACKED_UP, f"backup {one.name} is complete: {'; '.join(_texts(one))}"))

    def _fail(self, problem: str) -> None:
        self._next_ms = self._retry_ms = self._clock.now_ms() + RETRY_MS
        if problem != self._problem:
            text = f"backup {self._due.name}: {problem}" if self._due.name else problem
            self._events.append(Event(BACKUP_FAILED, text, is_warning=True))
        self._problem = problem


def _is_source(report: Report, master: Report) -> bool:
    """Return whether a slave's volume may be copied in place of its master's: it follows, also with its tables."""
    follows = report.role is Role.SLAVE and report.epoch == master.epoch and not report.problem
    is_fed = report.heartbeat_age_ms is not None and report.heartbeat_age_ms < FRESH_MS
    return follows and is_fed and report.is_complete is True and not report.missing and not report.damaged_bytes


def _status_in(before: Mapping[str, Any]) -> BackupStatus:
    """Return the status that the group has; an empty one if an operator of another version wrote it."""
    try:
        return msgspec.convert(before.get("backup") or {}, BackupStatus)
    except msgspec.ValidationError:
        return BackupStatus()


def _condition_in(before: Mapping[str, Any]) -> Condition | None:
    """Return the condition that the group has."""
    found = next((one for one in before.get("conditions") or [] if one.get("type") == "BackedUp"), None)
    if found is None:
        return None
    is_true = {"True": True, "False": False}.get(str(found.get("status")))
    reason, message = str(found.get("reason", "")), str(found.get("message", ""))
    return Condition(type="BackedUp", is_true=is_true, reason=reason, message=message)


def _points(backup: Backup) -> list[ShardPoint]:
    return [
        ShardPoint(
            number=shard, snapshot=name, member=point.member, epoch=point.last_epoch, flushed=point.flushed,
            marked_at=point.marked_at,
        )
        for shard, name, point in backup.points
    ]  # fmt: skip


def _texts(backup: Backup) -> list[str]:
    return [
        f"shard {one.number} up to offset {one.flushed} of epoch {one.epoch}, member {one.member}"
        for one in _points(backup)
    ]


def _explain(error: OperatorError) -> str:
    """Return the reason of a failure, for people."""
    if isinstance(error, NotFound):
        return "the cluster has no VolumeSnapshots: install the CRDs and a snapshot controller, or remove spec.backup"
    return str(error)
