"""One-time codes for the console, and the sessions that they are exchanged for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from gantry_admin.audit import audited, write_audit
from gantry_admin.console_sessions import CODE_LIFETIME_S, SESSION_LIFETIME_S
from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.guard import NOBODY, Caller, Scope
from gantry_admin.routes.common import TheSidecar, needs, refusals

router = APIRouter(prefix="/v1/console", tags=["console"])


class CodeDocument(Document):
    """A way into the console, for one browser."""

    code: str = Field(description="Goes behind the address of the console, `/console/#code=CODE`, and works once.")
    lifetime_s: int = Field(description="How long it may be used.")


class SessionBody(Document):
    """What a page has found behind the `#` of its address."""

    code: str = Field(max_length=200)


class SessionDocument(Document):
    """What a page shows as its Bearer token from now on."""

    session: str
    lifetime_s: int = Field(description="How long it lasts. It ends earlier with its token, and with the sidecar.")


@router.post("/codes", responses=refusals(401, 403, 413))
async def new_code(request: Request, sidecar: TheSidecar, caller: Annotated[Caller, needs(Scope.READ)]) -> CodeDocument:
    """A code that opens the console once, with what this token may. Only a token gets one."""
    with audited(request, caller, "console code", {}):
        code = sidecar.guard.new_console_code(caller, request.headers.get("authorization"))
    return CodeDocument(code=code, lifetime_s=CODE_LIFETIME_S)


@router.post("/sessions", dependencies=[needs(Scope.PROBE)], responses=refusals(401, 413, 422))
async def new_session(request: Request, sidecar: TheSidecar, body: SessionBody) -> SessionDocument:
    """A session for a code, which is used up. Whoever has the code needs nothing else."""
    session = sidecar.guard.sessions.exchange(body.code)
    if session is None:
        reason = "the code is not known, was used, or has expired; `gantry console` prints another"
        write_audit(request, NOBODY, "console session", {}, 401, reason)
        raise Problem(401, reason)
    write_audit(request, sidecar.guard.caller(f"Bearer {session}", None), "console session", {}, 200, "")
    return SessionDocument(session=session, lifetime_s=SESSION_LIFETIME_S)
