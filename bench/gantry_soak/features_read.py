"""The features of consumers that choose what to read: pull, pop, ordered pop, members that come and go, gRPC."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, final

from gantry_histories.proxied import CallFailed, Metadata, SdkClient
from google.protobuf.duration_pb2 import Duration

from gantry_access import Credentials
from gantry_client import ClientError, Message, MessageQueue, ReceivedMessage
from gantry_client.pop import PopClient, PopRequest, PopStatus
from gantry_client.session import Session
from gantry_proxy.access import SCHEME, sign
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_soak.ledger import Stream
from gantry_soak.load import RETRY_S, World, feature
from gantry_soak.names import group_of, topic_of
from gantry_spec.broker_conf import broker_name

BROKER: Final = broker_name("soak", 0)
POP_POLL_MS: Final = 2_000
INVISIBLE_MS: Final = 15_000
NOT_ACKED_EVERY: Final = 20
"""One of so many popped messages is not acked at its first delivery, and must be delivered again."""
SOON_MS: Final = 1_000
"""The new invisible time of every second one of them."""

COMER_STAYS_S: Final = 10.0
GRPC_POLL_S: Final = 5
GRPC_INVISIBLE_S: Final = 15


@feature
async def pull(world: World) -> None:
    """A consumer that reads queues by offset, and commits them."""
    stream = world.ledger.stream("pull")

    async def read() -> None:
        async with world.puller(group_of("pull")) as consumer:
            offsets: dict[int, int] = {}
            while not world.drained.is_set():
                try:
                    for queue in await consumer.queues(topic_of("pull")):
                        if queue.queue_id not in offsets:
                            offsets[queue.queue_id] = await consumer.committed(queue) or 0
                        result = await consumer.fetch(queue, offsets[queue.queue_id])
                        for message in result.messages:
                            stream.receive(message.body, is_timed=False)
                        offsets[queue.queue_id] = result.next_offset
                        await consumer.commit(queue, result.next_offset)
                except ClientError as error:
                    world.note_failure("pull", error)
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(0.2)

    async with world.producer() as producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        async for _ in world.ticks(8):
            number, body = stream.begin()
            tasks.create_task(world.send("pull", producer, stream, number, Message(topic_of("pull"), body)))
        await world.drained.wait()


# -- pop ---------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_session(world: World) -> AsyncIterator[Session]:
    """Run a session with the account of the application."""
    session = Session(world.group.name_server, world.client_settings())
    await session.start()
    try:
        yield session
    finally:
        await session.close()


async def pop_forever(
    world: World, name: str, stream: Stream, session: Session, queue_id: int, *, is_order: bool
) -> None:
    """Pop and ack messages until the world is drained."""
    client, topic, group = PopClient(session), topic_of(name), group_of(name)
    request = PopRequest(
        topic=topic, group=group, broker_name=BROKER, queue_id=queue_id, invisible_ms=INVISIBLE_MS,
        poll_ms=POP_POLL_MS, is_order=is_order,
    )  # fmt: skip
    while not world.drained.is_set():
        master = world.group.find_member(is_master=True)
        if master is None:
            await asyncio.sleep(RETRY_S)
            continue
        try:
            reply = await client.pop(master.address, request)
            if reply.status is PopStatus.FULL:
                await asyncio.sleep(RETRY_S)
            acked: list[str] = []
            later: list[str] = []
            for popped in reply.messages:
                is_first = popped.message.reconsume_times == 0
                key = f"queue-{queue_id}" if is_order else ""
                number = stream.receive(popped.message.body, key=key, is_timed=is_first)
                is_left = number is not None and is_first and number % NOT_ACKED_EVERY == 0 and not is_order
                (later if is_left else acked).append(popped.receipt)
            if acked:
                await client.batch_ack(master.address, topic, group, acked)
            for receipt in later[::2]:  # the others come again when their invisible time is over
                await client.change_invisible(master.address, topic, group, receipt, invisible_ms=SOON_MS)
        except ClientError as error:
            world.note_failure(name, error)
            await asyncio.sleep(RETRY_S)


@feature
async def pop(world: World) -> None:
    """Two members that pop from any queue; some messages are not acked at once, and come again."""
    stream = world.ledger.stream("pop")
    async with open_session(world) as session, world.producer() as producer, asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(pop_forever(world, "pop", stream, session, -1, is_order=False))
        async for _ in world.ticks(8):
            number, body = stream.begin()
            tasks.create_task(world.send("pop", producer, stream, number, Message(topic_of("pop"), body)))
        await world.drained.wait()


@feature
async def ordered_pop(world: World) -> None:
    """A member for each queue that pops in order; the messages of a queue must arrive in their order."""
    stream = world.ledger.stream("ordered-pop")
    async with open_session(world) as session, world.producer() as producer, asyncio.TaskGroup() as tasks:
        for queue_id in range(2):
            tasks.create_task(pop_forever(world, "ordered-pop", stream, session, queue_id, is_order=True))

        async def send_in_order(queue_id: int) -> None:
            async for _ in world.ticks(2):
                number, body = stream.begin()
                queue = MessageQueue(topic=topic_of("ordered-pop"), broker_name=BROKER, queue_id=queue_id)
                await world.send(
                    "ordered-pop", producer, stream, number, Message(topic_of("ordered-pop"), body), queue
                )  # fmt: skip

        for queue_id in range(2):
            tasks.create_task(send_in_order(queue_id))
        await world.drained.wait()


# -- members that come and go ------------------------------------------------------------------------------------------


@feature
async def comers(world: World) -> None:
    """A second group of the normal messages, of which members come and go. It is judged by its lag only."""

    async def handle(message: ReceivedMessage) -> None:
        world.ledger.done["comers"] += 1

    topics = {topic_of("normal"): "*"}
    async with world.consumer(group_of("comers"), topics, handle):
        while not world.stop.is_set():
            with suppress(ClientError):
                async with world.consumer(group_of("comers"), topics, handle):
                    await world.pause(COMER_STAYS_S)
            await world.pause(COMER_STAYS_S / 2)


# -- gRPC --------------------------------------------------------------------------------------------------------------


def signed_headers(account: Credentials) -> Metadata:
    """Return the headers with which a call proves its account now, as SDKs write them."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signature = sign(account.secret_key.encode(), at)
    text = f"{SCHEME} Credential={account.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (("x-mq-date-time", at), ("authorization", text))


