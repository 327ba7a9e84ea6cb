"""The sidecar that answers for a group: one at a time, and another one after it has failed.

links     a sidecar is chosen, a one-time code is made beside it, a connection is opened and checked, and the code
          is exchanged for a session
requests  use the session of the present link. If the sidecar cannot be reached, closes the connection or has
          forgotten the session, the link is dropped, and the request is sent to the next sidecar, unless it is an
          order that may have been executed
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol, final

import h11

from gantry_cli.console.http import (
    DOCUMENT_BYTES_MAX,
    Answer,
    Headers,
    Request,
    SidecarConnection,
    SidecarUnavailable,
    connection_over,
    refusal,
)
from gantry_cli.console.threads import in_thread

LINK_TIMEOUT_S: Final = 30.0
"""How long it may take to make a code beside one sidecar, to connect to it, and to log in."""
SIDECARS_MAX: Final = 6
"""How many sidecars are tried for one link: a group may have many, and each may need the whole time limit."""
ATTEMPTS: Final = 3
"""How many sidecars one request is sent to at most."""
PAUSE_S: Final = 2.0
"""How long a failed link is reported to all requests before the next attempt."""
CHECK_AFTER_S: Final = 3.0
"""How long the head of an answer may take before the sidecar is checked. The page waits for 8 s for most answers."""
PROBE_TIMEOUT_S: Final = 8.0
"""How long the check may take: a new connection, and the answer to a probe, which no sidecar delays."""
ANSWER_TIMEOUT_S: Final = 80.0
"""How long the head of an answer may take: the page waits for 70 s for an order."""
IDLE_CONNECTIONS_MAX: Final = 6
"""Connections kept for further requests: a browser uses as many at a time."""
IDLE_S: Final = 15.0
"""How long they are kept. A sidecar closes one that is idle for 30 s."""
REASON_MAX: Final = 600

SENT_HEADERS: Final = (b"accept", b"content-type", b"if-none-match", b"if-modified-since", b"last-event-id")
"""The headers of a request that are passed on."""
KEPT_BACK_HEADERS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade",
     b"set-cookie", b"location", b"clear-site-data", b"refresh")
)  # fmt: skip
"""The headers of an answer that are not passed on: those of one connection, and those that no sidecar sends."""

FAILURES: Final = (OSError, TimeoutError, h11.ProtocolError, SidecarUnavailable)
"""The exceptions of a connection to a sidecar."""


class SidecarAccess(NamedTuple):
    """What a login at one sidecar needs."""

    code: str
    """A one-time code of the sidecar."""
    certificate_digest: bytes
    """The SHA-256 of the sidecar's certificate; empty for a sidecar without TLS."""


class SidecarSource(Protocol):
    """Where the sidecars of one group are. All methods block, have time limits, and are called in threads.

    They raise ``SidecarUnavailable``.
    """

    @property
    def name(self) -> str:
        """The group's name for people."""

    def names(self) -> list[str]:
        """Return the names of the sidecars that run, the preferred ones first."""

    def new_access(self, name: str) -> SidecarAccess:
        """Make a one-time code beside a sidecar."""

    def connect(self, name: str) -> socket.socket:
        """Return a socket that is connected to the sidecar's port."""


class Link(NamedTuple):
    """The sidecar that answers now."""

    name: str
    certificate_digest: bytes
    session: str


