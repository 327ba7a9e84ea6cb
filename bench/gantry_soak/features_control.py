"""The features of administrators and of clients that do not stay: topics, queries, HTTP, connections, accounts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from gantry_client import (
    BrokerRefused,
    ClientError,
    ConsumerSettings,
    Message,
    ReceivedMessage,
    StartFrom,
    SubscriptionGroupConfig,
)
from gantry_client.poll_consumer import PollConsumer
from gantry_soak.load import World, feature
from gantry_soak.names import TOPICS, group_of, topic_of
from gantry_soak.sampling import fetch_text
from gantry_wire.codes import ResponseCode

CHURN_EVERY_S: Final = 4.0
CHURN_MESSAGES: Final = 3
CHURN_TIMEOUT_S: Final = 120.0
"""How long the messages of a topic may take to arrive in faults; then it is deleted, and they count as lost."""
ACCOUNTS_EVERY_S: Final = 20.0
ACCOUNTS_SETTLE_S: Final = 5.0
"""How long servers take at most to read a changed file, on a busy machine, too."""
HALF_A_FRAME: Final = b"\x00\x00\x10\x00\x00\x00"
HTTP_PATHS: Final = ("/metrics", "/v1/status", "/v1/topics", "/v1/groups", "/readyz", "/livez")
CLOSED_HTTP_ERRORS: Final = (OSError, ValueError)


@feature
async def churn(world: World) -> None:
    """Topics and groups that are created, used and deleted; each has a new name."""
    async with world.admin() as admin, world.producer() as producer:

        async def step(number: int) -> None:
            topic, group = f"soak-churn-{number}", f"soak-churn-{number}-readers"
            stream = world.ledger.stream("churn")
            await admin.topics.create(topic, queues=2)
            await admin.groups.create(SubscriptionGroupConfig(group_name=group))
            try:
                for _ in range(CHURN_MESSAGES):
                    sent, body = stream.begin()
                    await world.send("churn", producer, stream, sent, Message(topic, body))
                settings = ConsumerSettings(start_from=StartFrom.FIRST)
                async with PollConsumer(
                    world.group.name_server, group, topics=topic, settings=settings,
                    client_settings=world.client_settings(),
                ) as consumer:  # fmt: skip
                    async with asyncio.timeout(CHURN_TIMEOUT_S):
                        while not stream.is_complete:
                            for message in await consumer.poll(32, timeout_ms=1000):
                                stream.receive(message.body, is_timed=False)
            finally:
                await delete(topic, group)

        async def delete(topic: str, group: str) -> None:
            for attempt in range(20):  # a fault may be in progress, and what stays behind would count as growth
                try:
                    await admin.groups.delete(group)
                    await admin.topics.delete(topic)
                    return
                except ClientError as error:
                    world.note_failure("churn", error)
                    await asyncio.sleep(1 + attempt / 4)

        await world.repeat("churn", CHURN_EVERY_S, step)


@feature
async def queries(world: World) -> None:
    """The queries of administrators: progress, ranges, messages by key and id, connections, running information."""
    async with world.admin() as admin:

        async def step(number: int) -> None:
            name = TOPICS[number % len(TOPICS)]
            await admin.topics.stats(topic_of(name))
            await admin.topics.route(topic_of(name))
            await admin.groups.progress(group_of(name))
            for client_id in await admin.consumers.connections(group_of("normal")):
                await admin.consumers.running_info(group_of("normal"), client_id)
            newest = len(world.ledger.stream("normal").states) - 1
            for message in await admin.messages.by_key(topic_of("normal"), f"key-{max(0, newest - 40)}"):
                await admin.messages.by_id(topic_of("normal"), message.message_id)
            for broker in await admin.brokers.all():
                await admin.brokers.runtime(broker.address)
                await admin.brokers.config(broker.address)

        await world.repeat("queries", 2.0, step)


@feature
async def http(world: World) -> None:
    """Requests to the sidecars, with and without a token, also for paths that do not exist."""

    async def step(number: int) -> None:
        members = world.group.record.members
        member = members[number % len(members)]
        path = HTTP_PATHS[number // 2 % len(HTTP_PATHS)]
        token = world.group.state.token() if number % 3 else ""
        with suppress(*CLOSED_HTTP_ERRORS):
            await asyncio.to_thread(fetch_text, f"{member.sidecar_url}{path}", token)

    await world.repeat("http", 0.5, step)


@feature
async def connections(world: World) -> None:
    """Connections that open and close: silent, in the middle of a frame, and after rubbish."""

    async def step(number: int) -> None:
        record = world.group.record
        ports = [one.port for one in record.members] + [one.port for one in record.name_servers]
        ports += [one.port for one in record.proxies]
        for port in ports:
            _reader, writer = await asyncio.open_connection(record.host, port)
            try:
                writer.write((b"", HALF_A_FRAME, b"GET / HTTP/1.1\r\n\r\n")[number % 3])
                await writer.drain()
                await asyncio.sleep(0.05)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    await world.repeat("connections", 1.0, step)


@feature
async def accounts(world: World) -> None:
    """A guest whose account is added and removed: it is refused exactly while it has none."""

    async def send_as_guest() -> bool:
        """Return whether the guest may send. Raises ClientError if that is unknown."""
        async with world.producer("soak-guests", world.group.guest) as producer:
            try:
                await producer.send(Message(topic_of("guest"), b"from a guest"))
            except BrokerRefused as error:
                if error.code == ResponseCode.NO_PERMISSION:
                    return False
                raise
            return True

    async def step(number: int) -> None:
        has_guest = number % 2 == 0
        world.group.write_accounts(has_guest=has_guest)
        await world.pause(ACCOUNTS_SETTLE_S)
        if await send_as_guest() != has_guest:
            text = "a guest was refused" if has_guest else "a guest without an account may send"
            world.ledger.problems[f"accounts: {text}"] += 1

    async def handle(message: ReceivedMessage) -> None:
        world.ledger.done["messages of guests"] += 1

    async with world.consumer(group_of("guest"), {topic_of("guest"): "*"}, handle):
        await world.repeat("accounts", ACCOUNTS_EVERY_S, step)


@feature
async def clients(world: World) -> None:
    """Producers that connect, send once and close. Their messages are received by the group of pulls."""
    stream = world.ledger.stream("pull")

    async def step(_number: int) -> None:
        async with world.producer() as producer:
            number, body = stream.begin()
            await world.send("clients", producer, stream, number, Message(topic_of("pull"), body))

    await world.repeat("clients", 2.0, step)