@final
class GrpcApplication:
    """A producer and a consumer with the SDK's calls through the proxy. Owned by one loop."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._topic: Final = pb.Resource(name=topic_of("grpc"))
        self._group: Final = pb.Resource(name=group_of("grpc"))
        self._stream: Final = world.ledger.stream("grpc")
        host, _, port = world.group.proxy.rpartition(":")
        self._endpoints: Final = pb.Endpoints(
            scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))]
        )  # fmt: skip
        self.refusals: Final[Counter[str]] = Counter()

    def client(self, name: str, settings: pb.Settings) -> SdkClient:
        """Return a client with a connection of its own."""
        account = self._world.group.application
        return SdkClient(
            self._world.group.proxy, name, settings, None, self.refusals, lambda: signed_headers(account)
        )  # fmt: skip

    def producer(self) -> SdkClient:
        """Return a producer, which is not registered yet."""
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[self._topic]))
        return self.client("soak-grpc-producer", settings)

    def consumer(self) -> SdkClient:
        """Return a simple consumer, which is not registered yet."""
        entry = pb.SubscriptionEntry(topic=self._topic, expression=pb.FilterExpression(expression="*"))
        subscription = pb.Subscription(group=self._group, subscriptions=[entry])
        return self.client(
            "soak-grpc-consumer", pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
        )  # fmt: skip

    async def send(self, client: SdkClient) -> None:
        """Send a message, with the attempts of an SDK."""
        number, body = self._stream.begin()
        system = pb.SystemProperties(
            message_id=f"grpc-{number}", body_encoding=pb.IDENTITY, message_type=pb.NORMAL
        )  # fmt: skip
        message = pb.Message(topic=self._topic, body=body, system_properties=system)
        began_s = time.monotonic()
        try:
            await client.call("SendMessage", pb.SendMessageRequest(messages=[message]))
        except CallFailed as error:
            self._world.ledger.failures[f"grpc: {error}"] += 1
            return
        self._world.ledger.latencies.note("send by gRPC", (time.monotonic() - began_s) * 1000)
        self._stream.acknowledge(number)
        self._world.ledger.done["grpc"] += 1

    async def receive_forever(self, client: SdkClient) -> None:
        """Receive and acknowledge messages until the world is drained."""
        while not self._world.drained.is_set():
            try:
                query = pb.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints)
                reply = await client.call("QueryAssignment", query)
            except CallFailed:
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.gather(*(self._receive(client, one.message_queue) for one in reply.assignments))

    async def _receive(self, client: SdkClient, queue: Any) -> None:
        request = pb.ReceiveMessageRequest(
            group=self._group, message_queue=queue, batch_size=32,
            invisible_duration=Duration(seconds=GRPC_INVISIBLE_S), long_polling_timeout=Duration(seconds=GRPC_POLL_S),
        )  # fmt: skip
        messages = await client.receive(request)
        for message in messages:
            self._stream.receive(message.body, is_timed=message.system_properties.delivery_attempt <= 1)
        if not messages:
            return
        entries = [
            pb.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in messages
        ]
        with suppress(CallFailed):  # what is not acknowledged is received again
            await client.call("AckMessage", pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries))


@feature
async def grpc(world: World) -> None:
    """A producer and a consumer of the gRPC proxy, which stay, and clients that come and go."""
    application = GrpcApplication(world)
    producer, consumer = application.producer(), application.consumer()
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(one.keep_registered()) for one in (producer, consumer)]
        for one in (producer, consumer):
            await one.wait_registered()
        receiving = tasks.create_task(application.receive_forever(consumer))

        async def come_and_go() -> None:
            while not world.stop.is_set():
                guest = application.producer()
                stream = asyncio.create_task(guest.keep_registered())
                await asyncio.wait([asyncio.ensure_future(guest.wait_registered())], timeout=COMER_STAYS_S)
                await world.pause(1.0)
                stream.cancel()
                await asyncio.wait([stream])
                await guest.close()

        tasks.create_task(come_and_go())
        async for _ in world.ticks(8):
            tasks.create_task(application.send(producer))
        await world.drained.wait()
        await receiving
        for stream in streams:
            stream.cancel()
    for one in (producer, consumer):
        await one.close()
    world.ledger.failures.update({f"grpc: {text}": count for text, count in application.refusals.items()})
