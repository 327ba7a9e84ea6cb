"""Orders about the role of a broker: which are refused, and the effect of a repeated order.

Every order is idempotent: the sender repeats an order that was not answered. An epoch that an order names is promised
on the disk before anything is done in it, so an order of an older epoch is always refused. Orders run one after the
other, under the lock of ``Roles``; ``status``, ``lease`` and ``flush`` do not take it.
"""

import asyncio
from typing import Final, final

import msgspec

from gantry_broker.ha.role_files import PromiseRefused
from gantry_broker.ha.settings import RoleAtStart
from gantry_broker.server.roles.backup_point import BackupPointFile
from gantry_broker.server.roles.role_status import describe_loss, explain_no_regain
from gantry_broker.server.roles.roles import Roles
from gantry_status.orders import HaRole, HaStatus, OrderRefused, Promised


@final
class RoleOrders:
    """The orders about a broker's role. Owned by the loop. Every method is an order, and may raise ``OrderRefused``."""

    def __init__(self, roles: Roles, backup_point: BackupPointFile) -> None:
        self.roles: Final = roles
        self._backup_point: Final = backup_point

    async def status(self) -> HaStatus:
        """Return this broker's identity, role and positions."""
        return self.roles.report()

    async def promise(self, epoch: int, to: str) -> Promised:
        """Promise to follow no master below ``epoch``, nor be one.

        When it returns, the log no longer grows, unless the broker has a role in ``epoch`` or in a newer one already.
        """
        roles = self.roles
        async with roles.lock:
            await self._give_promise(epoch, to)
            if roles.role in (HaRole.MASTER, HaRole.COMPARING) and roles.epoch < epoch:
                await roles.lose_role(f"epoch {epoch} was promised to {to or 'another master'}")
            elif roles.epoch < epoch:
                await roles.stop_following(epoch, to)
            history = roles.replication.slave_store.history
            return Promised(
                epoch=epoch,
                identity=roles.store.identity.uuid,
                broker_id=roles.settings.broker_id,
                last_epoch=history.epoch,
                end=roles.store.log.wrote,
                granted_ms=roles.replication.slave.granted_ms,
            )

    async def promote(self, epoch: int, electable: list[int], force: bool) -> HaStatus:
        """Become the master of ``epoch``.

        A broker that lacks log data refuses it without ``force``. If it is the only member, it then serves reads. One
        whose disk has no space to continue the queues refuses it also with ``force``, and follows no master then.
        """
        roles = self.roles
        async with roles.lock:
            if roles.role is HaRole.MASTER and roles.epoch == epoch:
                await self._mark_role_over(is_over=False)
                roles.end_drain()
                return roles.report()
            newest = max(roles.store.identity.epoch, roles.epoch)
            if epoch <= newest:
                raise OrderRefused(f"epoch {epoch} is too old: epoch {newest} exists already; use {newest + 1} or more")
            self._check_promise(epoch)
            if roles.role is HaRole.COMPARING and not force:
                raise OrderRefused(f"{roles.problem}; to promote it with its log as it is, use force")
            if roles.store.losses.record.missing and not force:
                if not electable and roles.role is HaRole.UNASSIGNED:
                    await roles.await_acceptance()
                raise OrderRefused(describe_loss(roles.store.losses.record))
            await self._give_promise(epoch, "this broker")
            await roles.replication.slave.finish()
            await roles.adopt_queue_ends()
            if roles.store.losses.record.missing:
                await roles.accept_loss("promote with force")
            if roles.role in (HaRole.MASTER, HaRole.COMPARING):
                roles.stop_leading("this broker becomes the master of another epoch")
            await roles.become_master(epoch, [number for number in electable if number != roles.settings.broker_id])
            await roles.recorder.record_caught_up()  # The election has chosen this log.
            return roles.report()

    async def accept_loss(self, by: str) -> HaStatus:
        """Continue without the missing log data, as a person has decided."""
        roles = self.roles
        async with roles.lock:
            if not roles.store.losses.record.missing:
                return roles.report()
            if roles.role is HaRole.SLAVE:
                raise OrderRefused("this broker is a slave: it gets the missing data from its master")
            if roles.role is HaRole.COMPARING and not roles.is_awaiting_acceptance:
                raise OrderRefused(
                    "this broker compares its log with slaves first, since they may have the missing data; "
                    "try again later"
                )
            was_awaiting = roles.is_awaiting_acceptance
            await roles.accept_loss(by)
            if was_awaiting and roles.settings.ha.role_at_start is RoleAtStart.CONFIGURED:
                await roles.become_master(roles.store.identity.epoch + 1, roles.electable())
                await roles.recorder.record_caught_up()
            elif was_awaiting:
                await roles.lose_role("the loss was accepted; waiting for a promotion")
            return roles.report()

    async def regain(self, epoch: int) -> HaStatus:
        """Become again the master of ``epoch``."""
        roles = self.roles
        async with roles.lock:
            if roles.role is HaRole.MASTER and roles.epoch == epoch:
                return roles.report()
            record = roles.role_file.record
            if not record.is_master or record.epoch != epoch:
                raise OrderRefused(f"this broker was not the master of epoch {epoch} when its process ended")
            reason = explain_no_regain(roles.snapshot())
            if reason:
                raise OrderRefused(reason)
            await self._give_promise(epoch, "this broker")
            await roles.become_master(epoch, record.electable, is_regained=True)
            return roles.report()

    async def follow(self, epoch: int, master: str) -> HaStatus:
        """Become a slave of ``master`` in ``epoch``."""
        roles = self.roles
        async with roles.lock:
            if roles.settings.broker_id == 0:
                raise OrderRefused("brokerId=0 is always a master's: set another brokerId for this broker")
            if roles.role is HaRole.MASTER and epoch <= roles.epoch:
                raise OrderRefused(f"this broker is the master of epoch {roles.epoch}")
            is_same = roles.role is HaRole.SLAVE and (roles.epoch, roles.role_file.record.master) == (epoch, master)
            if is_same and roles.replication.slave.follower is not None:
                return roles.report()
            await self._give_promise(epoch, master)
            if roles.role in (HaRole.MASTER, HaRole.COMPARING):
                await roles.lose_role(f"this broker follows {master} now")
            was_master = roles.role_file.record.is_master
            await roles.become_slave(epoch, master)
            if was_master:
                roles.close_clients_later()
            return roles.report()

    async def fence(self, epoch: int) -> HaStatus:
        """Revoke the current role, and refuse any role below ``epoch``.

        To revoke a role, the role file is written only if ``epoch`` is not later than the role's: a later promise
        prevents regaining by itself. So a full disk cannot keep a master in its role whose promise is durable: an
        election counts such a member as one whose log no longer grows.
        """
        roles = self.roles
        async with roles.lock:
            if roles.role is HaRole.UNASSIGNED and roles.promises.promise.epoch == epoch:
                if epoch <= roles.role_file.record.epoch:
                    await self._mark_role_over()
                return roles.report()
            if roles.role is HaRole.MASTER and epoch < roles.epoch:
                raise OrderRefused(f"this broker is the master of epoch {roles.epoch}")
            await self._give_promise(epoch, "a fence order")
            if epoch <= roles.role_file.record.epoch:
                await roles.replication.slave.stop()  # A handshake of the stream may write the role file, too.
                await self._mark_role_over()
            await roles.lose_role(f"this broker was fenced at epoch {epoch}")
            return roles.report()

    async def drain(self, timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus:
        """Refuse sends, and wait until all accepted ones are on the disk and on the slaves.

        ``withdraw``: take the write permission out of the routes as well; after a timeout sends stay refused. After any
        other timeout the broker accepts what it accepted before: an earlier withdrawal stays in effect.
        ``clients_only``: only clients' sends are refused, the broker still appends its own messages, and nothing is
        waited for. This withdraws, too.
        Raises ``StoreFailed`` if the flush fails, which ends the broker.
        """
        roles = self.roles
        async with roles.lock:
            if roles.role is not HaRole.MASTER:
                raise OrderRefused(f"only a master can be drained, and this broker is {roles.role}")
            if withdraw or clients_only:
                await self._mark_role_over()
            was_draining = roles.is_draining
            roles.begin_drain(is_withdrawn=withdraw or clients_only, drains_clients_only=clients_only)
            if clients_only:
                return roles.report()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await asyncio.to_thread(roles.store.flush)
                    while roles.store.log.flushed < roles.store.log.wrote or not roles.replication.master.is_copied:
                        await roles.replication.master.wait_for_progress()
            except TimeoutError:
                if withdraw:
                    return roles.report()
                if not was_draining:
                    roles.cancel_drain()
                is_refusing = was_draining or roles.is_withdrawn
                effect = "sends are refused as before" if is_refusing else "sends are accepted again"
                raise OrderRefused(f"not drained within {timeout_ms} ms; {effect}") from None
            return roles.report()

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus:
        """Record that this broker holds its shard's Lease, as of ``renewed_ms`` on the boot-time clock."""
        self.roles.replication.policy.grants.record_lease(renewed_ms, duration_ms)
        return self.roles.report()

    async def flush(self, backup: str = "") -> HaStatus:
        """Flush everything that is written now; it is on the disk when this returns.

        With ``backup`` write the tables before, and record the point of this backup (``backup_point``).
        """
        roles = self.roles
        if backup:
            if roles.role not in (HaRole.MASTER, HaRole.SLAVE):
                raise OrderRefused(f"a copy of this broker is no backup: its role is {roles.role}")
            if roles.store.losses.record.missing:
                raise OrderRefused(f"a copy of this broker is no backup: {describe_loss(roles.store.losses.record)}")
            await self._backup_point.write_tables()
        await asyncio.to_thread(roles.store.flush)
        status = roles.report()
        if backup:
            await self._backup_point.write(backup, status)
        return status

    # -- records on the disk -------------------------------------------------------------------------------------------

    def _check_promise(self, epoch: int) -> None:
        """Refuse the order if a newer epoch was promised."""
        try:
            self.roles.promises.check(epoch)
        except PromiseRefused as error:
            raise OrderRefused(str(error)) from error

    async def _give_promise(self, epoch: int, to: str) -> None:
        """Promise ``epoch``, durably. Refuse the order if that is not possible."""
        self._check_promise(epoch)
        try:
            await asyncio.to_thread(self.roles.promises.give, epoch, to)
        except OSError as error:
            raise OrderRefused(f"cannot write the promise file: {error}") from error

    async def _mark_role_over(self, *, is_over: bool = True) -> None:
        """Record on the disk whether the current or last role may be regained.

        Call it before the role is revoked: if the record cannot be written, the order is refused and the role has not
        changed.
        """
        file = self.roles.role_file
        if file.record.epoch and file.record.is_over != is_over:
            try:
                await asyncio.to_thread(file.write, msgspec.structs.replace(file.record, is_over=is_over))
            except OSError as error:
                raise OrderRefused(f"cannot write the role file: {error}") from error
