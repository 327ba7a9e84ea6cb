"""Execute an order by calling the broker's method for it, and turn its result or error into an answer."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from gantry_broker.errors import BrokerError
from gantry_status.orders import (
    AcceptLoss,
    AnyAnswer,
    AnyOrder,
    Drain,
    Failed,
    Fence,
    Flush,
    Follow,
    HaStatus,
    Lease,
    OrderRefused,
    Promised,
    PromiseRequest,
    Promote,
    Refused,
    Regain,
    StatusRequest,
)

log = logging.getLogger(__name__)

REASON_CHARACTERS_MAX: Final = 4_096
"""Limit of a reason's length, so that an answer fits into one line."""


class Orders(Protocol):
    """The orders that a broker executes.

    Each one is idempotent, and raises ``OrderRefused`` if the broker refuses it; ``Refused`` says what that means.
    ``status`` answers at any time; the others may wait for each other. The parameters are the fields of the orders (see
    ``gantry_status.orders``).
    """

    async def status(self) -> HaStatus: ...

    async def promise(self, epoch: int, to: str) -> Promised: ...

    async def promote(self, epoch: int, electable: list[int], force: bool) -> HaStatus: ...

    async def regain(self, epoch: int) -> HaStatus: ...

    async def follow(self, epoch: int, master: str) -> HaStatus: ...

    async def fence(self, epoch: int) -> HaStatus: ...

    async def drain(self, timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus: ...

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus: ...

    async def flush(self, backup: str = "") -> HaStatus: ...

    async def accept_loss(self, by: str) -> HaStatus: ...


async def execute_order(orders: Orders, order: AnyOrder) -> AnyAnswer:
    """Execute an order, and return the answer. An expected failure becomes an answer; a bug raises."""
    try:
        return await _call(orders, order)
    except OrderRefused as error:
        return Refused(reason=truncate_reason(error.reason))
    except (BrokerError, OSError) as error:
        log.warning("order failed", extra={"order": wire_name(order)}, exc_info=error)
        return Failed(reason=truncate_reason(f"{type(error).__name__}: {error}"))


async def _call(orders: Orders, order: AnyOrder) -> AnyAnswer:
    match order:
        case StatusRequest():
            return await orders.status()
        case PromiseRequest():
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
            return await orders.drain(order.timeout_ms, order.withdraw, order.clients_only)
        case Lease():
            return await orders.lease(order.renewed_ms, order.duration_ms)
        case Flush():
            return await orders.flush(order.backup)
        case AcceptLoss():
            return await orders.accept_loss(order.by)


def wire_name(value: AnyOrder | AnyAnswer) -> str:
    """Return the name of an order or an answer on the wire."""
    return str(type(value).__struct_config__.tag)


def truncate_reason(reason: str) -> str:
    """Return the reason, shortened so that it fits into a line."""
    return reason[:REASON_CHARACTERS_MAX]
