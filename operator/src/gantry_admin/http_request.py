"""A single HTTP request to another server, in the event loop. Its size is bounded here, its time by the caller.

Each request has its own connection, because only a few are sent in a second. The answer is untrusted: its head and its
body are bounded, a redirection is not followed, and nothing is decompressed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final, NamedTuple, final
from urllib.parse import SplitResult

import h11

from gantry_remoting import join_address

HEAD_BYTES_MAX: Final = 64 * 1024
"""The longest head of an answer, in bytes."""

BODY_BYTES_MAX: Final = 1 << 20
"""The longest body of an answer, if the caller sets no other limit."""

PIECE_BYTES: Final = 64 * 1024
"""The bytes of an answer that are read at a time."""


class HttpAnswer(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: bytes


@final
class BadAnswer(Exception):
    """The answer is not HTTP, too long, or incomplete. Try again, or another server."""


async def http_request(
    server: SplitResult, method: str, path: str, headers: Mapping[str, str], body: bytes, context: ssl.SSLContext, *,
    bytes_max: int = BODY_BYTES_MAX,
) -> HttpAnswer:  # fmt: skip
    """Send one request and return the answer. Raises OSError or ``BadAnswer``, also for more than ``bytes_max`` bytes.

    ``context`` is used for `https` only.
    """
    async with open_answer(server, method, path, headers, body, context) as answer:
        return HttpAnswer(answer.status, await answer.read(bytes_max))


@final
class OpenAnswer:
    """An answer whose head has arrived. Its body is read as a whole, or in pieces as they arrive."""

    def __init__(self, status: int, http: h11.Connection, reader: asyncio.StreamReader) -> None:
        self.status: Final = status
        self._http: Final = http
        self._reader: Final = reader

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Raises OSError, ``BadAnswer`` or ``h11.ProtocolError``."""
        while True:
            event = await _next_event(self._http, self._reader)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise BadAnswer(f"the answer has an unexpected part: {type(event).__name__}")

    async def read(self, bytes_max: int) -> bytes:
        """Return the whole body. Raises ``BadAnswer`` for more than ``bytes_max`` bytes."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > bytes_max:
                raise BadAnswer(f"the answer is longer than {bytes_max} bytes")
        return bytes(body)


@asynccontextmanager
async def open_answer(
    server: SplitResult, method: str, path: str, headers: Mapping[str, str], body: bytes, context: ssl.SSLContext
) -> AsyncGenerator[OpenAnswer, None]:
    """Send one request, and wait for the head of its answer; the connection is closed at the end of the context.

    Raises OSError or ``BadAnswer``, also while the body is read. ``context`` is used for `https` only.
    """
    is_tls = server.scheme == "https"
    host, port = server.hostname or "", server.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(host, port, ssl=context if is_tls else None)
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    try:
        own = {"Host": join_address(host, port), "Connection": "close", "Content-Length": str(len(body))}
        request = h11.Request(method=method, target=path, headers=list({**own, **headers}.items()))
        pieces = [http.send(request), http.send(h11.Data(data=body)) if body else b"", http.send(h11.EndOfMessage())]
        writer.write(b"".join(piece or b"" for piece in pieces))
        yield OpenAnswer(await _read_status(http, reader), http, reader)
    except h11.ProtocolError as error:
        is_head_long = error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if http.trailing_data[1]:
            reason = "the server closed the connection before the answer was complete"
        else:
            reason = "the answer's head is too long" if is_head_long else f"the answer is not HTTP: {error}"
        raise BadAnswer(reason) from error
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_status(http: h11.Connection, reader: asyncio.StreamReader) -> int:
    """Return the status of an answer, after its head has arrived."""
    while True:
        event = await _next_event(http, reader)
        if isinstance(event, h11.Response):
            return event.status_code
        if not isinstance(event, h11.InformationalResponse):
            raise BadAnswer(f"the answer has an unexpected part: {type(event).__name__}")


async def _next_event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(PIECE_BYTES))
    return event
