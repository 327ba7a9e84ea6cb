"""The clients of the curves: pipelined requests, idle connections with heartbeats, and consumers with held pulls.

They are plain sockets in this process. No client of a group is needed, and ten thousand of them would not fit into one
process. Every answer is checked; a refusal or a closed connection ends the run.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command, decode_command
from gantry_wire.commands.admin import TopicConfig, TopicConfigList
from gantry_wire.commands.clients import HeartbeatData, ProducerData
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantry_wire.frame import FrameReader

TIMEOUT_SECONDS: Final = 30.0
WINDOW: Final = 64
TOPICS_AT_ONCE: Final = 2000
READ_BYTES: Final = 1 << 16
HEARTBEAT_SECONDS: Final = 30.0
"""The interval of RocketMQ's clients."""
TICK_SECONDS: Final = 0.1
SUSPEND_MS: Final = 60_000
"""How long a pull may be held; the broker's maximum."""
PULLED_AGAIN: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


def connect(address: str) -> socket.socket:
    """Open a connection to ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
    except OSError as error:
        raise BenchmarkFailed(f"no connection to {address}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, reader: FrameReader) -> list[Command]:
    """Return the answers of one read. Raises BenchmarkFailed if the broker has closed the connection."""
    try:
        data = connection.recv(READ_BYTES)
    except OSError as error:
        raise BenchmarkFailed(f"the broker did not answer: {error}") from error
    if not data:
        raise BenchmarkFailed("the broker has closed a connection")
    return [decode_command(frame) for frame in reader.feed(data)]


def request_all(address: str, commands: Sequence[Command]) -> None:
    """Send requests over one connection, a window of them at a time. Raises BenchmarkFailed for a refusal."""
    reader, unsent, waiting = FrameReader(), list(reversed(commands)), 0
    with connect(address) as connection:
        while unsent or waiting:
            chunk = [unsent.pop().encode() for _ in range(min(WINDOW - waiting, len(unsent)))]
            connection.sendall(b"".join(chunk))
            waiting += len(chunk)
            for answer in receive(connection, reader):
                if answer.code != ResponseCode.SUCCESS:
                    raise BenchmarkFailed(f"the broker refused a request with {answer.code}: {answer.remark}")
                waiting -= 1


def create_topics(address: str, names: Sequence[str], queues: int) -> None:
    """Create topics with so many queues each, many in a request, or change those that exist."""
    for start in range(0, len(names), TOPICS_AT_ONCE):
        configs = [
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            for name in names[start : start + TOPICS_AT_ONCE]
        ]
        body = msgspec.json.encode(TopicConfigList(topic_config_list=configs))
        request_all(address, [Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)])


def heartbeat(number: int) -> Command:
    """Return the heartbeat of a producer with a client id of its own."""
    data = HeartbeatData(client_id=f"127.0.0.1@{number}", producer_data_set=[ProducerData(group_name="bench_producer")])
    return Command(code=RequestCode.HEART_BEAT, body=msgspec.json.encode(data))


@final
class IdleClients:
    """Connections whose only requests are heartbeats, spread evenly over their interval. A thread sends them."""

    def __init__(self, address: str, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._connections: list[socket.socket] = []
        self._readers: list[FrameReader] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats")
        self._failure = ""
        self.answers = 0
        try:
            for number in range(count):
                connection = connect(address)
                self._connections.append(connection)
                self._readers.append(FrameReader())
                self._selector.register(connection, selectors.EVENT_READ, number)
                connection.sendall(heartbeat(number).encode())
            self._read_until(count)
        except BaseException:
            self._close()
            raise
        self._thread.start()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Beat for the duration of the context. Raises BenchmarkFailed at its end if a connection failed."""
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()
            self._close()
        if self._failure:
            raise BenchmarkFailed(self._failure)

    def _read_until(self, answers: int) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.answers < answers:
            self._read(TICK_SECONDS)
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self.answers:,} of {answers:,} heartbeats were answered")

    def _read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            for answer in receive(self._connections[key.data], self._readers[key.data]):
                if answer.code != ResponseCode.SUCCESS:
                    raise BenchmarkFailed(f"a heartbeat was refused with {answer.code}: {answer.remark}")
                self.answers += 1

    def _beat(self) -> None:
        began, sent, count = time.monotonic(), 0, len(self._connections)
        try:
            while not self._is_over.wait(TICK_SECONDS):
                due = int((time.monotonic() - began) / HEARTBEAT_SECONDS * count)
                for number in range(sent, due):
                    self._connections[number % count].sendall(heartbeat(number % count).encode())
                sent = due
                self._read(0)
        except (OSError, BenchmarkFailed) as error:
            self._failure = f"an idle connection failed: {error}"

    def _close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._selector.close()