@final
class Backend:
    """Sends the requests of one group's console to a sidecar. Owned by the event loop."""

    def __init__(self, source: SidecarSource, report: Callable[[str], None]) -> None:
        """``report`` prints a line about a change of the sidecar."""
        self._source: Final = source
        self._report: Final = report
        self._choice: asyncio.Task[Link] | None = None
        """The choice of a sidecar in progress, for which all requests wait."""
        self._probe: asyncio.Task[None] | None = None
        """The check in progress whether the sidecar still answers."""
        self._link: Link | None = None
        self._failed_name = ""
        self._failure: tuple[float, str] | None = None
        """When the last link failed, and why."""
        self._idle: list[SidecarConnection] = []
        self._in_use: Final[set[SidecarConnection]] = set()

    def __repr__(self) -> str:
        return f"<Backend {self._source.name} at {self._link.name if self._link else 'no sidecar'}>"

    async def link(self) -> Link:
        """Return the sidecar that answers; choose one if none does. Raises ``SidecarUnavailable``.

        A choice continues if its request is cancelled: a page waits for 8 s, and several sidecars may not answer.
        """
        if self._link is not None:
            return self._link
        if self._failure is not None and time.monotonic() - self._failure[0] < PAUSE_S:
            raise SidecarUnavailable(self._failure[1])
        if self._choice is None:
            self._choice = asyncio.create_task(self._choose(), name=f"choose a sidecar of {self._source.name}")
            self._choice.add_done_callback(_take_exception)
        return await asyncio.shield(self._choice)

    async def _choose(self) -> Link:
        """Choose a sidecar, and report which one or why none can be reached."""
        try:
            self._link = await self._new_link()
        except SidecarUnavailable as error:
            if self._failure is None:
                self._report(f"{self._source.name}: no sidecar can be reached: {error}")
            self._failure = (time.monotonic(), str(error))
            raise
        finally:
            self._choice = None
        self._failure = None
        self._report(f"{self._source.name}: served by {self._link.name}")
        return self._link

    async def _new_link(self) -> Link:
        names = await in_thread(self._source.names)
        if not names:
            raise SidecarUnavailable("no sidecar of the group runs")
        names.sort(key=lambda name: name == self._failed_name)  # the one that has failed comes last
        reasons = []
        for name in names[:SIDECARS_MAX]:
            try:
                async with asyncio.timeout(LINK_TIMEOUT_S):
                    return await self._log_in(name)
            except FAILURES as error:
                reason = f"{name}: {reason_of(error)}"
                reasons += [] if reason in reasons else [reason]
        raise SidecarUnavailable("; ".join(reasons)[:REASON_MAX])

    async def _log_in(self, name: str) -> Link:
        """Make a code beside a sidecar, and exchange it for a session of that sidecar."""
        access = await in_thread(partial(self._source.new_access, name))
        connection = await self._open(name, access.certificate_digest)
        try:
            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            body = json.dumps({"code": access.code}).encode()
            answer = await connection.request(Request("POST", "/v1/console/sessions", headers, body))
            document = json.loads(await read_body(answer, DOCUMENT_BYTES_MAX))
            if answer.status != HTTPStatus.OK or not isinstance(document["session"], str):
                raise SidecarUnavailable(f"the sidecar refused the login (status {answer.status})")
            session = str(document["session"]).encode("ascii").decode("ascii")
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise SidecarUnavailable("the sidecar's answer to the login has no session") from error
        finally:
            connection.close()
        return Link(name, access.certificate_digest, session)

    async def _open(self, name: str, certificate_digest: bytes) -> SidecarConnection:
        channel = await in_thread(partial(self._source.connect, name), discard=socket.socket.close)
        return await connection_over(channel, name, certificate_digest)

    def _drop(self, link: Link, reason: str) -> None:
        """Give a sidecar up, unless another request has done so already."""
        if self._link is not link:
            return
        self._report(f"{self._source.name}: {link.name} is not reachable any more: {reason}; choosing a sidecar")
        self._link, self._failed_name = None, link.name
        self._close_connections()

    def _check(self, link: Link) -> None:
        """Begin to check whether a sidecar still answers, since a request takes long: it may only be a long one."""
        if self._probe is None and self._link is link:
            self._probe = asyncio.create_task(self._check_now(link), name=f"check {link.name}")

    async def _check_now(self, link: Link) -> None:
        """Give a sidecar up that does not answer a probe over a new connection."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                connection = await self._open(link.name, link.certificate_digest)
                try:
                    await connection.request(Request("GET", "/livez", [(b"host", b"localhost")], b""))
                finally:
                    connection.close()
        except FAILURES as error:
            self._drop(link, reason_of(error))
        finally:
            self._probe = None

    # -- requests ------------------------------------------------------------------------------------------------------

    async def send(self, request: Request) -> Answer:
        """Return a sidecar's answer, or an error answer with the reason. The caller must close it."""
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                link = await self.link()
            except SidecarUnavailable as error:
                return refusal(502, f"no sidecar of {self._source.name} can be reached: {error}")
            try:
                answer = await self._send_to(link, request)
            except OutcomeUnknown as error:
                self._drop(link, str(error))
                return refusal(504, f"{link.name}: {error}; the order may have been executed")
            except FAILURES as error:
                reason = reason_of(error)
                self._drop(link, reason)
                continue
            if answer.status != HTTPStatus.UNAUTHORIZED or not request.path.startswith("/v1/"):
                return answer
            answer.close()
            reason = "it has restarted, or its token was replaced"
            self._drop(link, reason)
        return refusal(502, f"no sidecar of {self._source.name} answers: {reason}")

    async def _send_to(self, link: Link, request: Request) -> Answer:
        """Send a request over an idle or a new connection. An order never uses one that may be closing."""
        is_order = request.method not in ("GET", "HEAD")
        while not is_order and (kept := self._idle_connection()) is not None:
            try:
                return await self._over(kept, link, request)
            except TimeoutError:
                raise
            except (OSError, h11.ProtocolError):
                if self._link is not link:
                    raise
                continue  # the sidecar has closed it meanwhile
        connection = await self._open(link.name, link.certificate_digest)
        try:
            return await self._over(connection, link, request)
        except (OSError, h11.ProtocolError) as error:
            if is_order:
                raise OutcomeUnknown(reason_of(error)) from error
            raise

    async def _over(self, connection: SidecarConnection, link: Link, request: Request) -> Answer:
        """Send a request over a connection, and return the answer when its head has arrived."""
        headers = [pair for pair in request.headers if pair[0] in SENT_HEADERS]
        headers += [(b"host", b"localhost"), (b"authorization", f"Bearer {link.session}".encode())]
        self._in_use.add(connection)
        check = asyncio.get_running_loop().call_later(CHECK_AFTER_S, self._check, link)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await connection.request(request._replace(headers=headers))
        except BaseException:
            self._give_back(connection)
            raise
        finally:
            check.cancel()
        assert not isinstance(answer.body, bytes), "a connection yields the body piece by piece"
        keep, discard = partial(self._keep, connection, link), partial(self._give_back, connection)
        return Answer(answer.status, _passed_on(answer.headers), SidecarBody(answer.body, keep, discard))

    def _give_back(self, connection: SidecarConnection) -> None:
        """Close a connection after its request."""
        self._in_use.discard(connection)
        connection.close()

    def _keep(self, connection: SidecarConnection, link: Link) -> None:
        """Keep a connection for further requests after a complete answer, or close it."""
        self._in_use.discard(connection)
        if connection.is_reusable and self._link is link and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def _idle_connection(self) -> SidecarConnection | None:
        while self._idle:
            found = self._idle.pop()
            if found.is_reusable and time.monotonic() - found.idle_since_s < IDLE_S:
                return found
            found.close()
        return None

    def _close_connections(self) -> None:
        """Close the connections to the sidecar: its requests fail, and are sent to another one or broken off."""
        for connection in (*self._idle, *self._in_use):
            connection.close()
        self._idle.clear()

    def close(self) -> None:
        """Close all connections, and end what is in progress."""
        self._close_connections()
        for task in (self._choice, self._probe):
            if task is not None:
                task.cancel()


