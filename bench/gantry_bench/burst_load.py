"""The loads of `bench-burst` over plain sockets: bursts, one-way sends, and a concurrent honest client.

All frames of a burst are encoded before the first is written, and replies are kept as bytes until its end, so that
the sender measures the broker and not itself. The honest client has a connection and a thread of its own. It sends one
message at a time and waits for the answer, as an application does.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal, final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_wire import Command, RequestCode
from gantry_wire.frame import FrameReader
from gantry_wire.unique_id import UniqueIds

ProgramName = Literal["burst", "oneway-burst", "oneway-paced"]
ShapeName = Literal["java", "other"]

ONEWAY: Final = 2
BODY_BYTES: Final = 800
TOPIC: Final = "burst"
FLOOD_QUEUE: Final = 0
HONEST_QUEUE: Final = 1
REPLY_SECONDS_MAX: Final = 60.0
QUIET_SECONDS: Final = 5.0
"""One-way sends are complete if the queue has not grown for this time."""
POLL_SECONDS: Final = 0.02
SYSTEM_BUSY: Final = 2


class Program(msgspec.Struct, frozen=True):
    """The behaviour of the flooding client."""

    name: ProgramName
    text: str
    count: int
    is_oneway: bool = False
    per_second: int | None = None
    """The rate of the sends; None if everything is written at once."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of one run of a program."""

    sent: int
    stored: int
    refused: dict[int, int]
    """The number of error answers by code."""
    unanswered: int
    seconds: float
    """The time until the last answer, or until the last message was stored."""
    honest_us: list[float]
    """The duration of each request of the honest client during the flood, in microseconds."""
    honest_refused: int

    @property
    def refused_count(self) -> int:
        """The number of sends that were answered with an error."""
        return sum(self.refused.values())


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed. Raises BenchmarkFailed if there are none."""
    if not values:
        raise BenchmarkFailed("the honest client got no answer during the flood")
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def encode_send(opaque: int, unique: str, *, queue: int, is_oneway: bool = False) -> bytes:
    """Encode one send of code 310 in JSON, as clients of RocketMQ 5 write it."""
    ext = {
        "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": str(int(time.time() * 1000)),
        "h": "0", "i": f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    command = Command(
        code=RequestCode.SEND_MESSAGE_V2,
        opaque=opaque,
        flag=ONEWAY if is_oneway else 0,
        ext=ext,
        body=bytes(BODY_BYTES),
    )
    return command.encode()


def unique_keys(shape: ShapeName) -> Iterator[str]:
    """Yield unique ids like those of Java's clients (32 letters and digits), or of another form (36, with hyphens)."""
    java = UniqueIds(socket.inet_aton("127.0.0.1"), salt=1)
    while True:
        yield java.next(int(time.time() * 1000)) if shape == "java" else str(uuid.uuid4())


def count_codes(data: bytes) -> Counter[int]:
    """Count the codes of all replies in `data`."""
    return Counter(int(json.loads(frame.header)["code"]) for frame in FrameReader().feed(data))


