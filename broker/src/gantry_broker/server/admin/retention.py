"""Applies retention in a broker: checks the disk, deletes old files, refuses sends, and logs each change once.

    every second          usage of the disk -> whether sends are refused
    cleanResourceInterval facts -> plan -> delete; work that waits for the disk runs in worker threads

`store.retention` decides, `store.removal` deletes, `unconsumed` finds the messages that consumers still need, and
`store_time` determines the age of messages. This module calls them, one round at a time, and logs changes: which files
were deleted and why, that sends are refused or accepted again, and which group has not consumed the oldest file when
the disk needs space.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, NamedTuple, final

from gantry_broker.ports import DiskSpace
from gantry_broker.server.admin.store_time import StoreTime
from gantry_broker.server.admin.unconsumed import Unconsumed, find_oldest_unconsumed
from gantry_broker.server.archive.link import ArchiveLink
from gantry_broker.server.archive.unarchived import Unarchived, find_oldest_unarchived
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.server.core.refusals import Refusal
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.send.flow_control import FlowControl
from gantry_broker.server.timers.rolling import TimerRoller
from gantry_broker.store.retention import (
    NOTHING_UNCONSUMED,
    Reason,
    RetentionFacts,
    RetentionPlan,
    RoomFacts,
    has_room_for,
    is_above,
    is_refusing,
    needs_unconsumed,
    plan_retention,
)
from gantry_broker.store.settings import RetentionSettings
from gantry_remoting import Connection
from gantry_status import RefusalReason
from gantry_wire import Command, RequestCode, ResponseCode

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
"""The interval at which the usage of the disk is checked."""
MANUAL_ROUNDS: Final = 20
"""How many rounds a manual deletion lasts, as in RocketMQ: ten files each."""

DELETE_FAILED: Final = "failed to delete expired files; will retry"
SPACE_UNKNOWN: Final = "failed to read disk usage; will retry"


class DiskStatus(NamedTuple):
    """The usage of the store's disk, and whether sends are refused because of it."""

    total: int
    """The size of the file system, in bytes."""

    used: int
    """The used space of the file system, in bytes."""

    is_refusing: bool
    """Whether sends are refused for lack of space."""


