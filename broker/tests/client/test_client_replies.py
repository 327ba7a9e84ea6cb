"""Request and reply: both ends of the client, against brokers in memory and a real one."""

import asyncio
from pathlib import Path

import pytest
from crash.processes import HOST, broker, name_server

from gantry_broker.server.core.topics import system_topics
from gantry_client import (
    Admin,
    BrokerRefused,
    ClientClosed,
    ClientSettings,
    ConsumerSettings,
    InvalidMessage,
    Message,
    MessageQueue,
    NoReply,
    NoRoute,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    Reply,
    SendFailed,
    StartFrom,
    Unavailable,
    UnreadableBody,
)
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.server import Connection
from gantry_testing.client import FakeCluster, wait_until
from gantry_testing.client.sending import send as fake_send
from gantry_testing.client.sending import send_reply
from gantry_testing.local import running_broker
from gantry_testing.ports import free_broker_port, free_port
from gantry_testing.slowness import patience
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.message import FLAG_COMPRESSED
from gantry_wire.names import reply_topic

FROM_FIRST = ConsumerSettings(start_from=StartFrom.FIRST)
LONG_TIMEOUT_MS = 120_000


def short_timeout_ms() -> int:
    """Return a timeout for a reply that does not come: long enough for the request to be sent."""
    return int(patience(500))


class Echo:
    """A consumer that replies to every request with its body in capitals, and records requests and errors."""

    def __init__(self, name_server: str, *, topic: str = "orders") -> None:
        self.seen: list[ReceivedMessage] = []
        self.errors: list[Exception] = []
        self.consumer = PushConsumer(name_server, "answerers", topics=topic, handler=self._handle, settings=FROM_FIRST)

    async def _handle(self, message: ReceivedMessage) -> None:
        self.seen.append(message)
        try:
            await self.consumer.reply(message, message.body.upper(), properties={"mine": "yes"}, keys=["k"])
        except Exception as error:
            self.errors.append(error)
            raise


async def test_request_gets_its_reply() -> None:
    """The requester gets the reply of the consumer of its message: body, keys and properties."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster:
        cluster.add_topic("orders", queues=2)
        echo = Echo(cluster.name_server)
        async with echo.consumer, Producer(cluster.name_server) as producer:
            replies = await asyncio.gather(
                *(
                    producer.request(Message("orders", b"no. %d" % number), timeout_ms=LONG_TIMEOUT_MS)
                    for number in range(20)
                )
            )

    assert [reply.body for reply in replies] == [b"NO. %d" % number for number in range(20)]
    assert {(reply.keys, reply.properties["mine"]) for reply in replies} == {(("k",), "yes")}
    assert not echo.errors


async def test_reply_waits_for_the_route_of_the_reply_topic() -> None:
    """A name server that has just started has no topics yet; a reply is sent once its broker is registered again."""
    async with FakeCluster(auto_creates_topics=False) as cluster:
        cluster.add_topic("orders", queues=1)
        [name] = cluster.brokers
        errors: list[Exception] = []

        async def answer(message: ReceivedMessage) -> None:
            try:
                await consumer.reply(message, message.body, timeout_ms=LONG_TIMEOUT_MS)
            except Exception as error:
                errors.append(error)
                raise

        def asked() -> int:
            topics = [request.ext.get("topic", "") for request in cluster.name_server_requests]
            return sum(topic.endswith("_REPLY_TOPIC") for topic in topics)

        consumer = PushConsumer(cluster.name_server, "answerers", topics="orders", handler=answer, settings=FROM_FIRST)
        async with consumer, Producer(cluster.name_server) as producer:
            waiting = asyncio.ensure_future(producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS))
            await wait_until(lambda: bool(errors) or asked() >= 4, what="attempts to find the reply topic")
            assert errors == []
            cluster.add_topic(reply_topic(cluster.broker(name).state.cluster), queues=1)
            assert (await waiting).body == b"?"
    assert errors == []


async def test_reply_without_a_route_ends_at_its_deadline() -> None:
    """If no broker has the reply topic, the reply fails with NoRoute at its deadline."""
    async with FakeCluster(auto_creates_topics=False) as cluster:
        cluster.add_topic("orders", queues=1)
        seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        async with (
            PushConsumer(cluster.name_server, "g", topics="orders", handler=seen.put, settings=FROM_FIRST),
            Producer(cluster.name_server) as producer,
        ):
            waiting = asyncio.ensure_future(producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS))
            with pytest.raises(NoRoute):
                await producer.reply(await seen.get(), b"!", timeout_ms=200)
            waiting.cancel()


async def test_producer_can_reply() -> None:
    """`Producer.reply` replies to a message that was read in any way; a message that is no request is refused."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

        async with (
            PushConsumer(cluster.name_server, "g", topics="orders", handler=seen.put, settings=FROM_FIRST),
            Producer(cluster.name_server) as asking,
            Producer(cluster.name_server) as answering,
        ):
            waiting = asyncio.ensure_future(asking.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS))
            await answering.reply(await seen.get(), b"!", tags="t")
            assert ((await waiting).body, (await waiting).tags) == (b"!", "t")

            await asking.send(Message("orders", b"no request"))
            with pytest.raises(InvalidMessage, match="is not a request: it has no CORRELATION_ID, REPLY_TO_CLIENT"):
                await answering.reply(await seen.get(), b"!")


