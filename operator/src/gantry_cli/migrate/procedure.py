"""The procedure of a migration: catch up, switch over, close the old broker. Its peers are passed in.

    ATTACHED --stop writes--> STOPPING --log is copied--> PROMOTING --new broker is master--> DONE
        ^---- restore ------------'      (the point of no return)

Before the point of no return, a failure or Ctrl-C restores the old broker. After it, the migration can only continue:
every step can be repeated, and another run continues where the last one ended. The write pause lasts from the request
that stops the old broker until all name servers route clients to the new broker.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, final

import msgspec

from gantry_cli.ha.group import Caller
from gantry_cli.migrate.record import MigrationDirectory, MigrationRecord, Phase, UnsavedFileError, master_conf
from gantry_cli.migrate.source import (
    CLOSE_SETTINGS,
    STOP_WRITES_SETTINGS,
    BrokerRegistration,
    MigrationError,
    SourceBroker,
    SourceLog,
)
from gantry_status.orders import Flush, HaRole, HaStatus, OrderError, OrderRefused, Promote, StatusRequest

T = TypeVar("T")

POLL_S: Final = 0.02
"""The time between two checks of a condition, in seconds."""
STABLE_CHECK_S: Final = 0.2
"""The interval between two reads of the old log that must agree; an append in progress ends within it."""
STATUS_TIMEOUT_S: Final = 20.0
"""How long a request for the status of the new broker may take."""
PROGRESS_S: Final = 1.0
"""The time between two reports of progress, in seconds."""
CAUGHT_UP_BYTES: Final = 16 << 20
"""The remaining size at which the new broker has caught up; the rest is copied within the write pause."""
ROUTES_TIMEOUT_S: Final = 60.0
"""How long to wait until all name servers route clients to the new broker."""
STATUS_RETRY_S: Final = 120.0
"""How long failed requests for a status are repeated, in seconds."""
PROMOTE_TRIES: Final = 3
"""How often the order of the promotion is sent."""
RERUN_REMEDY: Final = "run the same command again to continue"


class NameServers(Protocol):
    """The one operation on name servers that the procedure uses; tests have their own implementation."""

    async def registrations(self, name: str) -> list[BrokerRegistration]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchResult:
    """The result of the switch: from `end` on, the broker at `address` writes the log, in `epoch`."""

    epoch: int
    end: int
    pause_ms: float
    address: str


@final
class Migration:
    """The procedure of one migration. Owned by one event loop."""

    def __init__(
        self,
        old: SourceBroker,
        target: Caller,
        name_servers: NameServers,
        directory: MigrationDirectory,
        record: MigrationRecord,
        *,
        report_step: Callable[[str], None],
        report_progress: Callable[[Progress], None],
        timeout_s: float,
    ) -> None:
        """Prepare a migration from the state in ``record``.

        ``timeout_s`` limits the time to stop writes and to copy the rest of the log. The write pause also contains the
        promotion and the wait for the routes, which have limits of their own.
        """
        self.record = record
        self._old: Final = old
        self._target: Final = target
        self._name_servers: Final = name_servers
        self._directory: Final = directory
        self._report_step: Final = report_step
        self._report_progress: Final = report_progress
        self._timeout_s: Final = timeout_s
        self._started_at = 0.0

    # -- before the switch ---------------------------------------------------------------------------------------------

    async def status(self) -> HaStatus:
        """Return the status of the new broker. Raises MigrationError."""
        try:
            return await self._target.call(StatusRequest(), timeout_s=STATUS_TIMEOUT_S)
        except OrderError as error:
            raise MigrationError(f"the new broker does not respond: {error}", f"see {self._directory.log}") from error

    async def resume(self) -> None:
        """Restore the old broker if an earlier run has left it stopped."""
        if self.record.phase is Phase.STOPPING:
            await self.restore_source()

    async def restore_source(self) -> None:
        """Restore the original settings of the old broker. The next switch reads them anew.

        Raises MigrationError if the old broker is not restored, and its subclass UnsavedFileError if only the record
        of that failed: another run then restores it again.
        """
        await self._old.update_config(self.record.original)
        self._report_step(f"The old broker at {self._old.address} accepts messages again")
        self._save_phase(Phase.ATTACHED, original={})

    async def catch_up(self) -> None:
        """Wait until the rest of the log is small enough to be copied within the write pause."""
        progress = ProgressTracker()
        while True:
            status, log = await self._poll_status()
            self._check_is_slave(status)
            # Queues are built after the log is copied, and a promotion waits for them, so only dispatched bytes count.
            dispatched = -1 if status.dispatched is None else status.dispatched
            copied, total = max(0, dispatched - log.begin), log.end - log.begin
            self._report_progress(progress.update(copied, total))
            if total - copied <= CAUGHT_UP_BYTES and not status.problem:
                return
            await asyncio.sleep(PROGRESS_S)

    async def _poll_status(self) -> tuple[HaStatus, SourceLog]:
        """Return the status of the new broker and the old log. Retries while a broker is busy or restarting."""
        deadline = time.monotonic() + STATUS_RETRY_S
        while True:
            try:
                return await self.status(), await self._old.log()
            except MigrationError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PROGRESS_S)

    def _check_is_slave(self, status: HaStatus) -> None:
        if status.role is not HaRole.SLAVE:
            reason = f"the new broker has the role {status.role.value} and is not a slave"
            raise MigrationError(reason, "check that --data is not the directory of another broker")
        if "differs from the master's" in status.problem or "mappedFileSizeCommitLog" in status.problem:
            raise MigrationError(status.problem, "use an empty --data")

    # -- the switch ----------------------------------------------------------------------------------------------------

    async def switch(self) -> SwitchResult:
        """Stop writes at the old broker and promote the new one.

        Raises ``MigrationError``. If that is before the phase PROMOTING is recorded, the old broker has been restored,
        or the error says that this failed. From then on the old broker stays stopped, also if the error does not
        mention it; another run continues.
        """
        self._started_at = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stop_writes()
                end = await self._wait_copied()
                epoch = await self._next_epoch()
            self._save_phase(Phase.PROMOTING, epoch=epoch, end=end)
        except BaseException as error:
            await self._roll_back(error)
            if isinstance(error, OrderError):
                raise MigrationError(f"the new broker: {error}", "the old broker is restored") from error
            raise
        return await _run_shielded(self.promote())

    async def _stop_writes(self) -> None:
        config = await self._old.config()
        original = self.record.original
        if not original:
            missing = [key for key in STOP_WRITES_SETTINGS if not config.get(key)]
            if missing or config["brokerRole"] == "SLAVE":
                state = f"{missing} missing" if missing else "it is already a slave"
                raise MigrationError(f"cannot save the settings of the old broker: {state}")
            original = {key: config[key] for key in STOP_WRITES_SETTINGS}
        self._save_phase(Phase.STOPPING, original=original)
        await self._old.update_config(STOP_WRITES_SETTINGS)
        self._report_step(f"{self._elapsed()} the old broker stopped accepting messages")

    async def _wait_copied(self) -> int:
        """Wait until the new broker has flushed the whole old log, and return its end."""
        before = await self._old.log()
        while True:
            await asyncio.sleep(STABLE_CHECK_S)
            log = await self._old.log()
            status = await self.status()
            wrote = -1 if status.wrote is None else status.wrote
            if log == before and log.is_stable and wrote >= log.end:
                break
            before = log
        if wrote > log.end:
            reason = f"the new broker's log ends at {wrote}, the old one's at {log.end}"
            raise MigrationError(reason, "the logs have diverged: check its log, and use an empty --data")
        await self._target.call(Flush())
        self._report_step(f"{self._elapsed()} the new broker has flushed the whole log, up to {log.end}")
        return log.end

    async def _roll_back(self, error: BaseException) -> None:
        """Restore the old broker after a failed switch.

        Raises MigrationError with the state of the old broker if that fails, and after a timeout of the switch.

        If the phase PROMOTING is in the record although its sync has failed, the old broker stays stopped: another run
        would promote the new one, and both would accept messages.
        """
        if self.record.phase is not Phase.STOPPING:
            if isinstance(error, TimeoutError):
                reason = f"the old broker did not return its settings within {self._timeout_s:g} s"
                raise MigrationError(reason, "it still accepts messages; increase --timeout") from error
            return
        if isinstance(error, UnsavedFileError) and self._may_promotion_be_recorded():
            raise MigrationError(error.reason, f"the old broker stays stopped; {error.remedy}") from error
        try:
            await _run_shielded(self.restore_source())
        except UnsavedFileError as second:
            reason = f"{str(error) or 'timed out'}; the old broker accepts messages again, but {second}"
            raise MigrationError(reason, second.remedy) from error
        except MigrationError as second:
            reason = f"{str(error) or 'timed out'}; and the old broker could not be restored: {second}"
            raise MigrationError(reason, "it may refuse messages now; run the command with --abort") from error
        if isinstance(error, TimeoutError):
            reason = f"the rest of the log was not copied within {self._timeout_s:g} s"
            raise MigrationError(
                reason, "the old broker is restored; increase --timeout, or check what delays the copy"
            ) from error

    def _may_promotion_be_recorded(self) -> bool:
        """Return whether another run may find the phase PROMOTING in the record, or cannot read it."""
        try:
            record = self._directory.load_record()
        except MigrationError:
            return True
        return record is not None and record.phase is Phase.PROMOTING

    async def _next_epoch(self) -> int:
        status = await self.status()
        return max(status.epoch, status.promised_epoch, status.last_epoch, self.record.epoch) + 1

    async def promote(self) -> SwitchResult:
        """Promote the new broker and wait until clients are routed to it. This can be repeated after a failure."""
        end = self.record.end
        # The settings are written before the order: a new broker that restarts from now on must not be a slave again.
        try:
            self._directory.write_conf(master_conf(self._directory.read_conf()), "the new broker is the master")
        except UnsavedFileError as error:
            raise MigrationError(error.reason, f"the old broker stays stopped; {error.remedy}") from error
        status = await self._send_promotion()
        if status.wrote is None or status.wrote < end:
            raise MigrationError(
                f"the new broker's log ends at {status.wrote}, expected at least {end}", "check its log"
            )
        self._report_step(f"{self._elapsed()} the new broker is the master in epoch {self.record.epoch}")
        await self._wait_routed(status)
        self._report_step(f"{self._elapsed()} all name servers route to {status.address}")
        pause_ms = (time.monotonic() - self._started_at) * 1000 if self._started_at else self.record.pause_ms
        self._save_phase(Phase.PROMOTING, pause_ms=round(pause_ms, 1))
        return SwitchResult(epoch=self.record.epoch, end=end, pause_ms=pause_ms, address=status.address)

    async def _send_promotion(self) -> HaStatus:
        order = Promote(epoch=self.record.epoch)
        for left in reversed(range(PROMOTE_TRIES)):
            try:
                return await self._target.call(order)
            except OrderError as error:
                if not left or isinstance(error, OrderRefused):
                    reason = f"the promotion of the new broker was not confirmed: {error}"
                    raise MigrationError(
                        reason, f"the old broker stays stopped; fix the cause, then {RERUN_REMEDY}"
                    ) from error
        raise AssertionError("the loop runs at least once")

    async def _wait_routed(self, status: HaStatus) -> None:
        """Wait until the new broker is registered as the master at every name server."""
        deadline = time.monotonic() + ROUTES_TIMEOUT_S
        wrong: list[str] = []
        while time.monotonic() < deadline:
            with suppress(MigrationError):
                registrations = await self._name_servers.registrations(self.record.broker_name)
                wrong = [one.address for one in registrations if one.brokers.get(0) != status.address]
                if not wrong:
                    return
            await asyncio.sleep(POLL_S)
        reason = (
            f"the new broker is the master, but is not registered at name servers: {', '.join(wrong) or 'no response'}"
        )
        raise MigrationError(reason, RERUN_REMEDY)

    # -- after the switch ----------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Stop reads at the old broker, and record the end of the migration, and whether the old broker is closed.

        An old broker that does not respond may have been stopped already, so the migration is done without it. Raises
        ``MigrationError`` if it accepted messages after the switch; the phase then stays PROMOTING.
        """
        log = None
        with suppress(MigrationError):
            await self._old.update_config(CLOSE_SETTINGS)
            log = await self._old.log()
        if log is not None and log.end > self.record.end >= 0:
            reason = f"the old broker accepted messages after the switch, from {self.record.end} to {log.end}"
            raise MigrationError(
                f"{reason}: these messages were not migrated", "read them from the old broker and send them again"
            )
        self._save_phase(Phase.DONE, is_old_closed=log is not None)

    def _save_phase(self, phase: Phase, **changes: object) -> None:
        """Record a phase, with other fields that change. If that fails, ``record`` is unchanged."""
        record = msgspec.structs.replace(self.record, phase=phase, **changes)
        self._directory.save_record(record)
        self.record = record

    def _elapsed(self) -> str:
        return f"  {(time.monotonic() - self._started_at) * 1000:>8.0f} ms " if self._started_at else "           "


