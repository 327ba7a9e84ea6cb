"""The console of one group on loopback: pages and endpoints of one of its sidecars, for browsers that have logged in.

A browser logs in with a one-time code of this program, and gets a session of this program. The session of the sidecar
replaces it in each request, so no browser ever has a credential of the group, the sessions of groups cannot be mixed
up, and a page keeps its session when another sidecar of the group answers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access.console_sessions import SESSION_LIFETIME_S, ConsoleSessions
from gantry_cli.console.backend import Backend
from gantry_cli.console.http import Answer, Request, content_answer, document_answer, refusal
from gantry_cli.console.loopback_server import LoopbackServer

CODE_CHARACTERS_MAX: Final = 200
"""A longer code is refused: no sidecar and no console makes one."""
SERVER_MODULE: Final = "/console/js/server.js"
"""The module of the page with what serves it. The sidecar's own file has no list of groups."""
SESSIONS_PATH: Final = "/v1/console/sessions"
UNAUTHORIZED: Final = "log in with a new address of `gantry console`: this one was used, or has expired"


@final
class BrowserLogin:
    """The codes and sessions of the browsers of one server."""

    def __init__(self) -> None:
        self._sessions: Final = ConsoleSessions()

    def address(self, url: str) -> str:
        """Return the address of a page with a new one-time code."""
        return f"{url}#code={self._sessions.new_code('browser', b'', may_change=True)}"

    def exchange(self, request: Request) -> Answer:
        """Exchange the code in the body of a request for a session, as the sidecar does."""
        try:
            code = json.loads(request.body)["code"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return refusal(422, "the body must be a document with a code")
        if not isinstance(code, str) or len(code) > CODE_CHARACTERS_MAX:
            return refusal(422, "the code is not valid")
        session = self._sessions.exchange(code)
        if session is None:
            return refusal(401, UNAUTHORIZED)
        return document_answer(200, {"session": session, "lifetime_s": SESSION_LIFETIME_S})

    def has_logged_in(self, request: Request) -> bool:
        """Return whether a request has a session."""
        scheme, _, session = (request.header("authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and self._sessions.grant_of(session.strip()) is not None


@final
class GroupConsole:
    """The console of one group, with a port of its own, so that its origin is its own, too. Owned by the loop."""

    def __init__(self, backend: Backend, group: str, groups_page: str | None = None) -> None:
        """``groups_page`` is the address of the list of groups, to which the page links."""
        self._backend: Final = backend
        self._login: Final = BrowserLogin()
        self._server_module: Final = server_module(group, groups_page)
        self._server: Final = LoopbackServer(self._handle)

    def __repr__(self) -> str:
        return f"<GroupConsole {self._server.url} {self._backend!r}>"

    async def start(self, port: int = 0) -> None:
        """Listen on a port; 0 takes a free one. Raises OSError."""
        await self._server.start(port)

    def new_address(self) -> str:
        """Return an address that opens the console in one browser."""
        return self._login.address(f"{self._server.url}/console/")

    async def close(self) -> None:
        await self._server.close()
        self._backend.close()

    async def _handle(self, request: Request) -> Answer:
        path = request.path
        if path in ("/", "/console"):
            return Answer(307, [(b"location", b"/console/"), (b"content-length", b"0")], b"")
        if path == SERVER_MODULE and request.method == "GET":
            return content_answer(200, "text/javascript", self._server_module)
        if path == SESSIONS_PATH and request.method == "POST":
            return self._login.exchange(request)
        if path.startswith("/console/"):
            if request.method not in ("GET", "HEAD"):
                return refusal(405, "method not allowed")
            return await self._backend.send(request)
        return await answer_if_logged_in(self._login, request, self._backend.send)


async def answer_if_logged_in(
    login: BrowserLogin, request: Request, handle: Callable[[Request], Awaitable[Answer]]
) -> Answer:
    """Return the answer to a request below `/v1/` with a session; otherwise the refusal."""
    if not request.path.startswith("/v1/"):
        return refusal(404, "endpoint not found")
    return await handle(request) if login.has_logged_in(request) else refusal(401, UNAUTHORIZED)


def server_module(group: str, groups_page: str | None) -> bytes:
    """Return the page's module with what serves it. JSON has the same form in JavaScript."""
    text = json.dumps(None if groups_page is None else {"group": group, "url": groups_page})
    return f"export const groupsPage = {text};\n".encode()
