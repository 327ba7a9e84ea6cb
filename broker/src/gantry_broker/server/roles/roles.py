"""Which role this broker has, and how it changes: one order after the other, each stamped with an epoch.

    UNASSIGNED --promote--> MASTER --follow--> SLAVE --promote--> MASTER          fence: back to UNASSIGNED
        `--follow--> SLAVE     `-- after a start that may have lost bytes: COMPARING first, with its slaves
    `--regain--> MASTER, of the epoch in which it was it until its process ended (``role_status``)

A store that lacks log data which sealed files vouch for (``store/loss``) has no master's role before its slaves were
asked for it, and then only once an operator has accepted the loss. Until then it is COMPARING, and serves reads.

Every order is idempotent: whoever gets no answer sends it again. A promise is on the disk before anything is done in
its epoch, so an order of an older one is refused for ever. Between two roles the gate is closed and clients'
connections are, too: nobody reads or writes a store that is being changed.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Final, Protocol, final

import msgspec

from gantry_broker.errors import BrokerError
from gantry_broker.ha.data_completeness import DataCompleteness
from gantry_broker.ha.frames import Welcome
from gantry_broker.ha.master_session import MasterSession
from gantry_broker.ha.role_files import PromiseFile, PromiseRefused, RoleFile, RoleRecord
from gantry_broker.ha.settings import BrokerRole, RoleAtStart
from gantry_broker.server.core.gate import Gate
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.role_status import (
    RoleStatus,
    compared_needed,
    loss_text,
    report_role,
    why_not_regained,
)
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.identity import Epoch
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_status.orders import HaRole, HaStatus, OrderRefused, Promised

log = logging.getLogger(__name__)

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
MOVED_S: Final = 2.0
"""By then an address that stands for whoever is the master leads to the new one, a node's tables included."""


class Host(Protocol):
    """What a change of role asks of the rest of the broker."""

    def append_pass(self) -> None:
        """Append what was taken in this turn of the loop."""
        ...

    def forget_waiting(self) -> None:
        """Answer nobody any more who waits for a promise."""
        ...

    def close_clients(self, reason: str) -> None:
        """Close every client's connection."""
        ...

    def register(self, broker_id: int | None) -> None:
        """Be known to name servers under this number, or not at all."""
        ...

    def routes_changed(self) -> None:
        """Have name servers told again of what can be sent and read here."""
        ...

    def clamp_offsets(self) -> None:
        """Set consumers' offsets beyond their queues back."""
        ...

    async def standstill(self, change: Callable[[], None]) -> None:
        """Run what waits for the disk while nobody else uses the store."""
        ...


