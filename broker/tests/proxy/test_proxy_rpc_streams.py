"""Messages of clients on a stream: larger ones than the window, ones that never end, and readers that are slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rpc_world import LIMITS, client, raw_client, serving

from gantry_proxy.http2.streams import Stream
from gantry_proxy.rpc.incoming import IncomingMessages
from gantry_proxy.rpc.limits import RpcTimes
from gantry_proxy.rpc.protocol import StatusCode, with_prefix
from gantry_testing.local import wait_until

WINDOW = 100


@dataclass
class FakeOutlet:
    """The sending side of a connection, as far as windows need it."""

    stream_window: int = 1_000
    written: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.written.append(data)


@dataclass
class Sender:
    """A client that sends what its window allows, one byte at a time."""

    is_accepted: Callable[[bytearray], bool] = lambda buffer: True

    def __post_init__(self) -> None:
        self.stream = Stream(1, FakeOutlet(), WINDOW)  # type: ignore[arg-type]  # an outlet for windows only
        self.messages = IncomingMessages(self.stream, WINDOW)
        self.waiting = b""
        self.now_s = 100.0

    def send(self, data: bytes = b"") -> int:
        """Send as much as the window allows, and return how many bytes wait for it."""
        self.waiting += data
        while self.waiting and self.stream.receive_window:
            self.stream.receive_window -= 1
            byte, self.waiting = self.waiting[:1], self.waiting[1:]
            assert self.messages.add(byte, self.now_s, self.is_accepted)
        return len(self.waiting)


def test_message_may_be_larger_than_the_window() -> None:
    """Its bytes leave the window while it is collected, and are not returned a second time."""
    sender, message = Sender(), with_prefix(bytes(1_000))

    assert sender.send(message) == 0
    assert sender.messages.take(sender.now_s) == message
    assert sender.stream.receive_window <= WINDOW


def test_messages_that_wait_stay_in_the_window() -> None:
    """A client cannot send more than a window ahead of the handler."""
    sender, message = Sender(), with_prefix(bytes(45))
    left = sender.send(message * 10)
    taken = 0
    while len(sender.messages):
        assert sender.messages.take(sender.now_s) == message
        taken += 1
        assert len(sender.messages) <= 2
        left = sender.send()

    assert (taken, left) == (10, 0)


def test_large_message_behind_one_that_waits_is_completed_when_that_is_read() -> None:
    """The window returns as soon as the handler waits for the rest."""
    sender, small, large = Sender(), with_prefix(b"x"), with_prefix(bytes(1_000))
    left = sender.send(small + large)
    assert left == len(large) - (WINDOW - len(small))
    assert sender.messages.take(sender.now_s) == small
    assert sender.send() == 0
    assert sender.messages.take(sender.now_s) == large


def test_client_is_overdue_only_if_the_handler_waits_for_it() -> None:
    """The time of a message that waits for its handler is not the client's."""
    sender = Sender()
    sender.send(with_prefix(b"x") + b"\0\0")
    sender.now_s += 1_000
    assert not sender.messages.is_overdue(sender.now_s, 60.0)
    sender.messages.take(sender.now_s)
    assert not sender.messages.is_overdue(sender.now_s + 60, 60.0)
    assert sender.messages.is_overdue(sender.now_s + 61, 60.0)


async def test_large_message_of_a_real_client_arrives() -> None:
    """The thread dump of a large JVM has several megabytes, and the window of a stream 1 MiB."""
    limits = replace(LIMITS, message_bytes_max=5 << 20)
    async with serving(limits) as (_, server, port), client(port, ("grpc.max_receive_message_length", -1)) as channel:
        chat = channel.stream_stream("/t/chat")()
        for message in (bytes(3 << 20), b"x", bytes(5 << 20)):
            await chat.write(message)
            assert await chat.read() == message
        await wait_until(lambda: server.use.held_bytes == 0)
        await chat.done_writing()
        assert await chat.read() == b"bye"


async def test_message_that_takes_too_long_ends_its_stream() -> None:
    """The bytes that all clients share are free again; a stream without a message may last."""
    async with (
        serving(replace(LIMITS, times=RpcTimes(sweep_interval_s=0.05, request_s=0.3))) as (_, server, port),
        raw_client(port) as raw,
    ):
        raw.begin(1, "/t/chat")
        raw.begin(3, "/t/chat")
        raw.data(3, with_prefix(bytes(10_000))[:6_000])
        headers = await raw.reply_headers()
        await wait_until(lambda: server.use.held_bytes == 0)
        assert server.use.calls == 1

    assert headers["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
