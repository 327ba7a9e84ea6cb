"""Which method of a broker an order means, and what becomes of what that method says or raises."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from gantry_broker.errors import BrokerError
from gantry_status.orders import (
    AcceptLoss,
    AnyAnswer,
    AnyOrder,
    AskPromise,
    AskStatus,
    Drain,
    Failed,
    Fence,
    Flush,
    Follow,
    HaStatus,
    Lease,
    OrderRefused,
    Promised,
    Promote,
    Refused,
    Regain,
)

log = logging.getLogger(__name__)

REASON_CHARACTERS_MAX: Final = 4_096


class Orders(Protocol):
    """What can be ordered of a broker.

    Each is idempotent, and raises ``OrderRefused`` when it will not: then nothing has changed. ``status`` answers at
    any time; the others may take their turns among each other.
    """

    async def status(self) -> HaStatus: ...

    async def promise(self, epoch: int, to: str) -> Promised: ...

    async def promote(self, epoch: int, electable: list[int], force: bool) -> HaStatus: ...

    async def regain(self, epoch: int) -> HaStatus: ...

    async def follow(self, epoch: int, master: str) -> HaStatus: ...

    async def fence(self, epoch: int) -> HaStatus: ...

    async def drain(self, timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus: ...

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus: ...

    async def flush(self) -> HaStatus: ...

    async def accept_loss(self, by: str) -> HaStatus: ...


async def obey(orders: Orders, order: AnyOrder) -> AnyAnswer:
    """Have it done, and answer. A failure that somebody foresaw becomes an answer, a bug of ours goes up."""
    try:
        return await _call(orders, order)
    except OrderRefused as error:
        return Refused(reason=bounded(error.reason))
    except (BrokerError, OSError) as error:
        log.warning("an order failed", extra={"order": name_of(order)}, exc_info=error)
        return Failed(reason=bounded(f"{type(error).__name__}: {error}"))


async def _call(orders: Orders, order: AnyOrder) -> AnyAnswer:
    match order:
        case AskStatus():
            return await orders.status()
        case AskPromise():
            return await orders.promise(order.epoch, order.to)
        case Promote():
            return await orders.promote(order.epoch, list(order.electable), order.force)
        case Regain():
            return await orders.regain(order.epoch)
        case Follow():
            return await orders.follow(order.epoch, order.master)
        case Fence():
            return await orders.fence(order.epoch)
        case Drain():
            return await orders.drain(order.timeout_ms, order.withdraw, order.goes_on)
        case Lease():
            return await orders.lease(order.renewed_ms, order.duration_ms)
        case Flush():
            return await orders.flush()
        case AcceptLoss():
            return await orders.accept_loss(order.by)


def name_of(value: AnyOrder | AnyAnswer) -> str:
    """As it is called on the wire."""
    return str(type(value).__struct_config__.tag)


def bounded(reason: str) -> str:
    """Short enough for a line."""
    return reason[:REASON_CHARACTERS_MAX]
