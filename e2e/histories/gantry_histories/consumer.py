"""A consumer that survives failovers and records every message that it receives.

It pulls from the master, or from another replica in the name server's route, and continues after the last message
that it received. Now and then it commits its offsets to the master, and sometimes it discards them and continues at
those that the master has stored, as a restarted consumer would. A consumer with ``keeps_broker`` stays with its broker
for as long as that broker answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from gantry_histories.bodies import digest_of, read_key
from gantry_histories.events import CommitAnswered, Committed, Journal, OffsetRead, Queue, Read, Shown
from gantry_histories.final import Stored
from gantry_histories.routes import Routes
from gantry_remoting import Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.offsets import OffsetResult, QueryConsumerOffset, QueueAddress, UpdateConsumerOffset
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult
from gantry_wire.message import StoredMessage, decode_records

TIMEOUT_MS: Final = 1_500
PAUSE_S: Final = 0.05
REPLICA_SHARE: Final = 0.3
"""Share of the rounds in which the consumer pulls from a random replica."""
COMMIT_SHARE: Final = 0.3
"""Share of the rounds after which it commits its offsets, if it has pulled from the master."""

FORGET_SHARE: Final = 0.02
"""Share of the rounds before which it discards its offsets, and continues at those that the master has stored."""

BYTES_MAX: Final = 1 << 20
MESSAGES_MAX: Final = 128
READ_RETRIES: Final = 60
READ_PAUSE_S: Final = 0.5
"""How often, and after which pause, a reader of a whole queue asks again for messages that are not shown."""


class UnexpectedReply(Exception):
    """A broker answered a valid request with a code that has no meaning here."""


class Pulled(NamedTuple):
    """The decoded answer to one pull request."""

    code: int
    messages: list[StoredMessage]
    next_offset: int
    """The offset at which to pull next."""

    max_offset: int
    """The end of the queue, as far as the broker shows it; -1 if the answer has none."""


async def pull(
    channel: Channel, group: str, queue: Queue, offset: int, timeout_ms: int = TIMEOUT_MS, *, subscription: str = "*",
    hold_ms: int = 0, messages_max: int = MESSAGES_MAX,
) -> Pulled:  # fmt: skip
    """Pull the messages from ``offset`` on that fit into one reply. Raises ``RemotingError``.

    ``subscription`` is the filter by tags that the broker applies; nothing is filtered here. With ``hold_ms`` the
    broker may hold a pull that finds nothing.
    """
    fields = PullMessage(
        consumer_group=group, topic=queue.topic, queue_id=queue.number, queue_offset=offset, max_msg_nums=messages_max,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0), commit_offset=0, suspend_timeout_millis=hold_ms,
        sub_version=0, subscription=subscription, expression_type="TAG", max_msg_bytes=BYTES_MAX,
    )  # fmt: skip
    reply = await channel.request(Command(code=RequestCode.PULL_MESSAGE, ext=fields.write()), timeout_ms)
    if "nextBeginOffset" not in reply.ext:
        return Pulled(reply.code, [], offset, -1)
    result = PullResult.read(reply.ext)
    messages = decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else []
    return Pulled(reply.code, messages, result.next_begin_offset, result.max_offset)


async def read_queue(channel: Channel, queue: Queue) -> list[Stored]:
    """Return all messages of one queue, as a new reader receives them. Raises ``UnexpectedReply`` and
    ``RemotingError``.

    Where the broker shows none for now, as it repairs the log or the queue, the reader tries again for a while.
    """
    stored: list[Stored] = []
    offset, retries = 0, READ_RETRIES
    while True:
        pulled = await pull(channel, "HistoryReaders", queue, offset, 30_000)
        for message in pulled.messages:
            body = message.body
            stored.append(Stored(read_key(body), digest_of(body), message.queue_offset, message.physical_offset))
        if pulled.next_offset == offset:
            if pulled.max_offset == offset or (pulled.max_offset <= 0 and offset == 0):
                return stored
            if pulled.code != ResponseCode.PULL_NOT_FOUND or retries == 0:
                raise UnexpectedReply(f"{queue} at {offset} of {pulled.max_offset}: code {pulled.code}")
            retries -= 1
            await asyncio.sleep(READ_PAUSE_S)
        offset = pulled.next_offset


async def queue_end(channel: Channel, queue: Queue) -> int:
    """Return the offset of the queue's next message, also for an empty queue. Raises ``RemotingError``."""
    fields = QueueAddress(topic=queue.topic, queue_id=queue.number)
    reply = await channel.request(Command(code=RequestCode.GET_MAX_OFFSET, ext=fields.write()), TIMEOUT_MS)
    return OffsetResult.read(reply.ext).offset


async def consumer_offset(channel: Channel, group: str, queue: Queue) -> int | None:
    """Return the offset of a group that a broker has stored; -1 if it has none; None if it does not answer that. Raises
    ``RemotingError``."""
    fields = QueryConsumerOffset(
        consumer_group=group, topic=queue.topic, queue_id=queue.number, set_zero_if_not_found=False
    )
    reply = await channel.request(Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext=fields.write()), TIMEOUT_MS)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return -1
    return OffsetResult.read(reply.ext).offset if reply.code == ResponseCode.SUCCESS else None


