"""Pulls at a steady pace during another load: how long each takes.

A thread with one connection pulls 32 stored messages at a time, repeatedly from a queue's beginning, and
measures the time of each answer. It pauses between two pulls, so that it adds little to the measured load.
The broker never has to wait for messages, because they are stored already.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_slow import PullReport, pull_report
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command, decode_command
from gantry_wire.frame import Frame, FrameReader

TOPIC: Final = "GantryBench"
PAUSE_SECONDS: Final = 0.004
MESSAGES_AT_ONCE: Final = 32
SPAN_MESSAGES: Final = 512
"""The number of the queue's first messages that are pulled repeatedly."""
SUBSCRIPTION_IN_HEADER: Final = 4
TIMEOUT_SECONDS: Final = 10.0
READ_BYTES: Final = 1 << 17


class PullLoop:
    """A thread that pulls and measures. Only this thread appends to the lists; other threads only read them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._is_over = threading.Event()
        self._answers: list[tuple[float, float]] = []
        self._refusals: list[float] = []
        self._problem: OSError | None = None

    @contextmanager
    def run_meanwhile(self) -> Iterator[None]:
        """Pull for the duration of the context."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
        if self._problem is not None:
            raise BenchmarkFailed(f"pulls failed: {self._problem}") from self._problem

    def report(self, start: float, end: float) -> PullReport:
        """Return the report on pulls that were answered in [start, end) of the monotonic clock."""
        took = [took_us for when, took_us in self._answers if start <= when < end]
        return pull_report(took, sum(start <= when < end for when in self._refusals))

    def _run(self) -> None:
        try:
            with socket.create_connection(self._address, timeout=TIMEOUT_SECONDS) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pull_until_over(connection)
        except OSError as error:
            self._problem = error

    def _pull_until_over(self, connection: socket.socket) -> None:
        reader, offset = FrameReader(), 0
        while not self._is_over.wait(PAUSE_SECONDS):
            request = pull_request(offset).encode()
            offset = (offset + MESSAGES_AT_ONCE) % SPAN_MESSAGES
            before = time.monotonic()
            connection.sendall(request)
            code = decode_command(_answer(connection, reader)).code
            after = time.monotonic()
            if code == ResponseCode.SUCCESS:
                self._answers.append((after, (after - before) * 1e6))
            else:
                self._refusals.append(after)


def _answer(connection: socket.socket, reader: FrameReader) -> Frame:
    while data := connection.recv(READ_BYTES):
        for frame in reader.feed(data):
            return frame
    raise ConnectionError("the broker closed the connection")


def pull_request(offset: int) -> Command:
    """Return a pull of stored messages from the first queue, without waiting."""
    ext = {
        "consumerGroup": "bench_puller", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": str(MESSAGES_AT_ONCE), "sysFlag": str(SUBSCRIPTION_IN_HEADER), "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    return Command(code=RequestCode.PULL_MESSAGE, ext=ext)
