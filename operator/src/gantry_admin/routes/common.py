"""Shared parts of all endpoints: authentication, permissions, and the documented error answers."""

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
    400: "The request is invalid.",
    401: "A token is required, or this one is unknown.",
    403: "The caller has no permission.",
    404: "Not found.",
    409: "The broker refuses, for the `reason` given; only a promise of the order's epoch may remain.",
    410: "Deleted; `oldest` is the oldest offset available.",
    412: "It is another log, or another epoch of it; `etag` is the current one.",
    413: "The body is too long.",
    416: "The log does not reach that offset (yet); `end` is the end of its readable part.",
    422: "A field is missing or invalid.",
    429: "Too many at a time; retry after `Retry-After` seconds.",
    502: "The broker failed to execute or answer it, or the sidecar of another shard to answer it.",
    503: "Unavailable, for the `reason` given.",
    504: "No answer came in time; if it is an order, it may have been executed.",
}


def refusals(*codes: int) -> Responses:
    """Return the documented error answers with these statuses."""
    return {code: {"model": ProblemDocument, "description": _TEXTS[code]} for code in codes}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The objects that the endpoints of one application share."""

    sidecar: Sidecar
    exposition: Exposition

    subjects: Mapping[tuple[str, int], str]
    """The subjects of client certificates, by peer address."""

    recent: RecentLines
    """The sidecar's own last log lines."""

    bundling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock that is held while a bundle is made: one at a time."""


def shared_of(request: Request) -> Shared:
    """Return the shared objects of the application of a request."""
    shared = request.app.state.shared
    assert isinstance(shared, Shared), "the application is made with it"
    return shared


def sidecar_of(request: Request) -> Sidecar:
    """Return the sidecar of the application of a request."""
    return shared_of(request).sidecar


def needs(scope: Scope) -> Any:
    """Return a dependency that checks the caller's permission and yields the caller."""
    return Depends(guarded(scope))


def guarded(scope: Scope) -> Callable[..., Awaitable[Caller]]:
    """Return the function that checks the permission, with its scope as an attribute.

    Probes require no token in the OpenAPI document.
    """

    async def open_to_all(request: Request) -> Caller:
        return allow(request, scope)

    async def allowed(request: Request, _documented: Annotated[object, Depends(BEARER)]) -> Caller:
        return allow(request, scope)

    function: Callable[..., Awaitable[Caller]] = open_to_all if scope is Scope.PROBE else allowed
    function.scope = scope  # type: ignore[attr-defined]
    return function


def allow(request: Request, scope: Scope) -> Caller:
    """Return the caller of a request, after the check of its permission. Raises ``Problem`` 401 or 403."""
    shared = shared_of(request)
    guard, client = shared.sidecar.guard, request.scope.get("client")
    subject = shared.subjects.get((client[0], client[1])) if client else None
    caller = guard.caller(request.headers.get("authorization"), subject)
    guard.check(scope, caller, request.headers.get("host"))
    return caller


def order_name(request: Request) -> str:
    """Return the name of an order in audit lines: the last part of its path."""
    return request.url.path.rpartition("/")[2]


async def _orderer(request: Request, _documented: Annotated[object, Depends(BEARER)]) -> Caller:
    """Return the caller of an order. A refused caller leaves an audit line, and learns nothing about the broker."""
    try:
        return allow(request, Scope.CHANGE)
    except Problem as problem:
        write_audit(request, None, order_name(request), dict(request.path_params), problem.status, problem.reason)
        raise


_orderer.scope = Scope.CHANGE  # type: ignore[attr-defined]

Orderer = Annotated[Caller, Depends(_orderer)]
TheSidecar = Annotated[Sidecar, Depends(sidecar_of)]
