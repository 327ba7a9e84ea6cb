"""The role of this broker and its changes: one change after the other, each in an epoch.

    UNASSIGNED --promote--> MASTER --follow--> SLAVE --promote--> MASTER          fence: back to UNASSIGNED
        `--follow--> SLAVE     `-- configured, after a start that may have lost bytes: COMPARING first, with its slaves
    `--regain--> MASTER, of the epoch in which it was the master until its process ended (``role_status``)

A broker that its configuration makes the master, but whose store lacks log data (``store/loss``), asks its slaves for
it first. If they lack the data too, a person has to accept the loss; until then the broker stays COMPARING, and serves
reads. An order to promote a broker that lacks log data is refused without ``force``.

An epoch that an order names is promised on the disk before anything is done in it. Between two roles the gate, which
decides which requests are accepted (``core.gate``), and the clients' connections are closed: no request reads or writes
a store that is being changed. ``role_orders`` decides which orders are refused.
"""

import asyncio
import logging
from typing import Final, final

from gantry_broker.errors import BrokerError, StoreFull, is_disk_full
from gantry_broker.ha.frames import Welcome
from gantry_broker.ha.master_session import MasterSession
from gantry_broker.ha.role_files import PromiseFile, RoleFile, RoleRecord
from gantry_broker.ha.settings import BrokerRole, RoleAtStart
from gantry_broker.server.core.gate import Gate
from gantry_broker.server.roles.completeness_recorder import CompletenessRecorder
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.role_host import Host, close_clients_later
from gantry_broker.server.roles.role_status import RoleStatus, count_slaves_to_compare, describe_loss, report_role
from gantry_broker.server.roles.stored_tables import StoredTables
from gantry_broker.server.roles.tail_repair import TailRepair
from gantry_broker.server.send.send_path import SendPath
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.data_completeness import DataCompleteness
from gantry_broker.store.identity import Epoch
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_status import RefusalReason
from gantry_status.orders import HaRole, HaStatus, OrderRefused

log = logging.getLogger(__name__)

REGISTER_COMPARING_S: Final = 3.0
"""Seconds after which a master that compares registers, so that slaves find it which do not know its address.

Slaves that know it have connected by then, so that after most starts the routes change once.
"""


