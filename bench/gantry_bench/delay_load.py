"""Delayed messages in quantity: sending them, and reading when they were stored and delivered.

Frames are encoded once and then only numbered, so that one Python process can send faster than the broker
accepts. Answers are counted and checked; every answer but success is an error of the run.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_remoting import Channel, split_address
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire import properties as keys
from gantry_wire.commands.pull import PULL_SUBSCRIPTION
from gantry_wire.frame import FRAME_HEAD, FrameReader
from gantry_wire.message import decode_records
from gantry_wire.properties import format_properties

TOPIC: Final = "BenchDelay"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
OUTSTANDING_MAX: Final = 400
"""The limit of sends in flight: a broker that needs 50 microseconds for each has 20 ms of work, and never answers
"busy".
"""
TICK_SECONDS: Final = 0.01
TIMEOUT_SECONDS: Final = 60.0
TIMEOUT_MS: Final = 60_000
PULL_MESSAGES: Final = 1024
PULL_BYTES: Final = 1 << 20
_SERIAL: Final = struct.Struct(">q")
_KEY: Final = b"7F00000100002A139A55000000000000"
_SUCCESS: Final = b'"code":0,'
_FIRST_OPAQUE: Final = 1_000_000_000
"""The number of the first request: all numbers have as many digits."""
_OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
_REMARK: Final = re.compile(rb'"remark":"([^"]*)"')


class Stored(msgspec.Struct, frozen=True):
    """One message of a queue: its number, and when the broker stored it."""

    serial: int
    stored_ms: int
    due_ms: int = 0
    """When it was due, if it was a timer."""


def frame_parts(level: int, queue_id: int, property_name: str) -> tuple[bytes, bytes, bytes]:
    """Return the header of a send before its unique id, from there to its number, and after it."""
    properties = format_properties({"UNIQ_KEY": _KEY.decode(), "WAIT": "true", property_name: str(level)})
    fields = {
        "a": "bench", "b": TOPIC, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    frame = Command(code=RequestCode.SEND_MESSAGE_V2, opaque=_FIRST_OPAQUE, ext=fields).encode()
    before, key, rest = frame[FRAME_HEAD.size :].partition(_KEY)
    between, opaque, after = rest.partition(b"%d" % _FIRST_OPAQUE)
    assert key and opaque, "expected the unique id and the number of the request in the frame as they are"
    return before, between, after


class DelaySender:
    """Sends numbered messages of one size over one connection.

    A level is the value of the property that delays a message: a delay level, or the milliseconds of a timer.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        body_bytes: int,
        property_name: str = keys.DELAY_LEVEL,
    ) -> None:
        self.refused: set[int] = set()
        """The numbers of the messages that the broker has refused."""
        self.first_refusal = ""
        """The broker's text of the first refusal."""
        self._property_name = property_name
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._filler = bytes(body_bytes - _SERIAL.size)
        self._parts: dict[tuple[int, int], tuple[bytes, bytes, bytes]] = {}
        self._serial = 0
        self._outstanding = 0

    @classmethod
    async def open(cls, address: str, *, body_bytes: int, property_name: str = keys.DELAY_LEVEL) -> DelaySender:
        streams = await asyncio.open_connection(*split_address(address))
        return cls(*streams, body_bytes=body_bytes, property_name=property_name)

    @property
    def errors(self) -> int:
        """The number of messages that the broker has refused."""
        return len(self.refused)

    @property
    def sent(self) -> int:
        """The number of messages so far, which is the number of the next one."""
        return self._serial

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def send(self, count: int, *, level: int, queue_id: int) -> None:
        """Send so many messages as fast as the broker accepts them."""
        while count:
            taken = min(count, OUTSTANDING_MAX - self._outstanding, OUTSTANDING_MAX // 4)
            self._write(taken, level, queue_id)
            count -= taken
            while self._outstanding > OUTSTANDING_MAX * 3 // 4:
                await self._read_replies()
        while self._outstanding:
            await self._read_replies()

    async def send_paced(self, per_second: int, seconds: float, *, levels: tuple[int, ...]) -> None:
        """Send messages at a rate, in turn for each level; those of the first go to queue 1, and so on."""
        loop = asyncio.get_running_loop()
        began, sent, total = loop.time(), 0, int(per_second * seconds)
        while sent < total:
            # After a pause the rest is sent in parts: a burst that grows with each pause would be refused as busy.
            due = min(total, int((loop.time() - began) * per_second), sent + OUTSTANDING_MAX)
            for queue_id, level in enumerate(levels, start=1):
                share = due // len(levels) - sent // len(levels)
                self._write(share, level, queue_id)
            sent = due
            while self._outstanding:
                await self._read_replies()
            await asyncio.sleep(TICK_SECONDS)

    def _write(self, count: int, level: int, queue_id: int) -> None:
        key = level, queue_id
        before, between, after = self._parts.setdefault(key, frame_parts(*key, self._property_name))
        parts: list[bytes] = []
        for _ in range(count):
            header = b"%b%032X%b%d%b" % (before, self._serial, between, _FIRST_OPAQUE + self._serial, after)
            body = _SERIAL.pack(self._serial) + self._filler
            parts += (FRAME_HEAD.pack(4 + len(header) + len(body), len(header)), header, body)
            self._serial += 1
        self._outstanding += count
        self._writer.write(b"".join(parts))

    async def _read_replies(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._writer.drain()
            data = await self._reader.read(1 << 16)
        if not data:
            raise BenchmarkFailed("the broker has closed the connection")
        for frame in self._frames.feed(data):
            self._outstanding -= 1
            if _SUCCESS not in frame.header:
                self._note_refusal(bytes(frame.header))

    def _note_refusal(self, header: bytes) -> None:
        number = _OPAQUE.search(header)
        if number is None:
            raise BenchmarkFailed(f"an answer without a number: {header!r}")
        self.refused.add(int(number[1]) - _FIRST_OPAQUE)
        if not self.first_refusal and (remark := _REMARK.search(header)):
            self.first_refusal = remark[1].decode(errors="replace")


async def read_queue(channel: Channel, topic: str, queue_id: int, count: int) -> list[Stored]:
    """Return the first ``count`` messages of a queue."""
    found: list[Stored] = []
    while len(found) < count:
        fields = {
            "consumerGroup": "bench", "topic": topic, "queueId": str(queue_id), "queueOffset": str(len(found)),
            "maxMsgNums": str(PULL_MESSAGES), "maxMsgBytes": str(PULL_BYTES), "sysFlag": str(PULL_SUBSCRIPTION),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1",
            "expressionType": "TAG",
        }  # fmt: skip
        reply = await channel.request(Command(code=RequestCode.PULL_MESSAGE, ext=fields), TIMEOUT_MS)
        if reply.code != 0:
            raise BenchmarkFailed(f"{topic}/{queue_id} has {len(found)} messages of {count}: {reply.remark}")
        found += [
            Stored(
                _SERIAL.unpack_from(message.body)[0],
                message.store_timestamp_ms,
                int(message.properties.get(keys.TIMER_OUT_MS, -1)) + 1,
            )
            for message in decode_records(reply.body)
        ]
    return found


async def queue_end(channel: Channel, topic: str, queue_id: int) -> int:
    """Return the end of a queue. Raises BenchmarkFailed if the broker refuses the request.

    A broker that has just started is not ready for some time, and is asked again.
    """
    ext = {"topic": topic, "queueId": str(queue_id)}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        reply = await channel.request(Command(code=RequestCode.GET_MAX_OFFSET, ext=ext), TIMEOUT_MS)
        if reply.code == 0:
            return int(reply.ext["offset"])
        if reply.code != ResponseCode.SERVICE_NOT_AVAILABLE or time.monotonic() > deadline:
            raise BenchmarkFailed(f"the end of {topic}/{queue_id} is unknown: {reply.remark}")
        await asyncio.sleep(TICK_SECONDS)


async def wait_for_end(channel: Channel, topic: str, queue_id: int, end: int, *, seconds: float) -> None:
    """Wait until a queue has so many messages. Raises BenchmarkFailed if it gets none for ``seconds``.

    A broker that other programs leave little CPU time takes longer, and does not fail.
    """
    found, deadline = -1, time.monotonic() + seconds
    while (now := await queue_end(channel, topic, queue_id)) < end:
        if now > found:
            found, deadline = now, time.monotonic() + seconds
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{topic}/{queue_id} has {now} messages of {end}, and got none for {seconds:.0f} s")
        await asyncio.sleep(0.2)
