"""The master's replication port: streams to slaves, fed directly by each append.

    append -> ``feed_streams`` -> pump every stream that has room
    ack    -> the set of acks has moved -> ``on_acks``

No stream polls, and none waits for another: a stream whose socket buffer is full is skipped until it has room, and
holds at most what its transport holds. A slave that lags 10 GB behind needs no extra memory on the master.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final, cast, final

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.classic.master_session import ClassicMasterSession
from gantry_broker.ha.frames import PREAMBLE, SILENCE_S, StreamBroken, Table
from gantry_broker.ha.healing import RangeRequester
from gantry_broker.ha.master_session import MasterFacts, MasterLog, MasterSession
from gantry_broker.ha.tls_port import TlsPort
from gantry_remoting.addresses import join_address, listen, peer_address, stop_listening
from gantry_remoting.close_log import LimitedLog

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES: Final = 4 << 20
"""Buffered bytes at which a stream gets no more data. It may exceed them by ``PUMP_BYTES``, and by tables."""
PUMP_BYTES: Final = 1 << 20
"""Bytes sent to one slave in one turn: a slave that catches up shares the loop with senders."""
HEARTBEAT_INTERVAL_S: Final = 1.0
"""Longest time between two heartbeats of a master, in seconds."""

HEARTBEATS_PER_GRANT: Final = 4
"""Heartbeats in the time of a grant, at least, so that one or two may be lost."""
CONFIRM_DELAY_S: Final = 0.005
"""Seconds after which a changed confirmed position is reported, if no data has reported it."""

HANDSHAKE_S: Final = 10.0
"""Longest time until a slave is ready, in seconds."""

STREAMS_MAX: Final = 64
"""Largest number of streams, with those of unidentified peers. TLS handshakes have a limit of their own."""

UNREAD_BYTES_MAX: Final = 64 << 20
"""Unread bytes at which a slave is disconnected: a table may have that many, data has fewer."""


def heartbeat_interval_s(grant_ms: int) -> float:
    """Return how often a master sends a heartbeat, in seconds.

    A grant counts from the heartbeat that it answers, so heartbeats are sent well before a grant expires.
    """
    return min(HEARTBEAT_INTERVAL_S, grant_ms / 1000 / HEARTBEATS_PER_GRANT) if grant_ms else HEARTBEAT_INTERVAL_S


@final
class ReplicationServer:
    """The replication port and its streams. Owned by the loop.

    ``facts`` returns the master's identity; None while no slave may connect.
    """

    def __init__(
        self,
        facts: Callable[[], MasterFacts | None],
        source: MasterLog,
        slaves: AckSet,
        *,
        on_acks: Callable[[], None],
        on_join: Callable[[], list[Table]] = list,
        on_refused: Callable[[MasterSession], None] = lambda session: None,
        clock_ms: Callable[[], int] = lambda: int(time.monotonic() * 1000),
        allows_classic: bool = False,
    ) -> None:
        """Create the port, which does not listen yet. ``on_join`` returns the tables for a slave that has just joined.

        ``on_refused`` receives sessions that were refused; ``clock_ms`` is the clock on which grants expire. With
        ``allows_classic`` slaves of RocketMQ's may follow, and with them any peer that sends eight bytes.
        """
        self.slaves: Final = slaves
        self.facts: Final = facts
        self.allows_classic: Final = allows_classic
        self.source: Final = source
        self.streams: Final[set[MasterStream]] = set()
        """All open streams to slaves, also those that do not copy yet."""
        self.clock_ms: Final = clock_ms
        self.on_join: Final = on_join
        self.on_refused: Final = on_refused
        self.on_acks: Final = on_acks
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._tls_port: TlsPort | None = None
        self._appended_at = 0.0
        self._is_heartbeat_scheduled = False
        self._reported_positions = -1, -1, -1
        """Confirmed, written and flushed position of the log when they were last reported to all slaves."""
        self._heartbeats: asyncio.Task[None] | None = None
        self.is_closing = False
        """Whether no stream may begin any more, even for a connection that was accepted already."""

        self.log: Final = LimitedLog(log)

    async def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Listen on the port. Raises OSError if it is taken.

        With ``tls``, which returns the context of each connection, only TLS connections are accepted.
        """
        if tls is None:
            self._server = await listen(lambda: MasterStream(self), host, port)
        else:
            self._tls_port = TlsPort(lambda: MasterStream(self), tls)
            await self._tls_port.start(host, port)
        self._heartbeats = asyncio.ensure_future(self._run_heartbeats())

    @property
    def port(self) -> int:
        if self._tls_port is not None:
            return self._tls_port.port
        assert self._server is not None, "start() comes first"
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end every stream."""
        self.is_closing = True
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.wait([self._heartbeats])
        if self._server is not None:
            await stop_listening(self._server)
        if self._tls_port is not None:
            await self._tls_port.close()
        self.disconnect("this broker is stopping")
        if self._server is not None:
            await self._server.wait_closed()

    def disconnect(self, reason: str) -> None:
        """End every stream, for this reason."""
        for stream in tuple(self.streams):
            stream.end(reason)

    # -- feeding streams -----------------------------------------------------------------------------------------------

    def feed_streams(self) -> None:
        """Send what was appended to all slaves whose connections have room.

        This happens at once: sends are batched already, and a delay would only make answers slower.
        """
        self._appended_at = self._loop.time()
        for stream in tuple(self.streams):
            stream.pump()

    def report_confirmed(self) -> None:
        """Report the confirmed position to slaves, which serve consumers, too, if a position of the log has changed.

        While data flows, the data frames report it. Slaves acknowledge each report, so to report an unchanged position
        after each ack would never end.
        """
        if self.streams and not self._is_heartbeat_scheduled and self._positions != self._reported_positions:
            self._is_heartbeat_scheduled = True
            self._loop.call_later(CONFIRM_DELAY_S, self._send_heartbeats)

    def send_tables(self, tables: list[Table]) -> None:
        """Send changed tables to every slave."""
        for stream in tuple(self.streams):
            stream.send_tables(tables)

    def _send_heartbeats(self) -> None:
        quiet_s = self._loop.time() - self._appended_at
        if quiet_s < CONFIRM_DELAY_S:
            self._loop.call_later(CONFIRM_DELAY_S - quiet_s, self._send_heartbeats)
            return
        self._is_heartbeat_scheduled = False
        self._reported_positions = self._positions
        for stream in tuple(self.streams):
            stream.send_heartbeat()

    @property
    def _positions(self) -> tuple[int, int, int]:
        source = self.source
        return source.confirmed, source.wrote, source.flushed

    async def _run_heartbeats(self) -> None:
        while True:
            facts = self.facts()
            await asyncio.sleep(heartbeat_interval_s(facts.grant_ms if facts is not None else 0))
            now = self._loop.time()
            for stream in tuple(self.streams):
                stream.check_liveness(now)

    def make_room(self) -> bool:
        """Return whether one more stream may begin, after closing the oldest unidentified one if necessary."""
        if len(self.streams) < STREAMS_MAX:
            return True
        unidentified = [stream for stream in self.streams if stream.is_unidentified]
        if not unidentified:
            return False
        min(unidentified, key=lambda stream: stream.connected_at).end("closed to make room for a newer connection")
        return True


@final
class MasterStream(asyncio.Protocol):
    """One connection of a slave, or of a peer that is not identified yet."""

    def __init__(self, server: ReplicationServer) -> None:
        self._server: Final = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.session: MasterSession | ClassicMasterSession | None = None
        """The protocol of the slave; None until its first bytes tell which one it is."""
        self._is_first = True
        self._is_full = False
        self._is_resumption_scheduled = False
        self._read_at = self.connected_at = self._loop.time()
        self.peer = "?"
        """Address and port of the slave; "?" before the connection is made."""
        self._range: Final = RangeRequester()

    @property
    def is_unidentified(self) -> bool:
        """Whether the peer has not identified itself yet."""
        session = self.session
        return session is None or (session.hello is None and not session.is_streaming)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._begin(self._transport)
        except Exception as error:  # noqa: BLE001 - a callback's exception costs its own connection and no more
            self._end_after_error("connection_made", error)

    def _begin(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self.peer = join_address(*peer_address(peer)) if peer else "?"
        facts = self._server.facts()
        if facts is None or not peer or self._server.is_closing or not self._server.make_room():
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=WRITE_BUFFER_BYTES // 4)
        self.session = MasterSession(
            facts, self._server.source, self._server.slaves, on_range=self._range.deliver_range
        )
        self._server.streams.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._receive(data)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._end_after_error("data_received", error)

    def _receive(self, data: bytes) -> None:
        if self._is_first:
            self._is_first = False
            self._choose_session(data)
        session, transport = self.session, self._transport
        if session is None or transport is None:
            return
        self._read_at = self._loop.time()
        was_streaming = session.is_streaming
        try:
            answer = session.receive(data, self._read_at)
        except StreamBroken as exc:
            self.end(str(exc))
            return
        if answer:
            transport.write(answer)
        if session.refusal is not None:
            extra = {"peer": self.peer, "reason": session.refusal.text}
            self._server.log.write(logging.WARNING, "slave refused", extra)
            if isinstance(session, MasterSession):
                self._server.on_refused(session)
            transport.close()
            return
        if session.is_streaming:
            if not was_streaming:
                self._log_joined(session)
                self.send_heartbeat()
                self.send_tables(self._server.on_join())
            self._server.on_acks()
            self.pump()

    def _choose_session(self, data: bytes) -> None:
        """Choose the kind of session by the first byte: RocketMQ's first offset is never negative."""
        facts = self._server.facts()
        if self._server.allows_classic and facts is not None and self.session and data[0] != PREAMBLE[0]:
            source, slaves = self._server.source, self._server.slaves
            self.session = ClassicMasterSession(self.peer, facts, source, slaves)

    def _log_joined(self, session: MasterSession | ClassicMasterSession) -> None:
        assert session.slave is not None, "a streaming slave has joined"
        extra = {"peer": self.peer, "broker_id": session.slave.broker_id, "offset": session.sent}
        log.info("slave connected", extra=extra)

    def pump(self) -> None:
        """Send data of the log, as long as the connection has room for it."""
        session, transport = self.session, self._transport
        if self._is_full or session is None or transport is None or not session.is_streaming:
            return
        try:
            parts = session.pump(PUMP_BYTES)
        except StreamBroken as exc:
            self.end(str(exc))
            return
        except Exception:  # A failing slave must not affect the senders whose message was just appended.
            log.exception("unexpected error while feeding a slave", extra={"peer": self.peer})
            self.end("unexpected error while reading the log")
            return
        if parts:
            transport.writelines(parts)
            if session.sent < self._server.source.wrote and not self._is_resumption_scheduled:
                self._is_resumption_scheduled = True
                self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resumption_scheduled = False
        try:
            self.pump()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._end_after_error("resume", error)

    def has_range(self, end: int) -> bool:
        """Return whether the slave can be asked for records before ``end``."""
        session = self.session
        return isinstance(session, MasterSession) and session.is_streaming and session.has_range(end)

    def lacks(self, start: int) -> bool:
        """Return whether nothing from ``start`` on was sent to this slave, nor was in its log before."""
        session = self.session
        return isinstance(session, MasterSession) and session.is_streaming and session.sent <= start

    def waits_at(self, start: int) -> bool:
        """Return whether the record at ``start`` is the next one to send to this slave."""
        return self.lacks(start) and self.session is not None and self.session.sent == start

    async def fetch(self, start: int, end: int) -> bytes:
        """Return records of ``[start, end)`` from this slave, unverified and perhaps not all. Raises ``OSError``."""
        if self._transport is None or not self.has_range(end):
            raise ConnectionError("the replication stream ended")
        return await self._range.fetch(self._transport.write, start, end)

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the confirmed position."""
        if self.session is not None and self._transport is not None and self.session.is_streaming:
            self._transport.write(self.session.encode_heartbeat(self._server.clock_ms()))

    def send_tables(self, tables: list[Table]) -> None:
        """Send changed tables. Their order relative to data does not matter: each is stamped with the log's end."""
        session, transport = self.session, self._transport
        if isinstance(session, MasterSession) and transport is not None and session.is_streaming:
            transport.writelines([session.encode_table(table) for table in tables])
            if transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
                self.end(f"more than {UNREAD_BYTES_MAX} bytes are unread by the slave")

    def check_liveness(self, now: float) -> None:
        """End a silent stream or an overdue handshake, or send a heartbeat. Called once in each heartbeat interval."""
        session = self.session
        if session is None:
            return
        if now - self._read_at > SILENCE_S:
            self.end(f"no data from the slave for {SILENCE_S:.0f} s")
        elif not session.is_streaming and now - self.connected_at > HANDSHAKE_S:
            self.end(f"handshake timed out after {HANDSHAKE_S:.0f} s")
        else:
            self.send_heartbeat()

    def end(self, reason: str) -> None:
        """Close the connection at once."""
        if self.session is not None and self._transport is not None:
            extra = {"peer": self.peer, "reason": reason}
            kind = "unidentified" if self.is_unidentified else "slave"
            self._server.log.write(logging.WARNING, "replication stream closed", extra, kind=kind)
            self._transport.abort()
            self._leave()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        try:
            self.pump()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._end_after_error("resume_writing", error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.session is not None and self.session.is_streaming:
            log.warning(
                "slave disconnected", extra={"peer": self.peer, "reason": str(exc or "connection closed by the slave")}
            )
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._end_after_error("connection_lost", error)

    def _end_after_error(self, callback: str, error: Exception) -> None:
        """End this stream after an unexpected exception; other streams continue."""
        self._server.log.log_callback_failure(self.peer, callback, error)
        self._server.streams.discard(self)
        session, self.session = self.session, None
        if session is not None:
            session.close()
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        session, self.session = self.session, None
        self._server.streams.discard(self)
        self._range.close()
        if session is not None:
            session.close()
            self._server.on_acks()