async def _run_shielded(work: Awaitable[T]) -> T:
    """Finish ``work`` even if this task is cancelled: it must not be left half done. Then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - it is raised below
            pass
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()


# -- progress of the copy ----------------------------------------------------------------------------------------------


SAMPLES_MAX: Final = 30
"""The number of samples over which rates are averaged."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the copy, in bytes."""

    copied: int
    total: int
    """The length of the old broker's log."""

    per_s: float
    """The rate at which bytes are copied, in bytes per second."""

    closing_per_s: float
    """The rate at which the remaining size shrinks; the old log may grow meanwhile."""

    @property
    def left_s(self) -> float | None:
        """The estimated seconds until the rest is copied; None if the rest does not shrink."""
        return (self.total - self.copied) / self.closing_per_s if self.closing_per_s > 0 else None


@final
class ProgressTracker:
    """A calculator of copy rates over the last samples."""

    def __init__(self) -> None:
        self._samples: Final[deque[tuple[float, int, int]]] = deque(maxlen=SAMPLES_MAX)

    def update(self, copied: int, total: int) -> Progress:
        """Add a sample and return the progress."""
        self._samples.append((time.monotonic(), copied, total - copied))
        (first_at, first_copied, first_missing), (at, _, missing) = self._samples[0], self._samples[-1]
        elapsed = max(at - first_at, 1e-3)
        return Progress(copied, total, max(0, copied - first_copied) / elapsed, (first_missing - missing) / elapsed)