async def test_request_without_a_reply_ends_at_its_deadline() -> None:
    """Without a reply a request ends at its deadline and leaves no state behind."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders")
        async with Producer(cluster.name_server) as producer:
            with pytest.raises(NoReply, match="orders"):
                await producer.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())
            assert len(cluster.broker().messages("orders")) == 1
            assert repr(producer._requests) == "<Requests waiting=0>"


async def test_late_reply_is_accepted_and_discarded() -> None:
    """The replier to a request that has timed out gets no error, as with Java's requesters."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        async with (
            PushConsumer(cluster.name_server, "g", topics="orders", handler=seen.put, settings=FROM_FIRST),
            Producer(cluster.name_server) as producer,
        ):
            with pytest.raises(NoReply):
                await producer.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())
            await producer.reply(await seen.get(), b"too late")


async def test_reply_to_a_missing_requester_is_refused() -> None:
    """The replier gets the broker's code and text if no client has the client id."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        async with PushConsumer(cluster.name_server, "g", topics="orders", handler=seen.put, settings=FROM_FIRST):
            async with Producer(cluster.name_server) as gone:
                with pytest.raises(NoReply):
                    await gone.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())
            async with Producer(cluster.name_server) as producer:
                with pytest.raises(BrokerRefused, match="not found"):
                    await producer.reply(await seen.get(), b"!")


async def test_heartbeats_precede_the_first_request() -> None:
    """The first request waits until every broker has accepted a heartbeat, because a consumer may be fast."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster:
        cluster.add_topic("orders", queues=1)
        known: list[bool] = []

        def remember(command: Command, connection: Connection) -> Command:
            known.append(all(cluster.broker(name).state.clients for name in ("broker-a", "broker-b")))
            return fake_send(cluster.broker("broker-a").state, command, connection)

        for name in ("broker-a", "broker-b"):
            cluster.broker(name).fault(RequestCode.SEND_MESSAGE_V2, remember)
        async with Producer(cluster.name_server) as producer:
            with pytest.raises(NoReply):
                await producer.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())

    assert known == [True]


async def test_failed_query_for_a_reply_topic_is_repeated() -> None:
    """The next request sends heartbeats to the brokers of the reply topic, where Java's clients send any reply."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1, brokers=["broker-a"])
        cluster.add_topic(reply_topic("DefaultCluster"), queues=1)
        await producer.queues("orders")
        await cluster.stop_name_server()
        with pytest.raises(Unavailable):
            await producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS)
        await cluster.start_name_server()

        with pytest.raises(NoReply):
            await producer.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())

        assert cluster.broker("broker-b").state.clients, "no heartbeat arrived"


async def test_query_for_an_unregistered_reply_topic_is_repeated() -> None:
    """A name server that has restarted may receive the reply topic after the topic of the request."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1, brokers=["broker-a"])
        with pytest.raises(NoReply):
            await producer.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())
        cluster.add_topic(reply_topic("DefaultCluster"), queues=1)

        with pytest.raises(NoReply):
            await producer.request(Message("orders", b"?"), timeout_ms=short_timeout_ms())

        assert cluster.broker("broker-b").state.clients, "no heartbeat arrived"


