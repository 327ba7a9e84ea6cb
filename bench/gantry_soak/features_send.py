"""The features of producers and of push consumers: sends of each kind, with the group that must receive them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gantry_client import (
    BrokerRefused,
    ClientError,
    Decision,
    Message,
    PollConsumer,
    ReceivedMessage,
    RetryLater,
    Sql,
    StartFrom,
    TransactionProducer,
)
from gantry_client.settings import ConsumerSettings
from gantry_soak.ledger import Stream
from gantry_soak.load import World, feature
from gantry_soak.names import group_of, topic_of
from gantry_wire.codes import ResponseCode

LEVEL_DELAYS_MS: Final = {1: 1_000, 2: 5_000, 3: 10_000, 4: 30_000}
TIMER_DELAY_MS_MAX: Final = 60_000
RECALLED_EVERY: Final = 5
RECONSUME_MAX: Final = 2
"""How often a message of the retries is delivered again, before it is a dead letter."""

COMMIT_S: Final = 1.0
"""The time between two commits of the offsets that broadcast consumers keep themselves."""


def receive_into(stream: Stream) -> Callable[[ReceivedMessage], Awaitable[None]]:
    """Return a handler that counts each message as received."""

    async def handle(message: ReceivedMessage) -> None:
        stream.receive(message.body)

    return handle


@feature
async def normal(world: World) -> None:
    """Single messages of several sizes, with keys; a push consumer."""
    stream = world.ledger.stream("normal")

    async with (
        world.consumer(group_of("normal"), {topic_of("normal"): "*"}, receive_into(stream)),
        world.producer() as producer,
        asyncio.TaskGroup() as sends,
    ):
        async for tick in world.ticks(20):
            number, body = stream.begin(padding_bytes=(64, 200, 1000)[tick % 3])
            message = Message(topic_of("normal"), body, keys=[f"key-{number}"])
            sends.create_task(world.send("normal", producer, stream, number, message))
        await world.drained.wait()


@feature
async def batch(world: World) -> None:
    """Batches of ten; a consumer that polls."""
    stream = world.ledger.stream("batch")

    async def poll() -> None:
        settings = ConsumerSettings(start_from=StartFrom.FIRST)
        async with PollConsumer(
            world.group.name_server, group_of("batch"), topics=topic_of("batch"), settings=settings,
            client_settings=world.client_settings(),
        ) as consumer:  # fmt: skip
            while not world.drained.is_set():
                for message in await consumer.poll(100, timeout_ms=500):
                    stream.receive(message.body)

    async with world.producer() as producer, asyncio.TaskGroup() as group:
        group.create_task(poll())

        async def step(_number: int) -> None:
            begun = [stream.begin() for _ in range(10)]
            receipts = await producer.send_batch([Message(topic_of("batch"), body) for _, body in begun])
            for (number, _), receipt in zip(begun, receipts, strict=True):
                if receipt.is_acknowledged:
                    stream.acknowledge(number)

        await world.repeat("batch", 0.5, step)
        await world.drained.wait()


@feature
async def one_way(world: World) -> None:
    """Messages without an answer: a fault may lose them, but none may change, and a push consumer gets the others."""
    stream = world.ledger.stream("one-way")

    async with (
        world.consumer(group_of("one-way"), {topic_of("one-way"): "*"}, receive_into(stream)),
        world.producer() as producer,
    ):

        async def step(_number: int) -> None:
            _, body = stream.begin()
            await producer.send_oneway(Message(topic_of("one-way"), body))

        await world.repeat("one-way", 0.1, step)
        await world.drained.wait()


@feature
async def broadcast(world: World) -> None:
    """Messages that each of two consumers of one group must receive. A property has the body for the second one."""
    first, second = world.ledger.stream("broadcast"), world.ledger.stream("broadcast-2")

    async def handle(message: ReceivedMessage) -> None:
        second.receive(bytes.fromhex(message.properties["second"]))

    group, topics, folder = group_of("broadcast"), {topic_of("broadcast"): "*"}, world.group.folder / "broadcast"
    async with (
        world.consumer(group, topics, receive_into(first), broadcast_folder=folder / "1"),
        world.consumer(group, topics, handle, broadcast_folder=folder / "2"),
        world.producer() as producer,
        asyncio.TaskGroup() as sends,
    ):

        async def send(number: int, message: Message) -> None:
            if await world.send("broadcast", producer, first, number, message) is not None:
                second.acknowledge(number)

        sends.create_task(commit_broadcast_offsets(world, [folder / "1", folder / "2"]))
        async for _ in world.ticks(4):
            number, body = first.begin()
            _, other = second.begin(padding_bytes=0)
            message = Message(topic_of("broadcast"), body, properties={"second": other.hex()})
            sends.create_task(send(number, message))
        await world.drained.wait()


async def commit_broadcast_offsets(world: World, folders: Sequence[Path]) -> None:
    """Commit what every consumer of the broadcast has consumed, as a group of its own, which reads the messages, too.

    Such consumers keep their offsets themselves, and no file is deleted for the use of the disk while it holds a
    message that no group has consumed, as far as the broker knows. After a failover a group that only commits would
    stay at the begin of the new master's term, since it might mean messages of a history that is gone.
    """
    async with world.puller(group_of("broadcast-offsets")) as consumer:
        read: dict[int, int] = {}
        while not world.drained.is_set():
            try:
                offsets = [
                    {(one.topic, one.queue_id): one.offset for one in await asyncio.to_thread(read_offsets, folder)}
                    for folder in folders
                ]
                for queue in await consumer.queues(topic_of("broadcast")):
                    consumed = min(one.get((queue.topic, queue.queue_id), 0) for one in offsets)
                    begin = read.get(queue.queue_id, 0)
                    if begin < consumed:
                        result = await consumer.fetch(queue, begin)
                        read[queue.queue_id] = min(result.next_offset, consumed)
                        await consumer.commit(queue, read[queue.queue_id])
            except ClientError as error:
                world.note_failure("broadcast", error)
            await asyncio.sleep(COMMIT_S)


def read_offsets(folder: Path) -> Sequence[ConsumedOffset]:
    """Return the offsets in the file of a broadcast consumer; none before it has written them."""
    found = (msgspec.json.decode(path.read_bytes(), type=ConsumedOffsets) for path in folder.glob("*/*.json"))
    return [offset for one in found for offset in one.offsets]


class ConsumedOffset(msgspec.Struct):
    """The offset of one queue in the file of a broadcast consumer."""

    topic: str
    """The topic of the queue."""

    queue_id: int
    """The number of the queue; there is one broker."""

    offset: int
    """The offset of the first message that is not consumed."""


class ConsumedOffsets(msgspec.Struct):
    """The file of a broadcast consumer."""

    offsets: list[ConsumedOffset]
    """The offsets of all queues."""


@feature
async def ordered(world: World) -> None:
    """Messages with sharding keys; an ordered consumer, which must receive those of a key in their order."""
    stream = world.ledger.stream("ordered")

    async def handle(message: ReceivedMessage) -> None:
        stream.receive(message.body, key=message.properties["customer"])

    async with (
        world.consumer(group_of("ordered"), {topic_of("ordered"): "*"}, handle, is_ordered=True),
        world.producer() as producer,
        asyncio.TaskGroup() as senders,
    ):

        async def send_in_order(key: str) -> None:
            async for _ in world.ticks(2):
                number, body = stream.begin()
                message = Message(
                    topic_of("ordered"), body, sharding_key=key, properties={"customer": key}
                )  # fmt: skip
                await world.send("ordered", producer, stream, number, message)

        for key in range(4):
            senders.create_task(send_in_order(f"customer-{key}"))
        await world.drained.wait()


@feature
async def tags(world: World) -> None:
    """Messages with tags, of which a group wants two of three."""
    stream = world.ledger.stream("tags")

    async with (
        world.consumer(group_of("tags"), {topic_of("tags"): "new || paid"}, receive_into(stream)),
        world.producer() as producer,
        asyncio.TaskGroup() as sends,
    ):
        async for tick in world.ticks(8):
            tag = ("new", "paid", "closed")[tick % 3]
            number, body = stream.begin(is_forbidden=tag == "closed")
            sends.create_task(
                world.send("tags", producer, stream, number, Message(topic_of("tags"), body, tags=tag))
            )  # fmt: skip
        await world.drained.wait()


@feature
async def sql(world: World) -> None:
    """Messages with properties, of which a group wants those that a filter selects."""
    stream = world.ledger.stream("sql")

    wanted = Sql("price > 100 AND region = 'eu'")
    async with (
        world.consumer(group_of("sql"), {topic_of("sql"): wanted}, receive_into(stream)),
        world.producer() as producer,
        asyncio.TaskGroup() as sends,
    ):
        async for tick in world.ticks(8):
            price, region = 60 * (tick % 4), ("eu", "us")[tick % 5 == 0]
            number, body = stream.begin(is_forbidden=not (price > 100 and region == "eu"))
            message = Message(topic_of("sql"), body, properties={"price": str(price), "region": region})
            sends.create_task(world.send("sql", producer, stream, number, message))
        await world.drained.wait()


@feature
async def retries(world: World) -> None:
    """Messages whose handler fails once, or always: then they must be in the dead letters."""
    stream, dead = world.ledger.stream("retries"), world.ledger.stream("dead-letters")

    async def handle(message: ReceivedMessage) -> None:
        if message.properties["fails"] == "always":
            raise RetryLater(delay_level=1)
        if message.properties["fails"] == "once" and message.reconsume_times == 0:
            raise RetryLater(delay_level=1)
        stream.receive(message.body, is_timed=message.reconsume_times == 0)

    async def read_dead_letters() -> None:
        async with world.puller(group_of("dead-letters")) as consumer:
            offsets: dict[int, int] = {}
            while not world.drained.is_set():
                try:
                    for queue in await consumer.queues(f"%DLQ%{group_of('retries')}"):
                        if queue.queue_id not in offsets:
                            offsets[queue.queue_id] = await consumer.min_offset(queue)
                        result = await consumer.fetch(queue, offsets[queue.queue_id])
                        for message in result.messages:
                            dead.receive(message.body, is_timed=False)
                        offsets[queue.queue_id] = result.next_offset
                        await consumer.commit(queue, result.next_offset)
                except ClientError as error:  # before the first dead letter there is no topic
                    world.note_failure("dead-letters", error)
                await asyncio.sleep(1)

    async with (
        world.consumer(group_of("retries"), {topic_of("retries"): "*"}, handle, reconsume_max=RECONSUME_MAX),
        world.producer() as producer,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(read_dead_letters())
        async for tick in world.ticks(4):
            fails = "always" if tick % 10 == 9 else "once" if tick % 3 == 0 else "never"
            target = dead if fails == "always" else stream
            number, body = target.begin()
            message = Message(topic_of("retries"), body, properties={"fails": fails})
            tasks.create_task(world.send("retries", producer, target, number, message))
        await world.drained.wait()


@feature
async def levels(world: World) -> None:
    """Messages with delay levels, of up to half a minute."""
    stream = world.ledger.stream("levels")

    async def handle(message: ReceivedMessage) -> None:
        stream.receive(message.body, delay_ms=LEVEL_DELAYS_MS[int(message.properties["level"])])

    async with (
        world.consumer(group_of("levels"), {topic_of("levels"): "*"}, handle),
        world.producer() as producer,
        asyncio.TaskGroup() as sends,
    ):
        async for tick in world.ticks(4):
            level = tick % len(LEVEL_DELAYS_MS) + 1
            number, body = stream.begin()
            message = Message(topic_of("levels"), body, delay_level=level, properties={"level": str(level)})
            sends.create_task(world.send("levels", producer, stream, number, message))
        await world.drained.wait()


@feature
async def timers(world: World) -> None:
    """Timers of any delay of up to a minute. Every fifth is recalled: if that succeeds, it must not arrive."""
    stream = world.ledger.stream("timers")

    async def handle(message: ReceivedMessage) -> None:
        stream.receive(message.body, delay_ms=float(message.properties["delay"]))

    async with (
        world.consumer(group_of("timers"), {topic_of("timers"): "*"}, handle),
        world.producer() as producer,
        asyncio.TaskGroup() as sends,
    ):

        async def send_timer(delay_ms: int, *, is_recalled: bool) -> None:
            number, body = stream.begin()
            message = Message(topic_of("timers"), body, delay_ms=delay_ms, properties={"delay": str(delay_ms)})
            receipt = await world.send("timers", producer, stream, number, message)
            if receipt is None or not is_recalled or receipt.recall_handle is None:
                return
            await asyncio.sleep(delay_ms / 2000)
            try:
                await producer.recall(receipt.recall_handle)
            except ClientError as error:
                world.note_failure("recalls", error)
                if not (isinstance(error, BrokerRefused) and error.code == ResponseCode.ILLEGAL_OPERATION):
                    stream.release(number)  # it may be recalled, and a failure may undo that
            else:
                stream.forbid(number)
                world.ledger.done["recalls"] += 1

        async for tick in world.ticks(4):
            delay_ms = world.chance.randint(200, TIMER_DELAY_MS_MAX)
            sends.create_task(send_timer(delay_ms, is_recalled=tick % RECALLED_EVERY == 0))
        await world.drained.wait()


@feature
async def transactions(world: World) -> None:
    """Transactions that are committed, rolled back, or decided by a check."""
    stream = world.ledger.stream("transactions")

    async def handle(message: ReceivedMessage) -> None:
        stream.receive(message.body, is_timed=message.properties["outcome"] == "commit")

    async def check(message: ReceivedMessage) -> Decision:
        world.ledger.done["checks"] += 1
        return Decision.ROLL_BACK if message.properties["outcome"].endswith("roll-back") else Decision.COMMIT

    async with (
        world.consumer(group_of("transactions"), {topic_of("transactions"): "*"}, handle),
        TransactionProducer(
            world.group.name_server, "soak-transactions", check, topics=[topic_of("transactions")],
            client_settings=world.client_settings(),
        ) as producer,
    ):  # fmt: skip

        async def step(tick: int) -> None:
            outcome = ("commit", "commit", "roll-back", "checked-commit", "checked-roll-back")[tick % 5]
            await end_transaction(world, producer, stream, outcome)

        await world.repeat("transactions", 0.25, step)
        await world.drained.wait()


async def end_transaction(world: World, producer: TransactionProducer, stream: Stream, outcome: str) -> None:
    """Run one transaction with this outcome. Raises ClientError."""
    number, body = stream.begin(is_forbidden=outcome.endswith("roll-back"))
    half = await producer.begin(Message(topic_of("transactions"), body, properties={"outcome": outcome}))
    if outcome == "roll-back":
        await producer.roll_back(half)
    elif outcome == "commit":
        await producer.commit(half)
        stream.acknowledge(number)
    elif outcome == "checked-commit":
        stream.acknowledge(number)  # the half message is safe, and its check commits it


@feature
async def request_reply(world: World) -> None:
    """Requests that a consumer answers."""
    async with world.producer() as producer:

        async def handle(message: ReceivedMessage) -> None:
            await consumer.reply(message, message.body)

        consumer = world.consumer(group_of("request-reply"), {topic_of("request-reply"): "*"}, handle)
        async with consumer:

            async def step(number: int) -> None:
                body = b"question %d" % number
                reply = await producer.request(Message(topic_of("request-reply"), body), timeout_ms=10_000)
                if reply.body != body:
                    world.ledger.problems["request-reply: a reply belongs to another request"] += 1

            await world.repeat("request-reply", 1.0, step)
