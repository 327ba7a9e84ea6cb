"""The probes for kubelet, supervisors and people, and the proof of the sidecar's certificate; none needs credentials.

`/livez` is about the sidecar: it reports the state of the broker, and does not fail with it, because restarting the
sidecar would repair nothing. `/readyz` is about the broker. `/startupz` fails until recovery is complete, and reports
its progress.
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
"""The age of the last observation of the status page from which the sidecar is not alive."""

router = APIRouter(tags=["probes"], dependencies=[needs(Scope.PROBE)])


@router.get("/livez", responses={503: {"model": LiveDocument, "description": "The sidecar itself is stuck."}})
async def livez(sidecar: TheSidecar, response: Response) -> LiveDocument:
    """Return whether the sidecar is alive, and the state of the broker's event loop."""
    silent_ns = sidecar.broker.watch.now_ns() - sidecar.broker.observation.at_boottime_ns
    is_live = silent_ns < WATCH_SILENT_NS
    if not is_live:
        response.status_code = 503
    reason = (
        "the status page is checked" if is_live else f"the status page was not read for {silent_ns // 1_000_000} ms"
    )
    return LiveDocument(live=is_live, reason=reason, broker=sidecar.broker.loop_state())


@router.get("/readyz", responses={503: {"model": ReadyDocument, "description": "Not ready, and why."}})
async def readyz(sidecar: TheSidecar, response: Response) -> ReadyDocument:
    """Return whether clients should use this broker now."""
    document = sidecar.readiness()
    if not document.ready:
        response.status_code = 503
    return document


@router.get("/v1/proof", responses=refusals(404, 422))
async def proof(
    sidecar: TheSidecar, nonce: Annotated[str, Query(pattern=f"^[0-9a-f]{{{NONCE_CHARACTERS}}}$")]
) -> ProofDocument:
    """Prove that the owner of this port's certificate knows the token, without revealing the token.

    A client that gives orders and has no certificate authority computes the same value from the certificate of the
    connection before it sends the token.
    """
    token = sidecar.guard.order_token()
    if sidecar.certificates is None or not token:
        raise Problem(404, "a proof needs a certificate and a token, and one of them is not configured")
    return ProofDocument(proof=proof_of(token, nonce, sidecar.certificates.current.fingerprint))


@router.get("/startupz", responses={503: {"model": StartedDocument, "description": "Not started yet, and how far."}})
async def startupz(sidecar: TheSidecar, response: Response) -> StartedDocument:
    """Return whether the broker's recovery is complete."""
    verdict = started(sidecar.broker.observation, sidecar.broker.watch.now_ns(), sidecar.settings.health)
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
