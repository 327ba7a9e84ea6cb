"""Requests and answers of the proxy, and one connection to a sidecar.

An answer is untrusted: its head is bounded, and its body is passed on piece by piece, as it arrives, and never kept.
A connection has one request at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple, final

import h11

HEAD_BYTES_MAX: Final = 64 * 1024
"""The longest head of a request or an answer: the sidecar has the same limit."""
BODY_BYTES_MAX: Final = 64 * 1024
"""The longest body of a request: the sidecar accepts no longer one."""
DOCUMENT_BYTES_MAX: Final = 64 * 1024
"""The longest answer that this program reads itself: that of a login."""
PIECE_BYTES: Final = 64 * 1024
"""The bytes of a body that are passed on at a time."""
CONNECT_TIMEOUT_S: Final = 10.0
"""How long a TLS handshake may take over a forwarded port."""

Headers = Sequence[tuple[bytes, bytes]]
"""Names, which are in lower case, and values."""


class Request(NamedTuple):
    """A request whose body is complete."""

    method: str
    target: str
    """The path and the query."""
    headers: Headers
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """Return the value of a header; None without it, or if it occurs more than once."""
        found = [value for key, value in self.headers if key == name.encode()]
        return found[0].decode("latin-1") if len(found) == 1 else None


class Answer(NamedTuple):
    """The head of an answer, and its body: bytes, or pieces that arrive later."""

    status: int
    headers: Headers
    body: bytes | AsyncIterator[bytes]

    def close(self) -> None:
        """Release the connection behind a body that is not complete. May be called more than once."""
        close = getattr(self.body, "close", None)
        if close is not None:
            close()


def document_answer(status: int, document: Any) -> Answer:
    """Return an answer with a JSON document, which no cache keeps."""
    return content_answer(status, "application/json", json.dumps(document).encode())


def content_answer(status: int, media_type: str, content: bytes, *more: tuple[bytes, bytes]) -> Answer:
    """Return an answer with this content, which no cache keeps."""
    headers = [
        (b"content-type", media_type.encode()), (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
        *more,
    ]  # fmt: skip
    return Answer(status, headers, content)


def refusal(status: int, reason: str) -> Answer:
    """Return an error answer in the form of the sidecar's."""
    return document_answer(status, {"reason": reason})


@final
class SidecarUnavailable(Exception):
    """No sidecar of the group can be reached. The message has the reason; try again later."""


@final
class SidecarConnection:
    """One connection to a sidecar. Owned by the task that uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self._http: Final = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.idle_since_s = time.monotonic()
        """When the last answer was complete, by the monotonic clock."""

    @property
    def is_reusable(self) -> bool:
        """Whether the last answer is complete, and the sidecar has not closed the connection."""
        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    async def request(self, request: Request) -> Answer:
        """Send a request, and return the answer as soon as its head has arrived.

        Raises OSError and ``h11.ProtocolError``. The body raises them, too, if the sidecar ends within it.
        """
        length = (b"content-length", str(len(request.body)).encode())
        headers = [*request.headers, *([length] if request.body or request.method not in ("GET", "HEAD") else [])]
        head = h11.Request(method=request.method, target=request.target, headers=headers)
        parts = [self._http.send(head), self._http.send(h11.Data(data=request.body)) if request.body else b""]
        self._writer.write(b"".join(part or b"" for part in [*parts, self._http.send(h11.EndOfMessage())]))
        await self._writer.drain()
        while not isinstance(event := await self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionError("the answer has no head")
        return Answer(event.status_code, list(event.headers), self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise ConnectionError("the answer ends before it is complete")
            yield bytes(event.data)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.idle_since_s = time.monotonic()

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE_BYTES))
        return event

    def close(self) -> None:
        """Close the connection at once. May be called more than once."""
        self._writer.transport.abort()


async def connection_over(channel: socket.socket, name: str, certificate_digest: bytes) -> SidecarConnection:
    """Return a connection over a connected socket.

    With ``certificate_digest`` it uses TLS, and the sidecar must present the certificate with this SHA-256, which was
    read inside its pod. No byte of a request is sent before. Raises OSError and ``SidecarUnavailable``.
    """
    context = None
    if certificate_digest:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The digest identifies the certificate: no name in it and no authority could say more.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    channel.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                sock=channel, ssl=context, server_hostname=None if context is None else name, limit=PIECE_BYTES
            )
    except BaseException:
        channel.close()
        raise
    if context is not None:
        presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(presented).digest(), certificate_digest):
            writer.transport.abort()
            raise SidecarUnavailable("the port presents another certificate than the sidecar in the pod")
    return SidecarConnection(reader, writer)