@final
class Consumers:
    """Consumers with a connection and a group each, whose pulls the broker holds, and one producer.

    They read one queue of a topic all together, or one queue each. The producer sends the next message when all have
    received the last one, so each message finds every pull held, unless the pull is still on its way.
    """

    def __init__(self, address: str, topic: str, count: int, *, has_own_queues: bool) -> None:
        self._topic = topic
        self._has_own_queues = has_own_queues
        self._selector = selectors.DefaultSelector()
        self._connections: list[socket.socket] = []
        self._readers = [FrameReader() for _ in range(count)]
        self._offsets = [0] * count
        self._producer = connect(address)
        self._producer_reader = FrameReader()
        self.deliveries = 0
        try:
            for number in range(count):
                connection = connect(address)
                self._connections.append(connection)
                self._selector.register(connection, selectors.EVENT_READ, number)
                self._pull(number)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections of consumers and producer."""
        for connection in (*self._connections, self._producer):
            connection.close()
        self._selector.close()

    def deliver(self, rounds: int, body: bytes) -> int:
        """Send so many messages, one after the other; return how many deliveries there were."""
        before = self.deliveries
        for number in range(rounds):
            queue = number % len(self._connections) if self._has_own_queues else 0
            self._send(queue, body)
            self._receive_until(self.deliveries + (1 if self._has_own_queues else len(self._connections)))
        return self.deliveries - before

    def keep_held(self, seconds: float) -> None:
        """Repeat the pulls that the broker gives up meanwhile; return after the time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _receive_until(self, deliveries: int) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.deliveries < deliveries:
            self._read(TICK_SECONDS)
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{deliveries - self.deliveries:,} consumers did not receive a message")

    def _read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            number: int = key.data
            for answer in receive(self._connections[number], self._readers[number]):
                if answer.code == ResponseCode.SUCCESS:
                    self._offsets[number] = int(answer.ext["nextBeginOffset"])
                    self.deliveries += 1
                elif answer.code not in PULLED_AGAIN:
                    raise BenchmarkFailed(f"a pull was refused with {answer.code}: {answer.remark}")
                self._pull(number)

    def _pull(self, number: int) -> None:
        ext = {
            "consumerGroup": f"bench_consumer_{number}", "topic": self._topic,
            "queueId": str(number if self._has_own_queues else 0), "queueOffset": str(self._offsets[number]),
            "maxMsgNums": "32", "sysFlag": str(PULL_SUBSCRIPTION | PULL_SUSPEND), "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS), "subVersion": "0", "subscription": "*", "expressionType": "TAG",
        }  # fmt: skip
        self._connections[number].sendall(Command(code=RequestCode.PULL_MESSAGE, opaque=number, ext=ext).encode())

    def _send(self, queue: int, body: bytes) -> None:
        fields = {
            "a": "bench_producer", "b": self._topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0", "i": "WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        self._producer.sendall(Command(code=RequestCode.SEND_MESSAGE_V2, ext=fields, body=body).encode())
        while not (answers := receive(self._producer, self._producer_reader)):
            pass
        if answers[0].code != ResponseCode.SUCCESS:
            raise BenchmarkFailed(f"a send was refused with {answers[0].code}: {answers[0].remark}")
