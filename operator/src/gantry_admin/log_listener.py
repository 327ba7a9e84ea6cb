"""Ranges of the log by `sendfile`: a small HTTP/1.1 listener on Python's own event loop, in a thread of its own.

uvloop has no `sendfile`, and the server of the other endpoints cannot pass a file on; so bulk readers use this port.
Without TLS, the bytes go from the page cache to the socket without a copy in the process; with TLS they are read and
encrypted in it. Requests, permissions and answers are the same as at `/v1/log/bytes` of the other listener: `Guard`,
`plan_range` and the limits are shared.

    read head (bounded, with a deadline)  ->  guard  ->  plan  ->  open all files  ->  head of the answer  ->  sendfile

Only `GET` and `HEAD` of that one path are supported. A connection is closed after a request that is not valid HTTP or
has a body; after any other refusal it stays open. The thread has a lower priority than the broker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from io import FileIO
from typing import TYPE_CHECKING, Final, final

import h11

from gantry_admin.certificates import subject_of
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.ranges import log_etag, log_span, plan_range
from gantry_admin.store_files import Piece
from gantry_remoting.close_log import LimitedLog
from gantry_remoting.http_admission import ConnectionSlot, HttpListener, Phase, Reason

if TYPE_CHECKING:
    from gantry_admin.sidecar import Sidecar

log = logging.getLogger(__name__)

PATH: Final = "/v1/log/bytes"
"""The only path that this listener serves."""
HEAD_BYTES_MAX: Final = 16 * 1024
"""The longest head of a request, in bytes."""
SEND_TIMEOUT_S: Final = 60.0
"""The time in which a reader must receive one window; a slower reader is disconnected."""
WINDOW_BYTES: Final = 1 << 20
"""The bytes that are taken from the limit of bytes per second (``limits.TokenBucket``), and sent, in one call. A kernel
without preemption keeps the core for the whole call, so a smaller window delays the broker less; a much smaller one
costs too many turns of the event loop."""


@final
class LogListener:
    """The listener for ranges. The sidecar's event loop starts and closes it; connections are served in its own thread.

    Files are opened in further threads.
    """

    def __init__(self, sidecar: Sidecar, tls: ssl.SSLContext | None) -> None:
        self._sidecar: Final = sidecar
        self._tls: Final = tls
        self._failures: Final = LimitedLog(log)
        """Unexpected exceptions, rate-limited. Owned by the loop of the thread."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<LogListener port={self._sidecar.fast_port} connections={len(self._sidecar.log_admission)}>"

    async def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket, in a new thread."""
        ready = asyncio.get_running_loop().create_future()
        outer = asyncio.get_running_loop()

        def run() -> None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._sidecar.settings.log.niceness)
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._run(bound, lambda: outer.call_soon_threadsafe(ready.set_result, None)))

        self._thread = threading.Thread(target=run, name="gantry-log", daemon=True)
        self._thread.start()
        await ready

    async def close(self) -> None:
        """Close every connection, and end the thread."""
        if self._loop is not None and self._stop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._thread.join, 5.0)

    async def _run(self, bound: socket.socket, notify_ready: Callable[[], object]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = HttpListener(bound, self._sidecar.log_admission, self._protocol, self._tls)
        listener.start()
        notify_ready()
        await self._stop.wait()
        await listener.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _protocol(self, slot: ConnectionSlot) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(
            asyncio.StreamReader(limit=HEAD_BYTES_MAX), lambda reader, writer: self._serve(slot, reader, writer)
        )

    async def _serve(self, slot: ConnectionSlot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        slot.bind(writer.transport.abort)
        try:
            await Connection(self._sidecar, slot, reader, writer).serve()
        except h11.ProtocolError:
            slot.record_close(Reason.BAD_REQUEST)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone, or receives nothing
        except asyncio.CancelledError:
            if self._stop is None or not self._stop.is_set():
                raise
        except Exception as error:  # noqa: BLE001 - an exception costs its own connection and no more
            self._failures.log_callback_failure(slot.address, "serve", error)
        finally:
            slot.release()
            writer.transport.abort()


@final
class Connection:
    """One client connection, which serves one request after another."""

    def __init__(
        self, sidecar: Sidecar, slot: ConnectionSlot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._sidecar: Final = sidecar
        self._slot: Final = slot
        self._reader: Final = reader
        self._writer: Final = writer
        self._http: Final = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._answered = 0
        self._subject: Final = subject_of(writer.get_extra_info("peercert"))

    def __repr__(self) -> str:
        return f"<Connection {self._http.our_state}>"

    async def serve(self) -> None:
        """Serve requests until the client closes the connection, or an error ends it, which is raised."""
        while True:
            request = await self._request()
            if request is None:
                return
            self._slot.enter(Phase.ANSWER, self._answered)
            await self._answer(request)
            self._answered += 1
            if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is not h11.DONE:
                await self._drain()
                return
            self._http.start_next_cycle()
            self._slot.enter(Phase.IDLE, self._answered)

    async def _request(self) -> h11.Request | None:
        """Return the next request, without a body; None if the client has closed the connection."""
        request: h11.Request | None = None
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(HEAD_BYTES_MAX))
                if request is None:
                    self._slot.enter(Phase.HEAD, self._answered)
            elif isinstance(event, h11.Request):
                request = event
                self._slot.enter(Phase.BODY, self._answered)
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.Data):
                await self._refuse(Problem(413, "a request for a range has no body"))
                raise ConnectionAbortedError("the request has a body")
            else:
                return None

    async def _answer(self, request: h11.Request) -> None:
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        try:
            await self._send_range(request, headers)
        except Problem as problem:
            await self._refuse(problem)

    async def _send_range(self, request: h11.Request, headers: Mapping[str, str]) -> None:
        """Answer one request with a range. Raises ``Problem`` only before the first byte is sent."""
        sidecar = self._sidecar
        caller = sidecar.guard.caller(headers.get("authorization"), self._subject)
        sidecar.guard.check(Scope.READ, caller, headers.get("host"))
        if request.target.split(b"?")[0] != PATH.encode():
            raise Problem(404, f"this port serves only {PATH}")
        if request.method not in (b"GET", b"HEAD"):
            raise Problem(405, "method not allowed: use GET or HEAD", headers={"Allow": "GET, HEAD"})
        reading = sidecar.broker.reading
        wanted = plan_range(headers, log_span(reading), log_etag(reading), sidecar.settings.log.range_bytes_max)
        with sidecar.limits.hold_reader(), ExitStack() as stack:
            pieces = await asyncio.to_thread(self._open, wanted.start, wanted.end, stack)
            self._head(206, wanted.headers())
            if request.method == b"GET":
                for piece in pieces:
                    await self._send_file(piece.file, piece.position, piece.length)
                self._http.send_with_data_passthrough(h11.Data(data=_Length(wanted.length)))  # type: ignore[arg-type]
            self._http.send(h11.EndOfMessage())

    def _open(self, start: int, end: int, stack: ExitStack) -> list[Piece]:
        """Open the files of a range in a thread, and start their read-ahead: `sendfile` would block on the disk."""
        pieces = self._sidecar.files.open_range(start, end, stack)
        for piece in pieces:
            os.posix_fadvise(piece.file.fileno(), piece.position, piece.length, os.POSIX_FADV_WILLNEED)
        return pieces

    async def _send_file(self, file: FileIO, position: int, count: int) -> None:
        loop, limits = asyncio.get_running_loop(), self._sidecar.limits
        while count:
            window = min(count, WINDOW_BYTES)
            wait_s = limits.bucket.take(window)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                sent = await loop.sendfile(self._writer.transport, file, position, window)
            if sent != window:
                raise ConnectionAbortedError("a file of the log is shorter than it was")
            limits.count_sent(sent)
            position, count = position + sent, count - sent

    async def _refuse(self, problem: Problem) -> None:
        body = json.dumps(problem.document()).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **problem.headers}
        self._head(problem.status, headers)
        data = self._http.send(h11.Data(data=body))
        end = self._http.send(h11.EndOfMessage())
        self._writer.write((data or b"") + (end or b""))
        await self._drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        pairs = list(headers.items())
        data = self._http.send(h11.Response(status_code=status, headers=pairs))
        assert data is not None, "a head has bytes"
        self._writer.write(data)

    async def _drain(self) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self._writer.drain()


@final
class _Length:
    """The length of bytes that were sent by `sendfile`, so that the protocol's state counts them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count