@final
class Consumer:
    """A consumer group with one consumer. Owned by one loop."""

    def __init__(
        self, name: str, journal: Journal, routes: Routes, queues: Sequence[Queue], seed: int, *, keeps_broker: bool,
        pause_s: float = PAUSE_S,
    ) -> None:  # fmt: skip
        """``pause_s`` is the time between two rounds, each of which pulls once from every queue."""
        self.name: Final = name
        self._journal: Final = journal
        self._routes: Final = routes
        self._positions: Final = dict.fromkeys(queues, 0)
        self._random: Final = random.Random(f"{seed}/{name}")
        self._channels: dict[str, Channel] = {}
        self._connected: dict[str, int] = {}
        """When the connection to each broker was opened, for the events that need it."""

        self._pause_s: Final = pause_s
        self._keeps_broker: Final = keeps_broker
        self._kept_address = ""
        """The address of the broker that a consumer with ``keeps_broker`` stays with."""

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {sum(self._positions.values())}>"

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until ``stop`` is set."""
        while not stop.is_set():
            try:
                await self._run_round()
            except RemotingError:
                self._kept_address = ""
            await asyncio.sleep(self._pause_s)

    async def _run_round(self) -> None:
        brokers = await self._routes.brokers()
        if not brokers:
            return
        address = brokers.get(0, "")
        if self._keeps_broker:
            address = self._kept_address = self._kept_address or address
        elif self._random.random() < REPLICA_SHARE:
            address = self._random.choice(sorted(brokers.values()))
        if not address:
            return
        channel = await self._channel(address)
        if self._random.random() < FORGET_SHARE and address == brokers.get(0):
            await self._reset_positions(channel)
        for queue in self._positions:
            await self._pull_once(channel, queue)
        if address == brokers.get(0) and self._random.random() < COMMIT_SHARE:
            await self._commit(channel)

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None or not channel.is_open:
            channel = self._channels[address] = await self._routes.connector.connect(address, timeout_ms=TIMEOUT_MS)
            self._connected[address] = time.monotonic_ns()
        return channel

    async def _pull_once(self, channel: Channel, queue: Queue) -> bool:
        """Pull once. Return whether the end of the queue was reached."""
        begin, called = self._positions[queue], time.monotonic_ns()
        pulled = await pull(channel, self.name, queue, begin)
        at = time.monotonic_ns()
        for message in pulled.messages:
            self._journal.add(Shown(
                client=self.name, queue=queue, queue_offset=message.queue_offset,
                physical_offset=message.physical_offset, key=read_key(message.body), digest=digest_of(message.body),
                broker=channel.address, at=at,
            ))  # fmt: skip
        self._journal.add(Read(
            client=self.name, queue=queue, begin=begin, next=pulled.next_offset, end=pulled.max_offset,
            count=len(pulled.messages), broker=channel.address, connected=self._connected[channel.address],
            called=called, at=at,
        ))  # fmt: skip
        self._positions[queue] = pulled.next_offset
        return pulled.next_offset == pulled.max_offset

    async def _commit(self, channel: Channel) -> None:
        for queue, offset in self._positions.items():
            self._journal.add(Committed(client=self.name, queue=queue, offset=offset, at=time.monotonic_ns()))
            fields = UpdateConsumerOffset(
                consumer_group=self.name, topic=queue.topic, queue_id=queue.number, commit_offset=offset
            )
            command = Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields.write())
            if (await channel.request(command, TIMEOUT_MS)).code == ResponseCode.SUCCESS:
                self._journal.add(CommitAnswered(
                    client=self.name, queue=queue, offset=offset, broker=channel.address,
                    connected=self._connected[channel.address], at=time.monotonic_ns(),
                ))  # fmt: skip

    async def _reset_positions(self, channel: Channel) -> None:
        """Continue in every queue at the offset that the broker has stored."""
        for queue in self._positions:
            self._positions[queue] = await self._read_offset(channel, queue)

    async def _read_offset(self, channel: Channel, queue: Queue) -> int:
        """Return the offset that the broker has stored, or 0, and record it."""
        called = time.monotonic_ns()
        offset = await consumer_offset(channel, self.name, queue)
        if offset is None:
            return 0
        self._journal.add(OffsetRead(
            client=self.name, queue=queue, offset=offset, broker=channel.address,
            connected=self._connected[channel.address], called=called, at=time.monotonic_ns(),
        ))  # fmt: skip
        return max(0, offset)

    async def finish(self, address: str) -> dict[Queue, int]:
        """Read every queue to its end at this broker and commit. Return the offsets that were stored before that
        commit.

        The connection is a new one: an older one may lead to a former master behind the same address, or wait for a
        retransmission after its network has returned.
        """
        await self._close_channels()
        channel = await self._channel(address)
        for queue in self._positions:
            while True:
                if await self._pull_once(channel, queue):
                    break
        committed_offsets = {queue: await self._read_offset(channel, queue) for queue in self._positions}
        await self._commit(channel)
        await self._close_channels()
        return committed_offsets

    async def _close_channels(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
