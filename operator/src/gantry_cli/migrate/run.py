"""The procedure of a migration: catch up, switch over, gather what came late. Whom it talks to is given.

    ATTACHED --stop writes--> STOPPING --all of its log is here--> PROMOTING --we are the master--> DONE
        ^---- put back -----------'           (the point of no return)

Until the point of no return every failure, and Ctrl-C, puts the old broker back as it was. Beyond it there is only
the way on: every step may be repeated, and a second run takes up where the first one ended. The write pause is from
the moment before the old broker is told to stop until every name server leads to our broker, which takes messages then.
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
from gantry_cli.migrate.record import Home, Phase, Record, master_conf
from gantry_cli.migrate.source import CLOSED, STOPPED, CannotMigrate, Listing, OldBroker, SourceLog
from gantry_status.orders import AskStatus, Flush, HaRole, HaStatus, OrderError, OrderRefused, Promote

T = TypeVar("T")

POLL_S: Final = 0.02
STILL_S: Final = 0.2
"""Between two looks at the old log that must agree: an append that had begun is over by then."""
STATUS_S: Final = 20.0
PROGRESS_S: Final = 1.0
LEVEL_BYTES: Final = 16 << 20
"""So near to the end of the old log, the rest is copied within the pause."""
ROUTES_S: Final = 60.0
PATIENCE_S: Final = 120.0
PROMOTE_TRIES: Final = 3
AGAIN: Final = "run the same command again: it goes on where this one has ended"


class NameServers(Protocol):
    """What the procedure asks of them."""

    async def listings(self, name: str) -> list[Listing]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """What the switch came to."""

    epoch: int
    end: int
    pause_ms: float
    address: str


@final
class Migration:
    """One migration. Owned by one event loop."""

    def __init__(
        self,
        old: OldBroker,
        ours: Caller,
        names: NameServers,
        home: Home,
        record: Record,
        *,
        tell: Callable[[str], None],
        show: Callable[[Progress], None],
        timeout_s: float,
    ) -> None:
        """``tell`` hears of each step, ``show`` of the copy's progress. ``timeout_s`` bounds the write pause."""
        self.record = record
        self._old: Final = old
        self._ours: Final = ours
        self._names: Final = names
        self._home: Final = home
        self._tell: Final = tell
        self._show: Final = show
        self._timeout_s: Final = timeout_s
        self._began_at = 0.0

    # -- before --------------------------------------------------------------------------------------------------------

    async def status(self) -> HaStatus:
        """Of our broker."""
        try:
            return await self._ours.call(AskStatus(), timeout_s=STATUS_S)
        except OrderError as error:
            raise CannotMigrate(f"our broker does not answer: {error}", f"see {self._home.log}") from error

    async def resume(self) -> None:
        """Put right what an earlier run left half done."""
        if self.record.phase is Phase.STOPPING:
            await self.put_back()

    async def put_back(self) -> None:
        """Have the old broker as it was."""
        await self._old.set(self.record.original)
        self._keep(Phase.ATTACHED)
        self._tell(f"the old broker at {self._old.address} takes messages again, as before")

    async def catch_up(self) -> None:
        """Until our broker lacks so little that the rest can be copied while nobody writes."""
        rates = Rates()
        while True:
            status, log = await self._look()
            self._check_following(status)
            # Queues are built beside the copy, and a promotion waits for them: what has none is not here yet.
            dispatched = -1 if status.dispatched is None else status.dispatched
            copied, total = max(0, dispatched - log.begin), log.end - log.begin
            self._show(rates.look(copied, total))
            if total - copied <= LEVEL_BYTES and not status.trouble:
                return
            await asyncio.sleep(PROGRESS_S)

    async def _look(self) -> tuple[HaStatus, SourceLog]:
        """Nothing is at stake yet: a broker that is busy, or restarted, is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.status(), await self._old.log()
            except CannotMigrate:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PROGRESS_S)

    def _check_following(self, status: HaStatus) -> None:
        if status.role is not HaRole.SLAVE:
            reason = f"our broker is {status.role.value}, and does not follow"
            raise CannotMigrate(reason, "is another broker's directory given with --data?")
        if "another one than the master's" in status.trouble or "mappedFileSizeCommitLog" in status.trouble:
            raise CannotMigrate(status.trouble, "take an empty --data")

    # -- the switch ----------------------------------------------------------------------------------------------------

    async def switch(self) -> Switched:
        """Stop writes there, take them here. Raises ``CannotMigrate``; then the old broker is as it was, or it says."""
        self._began_at = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stop_writes()
                end = await self._copied()
                epoch = await self._next_epoch()
        except BaseException as error:
            await self._take_back(error)
            if isinstance(error, OrderError):
                raise CannotMigrate(f"our broker: {error}", "all is as it was") from error
            raise
        self.record = msgspec.structs.replace(self.record, epoch=epoch, end=end)
        self._keep(Phase.PROMOTING)
        return await _to_its_end(self.promote())

    async def _stop_writes(self) -> None:
        config = await self._old.config()
        if not self.record.original:
            missing = [key for key in STOPPED if not config.get(key)]
            if missing or config["brokerRole"] == "SLAVE":
                raise CannotMigrate(f"the old broker does not say how it is: {missing or 'it is stopped already'}")
            original = {key: config[key] for key in STOPPED}
            self.record = msgspec.structs.replace(self.record, original=original)
        self._keep(Phase.STOPPING)
        await self._old.set(STOPPED)
        self._tell(f"{self._since()} the old broker takes no more messages")

    async def _copied(self) -> int:
        """Where its log ends for good, once all of it is here and on the disk."""
        before = await self._old.log()
        while True:
            await asyncio.sleep(STILL_S)
            log = await self._old.log()
            status = await self.status()
            wrote = -1 if status.wrote is None else status.wrote
            if log == before and log.is_still and wrote >= log.end:
                break
            before = log
        if wrote > log.end:
            reason = f"our broker's log ends at {wrote}, the old one's at {log.end}"
            raise CannotMigrate(reason, "this must not be: see its log, and take an empty --data")
        await self._ours.call(Flush())
        self._tell(f"{self._since()} our broker has all of its log on disk, to {log.end}")
        return log.end

    async def _take_back(self, error: BaseException) -> None:
        """Nothing came of it."""
        if self.record.phase is not Phase.STOPPING:
            return
        try:
            await _to_its_end(self.put_back())
        except CannotMigrate as second:
            reason = f"{str(error) or 'it took too long'}; and the old broker could not be put back: {second}"
            raise CannotMigrate(reason, "it takes no messages now! run the command with --abort") from error
        if isinstance(error, TimeoutError):
            reason = f"writes could not be stopped and copied within {self._timeout_s:g} s"
            raise CannotMigrate(
                reason, "all is as it was; give it more with --timeout, or look at what holds it up"
            ) from error

    async def _next_epoch(self) -> int:
        status = await self.status()
        return max(status.epoch, status.promised_epoch, status.last_epoch, self.record.epoch) + 1

    async def promote(self) -> Switched:
        """Our broker is the master, and everybody is led to it: all that is left to do, as often as it takes."""
        end = self.record.end
        # Before the order: whatever ends our broker from now on, it must not come back as the old one's slave.
        self._home.write_conf(master_conf(self._home.read_conf()), "our broker is the master now")
        status = await self._promoted()
        if status.wrote is None or status.wrote < end:
            raise CannotMigrate(f"our broker begins at {status.wrote}, and {end} was expected", "see its log")
        self._tell(f"{self._since()} our broker is the master, in epoch {self.record.epoch}")
        await self._routed(status)
        self._tell(f"{self._since()} every name server leads to {status.address}")
        pause_ms = (time.monotonic() - self._began_at) * 1000 if self._began_at else self.record.pause_ms
        self.record = msgspec.structs.replace(self.record, pause_ms=round(pause_ms, 1))
        self._keep(Phase.PROMOTING)
        return Switched(epoch=self.record.epoch, end=end, pause_ms=pause_ms, address=status.address)

    async def _promoted(self) -> HaStatus:
        order = Promote(epoch=self.record.epoch)
        for left in reversed(range(PROMOTE_TRIES)):
            try:
                return await self._ours.call(order)
            except OrderError as error:
                if not left or isinstance(error, OrderRefused):
                    reason = f"our broker is not known to be the master: {error}"
                    raise CannotMigrate(
                        reason, f"the old one stays stopped; mend what this says, and {AGAIN}"
                    ) from error
        raise AssertionError("it was tried at least once")

    async def _routed(self, status: HaStatus) -> None:
        """Until every name server knows our broker as the master."""
        deadline = time.monotonic() + ROUTES_S
        wrong: list[str] = []
        while time.monotonic() < deadline:
            with suppress(CannotMigrate):
                listings = await self._names.listings(self.record.broker_name)
                wrong = [one.address for one in listings if one.brokers.get(0) != status.address]
                if not wrong:
                    return
            await asyncio.sleep(POLL_S)
        reason = (
            f"our broker is the master, and name servers do not lead to it yet: {', '.join(wrong) or 'none answers'}"
        )
        raise CannotMigrate(reason, AGAIN)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def finish(self) -> SourceLog | None:
        """Close the old broker, and write down that it is done. Where its log ends now, if it still answers."""
        log = None
        with suppress(CannotMigrate):
            await self._old.set(CLOSED)
            log = await self._old.log()
        if log is not None and log.end > self.record.end >= 0:
            reason = f"the old broker has taken more after the switch, from {self.record.end} to {log.end}"
            raise CannotMigrate(f"{reason}: these messages are not here", "read them there, and send them again")
        self._keep(Phase.DONE)
        return log

    def _keep(self, phase: Phase) -> None:
        self.record = msgspec.structs.replace(self.record, phase=phase)
        self._home.keep(self.record)

    def _since(self) -> str:
        return f"  {(time.monotonic() - self._began_at) * 1000:>8.0f} ms " if self._began_at else "           "


async def _to_its_end(work: Awaitable[T]) -> T:
    """Do it, whoever wants to stop it meanwhile: half of it would be worse. Then stop, if that was wanted."""
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
# How far the copy of an old broker's log is, how fast it goes, and when it will be level.


LOOKS: Final = 30
"""Over how many of them rates are taken."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the copy is."""

    copied: int
    total: int
    per_s: float
    closing_per_s: float
    """By how much what is missing becomes less: the old log grows meanwhile."""

    @property
    def left_s(self) -> float | None:
        return (self.total - self.copied) / self.closing_per_s if self.closing_per_s > 0 else None


@final
class Rates:
    """Rates over the last looks."""

    def __init__(self) -> None:
        self._looks: Final[deque[tuple[float, int, int]]] = deque(maxlen=LOOKS)

    def look(self, copied: int, total: int) -> Progress:
        """One more look."""
        self._looks.append((time.monotonic(), copied, total - copied))
        (first_at, first_copied, first_missing), (at, _, missing) = self._looks[0], self._looks[-1]
        elapsed = max(at - first_at, 1e-3)
        return Progress(copied, total, max(0, copied - first_copied) / elapsed, (first_missing - missing) / elapsed)
