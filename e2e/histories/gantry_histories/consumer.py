"""A consumer that goes on through failovers and writes down every message that it is shown.

It asks the master, or any other replica that the name server knows, goes on behind what it was shown, gives its
offsets to the master now and then, and sometimes forgets where it was and asks the master instead, as one that is
started anew would. A stubborn one stays with the broker that it has for as long as that answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from gantry_histories.bodies import digest_of, read_key
from gantry_histories.events import Committed, Journal, Queue, Shown
from gantry_histories.final import Stored
from gantry_histories.routes import Routes
from gantry_remoting import Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.offsets import OffsetResult, QueryConsumerOffset, QueueAddress, UpdateConsumerOffset
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PullMessage, PullResult
from gantry_wire.message import StoredMessage, decode_records

TIMEOUT_MS: Final = 1_500
PAUSE_S: Final = 0.05
REPLICA_SHARE: Final = 0.3
"""Of rounds, in which any replica is asked."""
COMMIT_SHARE: Final = 0.3
FORGET_SHARE: Final = 0.02
BYTES_MAX: Final = 1 << 20


class UnexpectedReply(Exception):
    """A broker answers a good request with a code that makes no sense."""


class Pulled(NamedTuple):
    """The answer to one pull."""

    code: int
    messages: list[StoredMessage]
    next_offset: int
    max_offset: int


async def pull(channel: Channel, group: str, queue: Queue, offset: int, timeout_ms: int = TIMEOUT_MS) -> Pulled:
    """What is there from ``offset`` on, as far as one reply goes. Raises ``RemotingError``."""
    fields = PullMessage(
        consumer_group=group, topic=queue.topic, queue_id=queue.number, queue_offset=offset, max_msg_nums=128,
        sys_flag=PULL_SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
        expression_type="TAG", max_msg_bytes=BYTES_MAX,
    )  # fmt: skip
    reply = await channel.request(Command(code=RequestCode.PULL_MESSAGE, ext=fields.write()), timeout_ms)
    if "nextBeginOffset" not in reply.ext:
        return Pulled(reply.code, [], offset, -1)
    result = PullResult.read(reply.ext)
    messages = decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else []
    return Pulled(reply.code, messages, result.next_begin_offset, result.max_offset)


async def read_queue(channel: Channel, queue: Queue) -> list[Stored]:
    """All of one queue, as a new reader sees it. Raises ``UnexpectedReply`` and ``RemotingError``."""
    stored: list[Stored] = []
    offset = 0
    while True:
        pulled = await pull(channel, "HistoryReaders", queue, offset, 30_000)
        for message in pulled.messages:
            body = message.body
            stored.append(Stored(read_key(body), digest_of(body), message.queue_offset, message.physical_offset))
        if pulled.next_offset == offset:
            if pulled.max_offset == offset or (pulled.max_offset <= 0 and offset == 0):
                return stored
            raise UnexpectedReply(f"{queue} at {offset} of {pulled.max_offset}: code {pulled.code}")
        offset = pulled.next_offset


async def queue_end(channel: Channel, queue: Queue) -> int:
    """The number of the queue's next message, as a broker says, also where none is left. Raises ``RemotingError``."""
    fields = QueueAddress(topic=queue.topic, queue_id=queue.number)
    reply = await channel.request(Command(code=RequestCode.GET_MAX_OFFSET, ext=fields.write()), TIMEOUT_MS)
    return OffsetResult.read(reply.ext).offset


async def consumer_offset(channel: Channel, group: str, queue: Queue) -> int | None:
    """Where a broker says that a group stands. Raises ``RemotingError``."""
    fields = QueryConsumerOffset(
        consumer_group=group, topic=queue.topic, queue_id=queue.number, set_zero_if_not_found=False
    )
    reply = await channel.request(Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext=fields.write()), TIMEOUT_MS)
    return OffsetResult.read(reply.ext).offset if reply.code == ResponseCode.SUCCESS else None


@final
class Consumer:
    """A group of its own with one member. Owned by one loop."""

    def __init__(
        self, name: str, journal: Journal, routes: Routes, queues: Sequence[Queue], seed: int, *, is_stubborn: bool
    ) -> None:
        self.name: Final = name
        self._journal: Final = journal
        self._routes: Final = routes
        self._positions: Final = dict.fromkeys(queues, 0)
        self._chance: Final = random.Random(f"{seed}/{name}")
        self._channels: dict[str, Channel] = {}
        self._is_stubborn: Final = is_stubborn
        self._kept = ""
        """The address that a stubborn one stays with."""

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {sum(self._positions.values())}>"

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until ``stop``."""
        while not stop.is_set():
            try:
                await self._round()
            except RemotingError:
                self._kept = ""
            await asyncio.sleep(PAUSE_S)

    async def _round(self) -> None:
        brokers = await self._routes.brokers()
        if not brokers:
            return
        address = brokers.get(0, "")
        if self._is_stubborn:
            address = self._kept = self._kept or address
        elif self._chance.random() < REPLICA_SHARE:
            address = self._chance.choice(sorted(brokers.values()))
        if not address:
            return
        channel = await self._channel(address)
        if self._chance.random() < FORGET_SHARE and address == brokers.get(0):
            await self._forget(channel)
        for queue in self._positions:
            await self._look(channel, queue)
        if address == brokers.get(0) and self._chance.random() < COMMIT_SHARE:
            await self._commit(channel)

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None or not channel.is_open:
            channel = self._channels[address] = await self._routes.door.connect(address, timeout_ms=TIMEOUT_MS)
        return channel

    async def _look(self, channel: Channel, queue: Queue) -> bool:
        """One pull; whether that was all."""
        pulled = await pull(channel, self.name, queue, self._positions[queue])
        for message in pulled.messages:
            self._journal.add(Shown(
                client=self.name, queue=queue, queue_offset=message.queue_offset,
                physical_offset=message.physical_offset, key=read_key(message.body), digest=digest_of(message.body),
                broker=channel.address, at=time.monotonic_ns(),
            ))  # fmt: skip
        self._positions[queue] = pulled.next_offset
        return pulled.next_offset == pulled.max_offset

    async def _commit(self, channel: Channel) -> None:
        for queue, offset in self._positions.items():
            self._journal.add(Committed(client=self.name, queue=queue, offset=offset, at=time.monotonic_ns()))
            fields = UpdateConsumerOffset(
                consumer_group=self.name, topic=queue.topic, queue_id=queue.number, commit_offset=offset
            )
            await channel.request(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields.write()), TIMEOUT_MS)

    async def _forget(self, channel: Channel) -> None:
        """Start anew where the broker says."""
        for queue in self._positions:
            self._positions[queue] = await consumer_offset(channel, self.name, queue) or 0

    async def finish(self, address: str) -> dict[Queue, int]:
        """Read to the end of every queue there, and say so; where the broker then says that we stand."""
        channel = await self._channel(address)
        for queue in self._positions:
            while True:
                if await self._look(channel, queue):
                    break
        standing = {queue: await consumer_offset(channel, self.name, queue) or 0 for queue in self._positions}
        await self._commit(channel)
        for other in self._channels.values():
            await other.close()
        return standing
