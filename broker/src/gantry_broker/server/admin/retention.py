"""Retention at work in a broker: checks the disk, decides, deletes, refuses sends, and logs each change once.

    every second          how full the disk is -> whether sends are refused
    cleanResourceInterval facts -> plan -> delete, in a helper thread but for the moment in which the lists change

`store.retention` decides, `store.removal` deletes, `unconsumed` finds what consumers still need, `store_time` knows how
old messages are. This module gives them the time and the thread, runs one round at a time, and logs changes: what was
deleted and why, that sends are refused or taken again, and which group holds the oldest file when the disk needs room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, NamedTuple, final

from gantry_broker.ports import DiskSpace
from gantry_broker.server.admin.store_time import StoreTime
from gantry_broker.server.admin.unconsumed import Unconsumed, oldest_unconsumed
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.persist import in_thread
from gantry_broker.server.core.refusals import Refusal
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.send.flow_control import FlowControl
from gantry_broker.store.retention import (
    NOTHING_UNCONSUMED,
    Reason,
    RetentionFacts,
    RetentionPlan,
    RoomFacts,
    has_room_for,
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
MANUAL_ROUNDS: Final = 20
"""How many rounds an administrator's wish lasts, as in RocketMQ: ten files each."""

NOT_DELETED: Final = "old files could not be deleted; it is tried again"
NO_SPACE_KNOWN: Final = "the disk does not say how full it is; it is asked again"


class DiskStatus(NamedTuple):
    """The disk of the store in one look."""

    total: int
    used: int
    is_refusing: bool


