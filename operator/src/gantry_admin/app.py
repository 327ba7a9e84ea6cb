"""The HTTP application: every endpoint, the form of error answers, and the checks that come before any endpoint.

No answer allows another origin, so a page of another site can read nothing. A body that is longer than any order is
refused while it is received. Every error answer of the application has the same form: `{"reason": ...}`; a probe that
fails answers with its own document.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final, final

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gantry_admin.bundle import RecentLines
from gantry_admin.errors import Problem
from gantry_admin.metrics import Exposition
from gantry_admin.routes import (
    accounts,
    changes,
    clients,
    console,
    lag,
    log,
    messages,
    observe,
    probes,
    resends,
    role,
    search,
    status,
    tables,
    topic_messages,
)
from gantry_admin.routes.common import Shared
from gantry_admin.sidecar import Sidecar
from gantry_wire.version import VERSION

BODY_BYTES_MAX: Final = 64 * 1024
"""The longest body of a request, in bytes."""

CONSOLE: Final = Path(__file__).parent / "console"
"""The folder with the files of the console."""

SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
"""The headers of all answers except the files of the console."""

CONSOLE_HEADERS: Final = {
    # The page may load only its own files, has no inline scripts, and no text can become markup.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-cache",
}
_DOCS_HEAD: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><h1>{title}</h1>
<p>The document itself: <a href="/openapi.json">/openapi.json</a></p>
"""
_REASONS: Final = {404: "endpoint not found", 405: "method not allowed"}
"""The reason in an error answer, by its HTTP status."""


def make_app(
    sidecar: Sidecar, *, subjects: Mapping[tuple[str, int], str] | None = None, recent: RecentLines | None = None
) -> FastAPI:
    """Return the application of one sidecar. ``subjects`` maps peer addresses to subjects of client certificates."""
    app = FastAPI(title="Gantry admin sidecar", version=VERSION, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.shared = Shared(
        sidecar=sidecar,
        exposition=Exposition(sidecar),
        subjects={} if subjects is None else subjects,
        recent=recent or RecentLines(logging.Formatter()),
    )
    for module in (
        probes, status, tables, lag, clients, messages, topic_messages, search, resends, changes, accounts, role, log,
        observe, console,
    ):  # fmt: skip
        app.include_router(module.router)
    if sidecar.settings.openapi:
        _serve_openapi(app)
    if CONSOLE.is_dir():
        app.mount("/console", StaticFiles(directory=CONSOLE, html=True), name="console")
        app.add_api_route("/", _to_console, include_in_schema=False)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _internal_error)
    app.add_middleware(SecurityMiddleware)
    return app


async def _to_console(request: Request) -> Response:
    return RedirectResponse("/console/")


def _serve_openapi(app: FastAPI) -> None:
    async def document(request: Request) -> Response:
        return JSONResponse(app.openapi())

    async def page(request: Request) -> Response:
        return Response(_docs_page(app.openapi()), media_type="text/html")

    app.add_api_route("/openapi.json", document, include_in_schema=False)
    app.add_api_route("/docs", page, include_in_schema=False)


def _docs_page(document: Mapping[str, Any]) -> str:
    """Return the OpenAPI document as an HTML page, one section for each endpoint, without external resources.

    The network of a broker often has no internet access, and third-party scripts would be one more attack surface.
    """
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [_DOCS_HEAD.format(title=title)]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(path, method, operation)
    return "".join([*parts, "</body></html>"])


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
    text = operation.get("description") or operation.get("summary") or ""
    yield f"<p>{escape(text)}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<table><tr><th>parameter</th><th>in</th><th>meaning</th></tr>"
        for one in parameters:
            name, place, meaning = (escape(str(one.get(key, ""))) for key in ("name", "in", "description"))
            yield f"<tr><td><code>{name}</code></td><td>{place}</td><td>{meaning}</td></tr>"
        yield "</table>"
    yield "<ul>"
    for code, answer in operation.get("responses", {}).items():
        yield f"<li>{escape(code)}: {escape(answer.get('description', ''))}</li>"
    yield "</ul></section>"


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem), "registered for it"
    return JSONResponse(error.document(), error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException), "registered for it"
    reason = _REASONS.get(error.status_code, str(error.detail))
    headers = {"Allow": _allowed_methods(request)} if error.status_code == 405 else error.headers
    return JSONResponse({"reason": reason}, error.status_code, headers=headers)


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes with the path of a request. The router names those of the first one only."""
    routes = [
        one for one in request.app.routes if isinstance(one, Route) and one.matches(request.scope)[0] != Match.NONE
    ]
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer 422 with the invalid fields and their errors, never with the values sent, which could be secrets."""
    assert isinstance(error, RequestValidationError), "registered for it"
    texts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10]]
    return JSONResponse({"reason": "; ".join(texts)[:2_000]}, 422)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer 500 with the security headers: Starlette calls this outside of ``SecurityMiddleware``."""
    reason = "internal error; see the log of the sidecar"
    return JSONResponse({"reason": reason}, 500, headers=_security_headers(request.scope))


def _security_headers(scope: Scope) -> Mapping[str, str]:
    """Return the headers that every answer to this request has."""
    return SECURITY_HEADERS | (CONSOLE_HEADERS if scope["path"].startswith("/console") else {})


@final
class BodyTooLong(HTTPException):
    """The body of a request is longer than any order. Code that reads a body must not catch it."""

    def __init__(self) -> None:
        super().__init__(
            413, f"the body is too long: at most {BODY_BYTES_MAX} bytes are allowed", headers={"Connection": "close"}
        )


@final
class SecurityMiddleware:
    """Bounds request bodies, and adds the security headers to every answer that passes through it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received_bytes, has_begun = 0, False

        async def bounded_receive() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > BODY_BYTES_MAX:
                raise BodyTooLong
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                present = {name for name, _ in message["headers"]}
                extra = ((name.lower().encode(), value.encode()) for name, value in headers.items())
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in present)]
            await send(message)

        headers = _security_headers(scope)
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        try:
            if not length.isdigit() or int(length) > BODY_BYTES_MAX:
                raise BodyTooLong
            await self._app(scope, bounded_receive, send_with_headers)
        except BodyTooLong:
            if has_begun:
                raise
            error = BodyTooLong()
            refusal = JSONResponse({"reason": error.detail}, error.status_code, headers=error.headers)
            await refusal(scope, receive, send_with_headers)
