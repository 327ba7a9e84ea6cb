"""One-time codes for the console, and the sessions that they are exchanged for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from gantry_access.console_sessions import CODE_LIFETIME_S, SESSION_LIFETIME_S
from gantry_admin.audit import audited, write_audit
from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.guard import ANONYMOUS, Caller, Scope
from gantry_admin.routes.common import TheSidecar, needs, refusals

router = APIRouter(prefix="/v1/console", tags=["console"])


class CodeDocument(Document):
    """A one-time code that opens the console in one browser."""

    code: str = Field(description="Appended to the address of the console, `/console/#code=CODE`; works once.")
    lifetime_s: int = Field(description="Seconds for which the code can be used.")


class SessionBody(Document):
    """The code that the console's page has found after the `#` in its address."""

    code: str = Field(max_length=200)


class SessionDocument(Document):
    """A session, which the page sends as its Bearer token."""

    session: str
    lifetime_s: int = Field(description="Seconds until it expires. It also ends with its token, and with the sidecar.")


class AccessDocument(Document):
    """What the caller may do, so that a page can offer it, or say why not."""

    name: str | None = Field(description="The name of the token or certificate; null for an anonymous caller.")
    may_change: bool
    needs_token: bool = Field(description="Whether a token that permits changes is missing.")
    reason: str = Field(description="Why the caller may not change anything; empty if it may.")


@router.get("/access", responses=refusals(401, 403))
async def access(
    request: Request, sidecar: TheSidecar, caller: Annotated[Caller, needs(Scope.VIEW)]
) -> AccessDocument:  # fmt: skip
    """Return whether the caller may change anything."""
    try:
        sidecar.guard.check(Scope.CHANGE, caller, request.headers.get("host"))
    except Problem as problem:
        is_missing = problem.status == 401
        return AccessDocument(name=caller.name, may_change=False, needs_token=is_missing, reason=problem.reason)
    return AccessDocument(name=caller.name, may_change=True, needs_token=False, reason="")


@router.post("/codes", responses=refusals(401, 403, 413))
async def new_code(request: Request, sidecar: TheSidecar, caller: Annotated[Caller, needs(Scope.READ)]) -> CodeDocument:
    """Create a code that opens the console once, with the permissions of this token. Only a token gets one."""
    with audited(request, caller, "console code", {}):
        code = sidecar.guard.new_console_code(caller, request.headers.get("authorization"))
    return CodeDocument(code=code, lifetime_s=CODE_LIFETIME_S)


@router.post("/sessions", dependencies=[needs(Scope.PROBE)], responses=refusals(401, 413, 422))
async def new_session(request: Request, sidecar: TheSidecar, body: SessionBody) -> SessionDocument:
    """Exchange a code, which can be used once, for a session. The code is the only credential needed."""
    session = sidecar.guard.sessions.exchange(body.code)
    if session is None:
        reason = "the code is unknown, used or expired; run `gantry console` for a new one"
        write_audit(request, ANONYMOUS, "console session", {}, 401, reason)
        raise Problem(401, reason)
    write_audit(request, sidecar.guard.caller(f"Bearer {session}", None), "console session", {}, 200, "")
    return SessionDocument(session=session, lifetime_s=SESSION_LIFETIME_S)
