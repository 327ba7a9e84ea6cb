"""Orders that a broker takes about its role: which are refused, and what an order that comes again does.

Every order is idempotent: a decider that gets no answer sends it again. An epoch is promised on the disk before
anything is done in it, so an order of an older one is refused for ever. Orders are carried out one after the other,
under the lock of ``Roles``; ``status`` and ``flush`` do not take it.
"""

import asyncio
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.ha.settings import RoleAtStart
from gantry_broker.server.roles.role_status import loss_text, why_not_regained
from gantry_broker.server.roles.roles import Roles
from gantry_status.orders import HaRole, HaStatus, OrderRefused, Promised


@final
class RoleOrders:
    """Owned by the loop. Every method is an order, and raises ``OrderRefused``."""

    def __init__(self, roles: Roles) -> None:
        self.roles: Final = roles

    async def status(self) -> HaStatus:
        """Who and where this broker is."""
        return self.roles.report()

    async def promise(self, epoch: int, to: str) -> Promised:
        """Follow no master below ``epoch`` from now on, nor be one. The log stands still when it returns."""
        roles = self.roles
        async with roles.lock:
            await roles.give_promise(epoch, to)
            if roles.role in (HaRole.MASTER, HaRole.COMPARING) and roles.epoch < epoch:
                await roles.lose_role(f"epoch {epoch} was promised to {to or 'another master'}")
            elif roles.epoch < epoch:
                await roles.wait_for_master(epoch, to)
            history = roles.replication.store.history
            return Promised(
                epoch=epoch,
                identity=roles.store.identity.uuid,
                broker_id=roles.settings.broker_id,
                last_epoch=history.epoch,
                end=roles.store.log.wrote,
                granted_ms=roles.replication.slave.granted_ms,
            )

    async def promote(self, epoch: int, electable: list[int], force: bool) -> HaStatus:
        """Be the master of ``epoch``."""
        roles = self.roles
        async with roles.lock:
            if roles.role is HaRole.MASTER and roles.epoch == epoch:
                await roles.mark_over(is_over=False)
                roles.end_drain()
                return roles.report()
            newest = max(roles.store.identity.epoch, roles.epoch)
            if epoch <= newest:
                raise OrderRefused(f"epoch {newest} has been already; a new master needs a newer one than {epoch}")
            if roles.role is HaRole.COMPARING and not force:
                raise OrderRefused(f"{roles.trouble}; force takes its log as it is")
            if roles.store.losses.record.missing and not force:
                if not electable and roles.role is HaRole.UNASSIGNED:
                    await roles.await_acceptance()
                raise OrderRefused(loss_text(roles.store.losses.record))
            await roles.give_promise(epoch, "itself")
            await roles.replication.slave.finish()
            if roles.store.losses.record.missing:
                await roles.accept_loss("promote with force")
            if roles.role in (HaRole.MASTER, HaRole.COMPARING):
                roles.stop_leading("it becomes the master of another epoch")
            await roles.become_master(epoch, [number for number in electable if number != roles.settings.broker_id])
            await roles.caught_up()  # the election has decided what counts: what is here
            return roles.report()

    async def accept_loss(self, by: str) -> HaStatus:
        """Continue without the log data that is missing: an operator has decided it."""
        roles = self.roles
        async with roles.lock:
            if not roles.store.losses.record.missing:
                return roles.report()
            if roles.role is HaRole.SLAVE:
                raise OrderRefused("this is a slave: what it lacks comes from its master")
            if roles.role is HaRole.COMPARING and not roles.is_awaiting_acceptance:
                raise OrderRefused("its slaves are asked first: they may have what is missing")
            was_awaiting = roles.is_awaiting_acceptance
            await roles.accept_loss(by)
            if was_awaiting and roles.settings.ha.role_at_start is RoleAtStart.CONFIGURED:
                await roles.become_master(roles.store.identity.epoch + 1, roles.electable())
                await roles.caught_up()
            elif was_awaiting:
                await roles.lose_role("the loss is accepted; it waits for a promotion")
            return roles.report()

    async def regain(self, epoch: int) -> HaStatus:
        """Be again the master of ``epoch``."""
        roles = self.roles
        async with roles.lock:
            if roles.role is HaRole.MASTER and roles.epoch == epoch:
                return roles.report()
            record = roles.records.record
            if not record.is_master or record.epoch != epoch:
                raise OrderRefused(f"this broker was not the master of epoch {epoch} when its process ended")
            reason = why_not_regained(roles.snapshot())
            if reason:
                raise OrderRefused(reason)
            await roles.give_promise(epoch, "itself")
            await roles.become_master(epoch, record.electable, is_regained=True)
            return roles.report()

    async def follow(self, epoch: int, master: str) -> HaStatus:
        """Be a slave of ``master`` in ``epoch``."""
        roles = self.roles
        async with roles.lock:
            if roles.settings.broker_id == 0:
                raise OrderRefused("brokerId=0 is a master's for ever: give this broker a number of its own")
            if roles.role is HaRole.MASTER and epoch <= roles.epoch:
                raise OrderRefused(f"this is the master of epoch {roles.epoch}")
            is_same = roles.role is HaRole.SLAVE and (roles.epoch, roles.records.record.master) == (epoch, master)
            if is_same and roles.replication.slave.follower is not None:
                return roles.report()
            await roles.give_promise(epoch, master)
            if roles.role in (HaRole.MASTER, HaRole.COMPARING):
                await roles.lose_role(f"it follows {master} from now on")
            was_master = roles.records.record.is_master
            await roles.become_slave(epoch, master)
            if was_master:
                roles.hang_up_later()
            return roles.report()

    async def fence(self, epoch: int) -> HaStatus:
        """Have no role below ``epoch`` any more, and none now."""
        roles = self.roles
        async with roles.lock:
            if roles.role is HaRole.UNASSIGNED and roles.promises.promise.epoch == epoch:
                await roles.mark_over()
                return roles.report()
            if roles.role is HaRole.MASTER and epoch < roles.epoch:
                raise OrderRefused(f"this is the master of epoch {roles.epoch}")
            await roles.give_promise(epoch, "a fence")
            await roles.mark_over()
            await roles.lose_role(f"it was fenced at epoch {epoch}")
            return roles.report()

    async def drain(self, timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        """Take no more sends, and have all that was taken on the disk and on the slaves; ``withdraw``: for a while.

        ``goes_on``: only clients' sends are refused, and the broker appends what is its own.
        """
        roles = self.roles
        async with roles.lock:
            if roles.role is not HaRole.MASTER:
                raise OrderRefused(f"only a master drains, and this is {roles.role}")
            if withdraw or goes_on:
                await roles.mark_over()
            roles.begin_drain(is_withdrawn=withdraw or goes_on, is_emptied=goes_on)
            if goes_on:
                return roles.report()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await asyncio.to_thread(roles.store.flush)
                    while roles.store.log.flushed < roles.store.log.wrote or not roles.replication.master.is_copied:
                        await roles.replication.master.moves()
            except TimeoutError:
                if withdraw:
                    return roles.report()
                roles.end_drain()
                raise OrderRefused(f"not drained within {timeout_ms} ms; sends are taken again") from None
            except BrokerError as error:
                raise OrderRefused(f"the store cannot be flushed: {error}") from error
            return roles.report()

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus:
        """The shard's Lease is ours, as of ``renewed_ms`` on the boot-time clock."""
        self.roles.replication.policy.grants.leased(renewed_ms, duration_ms)
        return self.roles.report()

    async def flush(self) -> HaStatus:
        """Everything that is written now is on the disk when this returns."""
        await asyncio.to_thread(self.roles.store.flush)
        return self.roles.report()