async def test_reply_goes_to_the_broker_of_the_request() -> None:
    """The requester is certainly connected there; another broker may not have its heartbeat yet."""
    async with FakeCluster(("broker-a", "broker-b")) as cluster:
        cluster.add_topic("orders", queues=1)
        echo = Echo(cluster.name_server)
        async with echo.consumer, Producer(cluster.name_server) as producer:
            for name in ("broker-a", "broker-b", "broker-b"):
                queue = MessageQueue(topic="orders", broker_name=name, queue_id=0)
                await producer.request(Message("orders", b"?"), queue=queue, timeout_ms=LONG_TIMEOUT_MS)

        counts = [cluster.broker(name).received[RequestCode.SEND_REPLY_MESSAGE_V2] for name in ("broker-a", "broker-b")]
        assert counts == [1, 2]


async def test_reply_counts_although_the_send_failed() -> None:
    """The send of a request may appear to fail after its consumer has replied: the reply is returned."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        state = cluster.broker().state
        echo = Echo(cluster.name_server)

        def store_and_stall(command: Command, connection: Connection) -> None:
            fake_send(state, command, connection)

        cluster.broker().fault(RequestCode.SEND_MESSAGE_V2, store_and_stall)
        once = ProducerSettings(retries=0)
        async with echo.consumer, Producer(cluster.name_server, settings=once) as producer:
            waiting = asyncio.ensure_future(producer.request(Message("orders", b"yes"), timeout_ms=LONG_TIMEOUT_MS))
            await wait_until(
                lambda: any(waiter.done() for waiter in producer._requests._waiting.values()), what="the reply"
            )
            cluster.broker().drop_connections()
            assert (await waiting).body == b"YES"


async def test_request_that_cannot_be_sent_fails_at_once() -> None:
    """A request raises what its send raises: a refusal, or NoRoute."""
    async with FakeCluster(auto_creates_topics=False) as cluster:
        cluster.add_topic("orders", queues=1)
        async with Producer(cluster.name_server) as producer:
            with pytest.raises(NoRoute):
                await producer.request(Message("missing", b"?"), timeout_ms=LONG_TIMEOUT_MS)
            cluster.broker().refuse(RequestCode.SEND_MESSAGE_V2, 1, times=3)
            with pytest.raises(SendFailed):
                await producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS)
            with pytest.raises(InvalidMessage, match="CORRELATION_ID"):
                await producer.request(Message("orders", b"?", properties={"CORRELATION_ID": "mine"}))


async def test_closing_fails_pending_requests() -> None:
    """Pending requests raise ClientClosed when the client closes."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        async with Producer(cluster.name_server) as producer:
            waiting = asyncio.ensure_future(producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS))
            await wait_until(lambda: len(cluster.broker().messages("orders")) == 1, what="the request")
        with pytest.raises(ClientClosed):
            await waiting