@final
class Retention:
    """Owned by the event loop; `run` is its task. What waits for the disk runs in worker threads, one at a time."""

    def __init__(self, core: BrokerCore, delay: DelayService, flow: FlowControl) -> None:
        self._core = core
        self._delay = delay
        self._flow = flow
        self._space = DiskSpace(0, 0)
        self._file_size = core.settings.store.mapped_file_size_commit_log
        self.time: Final = StoreTime(core)
        self._is_hour_owed = False
        """Whether the delete hour came while the store's own time was in doubt."""

        self._manual_rounds = 0
        self._planned_at_ms: int | None = None
        self._reported: object = None
        self._troubles: dict[str, str] = {}
        self._round: Final = asyncio.Lock()
        self._wake: Final = asyncio.Event()
        self.rounds = 0
        """How many plans were made."""

    def __repr__(self) -> str:
        return f"<Retention {self.status}>"

    @property
    def _settings(self) -> RetentionSettings:
        return self._core.settings.store.retention

    @property
    def status(self) -> DiskStatus:
        """How full the disk is, and whether sends are refused for that."""
        return DiskStatus(self._space.total, self._space.used, self._flow.standing is not None)

    # ------- the task

    def paused(self) -> asyncio.Lock:
        """A lock; while it is held nothing is deleted."""
        return self._round

    async def start(self) -> None:
        """Check the room for the first send, and complete a deletion that a crash has interrupted."""
        await self._check_space()
        try:
            await self._remove_before(self._core.store.log.min_physical)
        except OSError as error:
            self._report_trouble(NOT_DELETED, error)

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
        """Read how full the disk is, and refuse sends or take them again by that."""
        core, store = self._core, self._core.store
        try:
            self._space = space = await in_thread(lambda: core.disk.space(store.root))
        except OSError as error:
            self._report_trouble(NO_SPACE_KNOWN, error)
            return
        self._troubles.pop(NO_SPACE_KNOWN, None)
        was_refusing = self._flow.standing is not None
        is_full = is_refusing(self._room(), self._settings)
        self._flow.refuse_all(disk_full(space) if is_full else None)
        if is_full != was_refusing:
            self._report_refusal(space)
        if not core.gate.is_still and store.log.is_next_file_wanted and has_room_for(space, self._file_size):
            store.log.preallocate()

    def _room(self) -> RoomFacts:
        return RoomFacts(
            space=self._space,
            file_size=self._file_size,
            is_next_file_wanted=self._core.store.log.is_next_file_wanted,
            was_refusing=self._flow.standing is not None,
        )

    async def _plan_round(self) -> None:
        async with self._round:
            try:
                await self._plan_and_delete()
            except OSError as error:
                self._report_trouble(NOT_DELETED, error)
            else:
                self._troubles.pop(NOT_DELETED, None)
        self.rounds += 1

    async def _plan_and_delete(self) -> None:
        store = self._core.store
        files = await in_thread(store.removal.facts)
        oldest: Unconsumed | None = None  # what forced deletion must not pass
        if needs_unconsumed(self._space, self._settings):
            oldest = await oldest_unconsumed(self._core, self._delay.progress.settled())
        is_manual = self._manual_rounds > 0
        self._manual_rounds -= is_manual
        clock, now_ms = await self.time.observe()
        facts = RetentionFacts(
            files=[file._replace(newest_ms=clock.stored_by(file.end_offset, file.newest_ms)) for file in files],
            room=self._room(),
            now_ms=now_ms,
            hour=self._hour(is_doubtful=clock.is_doubtful),
            unconsumed_from=NOTHING_UNCONSUMED if oldest is None else oldest.physical_offset,
            is_manual=is_manual,
        )
        plan = plan_retention(facts, self._settings)
        if plan.reason is Reason.NOTHING_DUE and not clock.is_doubtful:
            self._is_hour_owed = False
        self._report_held(plan, oldest)
        if plan.delete_before > store.log.min_physical or store.removal.waiting_count:
            await self._remove_before(max(plan.delete_before, store.log.min_physical), plan.reason)
            await self._check_space()

    def _hour(self, *, is_doubtful: bool) -> int:
        """The hour of the local day. A delete hour that comes while the store's own time is in doubt is made up for."""
        hour = time.localtime(self._core.clock.wall_ms() / 1000).tm_hour
        delete_hours = self._settings.delete_hours
        if hour in delete_hours and is_doubtful:
            self._is_hour_owed = True
        return min(delete_hours) if self._is_hour_owed and delete_hours else hour

    async def _remove_before(self, offset: int, reason: Reason = Reason.NOTHING_DUE) -> None:
        """Delete what lies before ``offset``. Raises OSError; then the rest of it is done by the next call."""
        store = self._core.store
        begin = store.log.min_physical
        trims = await in_thread(lambda: store.removal.measure(offset))
        count = store.removal.retire(offset, trims)
        if count:
            facts = {"files": count, "start": begin, "end": offset, "reason": reason.value}
            log.info("old messages are deleted", extra=facts)
        if store.removal.waiting_count:
            await in_thread(store.removal.unlink)

    # ------- what administrators ask

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired(self, command: Command, connection: Connection) -> Command:
        """Code 329: expired files go now, at any hour. Answered at once, as RocketMQ does."""
        self._manual_rounds = MANUAL_ROUNDS
        self._planned_at_ms = None
        self._wake.set()
        return command.reply()

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    async def clean_queues(self, command: Command, connection: Connection) -> Command:
        """Code 306: consume queues begin where the log does. Queues keep their next offsets, unlike in RocketMQ."""
        async with self._round:
            try:
                await self._remove_before(self._core.store.log.min_physical)
            except OSError as error:
                return command.reply(ResponseCode.SYSTEM_ERROR, f"old files could not be deleted: {error}")
        return command.reply()

    # ------- log records, one for each change

    def _report_refusal(self, space: DiskSpace) -> None:
        facts = {"used_percent": f"{percent(space):.1f}", "free_bytes": space.free}
        if self._flow.standing is not None:
            log.error("sends are refused: the disk is full", extra=facts)
        else:
            log.warning("sends are taken again: the disk has room", extra=facts)

    def _report_held(self, plan: RetentionPlan, oldest: Unconsumed | None) -> None:
        if plan.held_because is None:
            self._reported = None
            return
        facts: dict[str, object] = {"reason": plan.held_because.value}
        if oldest is not None and plan.held_because is Reason.HELD_UNCONSUMED:
            facts |= {"topic": oldest.topic, "queue": oldest.queue_id, "group": oldest.group}
        reported = plan.held_because, oldest and (oldest.topic, oldest.group)
        if reported != self._reported:
            self._reported = reported
            log.warning("the disk is filling up and nothing can be deleted", extra=facts)

    def _report_trouble(self, what: str, error: OSError) -> None:
        if self._troubles.get(what) != str(error):
            self._troubles[what] = str(error)
            log.error(what, extra={"reason": str(error)})


def disk_full(space: DiskSpace) -> Refusal:
    """The answer to sends while there is no room."""
    return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, refusal_text(space), RefusalReason.DISK_FULL)


def refusal_text(space: DiskSpace) -> str:
    """The text for producers; clients of every version take such a send to another broker."""
    return f"service not available now, the disk is full: {percent(space):.1f}% are used, {space.free} bytes are free"


def percent(space: DiskSpace) -> float:
    """How much of the disk is used."""
    return space.used * 100 / space.total if space.total else 0.0
