"""Moving the master role, step by step: each endpoint is one order over the control socket, and leaves one audit line.

What the steps mean together, and in which order they are safe, is not decided here: that is whoever orders. Every order
is idempotent, so one that was not answered is sent again. Without a token that may change, or a client certificate,
none of these answers anything but 401 or 403, and that leaves a line, too.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from gantry_admin.audit import audited
from gantry_admin.describe import role_document
from gantry_admin.documents import RoleDocument
from gantry_admin.errors import Problem
from gantry_admin.guard import Caller, Scope
from gantry_admin.order_documents import (
    DemoteBody,
    DrainBody,
    FenceBody,
    PromiseBody,
    PromisedDocument,
    PromoteBody,
)
from gantry_admin.routes.common import Orderer, TheSidecar, needs, refusals
from gantry_admin.sidecar import Sidecar
from gantry_spec.executor import Expected, check_promotion
from gantry_status.broker_state import UNKNOWN, document_of
from gantry_status.order_client import Check
from gantry_status.orders import (
    AnyOrder,
    AskPromise,
    AskStatus,
    Drain,
    Fence,
    Flush,
    Follow,
    HaStatus,
    Promised,
    Promote,
)

ORDER_REFUSALS = refusals(400, 401, 403, 409, 413, 422, 502, 503, 504)
Timeout = Annotated[int, Query(ge=1, le=300_000, description="How long the broker may take, in ms.")]
ORDER_TIMEOUT_MS = 30_000
NOW_TIMEOUT_MS_MAX = 10_000

router = APIRouter(prefix="/v1/role", tags=["role"])


@router.get("", dependencies=[needs(Scope.LOOK)], responses=refusals(401, 403, 503))
async def role(sidecar: TheSidecar) -> RoleDocument:
    """What the broker said last of its role."""
    word = sidecar.broker.link.word.status
    if word is None:
        raise Problem(503, f"the broker has not said yet who it is: {sidecar.broker.link.word.fault}")
    return role_document(word)


@router.get("/now", dependencies=[needs(Scope.LOOK)], responses=refusals(401, 403, 422, 502, 503, 504))
async def role_now(
    sidecar: TheSidecar, timeout_ms: Annotated[int, Query(ge=1, le=NOW_TIMEOUT_MS_MAX)] = 1_000
) -> dict[str, Any]:
    """What the broker says of itself when it is asked now, as it says it; -1 is not known.

    For whoever decides about roles: the answer is of one moment, between this question and its answer. Everybody else
    is better served by `/v1/status`, which waits for nobody.
    """
    motion = sidecar.broker.motion()
    if motion.state in ("gone", "ended", "absent"):
        raise Problem(503, f"nobody would answer: {motion.reason}")
    return document_of(_state(await sidecar.broker.link.order(AskStatus(), timeout_s=timeout_ms / 1000)))


@router.post("/promise", responses=ORDER_REFUSALS)
async def promise(
    body: PromiseBody, request: Request, sidecar: TheSidecar, caller: Orderer, timeout_ms: Timeout = ORDER_TIMEOUT_MS
) -> PromisedDocument:
    """Follow nobody, and grant nobody anything, below this epoch, durably and for ever."""
    answer = await _order(request, sidecar, caller, AskPromise(epoch=body.epoch, to=body.to), timeout_ms)
    assert isinstance(answer, Promised), "the client compares kinds"
    return PromisedDocument(
        epoch=answer.epoch, identity=answer.identity, broker_id=_known(answer.broker_id),
        last_epoch=answer.last_epoch, end=_known(answer.end), granted_ms=answer.granted_ms,
    )  # fmt: skip


@router.post("/promote", responses=ORDER_REFUSALS)
async def promote(
    body: PromoteBody, request: Request, sidecar: TheSidecar, caller: Orderer, timeout_ms: Timeout = ORDER_TIMEOUT_MS
) -> RoleDocument:
    """Be the master in this epoch; with `expected`, only if it still is what was named for it."""
    order = Promote(epoch=body.epoch, electable=list(body.electable), force=body.force)
    return _role(await _order(request, sidecar, caller, order, timeout_ms, _check(body)))


@router.post("/demote", responses=ORDER_REFUSALS)
async def demote(
    body: DemoteBody, request: Request, sidecar: TheSidecar, caller: Orderer, timeout_ms: Timeout = ORDER_TIMEOUT_MS
) -> RoleDocument:
    """Be a slave of another master in this epoch."""
    order = Follow(epoch=body.epoch, master=body.master)
    return _role(await _order(request, sidecar, caller, order, timeout_ms))


@router.post("/fence", responses=ORDER_REFUSALS)
async def fence(
    body: FenceBody, request: Request, sidecar: TheSidecar, caller: Orderer, timeout_ms: Timeout = ORDER_TIMEOUT_MS
) -> RoleDocument:
    """Have no role, and none below this epoch any more."""
    return _role(await _order(request, sidecar, caller, Fence(epoch=body.epoch), timeout_ms))


@router.post("/drain", responses=ORDER_REFUSALS)
async def drain(
    body: DrainBody, request: Request, sidecar: TheSidecar, caller: Orderer, timeout_ms: Timeout = ORDER_TIMEOUT_MS
) -> RoleDocument:
    """Take no more sends, commit, flush, wait for the slaves; a promotion in the same epoch takes sends again.

    With `withdraw`, name servers are told that nothing can be sent here, and too late it stays so. With `goes_on`, that
    is all: clients send nothing more, and delayed messages, transactions and retries go on.
    """
    order = Drain(timeout_ms=body.timeout_ms, withdraw=body.withdraw, goes_on=body.goes_on)
    return _role(await _order(request, sidecar, caller, order, timeout_ms + body.timeout_ms))


@router.post("/flush", responses=ORDER_REFUSALS)
async def flush(
    request: Request, sidecar: TheSidecar, caller: Orderer, timeout_ms: Timeout = ORDER_TIMEOUT_MS
) -> RoleDocument:
    """Have on disk what is written now."""
    return _role(await _order(request, sidecar, caller, Flush(), timeout_ms))


def _check(body: PromoteBody) -> Check | None:
    """What the broker must still be, if the order says so."""
    expected = body.expected
    if expected is None:
        return None
    wanted = Expected(last_epoch=expected.last_epoch, end=expected.end, continues=expected.continues)
    return lambda status: check_promotion(body.epoch, wanted, status)


async def _order(
    request: Request, sidecar: Sidecar, caller: Caller, order: AnyOrder, timeout_ms: int, check: Check | None = None
) -> HaStatus | Promised:
    """Have it done, and put down who wanted what and what came of it."""
    what = str(type(order).__struct_config__.tag)
    on = {name: getattr(order, name) for name in order.__struct_fields__}
    with audited(request, caller, what, on):
        sidecar.broker.check_moving("nobody would obey")
        return await sidecar.broker.link.order(order, timeout_s=timeout_ms / 1000, check=check)


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number


def _role(answer: HaStatus | Promised) -> RoleDocument:
    return role_document(_state(answer))


def _state(answer: HaStatus | Promised) -> HaStatus:
    assert isinstance(answer, HaStatus), "the client compares kinds"
    return answer
