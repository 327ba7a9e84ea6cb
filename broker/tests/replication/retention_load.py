"""A slow consumer of a topic whose oldest log files are deleted, and the judge of what it was shown.

    consumed    the disk is too full for messages that every group has consumed: none that this one has not may go
    unconsumed  it is too full for all messages: the consumer continues with the first that is left

The consumer pulls without a client library, and lets the broker hold its pulls, as push consumers do. It consumes some
messages, commits, and waits while files are deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, final

import msgspec
from gantry_histories.consumer import pull
from gantry_histories.events import Queue

from gantry_client import Message, Producer
from gantry_remoting import Channel
from gantry_testing.slowness import patience
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.offsets import OffsetResult, QueueAddress, UpdateConsumerOffset

GROUP: Final = "slow"
BODY_BYTES: Final = (500, 4_000)
"""The limits of bodies, which are too small to be compressed."""

REQUEST_MS: Final = 30_000
HOLD_MS: Final = 60_000
"""How long the broker may hold a pull that finds nothing."""

STUCK_S: Final = 10.0
"""How long a consumer may wait where there are messages, unless the machine is slow."""


class Rule(StrEnum):
    """Which messages are deleted when the disk is full."""

    CONSUMED = "consumed"
    UNCONSUMED = "unconsumed"


Place = tuple[int, int]
"""Where a message is stored: its queue, and its offset there."""


class Move(NamedTuple):
    """The answer that the messages from ``offset`` to ``to`` are gone."""

    queue: int
    offset: int
    to: int


@final
@dataclass
class RetentionHistory:
    """What the sender and the slow consumer saw."""

    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    shown: dict[Place, bytes] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    unanswered: list[Place] = field(default_factory=list)
    """Where the consumer waited in vain, although messages were there."""

    begins: dict[int, int] = field(default_factory=dict)
    """The first offset that each queue still has at the end."""


def judge(history: RetentionHistory, rule: Rule) -> list[str]:
    """Return the violations, each as its kind, a colon and the message."""
    if history.unanswered:
        return [f"stuck: the consumer waited in queue {queue} at {offset}" for queue, offset in history.unanswered]
    found = []
    for place, body in sorted(history.acknowledged.items()):
        shown = history.shown.get(place)
        if shown is not None and shown != body:
            found.append(f"altered: {place} is not what was sent")
        elif shown is None and not (rule is Rule.UNCONSUMED and _is_moved_over(history, place)):
            found.append(f"lost: {place} was acknowledged and never shown")
    for move in history.moves:
        if move.to > history.begins[move.queue]:
            found.append(f"skipped: {move} is beyond the first message that is left, {history.begins[move.queue]}")
    return found


def _is_moved_over(history: RetentionHistory, place: Place) -> bool:
    queue, offset = place
    return any(move.queue == queue and move.offset <= offset < move.to for move in history.moves)


@final
class RetentionLoad:
    """The sender and the slow consumer of one run. Owned by one loop."""

    def __init__(self, producer: Producer, address: Callable[[], str], *, queues: tuple[Queue, ...], seed: int) -> None:
        """``address`` returns the address of the present master."""
        self.history: Final = RetentionHistory()
        self._producer: Final = producer
        self._address: Final = address
        self._queues: Final = queues
        self._random: Final = random.Random(f"{seed}/retention")
        self._next: Final = dict.fromkeys(queues, 0)
        self._ends: Final = dict.fromkeys(queues, 0)
        """The ends of the queues by what was acknowledged."""

    async def join(self) -> None:
        """Create the group, which has consumed nothing yet."""
        body = msgspec.json.encode({"groupName": GROUP})
        known = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        channel = await Channel.connect(self._address())
        try:
            await _request(channel, known)
            for queue in self._queues:
                await self._commit(channel, queue)
        finally:
            await channel.close()

    async def send(self, count: int) -> None:
        """Send messages, one after the other."""
        for _ in range(count):
            body = self._random.randbytes(self._random.randint(*BODY_BYTES))
            receipt = await self._producer.send(Message(self._queues[0].topic, body))
            assert receipt.is_acknowledged, receipt
            number, offset = receipt.queue.queue_id, receipt.queue_offset
            self.history.acknowledged[number, offset] = body
            self._ends[self._queues[number]] = offset + 1

    async def consume(self, share: float) -> None:
        """Consume about this share of what is left in each queue, and commit. Nothing more after a wait in vain."""
        channel = await Channel.connect(self._address())
        try:
            for queue in self._queues:
                end = self._next[queue] + round((self._ends[queue] - self._next[queue]) * share)
                while self._next[queue] < end and not self.history.unanswered:
                    await self._advance(channel, queue, end)
                await self._commit(channel, queue)
        finally:
            await channel.close()

    async def finish(self) -> None:
        """Consume everything, and ask where the queues begin now."""
        await self.consume(1.0)
        channel = await Channel.connect(self._address())
        try:
            for queue in self._queues:
                fields = QueueAddress(topic=queue.topic, queue_id=queue.number).write()
                reply = await _request(channel, Command(code=RequestCode.GET_MIN_OFFSET, ext=fields))
                self.history.begins[queue.number] = OffsetResult.read(reply.ext).offset
        finally:
            await channel.close()

    async def _advance(self, channel: Channel, queue: Queue, end: int) -> None:
        try:
            async with asyncio.timeout(patience(STUCK_S)):
                await self._pull_next(channel, queue, end)
        except TimeoutError:
            self.history.unanswered.append((queue.number, self._next[queue]))

    async def _pull_next(self, channel: Channel, queue: Queue, end: int) -> None:
        """Pull at the present offset until there is a later one. A queue that is being rebuilt shows nothing yet."""
        offset = self._next[queue]
        while self._next[queue] == offset:
            found = await pull(channel, GROUP, queue, offset, HOLD_MS, hold_ms=HOLD_MS, messages_max=end - offset)
            for message in found.messages:
                self.history.shown[queue.number, message.queue_offset] = message.body
            if found.code == ResponseCode.PULL_OFFSET_MOVED:
                self.history.moves.append(Move(queue.number, offset, found.next_offset))
            self._next[queue] = found.next_offset
            await asyncio.sleep(0)

    async def _commit(self, channel: Channel, queue: Queue) -> None:
        fields = UpdateConsumerOffset(
            consumer_group=GROUP, topic=queue.topic, queue_id=queue.number, commit_offset=self._next[queue]
        )
        await _request(channel, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields.write()))


async def _request(channel: Channel, command: Command) -> Command:
    reply = await channel.request(command, REQUEST_MS)
    assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
    return reply
