"""A producer that records every send: numbered messages, single and in batches, with many pending requests.

It sends in order on one connection, so that the order of its sequence numbers is the order in every queue, and it never
sends a message twice: without a reply the outcome stays unknown.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final, final

from crash.history import History, Sent
from crash.payload import Mark, digest, make_body

from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.commands.send import SendMessageV2, SendResult
from gantry_wire.message import parse_offset_message_id

TOPICS: Final = ("CrashA", "CrashB", "CrashC")
QUEUES: Final = 3
"""The number of queues of each topic."""
WINDOW: Final = 16
"""The number of requests of one producer that may be pending."""
REPLY_TIMEOUT_MS: Final = 60_000
UNKNOWN_CODES: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT,
)  # fmt: skip
"""Codes 10, 11 and 12: stored, but the promise of the mode was not met."""
REFUSED_PAUSE_S: Final = 0.01
"""How long a refused send keeps its place among the pending requests, as clients pause after a refusal."""
BODY_SIZES: Final = (0, 10, 100, 100, 500, 2000, 6000, 20_000)
BATCH_SHARE: Final = 0.1
"""The share of requests that are batches."""


@final
class Producer:
    """One numbered producer over all rounds of a run. Owned by one event loop."""

    def __init__(self, number: int, seed: int, history: History) -> None:
        self._number = number
        self._rng = random.Random(f"{seed}/producer/{number}")
        self._history = history
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<Producer {self._number} sent={self._sequence}>"

    async def run(self, address: str) -> None:
        """Send until the connection breaks."""
        try:
            channel = await Channel.connect(address)
        except CannotConnect:
            return
        under_way: set[asyncio.Task[None]] = set()
        try:
            while channel.is_open:
                under_way.add(self._start(channel))
                if len(under_way) >= WINDOW:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                await channel.wait_until_writable()
        finally:
            await asyncio.gather(*under_way)
            await channel.close()

    def _start(self, channel: Channel) -> "asyncio.Task[None]":
        """Send the next message or batch, and return the task that waits for its outcome."""
        topic, queue_id = self._rng.choice(TOPICS), self._rng.randrange(QUEUES)
        count = self._rng.randrange(2, 8) if self._rng.random() < BATCH_SHARE else 1
        made = [self._make(topic, queue_id) for _ in range(count)]
        marks = [sent.mark for sent, _ in made]
        for sent, _ in made:
            self._history.record_sent(sent)
        if count == 1:
            sent, body = made[0]
            command = self._command(RequestCode.SEND_MESSAGE_V2, sent, properties(sent), body)
        else:
            entries = [BatchEntry(0, body, properties(sent).encode()) for sent, body in made]
            command = self._command(RequestCode.SEND_BATCH_MESSAGE, made[0][0], "", encode_batch(entries))
        return asyncio.ensure_future(self._await_outcome(channel, command, marks))

    def _make(self, topic: str, queue_id: int) -> tuple[Sent, bytes]:
        """Return the next message and its body, which names run, producer and sequence number."""
        mark = Mark(self._number, self._sequence)
        self._sequence += 1
        body = make_body(self._history.run, mark, self._rng.randbytes(self._rng.choice(BODY_SIZES)))
        unique_id = f"{self._history.run.hex()}{mark.producer:04X}{mark.sequence:012X}".upper()
        return Sent(mark, topic, queue_id, digest(body).hex(), unique_id), body

    def _command(self, code: RequestCode, sent: Sent, properties: str, body: bytes) -> Command:
        fields = SendMessageV2(
            producer_group="CrashProducers", topic=sent.topic, default_topic="TBW102", default_topic_queue_nums=QUEUES,
            queue_id=sent.queue_id, sys_flag=0, born_timestamp=1_700_000_000_000, flag=0, properties=properties,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
        )  # fmt: skip
        return Command(code=code, ext=fields.write(), body=body)

    async def _await_outcome(self, channel: Channel, command: Command, marks: Sequence[Mark]) -> None:
        """Wait for the reply to a request, and record the outcome of each of its messages."""
        try:
            reply = await channel.request(command, REPLY_TIMEOUT_MS)
        except RemotingError:
            return
        if reply.code in UNKNOWN_CODES:
            return
        if reply.code != ResponseCode.SUCCESS:
            for mark in marks:
                self._history.record_refused(mark, reply.code)
            await asyncio.sleep(REFUSED_PAUSE_S)
            return
        result = SendResult.read(reply.ext)
        ids = result.msg_id.split(",")
        assert len(ids) == len(marks), "the reply does not name every message of its request"
        for number, (mark, message_id) in enumerate(zip(marks, ids, strict=True)):
            self._history.record_acked(mark, result.queue_offset + number, parse_offset_message_id(message_id)[2])


def properties(sent: Sent) -> str:
    """Format the properties as Java's producers do, with the unique id first."""
    return f"UNIQ_KEY\x01{sent.unique_id}\x02WAIT\x01true\x02TAGS\x01t{sent.mark.sequence % 3}\x02"