@final
class Roles:
    """The role of this broker. Owned by the loop; after the start, callers of methods that change it hold ``lock``."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        replication: Replication,
        gate: Gate,
        host: Host,
        *,
        send_path: SendPath,
        tables: StoredTables,
        promises: PromiseFile,
        role_file: RoleFile,
        completeness: DataCompleteness,
    ) -> None:
        self.role, self.problem = HaRole.UNASSIGNED, ""
        self.epoch = 0
        """Epoch of the current role."""
        self.is_draining = self.is_closed = False
        self.is_withdrawn = False
        """Whether this broker is registered as one that accepts no sends."""

        self.is_regained = False
        """Whether it is, or was, the master of this epoch by ``regain``."""

        self.is_awaiting_acceptance = False
        """Whether it serves only reads, until a person accepts the loss of log data."""

        self.replication: Final = replication
        self.role_file: Final = role_file
        self.promises: Final = promises
        self.completeness: Final = completeness
        self.recorder: Final = CompletenessRecorder(completeness, store, replication, role_file, settings.broker_id)
        self.settings: Final = settings
        self.store: Final = store
        self._gate: Final = gate
        self._tail_repair: Final = TailRepair(store, gate)
        self._host: Final = host
        self._send_path: Final = send_path
        self._tables: Final = tables
        self.lock: Final = asyncio.Lock()
        """Held during each change of the role, except at the start and in `_on_slave_refused`, which awaits nothing."""
        self._compared: set[int] = set()
        self._role_change_task: asyncio.Task[None] | None = None
        """A change of the role that runs by itself: the end of a comparison, or following a master that was found."""

    def __repr__(self) -> str:
        return f"<Roles {self.role} epoch={self.epoch}>"

    # -- the start -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the promise and the last role. Waits for the disk. Raises ``ConfigCorrupt``."""
        self.promises.load()
        self.role_file.load()
        self.completeness.load()
        self.replication.slave.given_grants.restore(self.role_file.record.grant_ms, self.replication.policy.clock_ms())

    async def take_configured_role(self, report: RecoveryReport) -> None:
        """Take the role that the configuration assigns, if it assigns one."""
        ha, identity = self.settings.ha, self.store.identity
        self.epoch = self.role_file.record.epoch
        if ha.role_at_start is not RoleAtStart.CONFIGURED:
            self._gate.refuse_all("this broker has no role yet")
            return
        if ha.role is BrokerRole.SLAVE:
            await self.become_slave(self.promises.promise.epoch, ha.master_address)
            return
        if self.promises.promise.epoch > identity.epoch:
            promised = self.promises.promise.epoch
            self.problem = f"epoch {promised} was promised, and the log of this broker is of epoch {identity.epoch}"
            self._gate.refuse_all(self.problem)
            log.error("newer epoch exists; this broker is not the master", extra={"reason": self.problem})
            return
        is_missing = bool(self.store.losses.record.missing)
        if report.is_clean and not is_missing:
            await self.become_master(identity.epoch, self.electable())
            return
        needed = count_slaves_to_compare(self.electable(), ha.acks_needed)
        if needed:
            await self._compare(needed)
        elif is_missing:
            await self.await_acceptance()
        else:
            await self._begin_without_slaves(identity.epoch)

    async def await_acceptance(self) -> None:
        """Serve reads, append nothing and refuse sends until a person accepts the loss of log data."""
        reason = describe_loss(self.store.losses.record)
        log.error(
            "log data is missing; nothing is appended until the loss is accepted",
            extra={"reason": reason, "ranges": [str(lost) for lost in self.store.losses.record.missing]},
        )
        if self.store.dispatcher.dispatched < self.store.log.wrote:
            await self._host.run_exclusively(self.replication.slave_store.prepare_copying)
        await self._dispatch_all()
        self.role, self.epoch, self.problem = HaRole.COMPARING, self.store.identity.epoch, reason
        self.is_awaiting_acceptance = self.is_withdrawn = True
        self._gate.refuse_changes(reason)
        self._host.register(0)

    def _stop_awaiting_acceptance(self) -> None:
        if self.is_awaiting_acceptance:
            self.is_awaiting_acceptance = self.is_withdrawn = False

    async def _begin_without_slaves(self, epoch: int) -> None:
        """Become master without asking a slave.

        On a disk too full for the record of a new epoch, continue in the last one. Then a slave that has more than this
        log is refused until a person decides; a new epoch would truncate its log.
        """
        try:
            await self.become_master(epoch + 1, [])
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("disk is full; continuing in the last epoch", extra={"epoch": epoch, "reason": str(error)})
            await self.become_master(epoch, self.role_file.record.electable)
        else:
            await self.recorder.record_caught_up()  # A slave that has more is truncated to this log.

    async def close(self) -> None:
        """Begin no further change, and wait for the end of one in progress.

        The replication port is open for longer, and name servers still answer: either may give a reason for a change.
        """
        self.is_closed = True
        if self._role_change_task is not None:
            await asyncio.wait([self._role_change_task])
        async with self.lock:
            pass

    def electable(self) -> list[int]:
        """Return the slaves that may be promoted: those of the log's last epoch, or else of the settings."""
        record = self.role_file.record
        is_current = record.is_master and record.epoch == self.store.identity.epoch
        return record.electable if is_current and record.electable else list(self.settings.ha.electable)

    async def _compare(self, needed: int) -> None:
        """Wait for slaves before the first append: they may have messages that this start has lost."""
        self.role, self.epoch = HaRole.COMPARING, self.store.identity.epoch
        self.problem = f"this start may have lost messages; the log is compared with {needed} slaves first"
        self._gate.refuse_all(self.problem)
        log.warning(
            "start may have lost messages; comparing the log with slaves first", extra={"slaves_needed": needed}
        )
        self._compared.clear()
        await self._host.run_exclusively(self.replication.slave_store.prepare_copying)
        self.replication.master.compare(self.epoch, self.electable(), self._on_slave_refused)
        asyncio.get_running_loop().call_later(REGISTER_COMPARING_S, self._register_comparing)

    @property
    def is_hidden(self) -> bool:
        """Whether clients must not use this broker although it is registered: it compares its log with slaves."""
        return self.role is HaRole.COMPARING and not self.is_awaiting_acceptance

    def _register_comparing(self) -> None:
        """Register, with topics of no permission, so that slaves without this broker's address find it.

        Otherwise they would wait for the registration of a master that waits for them.
        """
        if self.is_hidden and not self.is_closed:
            self._host.register(0)
            log.info("registered while comparing, so that slaves find this broker", extra={"epoch": self.epoch})

    def _on_slave_refused(self, session: MasterSession) -> None:
        """Handle a refused slave: after a comparison, or because it knows a newer master."""
        if self.is_closed or self.role is not HaRole.COMPARING or session.hello is None or session.refusal is None:
            return
        if session.is_compared:
            self._compared.add(session.hello.broker_id)
            needed = count_slaves_to_compare(self.electable(), self.settings.ha.acks_needed)
            if len(self._compared) >= needed and self._role_change_task is None:
                self._role_change_task = asyncio.ensure_future(self._end_comparison())
        elif session.refusal.reason in ("newer", "fenced"):
            self.problem = f"slave {session.hello.broker_id} knows a newer master: {session.refusal.text}"
            log.error("newer epoch exists; this broker is not the master", extra={"reason": self.problem})
            self.replication.master.stop(self.problem)
            self.role = HaRole.UNASSIGNED
            self._gate.refuse_all(self.problem)
            self._host.register(None)

    async def _end_comparison(self) -> None:
        """Become master, or await acceptance of a loss, after enough slaves were compared.

        After an error, such as a full disk, slaves are compared again, so that the change is tried again.
        """
        try:
            async with self.lock:
                if self.role is HaRole.COMPARING and not self.is_closed:
                    facts = {"end": self.store.log.wrote, "slaves": len(self._compared)}
                    log.info("log compared with slaves", extra=facts)
                    self.replication.master.stop("the comparison is over")
                    if await asyncio.to_thread(self.store.losses.check_missing):
                        await self.await_acceptance()
                    else:
                        await self.become_master(self.store.identity.epoch + 1, self.electable())
                        await self.recorder.record_caught_up()  # The compared slaves have nothing that this log lacks.
        except (BrokerError, OSError) as error:
            log.error("failed to become master; comparing again", extra={"reason": str(error)})
            self.problem = f"failed to become master: {error}; the log is compared with slaves again"
            self._compared.clear()
            self.replication.master.compare(self.epoch, self.electable(), self._on_slave_refused)
        finally:
            self._role_change_task = None

    # -- the report ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> RoleStatus:
        """Return the current role, and the record of the last one on the disk."""
        return RoleStatus(
            role=self.role, record=self.role_file.record, log_epoch=self.store.identity.epoch,
            promised_epoch=self.promises.promise.epoch, is_complete=self.completeness.is_complete,
            acks_needed=self.settings.ha.acks_needed, epoch=self.epoch, problem=self.problem,
            is_draining=self.is_draining, is_withdrawn=self.is_withdrawn, is_regained=self.is_regained,
        )  # fmt: skip

    def report(self) -> HaStatus:
        """Return this broker's identity, role and positions."""
        return report_role(self.snapshot(), self.settings, self.store, self.replication)

    # -- changing ------------------------------------------------------------------------------------------------------

    async def become_master(self, epoch: int, electable: list[int], *, is_regained: bool = False) -> None:
        """Become the master: the log continues at its end with this broker's messages."""
        store, slave_store = self.store, self.replication.slave_store
        self._gate.refuse_all("this broker becomes a master")
        self._host.close_clients("this broker becomes a master")
        await self._dispatch_all()
        is_new = epoch != store.identity.epoch
        needed = self.settings.ha.acks_needed
        record = RoleRecord(epoch, is_master=True, electable=sorted(electable), acks_needed=needed)

        def change() -> None:
            try:
                self.role_file.write(record)
            except OSError as error:
                # Where nothing else changes and no slave could be elected, the record is not needed.
                if is_new or electable or not is_disk_full(error):
                    raise
                log.warning("disk is full; the role file was not written", extra={"reason": str(error)})
            if store.dispatcher.dispatched < store.log.wrote:
                # Messages that recovery has hidden, or that slaves lack, become visible when slaves have them.
                slave_store.prepare_copying()
            history = slave_store.history.epochs
            slave_store.promote([*history, Epoch(epoch, store.log.wrote)] if is_new else list(history))

        await self._host.run_exclusively(change)
        self._tables.begin_epoch()
        self.role, self.epoch, self.problem, self.is_regained = HaRole.MASTER, epoch, "", is_regained
        self.replication.master.lead(epoch, electable)
        self._tail_repair.begin(is_waiting=needed > 0)
        self.end_drain()
        self._stop_awaiting_acceptance()
        self._host.register(0)
        log.info("became master", extra={"epoch": epoch, "start": store.log.wrote, "electable": electable})

    async def adopt_queue_ends(self) -> None:
        """Let queues continue where the last master's do, before this broker becomes the master.

        It no longer follows. Offsets of consumers are clamped later: a valid one must not count as beyond its queue.
        Raises ``OrderRefused`` if the disk has no space for that: the role stays as it is.
        """
        await self._dispatch_all()
        try:
            self.replication.tables.queue_ends.adopt()
        except StoreFull as error:
            effect = "new messages would get queue offsets of lost messages, which consumers have passed"
            self.problem = f"cannot become master: {error}; {effect}; make room on the disk and try again"
            raise OrderRefused(self.problem) from error

    async def _dispatch_all(self) -> None:
        """Make visible everything that needs no ack. A promotion waits for it before it appends anything."""
        await self.replication.slave_store.dispatch_all(0 if self.settings.ha.acks_needed else self.store.log.wrote)

    async def become_slave(self, epoch: int, master: str) -> None:
        """Become a slave of ``master``; an empty address if that is not known yet."""
        await self.replication.slave.stop()
        self._gate.refuse_all("this broker becomes a slave")
        last = self.role_file.record
        known = last if last.epoch == epoch and not last.is_master else RoleRecord()
        record = RoleRecord(
            epoch, electable=known.electable, master=master, master_id=known.master_id, acks_needed=known.acks_needed,
            grant_ms=last.grant_ms,
        )  # fmt: skip

        def change() -> None:
            self.role_file.write(record)
            self.replication.slave_store.prepare_copying()

        await self._host.run_exclusively(change)
        self.role, self.epoch = HaRole.SLAVE, epoch
        self.problem = "" if master else "no name server knows the master yet"
        self._gate.refuse_changes("this broker is a slave")
        if master:
            self.replication.slave.follow(master, self._record_welcome, self.recorder.record_caught_up)
        self._host.register(self.settings.broker_id)
        log.info("became slave", extra={"epoch": epoch, "master": master or "unknown"})

    async def _record_welcome(self, welcome: Welcome) -> None:
        """Record durably, before the first ack in this epoch, the members and the number of acks of its elections."""
        last = self.role_file.record
        record = RoleRecord(
            welcome.epoch, electable=sorted(welcome.electable), master=last.master, master_id=welcome.master_id,
            acks_needed=welcome.acks_needed, grant_ms=welcome.grant_ms,
        )  # fmt: skip
        self.replication.slave.given_grants.set_grant_ms(welcome.grant_ms)
        if record != last:
            await self._host.run_exclusively(lambda: self.role_file.write(record))
        self.epoch = max(self.epoch, welcome.epoch)

    def follow_found_master(self, address: str) -> None:
        """Follow the master that a name server has reported, if this is a fixed slave without a configured master."""
        has_no_address = self.role is HaRole.SLAVE and not self.settings.ha.master_address
        is_configured_role = self.settings.ha.role_at_start is RoleAtStart.CONFIGURED
        is_new = bool(address) and address != self.role_file.record.master
        is_possible = not self.is_closed and self._role_change_task is None
        if has_no_address and is_configured_role and is_new and is_possible:
            self._role_change_task = asyncio.ensure_future(self._follow_found(address))

    async def _follow_found(self, address: str) -> None:
        try:
            async with self.lock:
                if self.role is HaRole.SLAVE and not self.is_closed:
                    await self.become_slave(self.epoch, address)
        except (BrokerError, OSError) as error:
            log.error("could not follow the master", extra={"master": address, "reason": str(error)})
        finally:
            self._role_change_task = None

    async def lose_role(self, reason: str) -> None:
        """Become neither master nor slave. Accepted sends are appended; answers that are held are dropped."""
        await self.replication.slave.stop()
        self.stop_leading(reason)
        self._gate.refuse_all(reason)
        self._host.close_clients(reason)
        self._host.register(None)
        self.role, self.problem, self.is_draining = HaRole.UNASSIGNED, reason, False
        self.is_withdrawn = self.is_awaiting_acceptance = False
        log.warning("lost role; requests are refused until an order assigns one", extra={"reason": reason})

    def stop_leading(self, reason: str) -> None:
        """Append accepted sends, drop all held answers, and let no slave follow."""
        self._send_path.flush()
        self._gate.refuse_all(reason)
        self._send_path.ack_gate.stop()
        self.replication.master.stop(reason)

    async def stop_following(self, epoch: int, to: str) -> None:
        """Stop following: a newer epoch was promised, and its master is not known yet."""
        await self.replication.slave.stop()
        self.problem = f"epoch {epoch} was promised to {to or 'another master'}; waiting for that master"

    def begin_drain(self, *, is_withdrawn: bool, drains_clients_only: bool) -> None:
        """Append accepted sends, and refuse further ones; with ``is_withdrawn``, also withdraw this broker.

        With ``drains_clients_only`` only clients' sends are refused, and the broker still appends its own messages,
        such as delayed ones.
        """
        self._send_path.flush()
        if is_withdrawn and not self.is_withdrawn:
            self.is_withdrawn = True
            self._host.registration.schedule_update()
        if drains_clients_only:
            self._gate.refuse_client_sends("this broker accepts no more sends of clients")
            return
        self.is_draining = True
        self._gate.refuse_changes("this broker is being drained", RefusalReason.DRAINING)

    def cancel_drain(self) -> None:
        """Accept again what was accepted before a drain that did not withdraw; an earlier withdrawal stays."""
        self.is_draining = False
        self._gate.accept_changes()

    def end_drain(self) -> None:
        """Accept sends again, and restore the write permission in the routes."""
        self.is_draining, term = False, (self.role, self.epoch, False, False)
        self._tail_repair.open_gate(lambda: (self.role, self.epoch, self.is_draining, self.is_closed) == term)
        if self.is_withdrawn:
            self.is_withdrawn = False
            self._host.registration.schedule_update()

    async def accept_loss(self, by: str) -> None:
        """Continue the log and its queues after the missing data."""
        slave_store, ranges = self.replication.slave_store, [str(lost) for lost in self.store.losses.record.missing]
        await self._host.run_exclusively(slave_store.prepare_copying)
        await slave_store.dispatch_all(self.store.log.wrote)
        if self.store.dispatcher.dispatched < self.store.log.wrote:
            raise OrderRefused("no room on the disk to make the existing messages visible; make room and try again")
        await self._host.run_exclusively(lambda: slave_store.accept_loss(by))
        self._stop_awaiting_acceptance()
        self.recorder.is_loss_accepted = True
        log.warning("loss of log data accepted", extra={"ranges": ranges, "by": by, "end": self.store.log.wrote})

    def close_clients_later(self) -> None:
        """Close clients' connections again in a moment: some may have come by an address that is moving."""
        expected = HaRole.SLAVE, self.epoch
        close_clients_later(self._host, lambda: (self.role, self.epoch) == expected and not self.is_closed)
