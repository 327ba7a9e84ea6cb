"""Pop consumers under load, and the judge of what they saw.

    sender     numbered messages; a send that is not acknowledged is repeated with the same body
    consumers  pop, then ack, change the invisible time, or forget the message

The judge knows each delivery by its queue and offset, and each ack that was answered while the message was invisible
for certain. Such an ack is *binding*: the message must never be delivered again. A body may have two copies with the
same delivery count, if a crash came between a copy and the record that it was made; then only the copy is judged.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_client import ClientError, Message, Producer, ProducerSettings
from gantry_client.pop import PopClient, PoppedMessage, PopRequest, PopStatus
from gantry_client.session import Session
from gantry_wire.pop_receipts import parse_receipt

GROUP: Final = "poppers"
TOPIC: Final = "Histories"
INVISIBLE_MS: Final = 2_000
SEND_TIMEOUT_MS: Final = 120_000
CLOCK_SLACK_S: Final = 0.05
"""How much the clocks of client and broker may differ over an invisible time."""

Place = tuple[str, int, int]
"""Where a delivered message is stored: retry flag, queue, offset."""


class Delivery(NamedTuple):
    """A message that a consumer received."""

    body: bytes
    place: Place
    times: int
    """The delivery count of the message."""

    asked_s: float
    """When the pop was sent."""

    received_s: float = 0.0
    """When its answer came."""


class Ack(NamedTuple):
    """An ack that was answered with success."""

    body: bytes
    place: Place
    times: int
    answered_s: float
    is_binding: bool
    """Whether the answer came while the message was certainly invisible."""


@final
@dataclass
class PopHistory:
    """What sender and consumers saw."""

    sent: set[bytes] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    """Messages whose ack was sent and not answered: they may be done."""


def judge(history: PopHistory) -> list[str]:
    """Return the violations: messages that were never delivered, deliveries after a binding ack, and early ones.

    A message is delivered again with the next count when its invisible time is over, which began after its pop was
    sent. Consumers change that time to a longer one only.
    """
    delivered = {one.body for one in history.deliveries}
    found = [f"lost: {body!r} was acknowledged and never delivered" for body in sorted(history.sent - delivered)]
    copies: defaultdict[tuple[bytes, int], set[Place]] = defaultdict(set)
    for one in history.deliveries:
        copies[one.body, one.times].add(one.place)
    twice = {body for (body, _), places in copies.items() if len(places) > 1}
    ends_by_place: dict[Place, float] = {}
    ends_by_body: dict[bytes, float] = {}
    for ack in history.acks:
        if ack.is_binding:
            ends_by_place[ack.place] = min(ack.answered_s, ends_by_place.get(ack.place, ack.answered_s))
            ends_by_body[ack.body] = min(ack.answered_s, ends_by_body.get(ack.body, ack.answered_s))
    for one in history.deliveries:
        if one.asked_s > ends_by_place.get(one.place, one.asked_s):
            found.append(f"delivered again: {one.body!r} at {one.place}, although its ack was answered")
        elif one.body not in twice and one.asked_s > ends_by_body.get(one.body, one.asked_s):
            found.append(f"copied: {one.body!r} to {one.place}, although its ack was answered")
    asked_s: dict[tuple[bytes, int], float] = {}
    for one in history.deliveries:
        key = one.body, one.times
        asked_s[key] = min(one.asked_s, asked_s.get(key, one.asked_s))
    for one in history.deliveries:
        before_s = asked_s.get((one.body, one.times - 1))
        if before_s is not None and one.received_s < before_s + INVISIBLE_MS / 1000 - CLOCK_SLACK_S:
            found.append(f"early: {one.body!r} to {one.place}, {one.received_s - before_s:.3f} s after the pop before")
    return found


@final
class PopLoad:
    """One sender and some pop consumers against the present master."""

    def __init__(self, name_server: str, address: Callable[[], str], *, seed: int) -> None:
        """``address`` returns the address of the present master."""
        self.history: Final = PopHistory()
        self._name_server: Final = name_server
        self._address: Final = address
        self._random: Final = random.Random(seed)
        self._loop: Final = asyncio.get_running_loop()
        self.is_forgetful = True
        """Whether consumers forget some messages, so that they are delivered again."""

        self._is_stopped = False

    async def send(self, count: int) -> None:
        """Send messages until each is acknowledged."""
        settings = ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS)
        async with Producer(self._name_server, settings=settings) as producer:
            for number in range(count):
                body = b"%d" % number
                while True:
                    try:
                        receipt = await producer.send(Message(TOPIC, body))
                    except ClientError:
                        await asyncio.sleep(0.05)
                        continue
                    if receipt.is_acknowledged:
                        break
                self.history.sent.add(body)

    async def consume(self) -> None:
        """Pop until all messages are acked, or the load is stopped."""
        session = Session(self._name_server)
        await session.start()
        client = PopClient(session)
        try:
            while not self._is_stopped:
                try:
                    await self._consume_once(client)
                except ClientError:
                    await asyncio.sleep(0.05)
        finally:
            await session.close()

    def stop(self) -> None:
        """Let the consumers end after their present requests."""
        self._is_stopped = True

    @property
    def is_consumed(self) -> bool:
        """Whether every message that was sent was acked, or may have been."""
        return not self.unacked

    @property
    def unacked(self) -> set[bytes]:
        """The messages that were sent and certainly not acked."""
        return self.history.sent - {ack.body for ack in self.history.acks} - self.history.unknown

    async def _consume_once(self, client: PopClient) -> None:
        address = self._address()
        request = PopRequest(
            topic=TOPIC, group=GROUP, broker_name="group", invisible_ms=INVISIBLE_MS, poll_ms=500,
            messages_max=self._random.randint(1, 32),
        )  # fmt: skip
        asked_s = self._loop.time()
        reply = await client.pop(address, request)
        if reply.status is not PopStatus.FOUND:
            return
        received_s = self._loop.time()
        for popped in reply.messages:
            receipt = parse_receipt(popped.receipt)
            place = receipt.retry_flag, receipt.queue_id, receipt.queue_offset
            message = popped.message
            delivery = Delivery(message.body, place, message.reconsume_times, asked_s, received_s)
            self.history.deliveries.append(delivery)
        kept = [one for one in reply.messages if not self.is_forgetful or self._random.random() < 0.8]
        await self._handle(client, address, kept, asked_s)

    async def _handle(self, client: PopClient, address: str, popped: list[PoppedMessage], asked_s: float) -> None:
        until_s = asked_s + INVISIBLE_MS / 1000
        batch = [one for one in popped if self._random.random() < 0.5]
        single = [one for one in popped if one not in batch]
        if batch:
            with self._unknown_on_failure(batch):
                await client.batch_ack(address, TOPIC, GROUP, [one.receipt for one in batch])
            self._record(batch, until_s)
        for one in single:
            receipt, ends_s = one.receipt, until_s
            if self._random.random() < 0.3:
                changed_s = self._loop.time()
                receipt = await client.change_invisible(address, TOPIC, GROUP, receipt, invisible_ms=2 * INVISIBLE_MS)
                ends_s = changed_s + 2 * INVISIBLE_MS / 1000
            with self._unknown_on_failure([one]):
                await client.ack(address, TOPIC, GROUP, receipt)
            self._record([one], ends_s)

    @contextmanager
    def _unknown_on_failure(self, popped: list[PoppedMessage]) -> Iterator[None]:
        try:
            yield
        except ClientError:
            self.history.unknown.update(one.message.body for one in popped)
            raise

    def _record(self, popped: list[PoppedMessage], until_s: float) -> None:
        now_s = self._loop.time()
        for one in popped:
            receipt = parse_receipt(one.receipt)
            place, message = (receipt.retry_flag, receipt.queue_id, receipt.queue_offset), one.message
            ack = Ack(message.body, place, message.reconsume_times, now_s, is_binding=now_s < until_s)
            self.history.acks.append(ack)
