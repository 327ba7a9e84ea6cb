"""Turns of the event loop: what one connection may deliver in one of them, so that timers and others are served."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from gantry_broker.testing.local import RawPeer, on_both_loops, wait_until
from gantry_remoting import Connection, Listener, ListenerSettings
from gantry_remoting.connection import COUNTED_READ_BYTES
from gantry_remoting.turns import ReadTurns
from gantry_wire import Command, decode_command

UNBOUNDED = 1 << 40
UVLOOP_READ_BYTES = 256_000
KIB = 1024
HEAD_BYTES = 8


class Sink:
    """A service that takes everything and answers nothing, or what the test sets."""

    def __init__(self) -> None:
        self.taken = 0
        self.replies = b""

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        self.taken += len(data)
        return len(data), self.replies

    def connected(self, connection: Connection) -> None:
        return

    def disconnected(self, connection: Connection) -> None:
        return


class Rig:
    """A connection whose loop and transport are the test's. The turn of the loop ends when the test says so."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.sink = Sink()
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
    rig = Rig()
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
    rig = Rig()
    for _ in range(20):
        rig.receive(100 * KIB)
        rig.next_turn()

    assert rig.switches == 0


def test_small_requests_cost_no_callback() -> None:
    """A short read has emptied its socket, so that it is not counted and nothing is scheduled for it."""
    rig = Rig()
    for _ in range(100):
        rig.receive(COUNTED_READ_BYTES - 1)

    assert rig.soon == []
    assert rig.is_reading()


def test_unread_replies_keep_a_connection_paused_after_its_turn() -> None:
    """A connection that is paused for two reasons is read again when both are gone, in whichever order they go."""
    rig = Rig()
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
    """Nothing is asked of a transport that is closed: neither at the next turn nor when its replies have left."""
    rig = Rig()
    rig.receive(128 * KIB)
    rig.connection.pause_writing()
    end(rig.connection)

    rig.next_turn()
    rig.connection.resume_writing()

    assert not rig.is_reading()


def test_a_connection_lost_in_its_turn_is_not_read_again() -> None:
    """A peer that resets its connection inside of a burst leaves a callback behind that does nothing."""
    rig = Rig()
    rig.receive(128 * KIB)
    rig.is_ended = True
    rig.connection.connection_lost(ConnectionResetError())

    rig.next_turn()

    assert not rig.is_reading()


def test_a_connection_is_backlogged_while_its_turns_end_before_its_socket_is_empty() -> None:
    """A turn that is cut begins a backlog, and a read that is shorter ends it."""
    rig = Rig()
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


class Busy:
    """A connection that has more to deliver."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def read_again(self) -> None:
        self.log.append(self.name)


def test_busy_connections_are_read_in_turns_and_none_is_passed_over() -> None:
    """Each turn reads so many of those that wait, first come, first served; who is cut again goes to the end."""
    soon: list[Callable[[], None]] = []
    log: list[str] = []
    turns = ReadTurns(2, soon.append)
    busy = {name: Busy(name, log) for name in "ABCDE"}
    cut = list("ABCDE")
    for expected in ("AB", "CD", "EA", "BC", "DE"):
        due, soon[:] = soon[:], []
        for callback in due:
            callback()
        for name in cut:
            turns.wait(busy[name])
        assert "".join(log) == expected
        cut = log[:]
        log.clear()


def test_turns_end_when_nobody_is_busy() -> None:
    """Without a busy connection nothing is scheduled: an idle broker's loop sleeps."""
    soon: list[Callable[[], None]] = []
    turns = ReadTurns(2, soon.append)
    turns.wait(Busy("A", []))
    while soon:
        soon.pop()()

    assert repr(turns) == "<ReadTurns resumed=0 waiting=0>"


# ------- on real sockets


@on_both_loops
async def test_queued_bytes_are_those_that_nobody_has_read() -> None:
    """The kernel counts what a peer has sent and the broker has not read; a closed connection has nothing."""
    listener = Listener(Sink(), ListenerSettings(host="127.0.0.1"))
    await listener.start()
    peer = await RawPeer.open(listener.port)
    await wait_until(lambda: len(listener.connections) == 1)
    [connection] = listener.connections
    assert connection.queued_bytes() == 0
    connection.pause_writing()

    await peer.say(bytes(1234))

    await wait_until(lambda: connection.queued_bytes() == 1234)
    connection.resume_writing()
    await wait_until(lambda: connection.queued_bytes() == 0)
    await peer.close()
    await listener.close()
    assert connection.queued_bytes() == 0


