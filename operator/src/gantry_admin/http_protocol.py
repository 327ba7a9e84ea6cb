"""The HTTP server's protocol with limits: the phase of each connection, and the answers in slots reserved for probes.

The server itself limits neither the time in which a request must arrive nor the time an answer may stay unread. After
each of the server's callbacks the phase of the connection is recorded in its slot, which has deadlines
(`gantry_remoting.http_admission`). The server's behaviour is otherwise unchanged.

An exception in a callback closes its own connection, with one rate-limited line, as on the broker's ports.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import h11
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gantry_admin.certificates import subject_of
from gantry_remoting import join_address
from gantry_remoting.close_log import LimitedLog
from gantry_remoting.http_admission import ConnectionSlot, Phase, Reason

PROBES: Final = frozenset({"/livez", "/readyz", "/startupz"})
"""The paths that are answered even in the slots reserved for probes."""
PIPELINED_BYTES_MAX: Final = 64 * 1024
"""Bytes of pipelined requests that a connection may hold. Clients of the project pipeline nothing, and one read of a
busy socket returns up to 256 KiB, which all connections together would hold in memory."""

_failures: Final = LimitedLog(logging.getLogger(__name__))
_quiet: Final = logging.getLogger("gantry_admin.http")
"""The server logs each bad request as a warning; they are counted and logged once a minute instead."""
_quiet.setLevel(logging.ERROR)


class LimitedHttp(H11Protocol):
    """One admitted connection. Owned by the event loop."""

    def __init__(
        self, slot: ConnectionSlot, subjects: dict[tuple[str, int], str], config: Config, server_state: ServerState
    ) -> None:
        """``subjects`` holds the subject of the client certificate of each open connection, by peer address."""
        super().__init__(config, server_state, {})
        self.logger = _quiet
        self._inner_app: Final = self.app
        self.app = self._app_for_slot
        self._slot: Final = slot
        self._subjects: Final = subjects
        self._peer: tuple[str, int] | None = None
        self._answered = 0
        self._is_unread = False

    def __repr__(self) -> str:
        return f"<LimitedHttp {self._slot!r} answered={self._answered}>"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport  # set first, so that it is closed even if the rest fails
        try:
            super().connection_made(transport)
            self._slot.bind(transport.abort)
            self._update_slot()
            subject = subject_of(transport.get_extra_info("peercert"))
            if subject is not None and self.client is not None:
                self._peer = (self.client[0], self.client[1])
                self._subjects[self._peer] = subject
        except Exception as error:  # noqa: BLE001 - a callback's exception costs its own connection and no more
            self._callback_failed("connection_made", error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        if self._peer is not None:
            self._subjects.pop(self._peer, None)
        try:
            super().connection_lost(exc)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("connection_lost", error)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
            self._update_slot()
            if self._slot.phase in (Phase.ANSWER, Phase.UNREAD) and self._waiting_bytes > PIPELINED_BYTES_MAX:
                self._slot.close(Reason.PIPELINED)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("data_received", error)

    def on_response_complete(self) -> None:
        self._answered += 1
        super().on_response_complete()
        self._update_slot()

    def pause_writing(self) -> None:
        self._is_unread = True
        try:
            super().pause_writing()
            self._update_slot()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("pause_writing", error)

    def resume_writing(self) -> None:
        self._is_unread = False
        try:
            super().resume_writing()
            self._update_slot()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("resume_writing", error)

    def send_400_response(self, msg: str) -> None:
        self._slot.record_close(Reason.BAD_REQUEST)
        super().send_400_response(msg)

    def _callback_failed(self, callback: str, error: Exception) -> None:
        """Log an unexpected exception of a callback, and close this connection."""
        peer = self._slot.address if self.client is None else join_address(*self.client)
        _failures.log_callback_failure(peer, callback, error)
        self.transport.abort()

    @property
    def _waiting_bytes(self) -> int:
        """The number of bytes that were received and not parsed yet."""
        return len(self.conn.trailing_data[0])

    def _update_slot(self) -> None:
        self._slot.enter(self._phase(), self._answered)

    def _phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.CLOSING
        if self._is_unread:
            return Phase.UNREAD
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        if self.conn.their_state is not h11.IDLE and not self.cycle.response_complete:
            return Phase.ANSWER
        return Phase.HEAD if not self._answered or self._waiting_bytes else Phase.IDLE

    async def _app_for_slot(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._slot.is_probe_only and scope["path"] not in PROBES:
            self._slot.record_close(Reason.REFUSED)
            reason = "all connections are in use; this one is reserved for probes"
            refusal = JSONResponse({"reason": reason}, 503, headers={"Connection": "close", "Retry-After": "1"})
            await refusal(scope, receive, send)
            return
        await self._inner_app(scope, receive, send)