async def test_large_reply_is_decompressed() -> None:
    """Replies are compressed like messages; one that cannot be decompressed fails its request."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        echo = Echo(cluster.name_server)
        state = cluster.broker().state

        async def damaged(command: Command, connection: Connection) -> Command:
            command.ext["f"] = str(FLAG_COMPRESSED)
            command.body = b"no zlib"
            return await send_reply(state, command, connection)

        async with echo.consumer, Producer(cluster.name_server) as producer:
            large = await producer.request(Message("orders", b"a" * 100_000), timeout_ms=LONG_TIMEOUT_MS)
            assert large.body == b"A" * 100_000
            (sent,) = [one for one in cluster.broker().requests if one.code == RequestCode.SEND_REPLY_MESSAGE_V2]
            assert len(sent.body) < 10_000

            cluster.broker().fault(RequestCode.SEND_REPLY_MESSAGE_V2, damaged)  # type: ignore[arg-type]
            with pytest.raises(UnreadableBody):
                await producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_request_and_reply_through_a_real_broker(tmp_path: Path, mode: str) -> None:
    """Request and reply work between two processes; the reply topic keeps the reply."""
    port = free_port()
    servers = [name_server(tmp_path, port)]
    servers.append(broker(tmp_path, free_broker_port(), port, {"flushDiskType": mode, "brokerName": "broker-a"}))
    try:
        for server in servers:
            await server.start()
        async with Admin(f"{HOST}:{port}") as admin:

            async def is_known() -> bool:
                return bool(await admin.brokers.all())

            await wait_until(is_known, timeout_s=120, what="the registration")
            await admin.topics.create("orders", queues=2)
        echo = Echo(f"{HOST}:{port}")
        async with echo.consumer, Producer(f"{HOST}:{port}") as producer:
            replies: list[Reply] = []
            for number in range(5):
                replies.append(await producer.request(Message("orders", b"q%d" % number), timeout_ms=LONG_TIMEOUT_MS))
    finally:
        for server in reversed(servers):
            await server.kill()

    assert [reply.body for reply in replies] == [b"Q%d" % number for number in range(5)]
    assert not echo.errors


async def test_every_name_server_that_knows_a_broker_routes_replies_to_it(tmp_path: Path) -> None:
    """The reply topic is part of a broker's first registration, so the first hundred replies at once find it.

    A broker sends its whole table to each name server, system topics included, and never an increment. So a name server
    that routes any topic of a broker routes its replies, too. It routes none after its own restart until the broker is
    registered again: `test_reply_waits_for_the_route_of_the_reply_topic` covers that for our client, and other clients
    have to send the reply again. The promotion of the last member of a shard leaves no such gap:
    `test_promoted_slave_stays_in_the_routes`.
    """
    servers = [
        NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / f"ns{number}")
        for number in range(2)
    ]
    for server in servers:
        await server.start()
    addresses = [f"127.0.0.1:{server.port}" for server in servers]

    async def answer(message: ReceivedMessage) -> None:
        await consumer.reply(message, message.body)

    try:
        async with running_broker(tmp_path, disk=None, clock=None, namesrvAddr=";".join(addresses)) as broker:
            for address in addresses:
                async with Admin(address) as admin:

                    async def is_known(admin: Admin = admin) -> bool:
                        return bool(await admin.brokers.all())

                    await wait_until(is_known, timeout_s=120, what="the broker's registration")
                    for config in system_topics(
                        broker.settings.cluster_name, broker.settings.broker_name, auto_create=True, default_queues=8
                    ):
                        assert await admin.topics.settings(config.topic_name), f"{config.topic_name} at {address}"
            async with Admin(addresses[0]) as admin:
                await admin.topics.create("asked", queues=4)
            consumer = PushConsumer(addresses[1], "answers", topics="asked", handler=answer, settings=FROM_FIRST)
            async with consumer, Producer(addresses[0], "askers") as producer:
                asked = (
                    producer.request(Message("asked", b"no. %d" % number), timeout_ms=LONG_TIMEOUT_MS)
                    for number in range(100)
                )
                replies = await asyncio.gather(*asked)
        assert [reply.body for reply in replies] == [b"no. %d" % number for number in range(100)]
    finally:
        for server in servers:
            await server.close()


async def test_route_query_of_a_reply_shares_its_deadline() -> None:
    """A name server that never replies uses up the deadline of a reply, and no more."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders")
        echo = Echo(cluster.name_server)
        async with echo.consumer, Producer(cluster.name_server) as producer:
            await producer.request(Message("orders", b"?"), timeout_ms=LONG_TIMEOUT_MS)
        cluster.broker().ignore(RequestCode.GET_ROUTEINFO_BY_TOPIC, times=100)
        settings = ClientSettings(request_timeout_ms=LONG_TIMEOUT_MS)

        async with Producer(cluster.broker().address, client_settings=settings) as producer, asyncio.timeout(60):
            with pytest.raises(Unavailable, match="no name server replied in time"):
                await producer.reply(echo.seen[0], b"!", timeout_ms=100)