class Flood:
    """A peer whose requests fill the kernel's buffers as fast as they are read, and a second peer that asks once.

    Everything happens on one thread: before each read is over the buffers are full again. The second peer asks when the
    kernel has widened its window so far that a read fills the loop's buffer; what is taken is counted from there.
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


async def flooded(turn_bytes_max: int) -> Flood:
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
    flood = uvloop.run(flooded(ListenerSettings().turn_bytes_max))

    assert flood.taken_at_timer is not None and flood.taken_at_timer <= 2 * UVLOOP_READ_BYTES
    assert flood.taken_at_request is not None and flood.taken_at_request <= 3 * UVLOOP_READ_BYTES


def test_without_the_bound_a_burst_shuts_others_out() -> None:
    """The twin: libuv reads a socket that is never empty again and again, and everybody else waits for megabytes."""
    flood = uvloop.run(flooded(UNBOUNDED))

    assert flood.taken_at_timer is not None and flood.taken_at_timer > 4 * UVLOOP_READ_BYTES
    assert flood.taken_at_request is not None and flood.taken_at_request > 4 * UVLOOP_READ_BYTES


class ManyFloods(Sink):
    """Many peers whose requests fill the kernel's buffers as fast as they are read; counts what a turn takes."""

    def __init__(self, count: int, bytes_each: int) -> None:
        super().__init__()
        self.left = dict.fromkeys(range(count), bytes_each)
        self.total = count * bytes_each
        self.peers: list[socket.socket] = []
        self.by_port: dict[int, int] = {}
        self.turn = 0
        self.taken_in_turns: Counter[int] = Counter()
        self.taken_of: Counter[int] = Counter()

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        number = self.by_port[connection.peer[1]]
        if self.taken > WARM_UP_BYTES:  # the first reads are short: the kernel's windows are
            self.taken_in_turns[self.turn] += len(data)
        self.taken_of[number] += len(data)
        self.refill(number)
        return super().handle(data, connection)

    def refill(self, number: int) -> None:
        try:
            while self.left[number]:
                self.left[number] -= self.peers[number].send(bytes(min(self.left[number], 256 * KIB)))
        except BlockingIOError:
            return

    def count_turns(self) -> None:
        self.turn += 1
        if self.taken < self.total:
            asyncio.get_running_loop().call_soon(self.count_turns)


WARM_UP_BYTES = 40 * KIB * KIB


async def flooded_by_many(turn_connections_max: int) -> ManyFloods:
    floods = ManyFloods(16, 8 * KIB * KIB)
    settings = ListenerSettings(host="127.0.0.1", turn_connections_max=turn_connections_max)
    listener = Listener(floods, settings)
    await listener.start()
    for number in floods.left:
        peer = socket.create_connection(("127.0.0.1", listener.port))
        peer.setblocking(False)
        floods.peers.append(peer)
        floods.by_port[peer.getsockname()[1]] = number
    await wait_until(lambda: len(listener.connections) == 16)
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
    floods = uvloop.run(flooded_by_many(4))

    # A connection that has been drained in between starts anew, and is read beside the four.
    assert max(floods.taken_in_turns.values()) <= 8 * UVLOOP_READ_BYTES
    assert set(floods.taken_of.values()) == {8 * KIB * KIB}


def test_without_the_queue_many_floods_fill_a_turn() -> None:
    """The twin: with a place for everybody a turn is as long as there are floods."""
    floods = uvloop.run(flooded_by_many(1000))

    assert max(floods.taken_in_turns.values()) > 8 * UVLOOP_READ_BYTES


@on_both_loops
async def test_a_burst_in_slices_is_answered_whole_and_in_order() -> None:
    """Requests that are read in many turns are each answered once and in their order."""
    count = 5000

    class Echo(Sink):
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

    writing = asyncio.ensure_future(peer.say(b"".join(frames)))
    answered = [decode_command(await peer.frame()).opaque for _ in range(count)]
    await writing

    assert answered == list(range(count))
    await peer.close()
    await listener.close()
