"""Admission of HTTP connections: deadlines of phases, eviction, the reserve for probes, and log lines."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress

import pytest
import trustme

from gantry_remoting.http_admission import (
    LOG_INTERVAL_S,
    ConnectionSlot,
    HttpAdmission,
    HttpLimitSettings,
    HttpListener,
    Phase,
    Reason,
)

LIMITS = HttpLimitSettings(connections_max=4, connections_per_address_max=3, probe_connections=1)


class Table:
    """An admission table with a clock of the test, and a record of the connections that it closed."""

    def __init__(self, settings: HttpLimitSettings = LIMITS) -> None:
        self.seconds = 100.0
        self.admission = HttpAdmission("test", settings, clock=lambda: self.seconds)
        self.aborted: list[str] = []

    def connect(self, name: str, address: str = "a", phase: Phase = Phase.HEAD) -> ConnectionSlot | None:
        slot = self.admission.admit(address)
        if slot is not None:
            slot.bind(lambda: self.aborted.append(name))
            slot.enter(phase)
        self.seconds += 0.001
        return slot


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (Phase.HANDSHAKE, Reason.HANDSHAKE_TIMEOUT), (Phase.HEAD, Reason.HEAD_TIMEOUT),
        (Phase.BODY, Reason.BODY_TIMEOUT), (Phase.UNREAD, Reason.READER_TIMEOUT), (Phase.IDLE, Reason.IDLE_TIMEOUT),
        (Phase.CLOSING, Reason.READER_TIMEOUT),
    ],
)  # fmt: skip
def test_a_phase_that_exceeds_its_deadline_ends_the_connection(phase: Phase, reason: Reason) -> None:
    """It ends at the deadline and not before, however often the connection reports the same phase meanwhile."""
    table = Table()
    slot = table.connect("one", phase=phase)
    limit_ms = LIMITS.limit_ms(phase)
    assert slot is not None and limit_ms is not None
    began = slot.since_s
    for step in range(10):
        table.seconds = began + limit_ms / 1000 * step / 10
        slot.enter(phase)
        table.admission.sweep()
        assert table.aborted == []

    table.seconds = began + limit_ms / 1000
    table.admission.sweep()

    assert table.aborted == ["one"]
    assert table.admission.counts[reason] == 1
    assert len(table.admission) == 0


def test_pending_answer_has_no_deadline() -> None:
    """An event stream lasts for as long as its reader wants it."""
    table = Table()
    table.connect("stream", phase=Phase.ANSWER)
    table.seconds += 1e6
    table.admission.sweep()
    assert table.aborted == []


def test_each_request_of_a_connection_has_its_own_deadline() -> None:
    """The same phase of the next request restarts the deadline."""
    table = Table()
    slot = table.connect("one")
    assert slot is not None
    table.seconds += 4.9
    slot.enter(Phase.HEAD, 1)
    table.seconds += 4.9
    table.admission.sweep()
    assert table.aborted == []


def test_an_address_at_its_limit_displaces_itself_only() -> None:
    """The address' oldest connection without a pending answer is evicted; another address keeps its own."""
    table = Table()
    table.connect("other", "b")
    for name, phase in (("answer", Phase.ANSWER), ("old", Phase.HEAD), ("young", Phase.IDLE)):
        table.connect(name, phase=phase)

    assert table.connect("new") is not None

    assert table.aborted == ["old"]
    assert table.admission.counts[Reason.ADDRESS_LIMIT] == 1


def test_at_the_total_limit_the_address_with_most_connections_makes_room() -> None:
    """An address with few connections keeps them, even if they are older."""
    table = Table()
    for name, address in (("honest", "b"), ("first", "a"), ("second", "a"), ("third", "a")):
        table.connect(name, address)

    assert table.connect("new", "c") is not None

    assert table.aborted == ["first"]
    assert table.admission.counts[Reason.TOTAL_LIMIT] == 1


def test_probes_have_a_reserve_when_every_slot_is_busy() -> None:
    """Beyond the limit a connection may send probes only, until another connection ends."""
    table = Table()
    slots = [table.connect(f"{number}", f"{number}", Phase.ANSWER) for number in range(4)]

    probe = table.connect("probe", "k", Phase.ANSWER)
    assert probe is not None and probe.is_probe_only
    assert table.connect("one too many", "l") is None
    assert table.admission.counts[Reason.REFUSED] == 1

    assert slots[0] is not None
    slots[0].release()
    assert not probe.is_probe_only


def test_incomplete_request_in_the_reserve_is_evicted_for_a_probe() -> None:
    """The reserve displaces itself, too."""
    table = Table()
    for number in range(4):
        table.connect(f"{number}", f"{number}", Phase.ANSWER)
    table.connect("half", "k", Phase.HEAD)

    assert table.connect("probe", "l") is not None
    assert table.aborted == ["half"]


def test_released_slot_is_free_once() -> None:
    """Eviction, the protocol and the listener may all release it."""
    table = Table()
    slot = table.connect("one")
    assert slot is not None
    slot.close(Reason.HEAD_TIMEOUT)
    slot.release()
    assert len(table.admission) == 0
    assert table.connect("two") is not None


def test_a_flood_is_one_log_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Every close is counted; the line has the number since the previous one. An idle timeout is not logged."""
    table = Table()
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            table.admission.record_close(Reason.HEAD_TIMEOUT, "a")
            table.admission.record_close(Reason.IDLE_TIMEOUT, "a")
        assert len(caplog.records) == 1
        table.seconds += LOG_INTERVAL_S
        table.admission.record_close(Reason.HEAD_TIMEOUT, "a")
    assert [record.args[3] for record in caplog.records if isinstance(record.args, tuple)] == [1, 50]
    assert table.admission.counts[Reason.HEAD_TIMEOUT] == 51


class Echo(asyncio.Protocol):
    """A protocol that sends back what it receives."""

    def __init__(self, slot: ConnectionSlot) -> None:
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._slot.bind(transport.abort)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()


async def test_incomplete_handshakes_are_counted_and_evicted() -> None:
    """Incomplete TLS handshakes take no slot from a complete one, and end at their deadline."""
    authority = trustme.CA()
    context, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(trust)
    seconds = [100.0]
    admission = HttpAdmission("test", LIMITS, clock=lambda: seconds[0])
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        address = bound.getsockname()
        listener = HttpListener(bound, admission, Echo, context)
        listener.start()
        halves = [await asyncio.open_connection(*address) for _ in range(6)]
        for _, writer in halves:
            writer.write(b"\x16\x03\x01")

        reader, writer = await asyncio.open_connection(*address, ssl=trust)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert len(admission) == 3
        assert admission.counts[Reason.ADDRESS_LIMIT] == 4

        seconds[0] += LIMITS.handshake_timeout_ms / 1000
        admission.sweep()
        for half, _ in halves:
            with suppress(ConnectionResetError):
                assert await half.read() == b"", "expected a close without an answer"
        assert admission.counts[Reason.HANDSHAKE_TIMEOUT] == 2
        writers = [writer, *(half for _, half in halves)]
        for one in writers:
            one.transport.abort()
        await asyncio.gather(*(one.wait_closed() for one in writers), return_exceptions=True)
        await listener.close()
