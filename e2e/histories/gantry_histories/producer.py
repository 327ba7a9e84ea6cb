"""A producer that survives failovers and records every answer.

Every key is sent once: the outcome of a send without an answer stays unknown. The producer follows the name server's
route, on one connection at a time. A producer with ``keeps_broker`` does not: like a client with a stale route, it
stays with its broker for as long as that broker accepts messages. So it detects a deposed master that still
acknowledges.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final, final

from gantry_histories.bodies import digest_of, make_body
from gantry_histories.events import Answered, Journal, Outcome, Queue, Sent, outcome_of
from gantry_histories.routes import Routes
from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire import Command, RequestCode
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.commands.send import SendMessageV2, SendResult
from gantry_wire.message import parse_offset_message_id

WINDOW: Final = 8
"""The most requests of one connection that wait for their answers."""

REPLY_TIMEOUT_MS: Final = 6_000
CONNECT_TIMEOUT_MS: Final = 1_000
PAUSE_S: Final = 0.05
"""The pause after a refusal or a lost connection, and while there is no master."""
SENDS_PER_S: Final = 150
BATCH_SHARE: Final = 0.1
"""Share of the requests that send a batch."""

BATCH_MAX: Final = 5
BODY_BYTES: Final = (0, 10, 100, 100, 1_000, 3_000)
"""The sizes of the padding. All keys have one size, so one padding size gives records of one size."""


@final
class Producer:
    """Sends messages and records the answers. Owned by one loop."""

    def __init__(
        self, name: str, journal: Journal, routes: Routes, queues: Sequence[Queue], seed: int, *, keeps_broker: bool,
        body_bytes: Sequence[int] = BODY_BYTES, sends_per_s: float = SENDS_PER_S,
    ) -> None:  # fmt: skip
        """``seed`` and ``name`` determine queues and bodies; the module's docstring explains ``keeps_broker``."""
        self.name: Final = name
        self.acknowledged = 0
        """The number of acknowledged messages."""

        self.in_flight = 0
        """The number of messages that are sent and may still be answered, on the current and on earlier connections."""
        self._journal: Final = journal
        self._routes: Final = routes
        self._queues: Final = queues
        self._random: Final = random.Random(f"{seed}/{name}")
        self._keeps_broker: Final = keeps_broker
        self._body_bytes: Final = body_bytes
        self._sends_per_s: Final = sends_per_s
        self._sequence = 0
        self._stream = 0
        self._closings: set[asyncio.Task[bool]] = set()

    def __repr__(self) -> str:
        return f"<Producer {self.name} sent={self._sequence} acknowledged={self.acknowledged}>"

    async def run(self, stop: asyncio.Event) -> None:
        """Send until ``stop`` is set, then wait for the sends in flight."""
        try:
            while not stop.is_set():
                address = await self._routes.master()
                if address is None or not await self._send_over_connection(address, stop):
                    await asyncio.sleep(PAUSE_S)
        finally:
            await asyncio.gather(*self._closings)

    async def _send_over_connection(self, address: str, stop: asyncio.Event) -> bool:
        """Send over one connection while it is the right one. Return whether the broker accepted messages."""
        try:
            channel = await self._routes.connector.connect(address, timeout_ms=CONNECT_TIMEOUT_MS)
        except CannotConnect:
            return False
        self._stream += 1
        sends: set[asyncio.Task[bool]] = set()
        is_accepting = True
        while channel.is_open and is_accepting and not stop.is_set():
            if not self._keeps_broker and await self._routes.master() not in (address, None):
                break
            sends.add(self._start(channel))
            await asyncio.sleep(self._random.expovariate(self._sends_per_s))
            done = {task for task in sends if task.done()}
            if len(sends) - len(done) >= WINDOW:
                done, sends = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            else:
                sends -= done
            is_accepting = all(task.result() for task in done)
        closing = asyncio.ensure_future(self._close_when_answered(channel, sends))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        return is_accepting

    async def _close_when_answered(self, channel: Channel, sends: set[asyncio.Task[bool]]) -> bool:
        """Keep the connection open until its pending sends are answered, then close it."""
        await asyncio.gather(*sends)
        await channel.close()
        return True

    def _start(self, channel: Channel) -> asyncio.Task[bool]:
        """Send the next message, or sometimes a small batch."""
        queue = self._random.choice(self._queues)
        count = self._random.randint(2, BATCH_MAX) if self._random.random() < BATCH_SHARE else 1
        made = [self._make(queue) for _ in range(count)]
        self.in_flight += count
        if count == 1:
            [(key, body)] = made
            command = self._command(RequestCode.SEND_MESSAGE_V2, queue, _properties(key), body)
        else:
            batch = encode_batch([BatchEntry(0, body, _properties(key).encode()) for key, body in made])
            command = self._command(RequestCode.SEND_BATCH_MESSAGE, queue, "", batch)
        return asyncio.ensure_future(self._await_answer(channel, command, [key for key, _ in made]))

    def _make(self, queue: Queue) -> tuple[str, bytes]:
        """Create the next key and its body, and record the send."""
        self._sequence += 1
        key = f"{self.name}-{self._sequence:07}"
        body = make_body(key, self._random.randbytes(self._random.choice(self._body_bytes)))
        sent = Sent(
            client=self.name, stream=self._stream, key=key, queue=queue, digest=digest_of(body), at=time.monotonic_ns()
        )
        self._journal.add(sent)
        return key, body

    def _command(self, code: RequestCode, queue: Queue, properties: str, body: bytes) -> Command:
        fields = SendMessageV2(
            producer_group="HistoryProducers", topic=queue.topic, default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=queue.number, sys_flag=0, born_timestamp=1_700_000_000_000, flag=0, properties=properties,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
        )  # fmt: skip
        return Command(code=code, ext=fields.write(), body=body)

    async def _await_answer(self, channel: Channel, command: Command, keys: Sequence[str]) -> bool:
        """Record the answer. Return whether the broker accepts messages, as far as this answer shows."""
        try:
            reply = await channel.request(command, REPLY_TIMEOUT_MS)
        except RemotingError:
            return False
        finally:
            self.in_flight -= len(keys)
        outcome, at = outcome_of(reply.code), time.monotonic_ns()
        if outcome is Outcome.REFUSED:
            for key in keys:
                self._journal.add(Answered(key=key, outcome=outcome, code=reply.code, broker=channel.address, at=at))
            return False
        result = SendResult.read(reply.ext)
        ids = result.msg_id.split(",")
        assert len(ids) == len(keys), f"a reply to {len(keys)} messages has {len(ids)} ids"
        for place, (key, message_id) in enumerate(zip(keys, ids, strict=True)):
            self._journal.add(Answered(
                key=key, outcome=outcome, code=reply.code, broker=channel.address, at=at,
                queue_offset=result.queue_offset + place, physical_offset=parse_offset_message_id(message_id)[2],
            ))  # fmt: skip
        self.acknowledged += len(keys) if outcome is Outcome.OK else 0
        return True


def _properties(key: str) -> str:
    """Return the properties as Java's producers encode them, with the unique id first."""
    return f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"