@final
class SidecarBody:
    """The body of an answer, piece by piece. The connection is kept after the last piece, and closed otherwise."""

    def __init__(self, pieces: AsyncIterator[bytes], on_end: Callable[[], None], on_break: Callable[[], None]) -> None:
        self._pieces: Final = pieces
        self._on_end: Final = on_end
        self._on_break: Final = on_break
        self._is_over = False

    def __aiter__(self) -> SidecarBody:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self._finish(self._on_end)
            raise
        except BaseException:
            self._finish(self._on_break)
            raise

    def close(self) -> None:
        """Close the connection unless the body was complete."""
        self._finish(self._on_break)

    def _finish(self, how: Callable[[], None]) -> None:
        if not self._is_over:
            self._is_over = True
            how()


@final
class OutcomeUnknown(Exception):
    """The connection ended after an order was sent and before its answer. It must not be repeated."""


def reason_of(error: BaseException) -> str:
    """Return why a connection failed, for people."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__)[:REASON_MAX]


async def read_body(answer: Answer, bytes_max: int) -> bytes:
    """Return the whole body of an answer. Raises ValueError if it is longer."""
    if isinstance(answer.body, bytes):
        return answer.body
    found = bytearray()
    async for piece in answer.body:
        found += piece
        if len(found) > bytes_max:
            raise ValueError(f"the answer is longer than {bytes_max} bytes")
    return bytes(found)


def _take_exception(task: asyncio.Task[Link]) -> None:
    """Take the exception of a choice for which no request waits any more: it has been reported."""
    if not task.cancelled():
        task.exception()


def _passed_on(headers: Headers) -> Headers:
    return [pair for pair in headers if pair[0] not in KEPT_BACK_HEADERS and not pair[0].startswith(b"access-control-")]