@final
class Peer:
    """A connection, on which `send_request` has one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket: Final = socket.create_connection((host, int(port)), timeout=REPLY_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames: Final = FrameReader()

    def send_request(self, request: bytes) -> dict[str, object]:
        """Send a request and return the header of its reply."""
        self.socket.sendall(request)
        while True:
            data = self.socket.recv(1 << 16)
            if not data:
                raise BenchmarkFailed("the broker closed a connection")
            for frame in self._frames.feed(data):
                header: dict[str, object] = json.loads(frame.header)
                return header

    def queue_end(self, queue: int) -> int:
        """Return the number of messages in a queue of the topic."""
        ext = {"topic": TOPIC, "queueId": str(queue), "committed": "true"}
        reply = self.send_request(Command(code=RequestCode.GET_MAX_OFFSET, ext=ext).encode())
        fields = reply.get("extFields")
        if reply["code"] != 0 or not isinstance(fields, dict):
            raise BenchmarkFailed(f"the broker did not return the end of queue {queue}: {reply}")
        return int(fields["offset"])

    def close(self) -> None:
        self.socket.close()


@final
class HonestClient(threading.Thread):
    """Sends one message after the other from `start` to `stop`, and records how long each took."""

    def __init__(self, address: str, pause_seconds: float = 0.001) -> None:
        super().__init__(name="honest-client", daemon=True)
        self._peer = Peer(address)
        self._pause_seconds = pause_seconds
        self._ends = threading.Event()
        self.samples: list[tuple[float, float]] = []
        """The start and the end of each request."""
        self.refused = 0
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            for opaque, unique in enumerate(unique_keys("java"), start=1):
                request = encode_send(opaque, unique, queue=HONEST_QUEUE)
                began = time.monotonic()
                code = self._peer.send_request(request)["code"]
                self.samples.append((began, time.monotonic()))
                self.refused += code != 0
                if self._ends.wait(self._pause_seconds):
                    return
        except (OSError, BenchmarkFailed) as error:
            self._error = error
        finally:
            self._peer.close()

    def stop(self) -> None:
        """Stop after the current request. Raises BenchmarkFailed if one was not answered."""
        self._ends.set()
        self.join(2 * REPLY_SECONDS_MAX)
        if self._error is not None:
            raise BenchmarkFailed(f"the honest client failed: {self._error}") from self._error

    def latencies_us(self, began: float, ended: float) -> list[float]:
        """Return the durations of the requests that were in progress at some time in [began, ended)."""
        return [(end - begin) * 1e6 for begin, end in self.samples if begin < ended and end > began]


def run_program(program: Program, shape: ShapeName, address: str) -> Outcome:
    """Run a program once against one broker. Raises BenchmarkFailed and OSError."""
    keys = unique_keys(shape)
    frames = [
        encode_send(number, next(keys), queue=FLOOD_QUEUE, is_oneway=program.is_oneway)
        for number in range(program.count)
    ]
    watcher, honest = Peer(address), HonestClient(address)
    try:
        start = watcher.queue_end(FLOOD_QUEUE)
        honest.start()
        began = time.monotonic()
        codes, replied_at = _flood(program, frames, address)
        ended = replied_at
        if program.is_oneway:
            ended = _wait_until_stored(watcher, start + program.count)
        honest.stop()
        stored = watcher.queue_end(FLOOD_QUEUE) - start
    finally:
        watcher.close()
    unanswered = 0 if program.is_oneway else program.count - codes.total()
    return Outcome(
        sent=program.count,
        stored=stored,
        refused={code: count for code, count in sorted(codes.items()) if code},
        unanswered=unanswered,
        seconds=ended - began,
        honest_us=honest.latencies_us(began, ended),
        honest_refused=honest.refused,
    )


def _flood(program: Program, frames: list[bytes], address: str) -> tuple[Counter[int], float]:
    """Write the frames and read any replies; return their codes, and when the last was read or all were written."""
    peer = Peer(address)
    try:
        if program.is_oneway:
            _write(program, frames, peer.socket)
            return Counter(), time.monotonic()
        writer = threading.Thread(target=_write, args=(program, frames, peer.socket), daemon=True)
        writer.start()
        data, replied_at = _read_replies(peer.socket, len(frames))
        writer.join(REPLY_SECONDS_MAX)
        return count_codes(data), replied_at
    finally:
        peer.close()


def _write(program: Program, frames: list[bytes], connection: socket.socket) -> None:
    if program.per_second is None:
        connection.sendall(b"".join(frames))
        return
    began = time.monotonic()
    for number, frame in enumerate(frames):
        delay = began + number / program.per_second - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        connection.sendall(frame)


def _read_replies(connection: socket.socket, count: int) -> tuple[bytes, float]:
    """Return the bytes of so many replies, or of as many as arrived in time."""
    data, position, found = bytearray(), 0, 0
    replied_at = time.monotonic()
    while found < count:
        try:
            piece = connection.recv(1 << 20)
        except TimeoutError:
            break
        if not piece:
            break
        data += piece
        replied_at = time.monotonic()
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            position, found = end, found + 1
    return bytes(data[:position]), replied_at


def _wait_until_stored(watcher: Peer, wanted: int) -> float:
    """Return when the queue had so many messages, or had not grown for QUIET_SECONDS."""
    end, grew_at = watcher.queue_end(FLOOD_QUEUE), time.monotonic()
    while end < wanted and time.monotonic() - grew_at < QUIET_SECONDS:
        time.sleep(POLL_SECONDS)
        now = watcher.queue_end(FLOOD_QUEUE)
        if now > end:
            end, grew_at = now, time.monotonic()
    return grew_at
