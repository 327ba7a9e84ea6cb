"""Moving the master role, step by step: each `POST` is one order over the control socket, and leaves one audit line.

The client decides which steps are safe, and their sequence. Every order is idempotent, so an unanswered one is sent
again. It may name its broker, since the address of a pod may belong to another broker by now, which refuses it then.
Without a token that may change, or a client certificate, an order is answered 401 or 403, which is audited too. The two
`GET` endpoints show the role; they need only the permission to view.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request

from gantry_admin.audit import audited
from gantry_admin.describe import role_document
from gantry_admin.documents import RoleDocument
from gantry_admin.errors import Problem
from gantry_admin.guard import Caller, Scope
from gantry_admin.order_documents import (
    DemoteBody,
    DrainBody,
    FenceBody,
    FlushBody,
    PromiseBody,
    PromisedDocument,
    PromoteBody,
)
from gantry_admin.routes.common import Orderer, TheSidecar, needs, order_name, refusals
from gantry_admin.sidecar import Sidecar
from gantry_spec.executor import Expected, check_promotion
from gantry_status.broker_state import UNKNOWN, document_of
from gantry_status.order_client import Check
from gantry_status.orders import (
    AnyOrder,
    Drain,
    Fence,
    Flush,
    Follow,
    HaStatus,
    OrderRefused,
    Promised,
    PromiseRequest,
    Promote,
    StatusRequest,
)

ORDER_REFUSALS = refusals(400, 401, 403, 409, 413, 422, 502, 503, 504)
ORDER_TIMEOUT_MS = 30_000
NO_BACKUP = FlushBody()
NOW_TIMEOUT_MS_MAX = 10_000
"""The longest time that a request may give the broker to report its role."""


class OrderOptions(NamedTuple):
    """How long an order may take, and which broker it is for, where its sender names it."""

    timeout_ms: int
    broker_name: str = ""
    """The name that the broker must have; empty for any."""

    broker_id: int | None = None
    """The own number that the broker must have; None for any."""

    @property
    def names_broker(self) -> bool:
        return bool(self.broker_name) or self.broker_id is not None

    def check(self, status: HaStatus) -> None:
        """Raise ``OrderRefused`` if the broker is another one."""
        if self.broker_name in ("", status.broker_name) and self.broker_id in (None, status.broker_id):
            return
        wanted, present = f"{self.broker_name}/{self.broker_id}", f"{status.broker_name}/{status.broker_id}"
        raise OrderRefused(f"the order is for broker {wanted}, but this one is {present}")


def _order_options(
    timeout_ms: Annotated[
        int, Query(ge=1, le=300_000, description="How long the broker may take, in ms.")
    ] = ORDER_TIMEOUT_MS,
    broker_name: Annotated[str, Query(max_length=300, description="Refuse the order if the broker has another.")] = "",
    broker_id: Annotated[int | None, Query(ge=0, description="Its own number; refuse it for another broker.")] = None,
) -> OrderOptions:
    return OrderOptions(timeout_ms, broker_name, broker_id)


Options = Annotated[OrderOptions, Depends(_order_options)]

router = APIRouter(prefix="/v1/role", tags=["role"])


@router.get("", dependencies=[needs(Scope.VIEW)], responses=refusals(401, 403, 503))
async def role(sidecar: TheSidecar) -> RoleDocument:
    """Return the role that the broker last reported."""
    state = sidecar.broker.link.role_report.status
    if state is None:
        raise Problem(503, f"the broker has not reported its role yet: {sidecar.broker.link.role_report.fault}")
    return role_document(state)


@router.get("/now", dependencies=[needs(Scope.VIEW)], responses=refusals(401, 403, 422, 502, 503, 504))
async def role_now(
    sidecar: TheSidecar, timeout_ms: Annotated[int, Query(ge=1, le=NOW_TIMEOUT_MS_MAX)] = 1_000
) -> dict[str, Any]:
    """Return the broker's current report about itself, unchanged; -1 means unknown.

    It is for clients that decide about roles: the report was made between this request and its answer. All others
    should use `/v1/status`, which never waits for the broker.
    """
    loop_state = sidecar.broker.loop_state()
    if loop_state.state in ("crashed", "ended", "absent"):
        raise Problem(503, f"the broker cannot answer: {loop_state.reason}")
    return document_of(_state(await sidecar.broker.link.order(StatusRequest(), timeout_s=timeout_ms / 1000)))


@router.post("/promise", responses=ORDER_REFUSALS)
async def promise(
    body: PromiseBody, request: Request, sidecar: TheSidecar, caller: Orderer, options: Options
) -> PromisedDocument:
    """Promise, durably and for ever, to follow no master and to grant no permission below this epoch."""
    answer = await _order(request, sidecar, caller, PromiseRequest(epoch=body.epoch, to=body.to), options)
    assert isinstance(answer, Promised), "the client checks the kind of the answer"
    return PromisedDocument(
        epoch=answer.epoch, identity=answer.identity, broker_id=_none_if_unknown(answer.broker_id),
        last_epoch=answer.last_epoch, end=_none_if_unknown(answer.end), granted_ms=answer.granted_ms,
    )  # fmt: skip


@router.post("/promote", responses=ORDER_REFUSALS)
async def promote(
    body: PromoteBody, request: Request, sidecar: TheSidecar, caller: Orderer, options: Options
) -> RoleDocument:
    """Become the master in this epoch; with `expected`, only if the broker still has that state."""
    order = Promote(epoch=body.epoch, electable=list(body.electable), force=body.force)
    return _role(await _order(request, sidecar, caller, order, options, _check(body)))


@router.post("/demote", responses=ORDER_REFUSALS)
async def demote(
    body: DemoteBody, request: Request, sidecar: TheSidecar, caller: Orderer, options: Options
) -> RoleDocument:
    """Become a slave of another master in this epoch."""
    order = Follow(epoch=body.epoch, master=body.master)
    return _role(await _order(request, sidecar, caller, order, options))


@router.post("/fence", responses=ORDER_REFUSALS)
async def fence(
    body: FenceBody, request: Request, sidecar: TheSidecar, caller: Orderer, options: Options
) -> RoleDocument:
    """Give up any role, and take none below this epoch."""
    return _role(await _order(request, sidecar, caller, Fence(epoch=body.epoch), options))


@router.post("/drain", responses=ORDER_REFUSALS)
async def drain(
    body: DrainBody, request: Request, sidecar: TheSidecar, caller: Orderer, options: Options
) -> RoleDocument:
    """Refuse sends, commit, flush, and wait for the slaves; a promotion in the same epoch accepts sends again.

    After a timeout the order is refused, and the broker accepts what it accepted before. With `withdraw`, the routes
    are withdrawn, too; after a timeout the answer is 200 and sends stay refused, so compare `flushed` and the slaves
    with the end of the log. With `clients_only`, the routes are withdrawn, only clients' sends are refused (delayed
    messages, transactions and retries continue), and nothing is waited for.
    """
    order = Drain(timeout_ms=body.timeout_ms, withdraw=body.withdraw, clients_only=body.clients_only)
    return _role(
        await _order(request, sidecar, caller, order, options._replace(timeout_ms=options.timeout_ms + body.timeout_ms))
    )


@router.post("/flush", responses=ORDER_REFUSALS)
async def flush(
    request: Request, sidecar: TheSidecar, caller: Orderer, options: Options, body: FlushBody = NO_BACKUP
) -> RoleDocument:
    """Flush all data that has been written so far to the disk; with `backup`, record the point of a backup, too.

    A copy of the volume that is made afterwards has everything up to `flushed` of the answer.
    """
    return _role(await _order(request, sidecar, caller, Flush(backup=body.backup), options))


def _check(body: PromoteBody) -> Check | None:
    """Return the check of the broker's state that the order demands; None without one."""
    expected = body.expected
    if expected is None:
        return None
    wanted = Expected(last_epoch=expected.last_epoch, end=expected.end, continues=expected.continues)
    return lambda status: check_promotion(body.epoch, wanted, status)


async def _order(
    request: Request, sidecar: Sidecar, caller: Caller, order: AnyOrder, options: OrderOptions,
    check: Check | None = None,
) -> HaStatus | Promised:  # fmt: skip
    """Execute an order, and write its audit line."""

    def check_all(status: HaStatus) -> None:
        options.check(status)
        if check is not None:
            check(status)

    what = order_name(request)
    on = {name: getattr(order, name) for name in order.__struct_fields__}
    with audited(request, caller, what, on):
        sidecar.broker.check_running("the order cannot be executed")
        is_checked = options.names_broker or check is not None
        timeout_s = options.timeout_ms / 1000
        return await sidecar.broker.link.order(order, timeout_s=timeout_s, check=check_all if is_checked else None)


def _none_if_unknown(number: int) -> int | None:
    return None if number == UNKNOWN else number


def _role(answer: HaStatus | Promised) -> RoleDocument:
    return role_document(_state(answer))


def _state(answer: HaStatus | Promised) -> HaStatus:
    assert isinstance(answer, HaStatus), "the client checks the kind of the answer"
    return answer