@final
class Retention:
    """Deletes old files and refuses sends on a full disk. Owned by the event loop; `run` is its task.

    Work that waits for the disk runs in worker threads, one at a time.
    """

    def __init__(
        self,
        core: BrokerCore,
        delay: DelayService,
        roller: TimerRoller,
        flow: FlowControl,
        archive: ArchiveLink | None = None,
    ) -> None:
        """With an ``archive``, what is to be archived is kept until it is."""
        self._core = core
        self._archive = archive
        self._delay = delay
        self._roller = roller
        self._flow = flow
        self._space = DiskSpace(0, 0)
        self._file_size = core.settings.store.mapped_file_size_commit_log
        self.time: Final = StoreTime(core)
        """The store's own clock, which determines the age of messages."""
        self._is_delete_hour_pending = False
        """Whether the delete hour lasts on, because the store's own time was doubtful in it."""

        self._manual_rounds = 0
        self._planned_at_ms: int | None = None
        self._logged_reason: object = None
        self._logged_errors: dict[str, str] = {}
        self._round: Final = asyncio.Lock()
        self._wake: Final = asyncio.Event()
        self.rounds = 0
        """The number of rounds of deletion that have ended, including those that failed."""

    def __repr__(self) -> str:
        return f"<Retention {self.status}>"

    @property
    def _settings(self) -> RetentionSettings:
        return self._core.settings.store.retention

    @property
    def status(self) -> DiskStatus:
        """The usage of the disk, and whether sends are refused because of it."""
        return DiskStatus(self._space.total, self._space.used, self._flow.standing_refusal is not None)

    # ------- the task

    def deletion_lock(self) -> asyncio.Lock:
        """Return the lock that prevents deletions while it is held."""
        return self._round

    async def start(self) -> None:
        """Check the disk before the first send, and complete a deletion that a crash has interrupted."""
        await self._check_space()
        try:
            await self._remove_before(self._core.store.log.min_physical)
        except OSError as error:
            self._log_error_once(DELETE_FAILED, error)

    async def run(self) -> None:
        """Check the disk and delete until cancelled."""
        while True:
            await self._check_space()
            now_ms = self._core.clock.monotonic_ms()
            if self._planned_at_ms is None or now_ms - self._planned_at_ms >= self._settings.interval_ms:
                self._planned_at_ms = now_ms
                await self._plan_round()
            self._wake.clear()
            try:
                async with asyncio.timeout(min(CHECK_INTERVAL_S, self._settings.interval_ms / 1000)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _check_space(self) -> None:
        """Read the usage of the disk, refuse sends or accept them again, and create a log file that waits for room."""
        core, store = self._core, self._core.store
        try:
            self._space = space = await run_in_thread(lambda: core.disk.space(store.root))
        except OSError as error:
            self._log_error_once(SPACE_UNKNOWN, error)
            return
        self._logged_errors.pop(SPACE_UNKNOWN, None)
        was_refusing = self._flow.standing_refusal is not None
        is_full = is_refusing(self._room(), self._settings)
        self._flow.set_standing_refusal(make_disk_full_refusal(space) if is_full else None)
        if is_full != was_refusing:
            self._log_refusal_change(space)
        if not core.gate.is_store_lent and store.log.is_next_file_wanted and has_room_for(space, self._file_size):
            store.log.preallocate()

    def _room(self) -> RoomFacts:
        return RoomFacts(
            space=self._space,
            file_size=self._file_size,
            is_next_file_wanted=self._core.store.log.is_next_file_wanted,
            was_refusing=self._flow.standing_refusal is not None,
        )

    async def _plan_round(self) -> None:
        async with self._round:
            try:
                await self._plan_and_delete()
            except OSError as error:
                self._log_error_once(DELETE_FAILED, error)
            else:
                self._logged_errors.pop(DELETE_FAILED, None)
        self.rounds += 1

    async def _plan_and_delete(self) -> None:
        store = self._core.store
        files = await run_in_thread(store.removal.describe_oldest_files)
        oldest: Unconsumed | None = None  # the limit of forced deletion
        if needs_unconsumed(self._space, self._settings):
            oldest = await find_oldest_unconsumed(self._core, self._delay.progress.settle_steps())
        unarchived = None if self._archive is None else await find_oldest_unarchived(store, self._archive)
        is_manual = self._manual_rounds > 0
        self._manual_rounds -= is_manual
        clock, now_ms = await self.time.observe()
        facts = RetentionFacts(
            files=[file._replace(newest_ms=clock.latest_store_time(file.end_offset, file.newest_ms)) for file in files],
            room=self._room(),
            now_ms=now_ms,
            hour=self._plan_hour(is_doubtful=clock.is_doubtful),
            unconsumed_from=NOTHING_UNCONSUMED if oldest is None else oldest.physical_offset,
            needed_from=self._roller.needed_from(),
            unarchived_from=NOTHING_UNCONSUMED if unarchived is None else unarchived.physical_offset,
            is_manual=is_manual,
        )
        is_space_needed = is_above(self._space, self._settings.forced_percent)
        removable_ends = [file.end_offset for file in files if file.is_removable]
        self._roller.needed_before = max(removable_ends, default=0) if is_space_needed else 0
        plan = plan_retention(facts, self._settings)
        if plan.reason is Reason.NOTHING_DUE and not clock.is_doubtful:
            self._is_delete_hour_pending = False
        self._log_blocked_deletion(plan, oldest, unarchived)
        if plan.delete_before > store.log.min_physical or store.removal.waiting_count:
            await self._remove_before(max(plan.delete_before, store.log.min_physical), plan.reason)
            await self._check_space()

    def _plan_hour(self, *, is_doubtful: bool) -> int:
        """Return the local hour for the plan.

        If the store's own time was doubtful in a delete hour, that hour lasts until the time is certain and nothing is
        due.
        """
        hour = time.localtime(self._core.clock.wall_ms() / 1000).tm_hour
        delete_hours = self._settings.delete_hours
        if hour in delete_hours and is_doubtful:
            self._is_delete_hour_pending = True
        return min(delete_hours) if self._is_delete_hour_pending and delete_hours else hour

    async def _remove_before(self, offset: int, reason: Reason = Reason.NOTHING_DUE) -> None:
        """Delete files before ``offset``. Raises OSError; the next call deletes the rest."""
        store = self._core.store
        begin = store.log.min_physical
        trims = await run_in_thread(lambda: store.removal.measure(offset))
        count = store.removal.retire(offset, trims)
        if count:
            facts = {"files": count, "start": begin, "end": offset, "reason": reason.value}
            log.info("deleted expired messages", extra=facts)
        if store.removal.waiting_count:
            await run_in_thread(store.removal.unlink)

    # ------- requests of administrators

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired(self, command: Command, connection: Connection) -> Command:
        """Delete expired files now, at any hour (code 329). Answered at once, as in RocketMQ."""
        self._manual_rounds = MANUAL_ROUNDS
        self._planned_at_ms = None
        self._wake.set()
        return command.reply()

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    async def clean_queues(self, command: Command, connection: Connection) -> Command:
        """Delete units before the start of the log (code 306). Queues keep their next offsets, unlike in RocketMQ."""
        async with self._round:
            try:
                await self._remove_before(self._core.store.log.min_physical)
            except OSError as error:
                return command.reply(ResponseCode.SYSTEM_ERROR, f"failed to delete expired files: {error}")
        return command.reply()

    # ------- log messages, one for each change

    def _log_refusal_change(self, space: DiskSpace) -> None:
        facts = {"used_percent": f"{used_percent(space):.1f}", "free_bytes": space.free}
        if self._flow.standing_refusal is not None:
            log.error("disk full; refusing sends", extra=facts)
        else:
            log.warning("disk has space again; accepting sends", extra=facts)

    def _log_blocked_deletion(
        self, plan: RetentionPlan, oldest: Unconsumed | None, unarchived: Unarchived | None
    ) -> None:
        if plan.blocked_reason is None:
            self._logged_reason = None
            return
        facts: dict[str, object] = {"reason": plan.blocked_reason.value}
        if oldest is not None and plan.blocked_reason is Reason.BLOCKED_UNCONSUMED:
            facts |= {"topic": oldest.topic, "queue": oldest.queue_id, "group": oldest.group}
        if unarchived is not None and plan.blocked_reason is Reason.BLOCKED_UNARCHIVED:
            facts |= {"topic": unarchived.topic, "queue": unarchived.queue_id, "offset": unarchived.offset}
        reason = plan.blocked_reason, oldest and (oldest.topic, oldest.group)
        if reason != self._logged_reason:
            self._logged_reason = reason
            log.warning("disk is filling up, but no more files can be deleted", extra=facts)

    def _log_error_once(self, what: str, error: OSError) -> None:
        if self._logged_errors.get(what) != str(error):
            self._logged_errors[what] = str(error)
            log.error(what, extra={"reason": str(error)})


def make_disk_full_refusal(space: DiskSpace) -> Refusal:
    """Return the refusal of sends while the disk is full."""
    return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, refusal_text(space), RefusalReason.DISK_FULL)


def refusal_text(space: DiskSpace) -> str:
    """Return the text for producers; clients of every version retry such a send on another broker."""
    return (
        f"service not available now, the disk is full: {used_percent(space):.1f}% are used, {space.free} bytes are free"
    )


def used_percent(space: DiskSpace) -> float:
    """Return the used share of the disk in percent."""
    return space.used * 100 / space.total if space.total else 0.0
