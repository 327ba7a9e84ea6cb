"""What every endpoint uses: who asks, what they may, and which refusals are documented."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, final

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from gantry_admin.audit import write_audit
from gantry_admin.bundle import RecentLines
from gantry_admin.documents import ProblemDocument
from gantry_admin.errors import Problem
from gantry_admin.guard import Caller, Scope
from gantry_admin.metrics import Exposition
from gantry_admin.sidecar import Sidecar

Responses = dict[int | str, dict[str, Any]]

BEARER: Final = HTTPBearer(auto_error=False, description="A token of --token-file or --read-token-file.")

_TEXTS: Final = {
    400: "The request makes no sense.",
    401: "A token is needed, or this one is not known.",
    403: "This caller may not.",
    404: "There is no such thing here.",
    409: "The broker refuses, and says why; nothing has changed.",
    410: "It is gone; `oldest` says what is the oldest that there is.",
    412: "Another log, or another epoch of it; `etag` says which.",
    413: "The body is too long.",
    416: "The log does not reach there (yet); `end` says how far it can be read.",
    422: "A field is missing or wrong.",
    429: "Too many at a time; `Retry-After` says when to come again.",
    502: "The broker tried in vain.",
    503: "Not now; `reason` says why.",
    504: "The broker did not answer in time: it may have been done.",
}


def refusals(*codes: int) -> Responses:
    """The documented answers that are not what was asked for."""
    return {code: {"model": ProblemDocument, "description": _TEXTS[code]} for code in codes}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the endpoints of one application share."""

    sidecar: Sidecar
    exposition: Exposition

    subjects: Mapping[tuple[str, int], str]
    """Who has shown which certificate, by peer address."""

    recent: RecentLines
    """The sidecar's own last log lines."""

    bundling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a bundle is made: one at a time."""


def shared_of(request: Request) -> Shared:
    """What this application was made with."""
    shared = request.app.state.shared
    assert isinstance(shared, Shared), "the application is made with it"
    return shared


def sidecar_of(request: Request) -> Sidecar:
    """The one sidecar of this application."""
    return shared_of(request).sidecar


def needs(scope: Scope) -> Any:
    """A dependency that lets through who may, and says who that is."""
    return Depends(guarded(scope))


def guarded(scope: Scope) -> Callable[..., Awaitable[Caller]]:
    """The same as a function, which says its scope; the probes' does not ask for a token in the OpenAPI document."""

    async def open_to_all(request: Request) -> Caller:
        return allow(request, scope)

    async def allowed(request: Request, _documented: Annotated[object, Depends(BEARER)]) -> Caller:
        return allow(request, scope)

    function: Callable[..., Awaitable[Caller]] = open_to_all if scope is Scope.PROBE else allowed
    function.scope = scope  # type: ignore[attr-defined]
    return function


def allow(request: Request, scope: Scope) -> Caller:
    """Who asks. Raises ``Problem`` 401 or 403."""
    shared = shared_of(request)
    guard, client = shared.sidecar.guard, request.scope.get("client")
    subject = shared.subjects.get((client[0], client[1])) if client else None
    caller = guard.caller(request.headers.get("authorization"), subject)
    guard.check(scope, caller, request.headers.get("host"))
    return caller


async def _orderer(request: Request, _documented: Annotated[object, Depends(BEARER)]) -> Caller:
    """Who gives an order. One who may not leaves an audit line, and learns nothing of the broker."""
    try:
        return allow(request, Scope.CHANGE)
    except Problem as problem:
        what, on = request.url.path.rpartition("/")[2], dict(request.path_params)
        write_audit(request, None, what, on, problem.status, problem.reason)
        raise


_orderer.scope = Scope.CHANGE  # type: ignore[attr-defined]

Orderer = Annotated[Caller, Depends(_orderer)]
TheSidecar = Annotated[Sidecar, Depends(sidecar_of)]
