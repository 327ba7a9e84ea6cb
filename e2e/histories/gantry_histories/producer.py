"""A producer that goes on through failovers and writes down what it was told.

Every key is sent once: what was not answered stays unknown. It follows the name server's route, on one connection at a
time. A stubborn one does not: it stays with the broker that it has for as long as that lets it, as a client does whose
route is old, and so it is the one to whom a master that is none any more might still say yes.
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
REPLY_TIMEOUT_MS: Final = 6_000
CONNECT_TIMEOUT_MS: Final = 1_000
PAUSE_S: Final = 0.05
"""After a refusal, or without a master: clients take a breath."""
SENDS_PER_S: Final = 150
BATCH_SHARE: Final = 0.1
BATCH_MAX: Final = 5
BODY_BYTES: Final = (0, 10, 100, 100, 1_000, 3_000)
"""What goes behind the key; keys have one size, so that one size here makes records of one size."""


@final
class Producer:
    """Owned by one loop."""

    def __init__(
        self, name: str, journal: Journal, routes: Routes, queues: Sequence[Queue], seed: int, *, is_stubborn: bool,
        body_bytes: Sequence[int] = BODY_BYTES,
    ) -> None:  # fmt: skip
        self.name: Final = name
        self.acknowledged = 0
        self._journal: Final = journal
        self._routes: Final = routes
        self._queues: Final = queues
        self._chance: Final = random.Random(f"{seed}/{name}")
        self._is_stubborn: Final = is_stubborn
        self._body_bytes: Final = body_bytes
        self._sequence = 0
        self._stream = 0
        self._under_way: set[asyncio.Task[bool]] = set()

    def __repr__(self) -> str:
        return f"<Producer {self.name} sent={self._sequence} acknowledged={self.acknowledged}>"

    async def run(self, stop: asyncio.Event) -> None:
        """Send until ``stop``, then wait for what is under way."""
        try:
            while not stop.is_set():
                address = await self._routes.master()
                if address is None or not await self._use(address, stop):
                    await asyncio.sleep(PAUSE_S)
        finally:
            await asyncio.gather(*self._under_way)

    async def _use(self, address: str, stop: asyncio.Event) -> bool:
        """One connection, for as long as it is the one to use; whether it was of any use."""
        try:
            channel = await self._routes.door.connect(address, timeout_ms=CONNECT_TIMEOUT_MS)
        except CannotConnect:
            return False
        self._stream += 1
        mine: set[asyncio.Task[bool]] = set()
        is_welcome = True
        while channel.is_open and is_welcome and not stop.is_set():
            if not self._is_stubborn and await self._routes.master() not in (address, None):
                break
            mine.add(self._start(channel))
            await asyncio.sleep(self._chance.expovariate(SENDS_PER_S))
            done = {task for task in mine if task.done()}
            if len(mine) - len(done) >= WINDOW:
                done, mine = await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
            else:
                mine -= done
            is_welcome = all(task.result() for task in done)
        closing = asyncio.ensure_future(self._let_go(channel, mine))
        self._under_way.add(closing)
        closing.add_done_callback(self._under_way.discard)
        return is_welcome

    async def _let_go(self, channel: Channel, mine: set[asyncio.Task[bool]]) -> bool:
        """What is under way may still be answered; the connection is kept for so long."""
        await asyncio.gather(*mine)
        await channel.close()
        return True

    def _start(self, channel: Channel) -> asyncio.Task[bool]:
        """The next message, or a batch of some, on its way."""
        queue = self._chance.choice(self._queues)
        count = self._chance.randint(2, BATCH_MAX) if self._chance.random() < BATCH_SHARE else 1
        made = [self._make(queue) for _ in range(count)]
        if count == 1:
            [(key, body)] = made
            command = self._command(RequestCode.SEND_MESSAGE_V2, queue, _properties(key), body)
        else:
            batch = encode_batch([BatchEntry(0, body, _properties(key).encode()) for key, body in made])
            command = self._command(RequestCode.SEND_BATCH_MESSAGE, queue, "", batch)
        return asyncio.ensure_future(self._await_answer(channel, command, [key for key, _ in made]))

    def _make(self, queue: Queue) -> tuple[str, bytes]:
        """The next key and its body, written down."""
        self._sequence += 1
        key = f"{self.name}-{self._sequence:07}"
        body = make_body(key, self._chance.randbytes(self._chance.choice(self._body_bytes)))
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
        """Whether the broker takes messages, as far as this answer says."""
        try:
            reply = await channel.request(command, REPLY_TIMEOUT_MS)
        except RemotingError:
            return False
        outcome, at = outcome_of(reply.code), time.monotonic_ns()
        if outcome is Outcome.REFUSED:
            for key in keys:
                self._journal.add(Answered(key=key, outcome=outcome, code=reply.code, broker=channel.address, at=at))
            return False
        result = SendResult.read(reply.ext)
        ids = result.msg_id.split(",")
        assert len(ids) == len(keys), "a reply names every message of its request"
        for place, (key, message_id) in enumerate(zip(keys, ids, strict=True)):
            self._journal.add(Answered(
                key=key, outcome=outcome, code=reply.code, broker=channel.address, at=at,
                queue_offset=result.queue_offset + place, physical_offset=parse_offset_message_id(message_id)[2],
            ))  # fmt: skip
        self.acknowledged += len(keys) if outcome is Outcome.OK else 0
        return True


def _properties(key: str) -> str:
    """As Java's producers write them, the unique id first."""
    return f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"
