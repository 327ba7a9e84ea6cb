"""Probes: three questions that kubelet, a supervisor and people ask, without credentials.

`/livez` is about the sidecar: it says what the broker does, and does not fail with it, because starting the sidecar
again would mend nothing. `/readyz` is about the broker. `/startupz` fails until recovery is over, and says how far.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from gantry_admin.documents import LiveDocument, ProofDocument, ReadyDocument, StartedDocument
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.health import started
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_spec.sidecar_proof import NONCE_CHARACTERS, proof_of

WATCH_SILENT_NS = 5_000_000_000

router = APIRouter(tags=["probes"], dependencies=[needs(Scope.PROBE)])


@router.get("/livez", responses={503: {"model": LiveDocument, "description": "The sidecar itself is stuck."}})
async def livez(sidecar: TheSidecar, response: Response) -> LiveDocument:
    """Whether the sidecar lives, and since when the broker stands still, if it does."""
    silent_ns = sidecar.broker.watch.now_ns() - sidecar.broker.look.at_boottime_ns
    is_live = silent_ns < WATCH_SILENT_NS
    if not is_live:
        response.status_code = 503
    reason = "the page is looked at" if is_live else f"nobody has looked at the page for {silent_ns // 1_000_000} ms"
    return LiveDocument(live=is_live, reason=reason, broker=sidecar.broker.motion())


@router.get("/readyz", responses={503: {"model": ReadyDocument, "description": "Not ready, and why."}})
async def readyz(sidecar: TheSidecar, response: Response) -> ReadyDocument:
    """Whether clients should be at this broker now."""
    document = sidecar.readiness()
    if not document.ready:
        response.status_code = 503
    return document


@router.get("/v1/proof", responses=refusals(404, 422))
async def proof(
    sidecar: TheSidecar, nonce: Annotated[str, Query(pattern=f"^[0-9a-f]{{{NONCE_CHARACTERS}}}$")]
) -> ProofDocument:
    """That whoever shows this port's certificate knows the token, said without showing it.

    For whoever gives orders and knows no authority: before it shows the token, it computes the same from the
    certificate that it was shown.
    """
    token = sidecar.guard.order_token()
    if sidecar.certificates is None or not token:
        raise Problem(404, "there is no certificate, or no token, to prove anything with")
    return ProofDocument(proof=proof_of(token, nonce, sidecar.certificates.current.fingerprint))


@router.get("/startupz", responses={503: {"model": StartedDocument, "description": "Not started yet, and how far."}})
async def startupz(sidecar: TheSidecar, response: Response) -> StartedDocument:
    """Whether the broker's recovery is over."""
    verdict = started(sidecar.broker.look, sidecar.broker.watch.now_ns(), sidecar.settings.health)
    if not verdict.is_good:
        response.status_code = 503
    reading = sidecar.broker.reading
    return StartedDocument(
        started=verdict.is_good,
        reason=verdict.reason,
        phase=None if reading is None else reading.status.phase.name.lower(),
        recovery_done_bytes=None if reading is None else reading.status.recovery_done_bytes,
        recovery_total_bytes=None if reading is None else reading.status.recovery_total_bytes,
    )