@final
class Roles:
    """Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        replication: Replication,
        gate: Gate,
        host: Host,
        *,
        promises: PromiseFile,
        records: RoleFile,
        completeness: DataCompleteness,
    ) -> None:
        self.role = HaRole.UNASSIGNED
        self.epoch = 0
        """In which it has its role."""

        self.trouble = ""
        self.is_draining = False
        self.is_withdrawn = False
        """Whether name servers are told that nothing can be sent here."""

        self.is_regained = False
        """Whether it is, or was, the master of this epoch by ``regain``."""

        self.is_awaiting_acceptance = False
        """Whether it serves reads only, until an operator accepts that log data is lost."""

        self.is_closed = False
        self.replication: Final = replication
        self.records: Final = records
        self.promises: Final = promises
        self.completeness: Final = completeness
        self.settings: Final = settings
        self.store: Final = store
        self._gate: Final = gate
        self._host: Final = host
        self._lock = asyncio.Lock()
        self._compared: set[int] = set()
        self._is_loss_accepted = False
        self._waiting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Roles {self.role} epoch={self.epoch}>"

    # -- the start -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what was promised, and which role there was. Waits for the disk. Raises ``ConfigCorrupt``."""
        self.promises.load()
        self.records.load()
        self.completeness.load()
        self.replication.slave.given.started(self.records.record.grant_ms, self.replication.policy.clock_ms())

    async def begin(self, report: RecoveryReport) -> None:
        """Take the role that the configuration gives, if it gives one."""
        ha, identity = self.settings.ha, self.store.identity
        self.epoch = self.records.record.epoch
        if ha.role_at_start is not RoleAtStart.CONFIGURED:
            self._gate.close("this broker has no role yet")
            return
        if ha.role is BrokerRole.SLAVE:
            await self._be_slave(self.promises.promise.epoch, ha.master_address)
            return
        if self.promises.promise.epoch > identity.epoch:
            self.trouble = f"epoch {self.promises.promise.epoch} was promised to another master"
            self._gate.close(self.trouble)
            log.error("this broker is no master any more", extra={"reason": self.trouble})
            return
        is_missing = bool(self.store.loss.missing)
        if report.is_clean and not is_missing:
            await self._be_master(identity.epoch, self._electable())
            return
        needed = compared_needed(self._electable(), ha.acks_needed)
        if needed:
            await self._compare(needed)
        elif is_missing:
            await self._await_acceptance()
        else:
            await self._begin_alone(identity.epoch)

    async def _await_acceptance(self) -> None:
        """Serve reads, append nothing and refuse sends until an operator accepts that log data is lost."""
        reason = loss_text(self.store.loss)
        log.error(
            "log data is missing; nothing is appended until the loss is accepted",
            extra={"reason": reason, "ranges": [str(lost) for lost in self.store.loss.missing]},
        )
        if self.store.dispatched < self.store.wrote:
            await self._host.standstill(self.replication.store.copy)
        await self._show_all()
        self.role, self.epoch, self.trouble = HaRole.COMPARING, self.store.identity.epoch, reason
        self.is_awaiting_acceptance = self.is_withdrawn = True
        self._gate.close_to_sends(reason)
        self._host.register(0)

    def _end_acceptance(self) -> None:
        if self.is_awaiting_acceptance:
            self.is_awaiting_acceptance = self.is_withdrawn = False

    async def _begin_alone(self, epoch: int) -> None:
        """No slave is asked. On a disk too full to write down a new epoch, the start goes on in the last one.

        A slave that has more than this log is refused then, until somebody looks; a new epoch would have it cut.
        """
        try:
            await self._be_master(epoch + 1, [])
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            log.warning("the disk is too full for a new epoch", extra={"epoch": epoch, "reason": str(error)})
            await self._be_master(epoch, self.records.record.electable)

    async def close(self) -> None:
        """Begin no change any more, and let one under way come to its end."""
        if self._waiting is not None:
            await asyncio.wait([self._waiting])
        async with self._lock:
            self.is_closed = True

    def _electable(self) -> list[int]:
        record = self.records.record
        is_current = record.is_master and record.epoch == self.store.identity.epoch
        return record.electable if is_current and record.electable else list(self.settings.ha.electable)

    async def _compare(self, needed: int) -> None:
        """Wait for slaves before the first append: they may have what this start has lost."""
        self.role, self.epoch = HaRole.COMPARING, self.store.identity.epoch
        self.trouble = f"a start may have lost bytes; it compares with {needed} slaves first"
        self._gate.close(self.trouble)
        log.warning("a start may have lost bytes: slaves are asked first", extra={"slaves_needed": needed})
        self._compared.clear()
        await self._host.standstill(self.replication.store.copy)
        self.replication.master.compare(self.epoch, self._electable(), self._slave_refused)

    def _slave_refused(self, session: MasterSession) -> None:
        """A slave was sent away: perhaps since it was compared, perhaps since it knows better."""
        if self.role is not HaRole.COMPARING or session.hello is None or session.refusal is None:
            return
        if session.is_compared:
            self._compared.add(session.hello.broker_id)
            needed = compared_needed(self._electable(), self.settings.ha.acks_needed)
            if len(self._compared) >= needed and self._waiting is None:
                self._waiting = asyncio.ensure_future(self._compared_enough())
        elif session.refusal.reason in ("newer", "fenced"):
            self.trouble = f"slave {session.hello.broker_id} knows a newer master: {session.refusal.text}"
            log.error("this broker is no master any more", extra={"reason": self.trouble})
            self.replication.master.stop(self.trouble)
            self.role = HaRole.UNASSIGNED
            self._gate.close(self.trouble)

    async def _compared_enough(self) -> None:
        try:
            async with self._lock:
                if self.role is HaRole.COMPARING:
                    log.info(
                        "slaves were compared with", extra={"end": self.store.wrote, "slaves": len(self._compared)}
                    )
                    self.replication.master.stop("the comparison is over")
                    if await asyncio.to_thread(self.store.check_missing):
                        await self._await_acceptance()
                    else:
                        await self._be_master(self.store.identity.epoch + 1, self._electable())
        finally:
            self._waiting = None

    # -- orders --------------------------------------------------------------------------------------------------------

    def _status(self) -> RoleStatus:
        return RoleStatus(
            role=self.role,
            record=self.records.record,
            log_epoch=self.store.identity.epoch,
            promised_epoch=self.promises.promise.epoch,
            is_whole=self.completeness.is_whole,
            acks_needed=self.settings.ha.acks_needed,
            epoch=self.epoch,
            trouble=self.trouble,
            is_draining=self.is_draining,
            is_withdrawn=self.is_withdrawn,
            is_regained=self.is_regained,
        )

    def report(self) -> HaStatus:
        """Who and where this broker is."""
        return report_role(self._status(), self.settings, self.store, self.replication)

    async def status(self) -> HaStatus:
        """The order for ``report``."""
        return self.report()

    async def promise(self, epoch: int, to: str) -> Promised:
        """Follow nobody below ``epoch`` from now on, nor be a master of one. The log stands still when it returns."""
        async with self._lock:
            await self._give(epoch, to)
            if self.role in (HaRole.MASTER, HaRole.COMPARING) and self.epoch < epoch:
                await self._lose_role(f"epoch {epoch} was promised to {to or 'another master'}")
            elif self.epoch < epoch:
                await self.replication.slave.stop()
                self.trouble = f"epoch {epoch} was promised to {to or 'another master'}: it waits for that master"
            history = self.replication.store.history
            return Promised(
                epoch=epoch,
                identity=self.store.identity.uuid,
                broker_id=self.settings.broker_id,
                last_epoch=history.epoch,
                end=self.store.wrote,
                granted_ms=self.replication.slave.granted_ms,
            )

    async def promote(self, epoch: int, electable: list[int], force: bool) -> HaStatus:
        """Be the master of ``epoch``."""
        async with self._lock:
            if self.role is HaRole.MASTER and self.epoch == epoch:
                await self._mark(is_over=False)
                self._end_drain()
                return self.report()
            newest = max(self.store.identity.epoch, self.epoch)
            if epoch <= newest:
                raise OrderRefused(f"epoch {newest} has been already; a new master needs a newer one than {epoch}")
            if self.role is HaRole.COMPARING and not force:
                raise OrderRefused(f"{self.trouble}; force takes its log as it is")
            if self.store.loss.missing and not force:
                if not electable and self.role is HaRole.UNASSIGNED:
                    await self._await_acceptance()
                raise OrderRefused(loss_text(self.store.loss))
            await self._give(epoch, "itself")
            await self.replication.slave.finish()
            if self.store.loss.missing:
                await self._accept("promote with force")
            if self.role in (HaRole.MASTER, HaRole.COMPARING):
                self._stop_leading("it becomes the master of another epoch")
            await self._be_master(epoch, [number for number in electable if number != self.settings.broker_id])
            await self._caught_up()  # whoever elects has said what counts: what is here
            return self.report()

    async def accept_loss(self, by: str) -> HaStatus:
        """Go on without the log data that is missing: an operator has decided it."""
        async with self._lock:
            if not self.store.loss.missing:
                return self.report()
            if self.role is HaRole.SLAVE:
                raise OrderRefused("this is a slave: what it lacks comes from its master")
            if self.role is HaRole.COMPARING and not self.is_awaiting_acceptance:
                raise OrderRefused("its slaves are asked first: they may have what is missing")
            was_awaiting = self.is_awaiting_acceptance
            await self._accept(by)
            if was_awaiting and self.settings.ha.role_at_start is RoleAtStart.CONFIGURED:
                await self._be_master(self.store.identity.epoch + 1, self._electable())
                await self._caught_up()
            elif was_awaiting:
                await self._lose_role("the loss is accepted; it waits for a promotion")
            return self.report()

    async def _accept(self, by: str) -> None:
        """Have the log and its queues go on behind what is lost."""
        slave, ranges = self.replication.store, [str(lost) for lost in self.store.loss.missing]
        await self._host.standstill(slave.copy)
        while True:
            if slave.dispatch(self.store.wrote) or slave.is_behind:
                break
            await asyncio.sleep(0)
        if self.store.dispatched < self.store.wrote:
            raise OrderRefused("there is no room on the disk to show what is here")
        await self._host.standstill(lambda: slave.accept_loss(by))
        self._end_acceptance()
        self._is_loss_accepted = True
        log.warning("the loss of log data was accepted", extra={"ranges": ranges, "by": by, "end": self.store.wrote})

    async def regain(self, epoch: int) -> HaStatus:
        """Be again the master of ``epoch``."""
        async with self._lock:
            if self.role is HaRole.MASTER and self.epoch == epoch:
                return self.report()
            record = self.records.record
            if not record.is_master or record.epoch != epoch:
                raise OrderRefused(f"this broker was not the master of epoch {epoch} when its process ended")
            reason = why_not_regained(self._status())
            if reason:
                raise OrderRefused(reason)
            await self._give(epoch, "itself")
            await self._be_master(epoch, record.electable)
            self.is_regained = True
            return self.report()

    async def follow(self, epoch: int, master: str) -> HaStatus:
        """Be a slave of ``master`` in ``epoch``."""
        async with self._lock:
            if self.settings.broker_id == 0:
                raise OrderRefused("brokerId=0 is a master's for ever: give this broker a number of its own")
            if self.role is HaRole.MASTER and epoch <= self.epoch:
                raise OrderRefused(f"this is the master of epoch {self.epoch}")
            is_same = self.role is HaRole.SLAVE and (self.epoch, self.records.record.master) == (epoch, master)
            if is_same and self.replication.slave.follower is not None:
                return self.report()
            await self._give(epoch, master)
            if self.role in (HaRole.MASTER, HaRole.COMPARING):
                await self._lose_role(f"it follows {master} from now on")
            was_master = self.records.record.is_master
            await self._be_slave(epoch, master)
            if was_master:
                asyncio.get_running_loop().call_later(MOVED_S, self._hang_up_again, epoch)
            return self.report()

    def _hang_up_again(self, epoch: int) -> None:
        """Whoever came since then came for the master, by an address that has moved on."""
        if (self.role, self.epoch) == (HaRole.SLAVE, epoch) and not self.is_closed:
            self._host.close_clients("the master has moved on")

    async def fence(self, epoch: int) -> HaStatus:
        """Have no role below ``epoch`` any more, and none now."""
        async with self._lock:
            if self.role is HaRole.UNASSIGNED and self.promises.promise.epoch == epoch:
                await self._mark(is_over=True)
                return self.report()
            if self.role is HaRole.MASTER and epoch < self.epoch:
                raise OrderRefused(f"this is the master of epoch {self.epoch}")
            await self._give(epoch, "a fence")
            await self._mark(is_over=True)
            await self._lose_role(f"it was fenced at epoch {epoch}")
            return self.report()

    async def drain(self, timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        """Take no more sends, and have all that was taken on the disk and on the slaves; ``withdraw``: for a while.

        ``goes_on``: clients send nothing more, and the log goes on with what it has.
        """
        async with self._lock:
            if self.role is not HaRole.MASTER:
                raise OrderRefused(f"only a master drains, and this is {self.role}")
            if withdraw or goes_on:
                await self._mark(is_over=True)
            self._host.append_pass()
            if (withdraw or goes_on) and not self.is_withdrawn:
                self.is_withdrawn = True
                self._host.routes_changed()
            if goes_on:
                self._gate.close_to_clients("this broker is to be emptied")
                return self.report()
            self.is_draining = True
            self._gate.close_to_sends("this broker is drained")
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await asyncio.to_thread(self.store.flush)
                    while self.store.flushed < self.store.wrote or not self.replication.master.is_copied:
                        await self.replication.master.moves()
            except TimeoutError:
                if withdraw:
                    return self.report()
                self._end_drain()
                raise OrderRefused(f"not drained within {timeout_ms} ms; sends are taken again") from None
            except BrokerError as error:
                raise OrderRefused(f"the store cannot be flushed: {error}") from error
            return self.report()

    def _end_drain(self) -> None:
        self.is_draining = False
        self._gate.open()
        if self.is_withdrawn:
            self.is_withdrawn = False
            self._host.routes_changed()

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus:
        """The shard's Lease is ours, as of ``renewed_ms`` on the boot-time clock."""
        self.replication.policy.grants.leased(renewed_ms, duration_ms)
        return self.report()

    async def flush(self) -> HaStatus:
        """Everything that is written now is on the disk when this returns."""
        await asyncio.to_thread(self.store.flush)
        return self.report()

    # -- changing ------------------------------------------------------------------------------------------------------

    async def _give(self, epoch: int, to: str) -> None:
        try:
            await asyncio.to_thread(self.promises.give, epoch, to)
        except PromiseRefused as error:
            raise OrderRefused(str(error)) from error
        except OSError as error:
            raise OrderRefused(f"the promise cannot be written: {error}") from error

    async def _mark(self, *, is_over: bool) -> None:
        """Have it on the disk whether the role of now, or of last, may come back by itself.

        Before it is taken: what cannot be written down is refused, and then nothing has changed.
        """
        record = self.records.record
        if record.epoch and record.is_over != is_over:
            try:
                await asyncio.to_thread(self.records.write, msgspec.structs.replace(record, is_over=is_over))
            except OSError as error:
                raise OrderRefused(f"the role cannot be written down: {error}") from error

    async def _be_master(self, epoch: int, electable: list[int]) -> None:
        """The log is this broker's from its end on."""
        store, slave = self.store, self.replication.store
        self._gate.close("this broker becomes a master")
        self._host.close_clients("this broker becomes a master")
        await self._show_all()
        is_new = epoch != store.identity.epoch
        acks_needed = self.settings.ha.acks_needed
        record = RoleRecord(epoch, is_master=True, electable=sorted(electable), acks_needed=acks_needed)

        def change() -> None:
            try:
                self.records.write(record)
            except OSError as error:
                # Where nothing else changes and nobody could be elected, nobody will ask for it.
                if is_new or electable or error.errno not in DISK_FULL:
                    raise
                log.warning("the disk is too full to write down the role", extra={"reason": str(error)})
            if store.dispatched < store.wrote:
                slave.copy()  # what recovery has hidden, or slaves lack, is shown when they have it
            history = slave.history.epochs
            slave.promote([*history, Epoch(epoch, store.wrote)] if is_new else list(history))

        await self._host.standstill(change)
        # Before offsets are clamped: one that is right must not be taken for one beyond its queue.
        self.replication.tables.adopt_queue_ends()
        self._host.clamp_offsets()
        self.role, self.epoch, self.trouble, self.is_regained = HaRole.MASTER, epoch, "", False
        self.replication.master.lead(epoch, electable)
        self._end_drain()
        self._end_acceptance()
        self._host.register(0)
        log.info("this broker is the master", extra={"epoch": epoch, "start": store.wrote, "electable": electable})

    async def _show_all(self) -> None:
        """What needs nobody's ack is shown before anything new comes: a promotion waits for that."""
        slave = self.replication.store
        if slave.copier is None:
            return
        shown = self.store.wrote if not self.settings.ha.acks_needed else 0
        while True:
            if slave.dispatch(shown) or slave.is_behind:
                return
            await asyncio.sleep(0)

    async def _be_slave(self, epoch: int, master: str) -> None:
        """The log is ``master``'s copy from now on; where it is may be known later."""
        await self.replication.slave.stop()
        self._gate.close("this broker becomes a slave")
        last = self.records.record
        known = last if last.epoch == epoch and not last.is_master else RoleRecord()
        record = RoleRecord(
            epoch,
            electable=known.electable,
            master=master,
            master_id=known.master_id,
            acks_needed=known.acks_needed,
            grant_ms=last.grant_ms,
        )

        def change() -> None:
            self.records.write(record)
            self.replication.store.copy()

        await self._host.standstill(change)
        self.role, self.epoch = HaRole.SLAVE, epoch
        self.trouble = "" if master else "no name server knows its master yet"
        self._gate.close_to_sends("this broker is a slave")
        if master:
            self.replication.slave.follow(master, self._welcomed, self._caught_up)
        self._host.register(self.settings.broker_id)
        log.info("this broker is a slave", extra={"epoch": epoch, "master": master or "not known yet"})

    async def _welcomed(self, welcome: Welcome) -> None:
        """Know durably who else is in this epoch, before any ack in it: an election asks those who acknowledge."""
        last = self.records.record
        record = RoleRecord(
            welcome.epoch,
            electable=sorted(welcome.electable),
            master=last.master,
            master_id=welcome.master_id,
            acks_needed=welcome.acks_needed,
            grant_ms=welcome.grant_ms,
        )
        self.replication.slave.given.welcomed(welcome.grant_ms)
        if record != last:
            await self._host.standstill(lambda: self.records.write(record))
        self.epoch = max(self.epoch, welcome.epoch)

    async def _caught_up(self) -> None:
        """Whatever was in doubt is here, or nobody has it."""
        store = self.store
        try:
            if store.loss.missing:
                await asyncio.to_thread(store.forget_missing)
            if not store.loss.missing:
                await asyncio.to_thread(
                    self.completeness.caught_up,
                    is_copied_anew=store.is_restarted,
                    is_loss_accepted=self._is_loss_accepted,
                )
        except OSError as error:
            log.warning("that nothing is missing any more cannot be written down", extra={"reason": str(error)})

    def master_found(self, address: str) -> None:
        """A name server says where the master is."""
        is_asked = self.role is HaRole.SLAVE and not self.settings.ha.master_address
        is_ours = self.settings.ha.role_at_start is RoleAtStart.CONFIGURED
        if is_asked and is_ours and address and address != self.records.record.master and self._waiting is None:
            self._waiting = asyncio.ensure_future(self._follow_found(address))

    async def _follow_found(self, address: str) -> None:
        try:
            async with self._lock:
                if self.role is HaRole.SLAVE:
                    await self._be_slave(self.epoch, address)
        except (BrokerError, OSError) as error:
            log.error("the master cannot be followed", extra={"master": address, "reason": str(error)})
        finally:
            self._waiting = None

    async def _lose_role(self, reason: str) -> None:
        """Neither master nor slave: what is under way is appended, and nobody is answered any more."""
        await self.replication.slave.stop()
        self._stop_leading(reason)
        self._gate.close(reason)
        self._host.close_clients(reason)
        self._host.register(None)
        self.role, self.trouble, self.is_draining = HaRole.UNASSIGNED, reason, False
        self.is_withdrawn = self.is_awaiting_acceptance = False
        log.warning("this broker has no role any more", extra={"reason": reason})

    def _stop_leading(self, reason: str) -> None:
        self._host.append_pass()
        self._gate.close(reason)
        self._host.forget_waiting()
        self.replication.master.stop(reason)
