"""Metrics for monitoring, and the diagnostics bundle for analysis."""

from __future__ import annotations

import asyncio
import dataclasses

from fastapi import APIRouter, Request, Response

from gantry_admin.bundle import make_bundle, redacted_settings
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.routes.common import TheSidecar, needs, refusals, shared_of
from gantry_admin.sidecar import Sidecar

BROKER_TIMEOUT_S = 1.0

router = APIRouter(tags=["observe"])


@router.get(
    "/metrics",
    response_class=Response,
    dependencies=[needs(Scope.VIEW)],
    responses={
        200: {
            "description": "OpenMetrics if `Accept` asks for it, else the Prometheus text format.",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/openmetrics-text": {"schema": {"type": "string"}},
            },
        },
        **refusals(401, 403),
    },
)
async def metrics(request: Request) -> Response:
    """Return all metrics in the Prometheus format, with the names of RocketMQ's exporter where it has the metric."""
    body, content_type = shared_of(request).exposition.render(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


@router.get(
    "/v1/bundle",
    response_class=Response,
    dependencies=[needs(Scope.READ)],
    responses={
        200: {
            "description": "A tar.gz.",
            "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
        },
        **refusals(401, 403, 429),
    },
)
async def bundle(request: Request, sidecar: TheSidecar) -> Response:
    """Return the page, settings, tables, a list of files and the last log lines, without messages and secrets."""
    shared = shared_of(request)
    if shared.bundling.locked():
        raise Problem(429, "a bundle is being made already", headers={"Retry-After": "5"})
    async with shared.bundling:
        broker = sidecar.settings.broker
        documents: dict[str, object] = {
            "status.json": sidecar.status().model_dump(),
            "group.json": sidecar.group().model_dump(),
            "settings.json": redacted_settings(_flat(sidecar.settings)),
            "broker-settings.json": await _broker_settings(sidecar),
        }
        data = await asyncio.to_thread(
            make_bundle, broker.store, broker.page, broker.log_file, documents, shared.recent.text
        )
    headers = {"Content-Disposition": 'attachment; filename="gantry-bundle.tar.gz"', "Cache-Control": "no-store"}
    return Response(data, media_type="application/gzip", headers=headers)


async def _broker_settings(sidecar: Sidecar) -> dict[str, str]:
    """Return the broker's settings without secrets, or why they are unavailable."""
    if sidecar.broker.loop_state().state != "running":
        return {"unavailable": sidecar.broker.loop_state().reason}
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            return redacted_settings(await sidecar.client.broker_settings())
    except (TimeoutError, Problem) as error:
        return {"unavailable": str(error) or f"the broker did not answer within {BROKER_TIMEOUT_S:g} s"}


def _flat(settings: object, prefix: str = "") -> dict[str, str]:
    """Return all fields of nested settings by their dotted names."""
    assert dataclasses.is_dataclass(settings), "settings are dataclasses"
    found: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value) and not hasattr(value, "host"):
            found |= _flat(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = str(value)
    return found
