"""Turns of the event loop: the share of one connection in a turn, so that timers and other connections are served."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from gantry_remoting import Connection, Listener, ListenerSettings
from gantry_remoting.turns import SHORT_READS_STEP, ReadTurns
from gantry_testing.local import RawPeer, on_both_loops, wait_until
from gantry_wire import Command, decode_command

UNBOUNDED = 1 << 40
UVLOOP_READ_BYTES = 256_000
TURN_BYTES = 8 * UVLOOP_READ_BYTES
"""The most bytes of one turn: the budget, the reads of the connections that are served, and one read beyond it."""
KIB = 1024
MIB = 1024 * KIB
HEAD_BYTES = 8


class SinkService:
    """A service that accepts everything and replies with nothing, or with what the test sets."""

    def __init__(self) -> None:
        self.taken = 0
        self.replies = b""
        self.frame_bytes = 0

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        if len(data) < self.frame_bytes:
            return 0, b""
        self.taken += len(data)
        return len(data), self.replies

    def connected(self, connection: Connection) -> None:
        return

    def disconnected(self, connection: Connection) -> None:
        return


class ConnectionRig:
    """A connection with a loop and a transport of the test. The test ends the turn of the loop."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.sink = SinkService()
        self.soon: list[Callable[[], None]] = []
        self._is_reading = True
        self.is_ended = False
        self.switches = 0
        self.high = 0
        listener = Listener(self.sink, ListenerSettings(turn_bytes_max=128 * KIB, **settings))
        listener._loop = self  # type: ignore[assignment]
        self.connection = Connection(listener)
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def receive(self, size: int) -> None:
        assert self._is_reading, "a transport that is paused delivers nothing"
        self.connection.data_received(bytes(size))

    @property
    def turns(self) -> ReadTurns:
        return self.connection._turns

    def spend_turn(self) -> None:
        """Other connections fill this turn with large reads."""
        for _ in range(32):
            self.turns.take_large(256 * KIB)

    def is_reading(self) -> bool:
        return self._is_reading

    def is_backlogged(self) -> bool:
        return self.connection.is_backlogged

    def next_turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    # what the connection asks of a loop and of a transport

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 1234)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        return

    def pause_reading(self) -> None:
        assert not self.is_ended, "uvloop raises when a closed transport is paused"
        assert self._is_reading, "paused twice"
        self._is_reading = False
        self.switches += 1

    def resume_reading(self) -> None:
        assert not self.is_ended, "uvloop raises when a closed transport is resumed"
        assert not self._is_reading, "resumed twice"
        self._is_reading = True
        self.switches += 1

    def is_closing(self) -> bool:
        return self.is_ended

    def close(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_ended = True


def test_a_connection_is_read_until_its_share_of_the_turn_is_delivered() -> None:
    """A connection that has delivered its bytes of a turn is read again in the next turn, and not before."""
    rig = ConnectionRig()
    rig.receive(64 * KIB)
    assert rig.is_reading()

    rig.receive(64 * KIB)
    assert not rig.is_reading()
    assert rig.sink.taken == 128 * KIB

    rig.next_turn()
    assert rig.is_reading()
    rig.receive(64 * KIB)
    assert rig.is_reading()


def test_what_was_delivered_in_an_earlier_turn_does_not_count() -> None:
    """The share is one of each turn: many turns that stay below it never pause a connection."""
    rig = ConnectionRig()
    for _ in range(20):
        rig.receive(100 * KIB)
        rig.next_turn()

    assert rig.switches == 0


def test_small_requests_cost_no_callback_each() -> None:
    """Short reads schedule one callback when their sum is large, and none before."""
    rig = ConnectionRig()
    for _ in range(100):
        rig.receive(SHORT_READS_STEP // 100 - 1)
    assert rig.soon == []

    for _ in range(100):
        rig.receive(100)
    assert len(rig.soon) == 1
    assert rig.is_reading()


def test_unread_replies_keep_a_connection_paused_after_its_turn() -> None:
    """A connection with two reasons for a pause is read again when both are removed, in either order."""
    rig = ConnectionRig()
    rig.receive(128 * KIB)
    rig.connection.pause_writing()
    rig.next_turn()
    assert not rig.is_reading()
    rig.connection.resume_writing()
    assert rig.is_reading()

    rig.connection.pause_writing()
    rig.connection.resume_writing()
    rig.receive(128 * KIB)
    rig.connection.pause_writing()
    rig.connection.resume_writing()
    assert not rig.is_reading()
    rig.next_turn()
    assert rig.is_reading()


@pytest.mark.parametrize(
    "end", [lambda one: one.close("the test ends it"), lambda one: one.abort()], ids=["close", "abort"]
)
def test_a_connection_that_ended_in_its_turn_is_not_read_again(end: Callable[[Connection], None]) -> None:
    """A closed transport is not used again: neither at the next turn nor when its replies are sent."""
    rig = ConnectionRig()
    rig.receive(128 * KIB)
    rig.connection.pause_writing()
    end(rig.connection)

    rig.next_turn()
    rig.connection.resume_writing()

    assert not rig.is_reading()


def test_a_connection_lost_in_its_turn_is_not_read_again() -> None:
    """The callback of a connection that its peer reset during a burst does nothing."""
    rig = ConnectionRig()
    rig.receive(128 * KIB)
    rig.is_ended = True
    rig.connection.connection_lost(ConnectionResetError())

    rig.next_turn()

    assert not rig.is_reading()


def test_a_connection_is_backlogged_while_its_turns_end_before_its_socket_is_empty() -> None:
    """A turn that is cut begins a backlog, and a read that is shorter ends it."""
    rig = ConnectionRig()
    assert not rig.is_backlogged()
    for _ in range(3):
        rig.receive(200 * KIB)
        assert rig.is_backlogged()
        rig.next_turn()

    rig.receive(100 * KIB)
    assert not rig.is_backlogged()
    rig.next_turn()
    rig.receive(200 * KIB)
    rig.next_turn()
    rig.receive(100)
    assert not rig.is_backlogged()


# ------- many busy connections


class BusyConnection:
    """A connection that has more to deliver."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def take_turn(self, kept_bytes: int) -> None:
        self.log.append(self.name)


class TurnPort:
    """The turns of a port with a loop of the test, and the names of the connections that took theirs."""

    def __init__(self, connections_max: int, bytes_max: int) -> None:
        self.soon: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.turns = ReadTurns(connections_max, bytes_max, self.soon.append)

    def wait(self, name: str, kept_bytes: int = 0, *, is_short: bool = False) -> None:
        self.turns.enqueue(BusyConnection(name, self.log), kept_bytes, is_short=is_short)

    def next_turn(self) -> str:
        """Run a turn of the loop; return the names of the connections that were served in it."""
        due, self.soon[:] = self.soon[:], []
        for callback in due:
            callback()
        served = "".join(self.log)
        self.log.clear()
        return served


def test_busy_connections_are_read_in_turns_and_none_is_starved() -> None:
    """Each turn reads a number of the waiting ones, first come, first served; one that is cut again goes to the end."""
    port = TurnPort(2, MIB)
    cut = "ABCDE"
    for expected in ("AB", "CD", "EA", "BC", "DE"):
        for name in cut:
            port.wait(name)
        cut = port.next_turn()
        assert cut == expected


def test_no_turn_is_scheduled_without_a_busy_connection() -> None:
    """Without a busy connection nothing is scheduled, so an idle broker's loop sleeps."""
    port = TurnPort(2, MIB)
    port.wait("A")
    while port.soon:
        port.next_turn()

    assert repr(port.turns) == "<ReadTurns number=2 taken=0 waiting=0>"


def test_a_turn_serves_kept_bytes_up_to_the_budget_of_the_port() -> None:
    """Bytes read beyond a turn's budget are served in the next turns, a budget in each, in the order of arrival."""
    port = TurnPort(4, MIB)
    for name in "ABCDEFG":
        port.wait(name, 400 * KIB)

    assert [port.next_turn() for _ in range(3)] == ["ABC", "DEF", "G"]


def test_new_reads_do_not_overtake_waiting_connections() -> None:
    """A turn whose budget goes to waiting connections takes no new large read; the next turns do."""
    port = TurnPort(4, MIB)
    for name in "ABC":
        port.wait(name, 400 * KIB)
    port.next_turn()
    assert not port.turns.take_large(100 * KIB)

    port.next_turn()
    assert port.turns.take_large(100 * KIB)


def test_short_reads_do_not_wait_for_large_ones() -> None:
    """Short reads have a budget and a queue of their own, so a turn full of large reads still serves small requests."""
    port = TurnPort(4, MIB)
    for name in "ABCDEF":
        port.wait(name, MIB)
    port.wait("s", 100, is_short=True)

    assert port.next_turn() == "sA"
    assert not port.turns.take_large(100 * KIB)
    port.turns.short_bytes = SHORT_READS_STEP
    assert port.turns.take_short()


def test_short_reads_of_many_connections_share_a_turn() -> None:
    """Short reads beyond the budget of a turn wait, too: 4,000 connections may send 15 KiB each at once."""
    port = TurnPort(4, MIB)
    taken = 0
    while port.turns.take_short():
        port.turns.short_bytes += SHORT_READS_STEP
        taken += SHORT_READS_STEP

    assert taken == MIB + SHORT_READS_STEP
    port.next_turn()
    assert port.turns.take_short()


# ------- one connection beside a full turn


def test_a_read_beyond_the_budget_of_the_port_is_kept_for_the_next_turn() -> None:
    """Bytes that arrive in a turn whose budget is spent wait for the next one; the connection is not read meanwhile."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    rig.spend_turn()

    rig.receive(100 * KIB)
    assert rig.sink.taken == 0
    assert rig.connection.frames.memory_bytes >= 100 * KIB, (
        "expected the kept bytes to count towards the budget of unfinished frames"
    )
    assert not rig.is_reading()
    assert rig.is_backlogged()

    rig.next_turn()
    assert rig.sink.taken == 100 * KIB
    assert rig.is_reading()


def test_without_the_budget_a_turn_serves_all_arrived_bytes() -> None:
    """The twin: with the budget off the read is served in the same turn."""
    rig = ConnectionRig(turn_read_bytes_max=UNBOUNDED)
    rig.spend_turn()

    rig.receive(100 * KIB)
    assert rig.sink.taken == 100 * KIB
    assert not rig.is_backlogged()


def test_a_small_request_is_served_in_a_turn_that_is_full_of_large_reads() -> None:
    """A connection that sends little is neither kept nor backlogged while others fill the turn with large reads."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    rig.spend_turn()

    rig.receive(1000)

    assert rig.sink.taken == 1000
    assert rig.is_reading()
    assert not rig.is_backlogged()


def test_a_small_request_in_a_turn_full_of_small_ones_is_first_in_the_next() -> None:
    """Short reads beyond their own budget are kept as well, and served before large reads of the next turn."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    while rig.turns.take_short():
        rig.turns.short_bytes += SHORT_READS_STEP
    rig.receive(1000)
    assert rig.sink.taken == 0
    assert not rig.is_reading()

    rig.next_turn()
    assert rig.sink.taken == 1000
    assert rig.is_reading()
    rig.receive(1000)
    assert not rig.is_backlogged()


def test_a_large_sender_stays_paused_while_others_wait() -> None:
    """While connections wait, the bytes that a large sender sends next stay in the kernel until its turn has come."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    others: list[str] = []
    rig.spend_turn()
    rig.receive(100 * KIB)
    for name in "ABCDEFGH":
        rig.turns.enqueue(BusyConnection(name, others), MIB)

    rig.next_turn()
    assert rig.sink.taken == 100 * KIB
    assert not rig.is_reading()
    while not rig.is_reading():
        rig.next_turn()
    assert "".join(others) == "ABCDEFGH"


def test_a_part_of_a_frame_beyond_the_budget_is_kept_with_the_rest() -> None:
    """A frame whose parts arrive in full turns is put together and served once, when it is whole."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    rig.sink.frame_bytes = 300 * KIB
    head = (300 * KIB - 4).to_bytes(4, "big") + (100).to_bytes(4, "big")
    for part in (head + bytes(100 * KIB - 8), bytes(100 * KIB), bytes(100 * KIB)):
        assert rig.sink.taken == 0
        rig.spend_turn()
        rig.connection.data_received(part)
        assert rig.sink.taken == 0
        rig.next_turn()
        rig.next_turn()  # a turn that was granted for reading has passed unused

    assert rig.sink.taken == 300 * KIB
    assert rig.connection.frames.memory_bytes == 0


@pytest.mark.parametrize("size", [1000, 100 * KIB], ids=["short", "large"])
def test_a_connection_that_ends_while_its_bytes_are_kept_is_not_served(size: int) -> None:
    """Kept bytes of a closed connection are dropped, like those in a closed socket."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    rig.spend_turn()
    while rig.turns.take_short():
        rig.turns.short_bytes += SHORT_READS_STEP
    rig.receive(size)
    rig.connection.close("the test ends it")

    rig.next_turn()

    assert rig.sink.taken == 0


def test_kept_bytes_wait_for_their_turn_when_replies_leave_before_it() -> None:
    """A peer that has read its replies does not overtake the connections that wait."""
    rig = ConnectionRig(turn_read_bytes_max=MIB)
    rig.spend_turn()
    rig.receive(100 * KIB)
    rig.connection.pause_writing()
    rig.connection.resume_writing()
    assert rig.sink.taken == 0

    rig.next_turn()
    assert rig.sink.taken == 100 * KIB


# ------- on real sockets


@on_both_loops
async def test_queued_bytes_are_the_unread_bytes_of_the_kernel() -> None:
    """The kernel counts what a peer has sent and the broker has not read; a closed connection has nothing."""
    listener = Listener(SinkService(), ListenerSettings(host="127.0.0.1"))
    await listener.start()
    peer = await RawPeer.open(listener.port)
    await wait_until(lambda: len(listener.connections) == 1)
    [connection] = listener.connections
    assert connection.queued_bytes() == 0
    connection.pause_writing()

    await peer.send(bytes(1234))

    await wait_until(lambda: connection.queued_bytes() == 1234)
    connection.resume_writing()
    await wait_until(lambda: connection.queued_bytes() == 0)
    await peer.close()
    await listener.close()
    assert connection.queued_bytes() == 0


class Flood:
    """A peer that fills the kernel's buffers as fast as they are read, and a second peer with one request.

    Everything happens on one thread: before each read ends the buffers are full again. The second peer sends its
    request when the kernel has widened its window so far that a read fills the loop's buffer; the bytes taken are
    counted from there.
    """

    def __init__(self, total: int) -> None:
        self.left = total
        self.taken = 0
        self.taken_at_timer: int | None = None
        self.taken_at_request: int | None = None
        self.flooder: socket.socket | None = None
        self.second: socket.socket | None = None

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        if len(data) < KIB:
            self.taken_at_request = self.taken
            return len(data), b""
        if not self.taken and len(data) >= UVLOOP_READ_BYTES:
            assert self.second is not None
            self.second.send(Command(code=99).encode())
            asyncio.get_running_loop().call_later(0, self.timer)
        if self.taken or len(data) >= UVLOOP_READ_BYTES:
            self.taken += len(data)
        self.refill()
        return len(data), b""

    def timer(self) -> None:
        self.taken_at_timer = self.taken

    def refill(self) -> None:
        """Write until the kernel takes no more."""
        assert self.flooder is not None
        try:
            while self.left:
                self.left -= self.flooder.send(bytes(min(self.left, 256 * KIB)))
        except BlockingIOError:
            return

    def connected(self, connection: Connection) -> None:
        return

    def disconnected(self, connection: Connection) -> None:
        return


async def run_flood(turn_bytes_max: int) -> Flood:
    """One flood of 64 MiB beside one request and one timer."""
    flood = Flood(64 * KIB * KIB)
    listener = Listener(flood, ListenerSettings(host="127.0.0.1", turn_bytes_max=turn_bytes_max))
    await listener.start()
    address = ("127.0.0.1", listener.port)
    with socket.create_connection(address) as flood.flooder, socket.create_connection(address) as flood.second:
        await wait_until(lambda: len(listener.connections) == 2)
        flood.flooder.setblocking(False)
        flood.refill()
        await wait_until(lambda: flood.taken_at_timer is not None and flood.taken_at_request is not None)
    await listener.close()
    return flood


def test_others_are_served_inside_a_long_burst() -> None:
    """While one connection delivers a long burst a timer fires and another connection's request is handled."""
    flood = uvloop.run(run_flood(ListenerSettings().turn_bytes_max))

    assert flood.taken_at_timer is not None and flood.taken_at_timer <= 2 * UVLOOP_READ_BYTES
    assert flood.taken_at_request is not None and flood.taken_at_request <= 3 * UVLOOP_READ_BYTES


def test_without_the_bound_a_burst_starves_others() -> None:
    """The twin: libuv reads a socket that is never empty again and again, and other peers wait for megabytes."""
    flood = uvloop.run(run_flood(UNBOUNDED))

    assert flood.taken_at_timer is not None and flood.taken_at_timer > 4 * UVLOOP_READ_BYTES
    assert flood.taken_at_request is not None and flood.taken_at_request > 4 * UVLOOP_READ_BYTES


class ManyFloods(SinkService):
    """Many peers that fill the kernel's buffers as fast as they are read, and a count of the bytes of a turn."""

    def __init__(self, count: int, bytes_each: int, chunk_bytes: int = 256 * KIB) -> None:
        """``chunk_bytes`` is how much a peer writes before the next read of its bytes."""
        super().__init__()
        self.chunk_bytes = chunk_bytes
        self.port = 0
        self.left = dict.fromkeys(range(count), bytes_each)
        self.total = count * bytes_each
        self.peers: list[socket.socket] = []
        self.by_port: dict[int, int] = {}
        self.turn = 0
        self.taken_in_turns: Counter[int] = Counter()
        self.taken_of: Counter[int] = Counter()

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        number = self.by_port[connection.peer[1]]
        self.taken_in_turns[self.turn] += len(data)
        self.taken_of[number] += len(data)
        self.refill(number)
        return super().handle(data, connection)

    def refill(self, number: int) -> None:
        try:
            for _ in range(1 if self.chunk_bytes < UVLOOP_READ_BYTES else 1000):
                if not self.left[number]:
                    break
                self.left[number] -= self.peers[number].send(bytes(min(self.left[number], self.chunk_bytes)))
        except BlockingIOError:
            return

    def count_turns(self) -> None:
        self.turn += 1
        if self.taken < self.total:
            asyncio.get_running_loop().call_soon(self.count_turns)


async def run_many_floods(floods: ManyFloods, **settings: Any) -> ManyFloods:
    listener = Listener(floods, ListenerSettings(host="127.0.0.1", **settings))
    await listener.start()
    floods.port = listener.port
    for number in floods.left:
        peer = socket.create_connection(("127.0.0.1", listener.port))
        peer.setblocking(False)
        floods.peers.append(peer)
        floods.by_port[peer.getsockname()[1]] = number
    await wait_until(lambda: len(listener.connections) == len(floods.left))
    floods.count_turns()
    for number in floods.left:
        floods.refill(number)
    await wait_until(lambda: floods.taken == floods.total)
    for peer in floods.peers:
        peer.close()
    await listener.close()
    return floods


def test_many_floods_share_a_turn() -> None:
    """However many connections flood a port, a turn takes a few shares of them, and each comes to its end."""
    floods = uvloop.run(run_many_floods(ManyFloods(16, 8 * MIB)))

    assert max(floods.taken_in_turns.values()) <= TURN_BYTES
    assert set(floods.taken_of.values()) == {8 * MIB}


def test_without_the_queue_many_floods_fill_a_turn() -> None:
    """The twin: with the port's limits on connections and bytes off, one turn takes the bytes of many floods."""
    settings = {"turn_connections_max": 1000, "turn_read_bytes_max": UNBOUNDED}
    floods = uvloop.run(run_many_floods(ManyFloods(16, 8 * MIB), **settings))

    assert max(floods.taken_in_turns.values()) > TURN_BYTES


@pytest.mark.parametrize("chunk_bytes", [100_000, 15_000], ids=["100-KB", "15-KB"])
def test_many_connections_below_their_own_share_share_a_turn(chunk_bytes: int) -> None:
    """Connections that each deliver less than their share of a turn take no more of one together than a few floods."""
    floods = uvloop.run(run_many_floods(ManyFloods(200, 3 * chunk_bytes, chunk_bytes)))

    assert max(floods.taken_in_turns.values()) <= TURN_BYTES
    assert set(floods.taken_of.values()) == {3 * chunk_bytes}


def test_without_the_budget_many_small_shares_fill_a_turn() -> None:
    """The twin: with the budget of the port off a turn takes the bytes of all of them."""
    floods = uvloop.run(run_many_floods(ManyFloods(200, 300_000, 100_000), turn_read_bytes_max=UNBOUNDED))

    assert max(floods.taken_in_turns.values()) > 4 * TURN_BYTES


async def bytes_before_an_honest_answer(**settings: Any) -> list[int]:
    """Return, for ten small requests of another connection, the bytes that 200 floods deliver before the answer."""
    floods = ManyFloods(200, 10_000_000, 100_000)
    serve = floods.handle
    honest: list[Connection] = []

    def handle(data: bytes, connection: Connection) -> tuple[int, bytes]:
        if connection.peer[1] in floods.by_port:
            return serve(data, connection)
        honest.append(connection)
        return len(data), Command(code=0).encode()

    floods.handle = handle  # type: ignore[method-assign]
    running = asyncio.ensure_future(run_many_floods(floods, **settings))
    await wait_until(lambda: floods.taken > 20_000_000)
    peer = await RawPeer.open(floods.port)
    found = []
    for _ in range(10):
        before = floods.taken
        await peer.send(Command(code=99).encode())
        await peer.frame()
        found.append(floods.taken - before)
    await peer.close()
    for number in floods.left:
        floods.total -= floods.left[number]
        floods.left[number] = 0
    await running
    return found


def test_a_small_request_waits_for_a_turn_or_two_beside_many_floods() -> None:
    """Beside hundreds of connections that flood a port a small request is answered within a few turns."""
    found = uvloop.run(bytes_before_an_honest_answer())

    assert sorted(found)[5] <= 3 * TURN_BYTES, found


def test_without_the_budget_a_small_request_waits_for_all_floods() -> None:
    """The twin: with the budget off it waits until each of them has been served."""
    found = uvloop.run(bytes_before_an_honest_answer(turn_read_bytes_max=UNBOUNDED))

    assert sorted(found)[5] > 3 * TURN_BYTES, found


@on_both_loops
async def test_a_burst_in_slices_is_answered_whole_and_in_order() -> None:
    """Requests that are read in many turns are each answered once and in their order."""
    count = 5000

    class Echo(SinkService):
        def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
            position = 0
            replies: list[bytes] = []
            while len(data) - position > HEAD_BYTES:
                end = position + 4 + int.from_bytes(data[position : position + 4], "big")
                if end > len(data):
                    break
                replies.append(data[position:end])
                position = end
            return position, b"".join(replies)

    listener = Listener(Echo(), ListenerSettings(host="127.0.0.1"))
    await listener.start()
    peer = await RawPeer.open(listener.port)
    frames = [Command(code=99, opaque=number, body=bytes(800)).encode() for number in range(count)]

    writing = asyncio.ensure_future(peer.send(b"".join(frames)))
    answered = [decode_command(await peer.frame()).opaque for _ in range(count)]
    await writing

    assert answered == list(range(count))
    await peer.close()
    await listener.close()
