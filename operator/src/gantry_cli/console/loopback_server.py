"""An HTTP/1.1 server for the browsers of this machine: on 127.0.0.1 only, with limits, and without buffered streams.

Other programs and other websites can send requests to a loopback port. So every request is checked before its handler
gets it:

    Host             must be this address, or `localhost` with this port. A website that lets its own name resolve to
                     127.0.0.1 (DNS rebinding) sends its own name.
    Origin           if present, must be this server's own origin.
    Sec-Fetch-Site   must not report another site, except for navigation to a page, which has no side effects.
    path             has only printable characters, and no `.` or `..` segment, not even an encoded one.

Authentication is the handler's. If the browser goes away, the handler and the body of its answer are cancelled. If the
body breaks off, the connection is closed without its end, so the browser never takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, final
from urllib.parse import unquote

import h11

from gantry_cli.console.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, PIECE_BYTES, Answer, Request, refusal

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 48
"""Connections at a time: a browser opens 6, and each tab holds one for events. A further one is closed."""
REQUEST_TIMEOUT_S: Final = 75.0
"""How long a connection may wait for a complete request, idle time included."""
WRITE_TIMEOUT_S: Final = 30.0
"""How long a browser may read nothing of an answer: the sidecar has the same limit."""
BACKLOG: Final = 64
METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"))
"""OPTIONS is not among them: no other origin is ever allowed."""

PATH: Final = re.compile(r"/[!-~]*")
"""A path and query of printable ASCII characters, without a scheme or a host."""

Handler = Callable[[Request], Awaitable[Answer]]


@final
class BrowserGone(Exception):
    """The browser has closed its connection before its answer was complete."""


@final
class LoopbackServer:
    """One port. Owned by the event loop."""

    def __init__(self, handle: Handler) -> None:
        self._handle: Final = handle
        self._server: asyncio.Server | None = None
        self._writers: Final[set[asyncio.StreamWriter]] = set()
        self.port = 0
        """The port, once it has started."""

    def __repr__(self) -> str:
        return f"<LoopbackServer {self.url} connections={len(self._writers)}>"

    @property
    def url(self) -> str:
        """The address of the server, which is its origin."""
        return f"http://{HOST}:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listen on a port; 0 takes a free one. Raises OSError if it is in use."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
            self._server = await asyncio.start_server(self._serve, sock=listener, backlog=BACKLOG, limit=PIECE_BYTES)
        except BaseException:
            listener.close()
            raise
        self.port = listener.getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    # -- one connection ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._writers.add(writer)
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            with suppress(OSError, h11.ProtocolError, BrowserGone):
                while await self._exchange(http, reader, writer):
                    http.start_next_cycle()
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _exchange(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:  # fmt: skip
        """Receive one request and answer it. Return whether another one may follow."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _receive(http, reader)
        except h11.RemoteProtocolError as error:
            if http.our_state is h11.SEND_RESPONSE or http.our_state is h11.IDLE:
                await _send(http, writer, refusal(error.error_status_hint, "not a valid request"))
            return False
        if request is None:
            return False
        if isinstance(request, Answer):  # the refusal of a request that is not read to its end
            await _send(http, writer, request)
            return False
        is_whole = False
        with suppress_groups(BrowserGone, OSError, h11.ProtocolError):
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_raise_when_gone(http, reader))
                await self._answer(http, writer, request)
                watch.cancel()
            is_whole = True
        return is_whole and http.our_state is h11.DONE and http.their_state is h11.DONE

    async def _answer(self, http: h11.Connection, writer: asyncio.StreamWriter, request: Request) -> None:
        answer = refused if (refused := self._refusal(request)) else await self._handle(request)
        try:
            await _send(http, writer, answer)
        finally:
            answer.close()

    def _refusal(self, request: Request) -> Answer | None:
        """Return the answer to a request that no handler may get; None for all others."""
        own = {f"{HOST}:{self.port}", f"localhost:{self.port}"}
        host = (request.header("host") or "").lower()
        if host not in own:
            return refusal(403, "the Host header must be the address of this server")
        if any(name == b"origin" for name, _ in request.headers) and request.header("origin") != f"http://{host}":
            return refusal(403, "requests of other origins are refused")
        is_navigation = request.method == "GET" and not request.path.startswith("/v1/")
        if not is_navigation and request.header("sec-fetch-site") not in (None, "same-origin", "none"):
            return refusal(403, "requests of other sites are refused")
        if request.method not in METHODS:
            return refusal(405, "method not allowed")
        if not PATH.fullmatch(request.target) or not is_plain_path(request.path):
            return refusal(400, "not a valid path")
        return None


def is_plain_path(path: str) -> bool:
    """Return whether a path has no segment that means another place, not even when it is decoded twice."""
    decoded = unquote(unquote(path))
    return "\\" not in decoded and not any(part in (".", "..") for part in decoded.split("/"))


async def _receive(http: h11.Connection, reader: asyncio.StreamReader) -> Request | Answer | None:
    """Return the next request, None if the browser closes the connection, or the refusal of a body that is too long."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(PIECE_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                return refusal(413, f"the body is too long: at most {BODY_BYTES_MAX} bytes are allowed")
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None, "h11 yields the head first"
            target = head.target.decode("ascii", "replace")
            return Request(head.method.decode("ascii"), target, list(head.headers), bytes(body))
        else:  # h11.ConnectionClosed
            return None


async def _raise_when_gone(http: h11.Connection, reader: asyncio.StreamReader) -> None:
    """Raise ``BrowserGone`` at the end of the connection. A byte of a further request is kept, and ends the watch."""
    found = await reader.read(1)
    if not found:
        raise BrowserGone
    http.receive_data(found)


@contextmanager
def suppress_groups(*kinds: type[Exception]) -> Iterator[None]:
    """Suppress exceptions of these kinds, alone or in a group; a group with any other exception is raised."""
    try:
        yield
    except kinds:
        return
    except ExceptionGroup as group:
        _, others = group.split(kinds)
        if others is not None:
            raise


async def _send(http: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
    """Send an answer piece by piece, as it arrives. Raises what its body raises, and OSError."""
    writer.write(http.send(h11.Response(status_code=answer.status, headers=list(answer.headers))) or b"")
    async for piece in _pieces(answer.body):
        if piece:
            writer.write(http.send(h11.Data(data=piece)) or b"")
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()
    writer.write(http.send(h11.EndOfMessage()) or b"")
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await writer.drain()


async def _pieces(body: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
        return
    async for piece in body:
        yield piece
