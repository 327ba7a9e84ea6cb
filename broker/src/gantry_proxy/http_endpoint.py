"""Probes and metrics over HTTP/1.1: three paths for GET, one request on a connection, and nothing of a request is kept.

/livez    200 while the event loop runs
/readyz   200 if clients may be sent to this replica, else 503 with the reason
/metrics  the metrics
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_remoting.addresses import open_listening_socket, split_address

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 5.0
"""How long a client may take to send its request and to read the reply."""
REQUEST_BYTES_MAX: Final = 8 * 1024
"""The largest head of a request."""
CONNECTIONS_MAX: Final = 64
"""How many connections are served at once; probes and scrapers need two or three."""

Answer = tuple[int, str, str]
"""Status, content type, and body."""
BACKLOG: Final = 100
"""The kernel's queue of connections."""

TEXT: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@final
class HttpEndpoint:
    """The HTTP server of one proxy. Owned by its event loop."""

    def __init__(
        self, address: str, not_ready_reason: Callable[[], str], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        """``not_ready_reason`` returns why the proxy is not ready; an empty text if it is."""
        self._address: Final = address
        self._not_ready_reason: Final = not_ready_reason
        self._metrics: Final = metrics
        self._server: asyncio.Server | None = None
        self._connections = 0

    def __repr__(self) -> str:
        return f"<HttpEndpoint {self._address} connections={self._connections}>"

    @property
    def port(self) -> int:
        assert self._server is not None, "start comes first"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen on the address. Raises OSError if that is not possible."""
        host, port = split_address(self._address, port_min=0)
        bound = await open_listening_socket(host, port, backlog=BACKLOG)
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        """Stop listening; answers in progress are completed."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def answer(self, method: str, path: str) -> Answer:
        """Return the reply to a request."""
        if method != "GET":
            return 405, TEXT, "only GET is supported\n"
        if path == "/livez":
            return 200, TEXT, "ok\n"
        if path == "/readyz":
            reason = self._not_ready_reason()
            return (503, TEXT, f"{reason}\n") if reason else (200, TEXT, "ok\n")
        if path == "/metrics":
            return 200, METRICS, await self._metrics()
        return 404, TEXT, "expected /livez, /readyz or /metrics\n"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if self._connections <= CONNECTIONS_MAX:
                    writer.write(_encode(await self._read(reader)))
                    await writer.drain()
        except (TimeoutError, OSError):
            writer.transport.abort()
        finally:
            self._connections -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return 400, TEXT, "the request has no complete head, or one that is too large\n"
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return 400, TEXT, "expected a request line of HTTP/1.1\n"
        return await self.answer(words[0], words[1].partition("?")[0])


def _encode(answer: Answer) -> bytes:
    code, kind, body = answer
    data = body.encode()
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + data
