"""The guarantees of the producer: retries, deadlines, limits, and the format of requests."""

import asyncio
import sys
import zlib
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace

import pytest

from gantry_client import (
    BrokerRefused,
    ClientClosed,
    ClientSettings,
    Codec,
    InvalidMessage,
    Message,
    MessageQueue,
    NoMaster,
    NoRoute,
    Producer,
    ProducerSettings,
    SendFailed,
    SendStatus,
    SendTimeout,
    sender,
)
from gantry_client.messages import to_received_message
from gantry_remoting.server import Connection
from gantry_testing.client import FakeCluster, wait_until
from gantry_testing.slowness import patience
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.compress import inflate_body
from gantry_wire.hashing import java_string_hash

SEND = RequestCode.SEND_MESSAGE_V2
TWO_BROKERS = ("broker-a", "broker-b")


def stored(cluster: FakeCluster, topic: str = "orders") -> list[bytes]:
    """Return the bodies of all messages of `topic`."""
    return [message.body for broker in cluster.brokers.values() for message in broker.messages(topic)]


async def test_sent_message_is_stored_unchanged() -> None:
    """Body, tags, keys, properties and flag arrive; the receipt has the offset and the client's own id."""
    async with FakeCluster() as cluster, Producer(cluster.name_server, "billing") as producer:
        cluster.add_topic("orders")

        receipt = await producer.send(
            Message("orders", b"paid", tags="new", keys=["k1", "k2"], properties={"who": "me"}, flag=7)
        )

        (message,) = cluster.broker().messages("orders")
        assert message.body == b"paid" and message.flag == 7 and message.sys_flag == 0
        assert message.properties == {
            "TAGS": "new",
            "KEYS": "k1 k2",
            "who": "me",
            "WAIT": "true",
            "UNIQ_KEY": receipt.message_id,
            "CLUSTER": "DefaultCluster",
        }
        assert receipt.status is SendStatus.SEND_OK and receipt.is_acknowledged
        assert receipt.offset_message_id == message.offset_message_id
        assert (receipt.queue.queue_id, receipt.queue_offset) == (message.queue_id, 0)


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
async def test_retryable_refusal_is_retried_on_another_broker(code: int) -> None:
    """After a refusal that another broker need not repeat, others are tried, and the message is stored once."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1)
        for broker in cluster.brokers.values():
            broker.refuse(SEND, code)

        async with asyncio.timeout(60):
            receipt = await producer.send(Message("orders", b"x"))

        attempts = sum(broker.received[SEND] for broker in cluster.brokers.values())
        assert attempts == 3, "expected one refusal of each broker, and one more attempt"
        assert stored(cluster) == [b"x"]
        assert receipt.is_acknowledged


async def test_retry_avoids_the_failed_broker() -> None:
    """While another broker has a queue, one that failed in this send is not tried again."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=4)
        cluster.broker("broker-a").refuse(SEND, 2, times=100)

        receipts = [await producer.send(Message("orders", b"%d" % i)) for i in range(20)]

        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}
        assert cluster.broker("broker-b").received[SEND] == 20
        assert cluster.broker("broker-a").received[SEND] <= 20


@pytest.mark.parametrize("code", [13, 29, 26, 604])
async def test_permanent_refusal_is_raised_at_once(code: int) -> None:
    """An illegal message is not retried; the error has the broker's code and remark."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        for broker in cluster.brokers.values():
            broker.refuse(SEND, code, "no", times=10)

        with pytest.raises(BrokerRefused) as raised:
            await producer.send(Message("orders", b"x"))

        assert (raised.value.code, raised.value.remark) == (code, "no")
        assert sum(broker.received[SEND] for broker in cluster.brokers.values()) == 1


async def test_lost_connection_is_retried_on_another_broker() -> None:
    """A connection that breaks during a send is a failed attempt, not a failed send."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1)
        cluster.broker("broker-a").drop(SEND, times=100)

        receipts = [await producer.send(Message("orders", b"%d" % i)) for i in range(4)]

        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


async def test_dead_broker_in_the_route_loses_no_message() -> None:
    """Routes are updated late after a crash; meanwhile sends use the other brokers."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=2)
        await producer.send(Message("orders", b"warm"))
        cluster.stale_names.add("broker-a")
        await cluster.broker("broker-a").stop()

        receipts = [await producer.send(Message("orders", b"%d" % i)) for i in range(8)]

        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


async def test_lost_connection_is_reopened() -> None:
    """A lost connection is reopened when it is needed, without a restart of the client."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        await producer.send(Message("orders", b"before"))
        cluster.broker().drop_connections()

        await producer.send(Message("orders", b"after"))

        assert sorted(stored(cluster)) == [b"after", b"before"]


async def test_send_failed_lists_every_attempt() -> None:
    """When every attempt fails, the error lists them, and states that nothing was stored."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        for broker in cluster.brokers.values():
            broker.refuse(SEND, 14, times=10)

        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("orders", b"x"))

        assert len(raised.value.attempts) == 3
        assert {attempt.broker_name for attempt in raised.value.attempts} == set(TWO_BROKERS)
        assert not raised.value.is_outcome_unknown


def lose_master(cluster: FakeCluster) -> None:
    """End the connection of the first send, and withdraw the only master from the routes, as a kill does."""

    def fault(command: Command, connection: Connection) -> None:
        cluster.masterless_names.add("broker-a")
        connection.close("closed by the test")

    cluster.broker().fault(SEND, fault)


def refuse_the_retry(cluster: FakeCluster) -> None:
    cluster.broker().drop(SEND)
    cluster.broker().refuse(SEND, 13)


@pytest.mark.parametrize(
    ("break_cluster", "cause", "attempts"),
    [(lose_master, NoMaster, 1), (refuse_the_retry, BrokerRefused, 2)],
    ids=["no master", "refused"],
)
async def test_failed_retry_does_not_hide_an_unknown_outcome(
    break_cluster: Callable[[FakeCluster], None], cause: type[Exception], attempts: int
) -> None:
    """When an attempt may have stored the message, the error of the send states so, also if a retry fails otherwise."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        break_cluster(cluster)

        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("orders", b"x"), timeout_ms=int(patience(60_000)))

        assert raised.value.is_outcome_unknown
        assert len(raised.value.attempts) == attempts
        assert type(raised.value.__cause__) is cause and str(raised.value.__cause__) in str(raised.value)


@pytest.mark.parametrize(("code", "error"), [(16, NoMaster), (13, BrokerRefused)])
async def test_failed_retry_is_raised_as_it_is_when_nothing_is_stored(code: int, error: type[Exception]) -> None:
    """Without an attempt of unknown outcome, the error names the present reason."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")

        def refuse(command: Command, connection: Connection) -> Command:
            cluster.masterless_names.add("broker-a")
            return command.reply(code)

        cluster.broker().fault(SEND, refuse)

        with pytest.raises(error):
            await producer.send(Message("orders", b"x"), timeout_ms=int(patience(60_000)))


@pytest.mark.parametrize("names", [TWO_BROKERS[:1], TWO_BROKERS], ids=["one", "two"])
async def test_first_backoff_does_not_depend_on_the_number_of_brokers(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """It is the delay in the constant, when a broker is tried a second time; further ones double."""
    delays_ms: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays_ms.append(delay_s * 1000)

    monkeypatch.setattr(sender, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    settings = ProducerSettings(retries=len(names) + 1)
    async with FakeCluster(names) as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders")
        for broker in cluster.brokers.values():
            broker.refuse(SEND, 14, times=10)

        with pytest.raises(SendFailed):
            await producer.send(Message("orders", b"x"), timeout_ms=int(patience(60_000)))

        assert delays_ms == [sender.BACKOFF_FIRST_MS, 2 * sender.BACKOFF_FIRST_MS]


async def test_attempts_share_one_deadline() -> None:
    """A broker that never replies uses up the deadline once, and the outcome is unknown."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        for broker in cluster.brokers.values():
            broker.ignore(SEND, times=10)
        await producer.queues("orders")
        timeout_ms = int(patience(500))
        began_at = asyncio.get_running_loop().time()

        with pytest.raises(SendTimeout) as raised:
            await producer.send(Message("orders", b"x"), timeout_ms=timeout_ms)

        assert asyncio.get_running_loop().time() - began_at < 2.8 * timeout_ms / 1000
        assert sum(broker.received[SEND] for broker in cluster.brokers.values()) == 1
        assert raised.value.is_outcome_unknown


@pytest.mark.parametrize("operation", ["send", "send_again", "send_batch"])
async def test_route_query_for_a_fixed_queue_shares_the_deadline(operation: str) -> None:
    """A name server that never replies uses up the deadline of a send with a sharding key, and no more."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        await producer.send(Message("orders", b"x", sharding_key="customer-7"))
        (received,) = cluster.broker().messages("orders")
    async with FakeCluster() as cluster, Producer(cluster.broker().address) as producer:
        cluster.broker().ignore(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        message = Message("orders", b"x", sharding_key="customer-7")
        sends: dict[str, Callable[[], Awaitable[object]]] = {
            "send": lambda: producer.send(message, timeout_ms=100),
            "send_again": lambda: producer.send_again(to_received_message(received, "broker-a"), timeout_ms=100),
            "send_batch": lambda: producer.send_batch([message], timeout_ms=100),
        }

        with pytest.raises(SendTimeout, match="while its route was queried") as raised:
            await sends[operation]()

        assert not raised.value.is_outcome_unknown


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_timeout_below_a_millisecond_is_refused(timeout_ms: int) -> None:
    """A caller whose own time is used up gets an error, not the default timeout, and nothing is sent."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        message = Message("orders", b"x")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: producer.send(message, timeout_ms=timeout_ms),
            lambda: producer.send_batch([message], timeout_ms=timeout_ms),
            lambda: producer.request(message, timeout_ms=timeout_ms),
        ]

        for call in calls:
            with pytest.raises(InvalidMessage, match=f"timeout_ms: {timeout_ms}, expected at least 1, or None for"):
                await call()

        assert stored(cluster) == []


async def test_attempt_timeout_leaves_a_stuck_broker() -> None:
    """With attempt_timeout_ms another broker is tried within the deadline."""
    settings = ProducerSettings(attempt_timeout_ms=int(patience(100)))
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders", queues=1)
        cluster.broker("broker-a").ignore(SEND, times=100)

        receipts = [await producer.send(Message("orders", b"%d" % i)) for i in range(2)]

        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_stored_message_without_promise_is_not_acknowledged(code: int) -> None:
    """Codes 10, 11 and 12 are neither errors nor acknowledgements; the message is not sent again."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        ext = {"msgId": "7F000001000000000000000000001000", "queueId": "0", "queueOffset": "5"}
        for broker in cluster.brokers.values():
            broker.fault(SEND, lambda command, _: command.reply(code, ext=ext))

        receipt = await producer.send(Message("orders", b"x"))

        assert receipt.status == code and not receipt.is_acknowledged
        assert receipt.queue_offset == 5
        assert sum(broker.received[SEND] for broker in cluster.brokers.values()) == 1


async def test_sends_beyond_the_limit_wait_for_a_slot() -> None:
    """At most outstanding_max sends are outstanding; the next one is sent after a reply."""
    settings = ProducerSettings(outstanding_max=3)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders")
        await producer.queues("orders")
        broker = cluster.broker()
        broker.ignore(SEND, times=3)
        timeout_ms = int(patience(500))
        stuck = [asyncio.create_task(producer.send(Message("orders", b"s"), timeout_ms=timeout_ms)) for _ in range(3)]
        await wait_until(lambda: broker.received[SEND] == 3)

        waiting = asyncio.create_task(producer.send(Message("orders", b"w"), timeout_ms=60_000))
        await asyncio.wait([waiting], timeout=0.05)
        sent_while_full = broker.received[SEND]
        outcomes = await asyncio.gather(*stuck, return_exceptions=True)
        receipt = await waiting

        assert sent_while_full == 3
        assert all(isinstance(outcome, SendTimeout) for outcome in outcomes)
        assert receipt.is_acknowledged and producer.outstanding == 0


async def test_send_without_a_slot_was_not_stored() -> None:
    """A send that waits for a slot until its deadline fails with a known outcome."""
    settings = ProducerSettings(outstanding_max=1)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders")
        cluster.broker().ignore(SEND)
        stuck = asyncio.create_task(producer.send(Message("orders", b"s"), timeout_ms=60_000))
        await wait_until(lambda: cluster.broker().received[SEND] == 1)

        with pytest.raises(SendTimeout) as raised:
            await producer.send(Message("orders", b"x"), timeout_ms=50)

        assert not raised.value.is_outcome_unknown and not stuck.done()
        stuck.cancel()
        await asyncio.wait([stuck])


async def test_pipelined_sends_keep_their_order() -> None:
    """Pipelined sends to one queue are stored in the order of the calls, over a single connection."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1)
        (queue,) = await producer.queues("orders")

        await asyncio.gather(*(producer.send(Message("orders", b"%d" % i), queue=queue) for i in range(500)))

        assert stored(cluster) == [b"%d" % i for i in range(500)]
        assert len(cluster.broker().state.clients) == 1


async def test_sends_that_wait_for_a_slot_keep_their_order() -> None:
    """No later send overtakes one that waits for a slot, when the route is known and the connection is open."""
    settings = ProducerSettings(outstanding_max=3)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders", queues=1)
        await producer.send(Message("orders", b"0", sharding_key="k"))
        sends: list[asyncio.Task[object]] = []

        for number in range(1, 200):
            message = Message("orders", b"%d" % number, sharding_key="k")
            sends.append(asyncio.create_task(producer.send(message, timeout_ms=60_000)))
            await asyncio.sleep(0)
        await asyncio.gather(*sends)

        assert stored(cluster) == [b"%d" % number for number in range(200)]


async def test_oneway_send_does_not_wait_for_the_broker() -> None:
    """A oneway send returns although the broker never replies, and its request is marked as oneway."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        await producer.queues("orders")
        cluster.broker().ignore(SEND)

        async with asyncio.timeout(30):
            await producer.send_oneway(Message("orders", b"lost"))
            await producer.send_oneway(Message("orders", b"kept"))
        await wait_until(lambda: stored(cluster) == [b"kept"])

        sends = [command for command in cluster.broker().requests if command.code == SEND]
        assert all(command.is_oneway for command in sends)


async def test_large_body_is_compressed() -> None:
    """Above 4096 bytes the body is a zlib stream with the flags of Java's clients; smaller bodies are unchanged."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1)

        await producer.send(Message("orders", b"a" * 4096))
        await producer.send(Message("orders", b"a" * 4097))

        small, large = cluster.broker().messages("orders")
        assert small.sys_flag == 0 and small.body == b"a" * 4096
        assert large.sys_flag == 0x301 and zlib.decompress(large.body) == b"a" * 4097


@pytest.mark.parametrize(("codec", "flags"), [(Codec.LZ4, 0x101), (Codec.ZSTD, 0x201)])
async def test_compression_codec_is_configurable(codec: Codec, flags: int) -> None:
    """The flags of the message name the codec."""
    settings = ProducerSettings(compress_codec=codec)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders", queues=1)

        await producer.send(Message("orders", b"a" * 5000))

        (large,) = cluster.broker().messages("orders")
        assert large.sys_flag == flags and len(large.body) < 500
        assert inflate_body(large.body, large.sys_flag) == b"a" * 5000


async def test_missing_codec_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package, and nothing is sent uncompressed instead."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    settings = ProducerSettings(compress_codec=Codec.LZ4)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders", queues=1)

        with pytest.raises(InvalidMessage, match=r"gantry-mq\[codecs\]"):
            await producer.send(Message("orders", b"a" * 5000))

        assert cluster.broker().messages("orders") == []


async def test_delay_and_wait_are_sent_as_properties() -> None:
    """The broker reads the delay level and the wait for the store from properties."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")

        await producer.send(Message("orders", b"x", delay_level=3, waits_for_store=False))

        (message,) = cluster.broker().messages("orders")
        assert message.properties["DELAY"] == "3" and message.properties["WAIT"] == "false"


async def test_sharding_key_selects_the_same_queue_as_java() -> None:
    """The queue follows from Java's hash of the key, so that producers of both languages agree."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=4)
        queues = await producer.queues("orders")

        for key in ("a", "customer-17", "Ω", "negative-hash-zzzzzz"):
            receipts = [await producer.send(Message("orders", b"x", sharding_key=key)) for _ in range(3)]
            assert {receipt.queue for receipt in receipts} == {queues[abs(java_string_hash(key)) % 8]}


async def test_selector_chooses_the_queue() -> None:
    """The function of the application selects among all queues."""

    def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[-1]

    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=3)

        receipt = await producer.send(Message("orders", b"x"), queue=last)

        assert receipt.queue == MessageQueue(topic="orders", broker_name="broker-b", queue_id=2)


async def test_send_to_a_fixed_queue_is_not_retried_on_other_brokers() -> None:
    """No other broker can replace a fixed queue: the failure is raised."""
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders", queues=1)
        queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)
        cluster.broker("broker-a").drop(SEND)

        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("orders", b"x"), queue=queue)

        assert raised.value.is_outcome_unknown, "expected an unknown outcome: the request was written"
        assert stored(cluster) == []


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b""),
        Message("orders", b"x" * (4 * 1024 * 1024 + 1)),
        Message("../etc", b"x"),
        Message("t" * 128, b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
        Message("orders", b"x", properties={"TAGS": "sneaky"}),
        Message("orders", b"x", properties={"a\x01b": "c"}),
        Message("orders", b"x", properties={"big": "v" * 32768}),
        Message("orders", b"x", properties={"a": "\ud800"}),
        Message("orders", b"x", keys=["two words"]),
        Message("orders", b"x", delay_level=-1),
    ],
    ids=[
        "empty",
        "large",
        "path",
        "long-topic",
        "system",
        "reserved",
        "control",
        "properties",
        "surrogate",
        "keys",
        "delay",
    ],
)
async def test_invalid_message_is_not_sent(message: Message) -> None:
    """A message that breaks a rule of the protocol is refused before anything is sent."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send(message)

        assert cluster.broker().received[SEND] == 0


async def test_closed_producer_raises_client_closed() -> None:
    """A send before start and after close raises ClientClosed."""
    async with FakeCluster() as cluster:
        producer = Producer(cluster.name_server)
        with pytest.raises(ClientClosed):
            await producer.send(Message("orders", b"x"))
        async with producer:
            pass
        with pytest.raises(ClientClosed):
            await producer.send(Message("orders", b"x"))


async def test_unknown_topic_is_created_on_first_send() -> None:
    """The route of TBW102 replaces that of an unknown topic, with at most default_topic_queues queues."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        receipts = [await producer.send(Message("fresh", b"%d" % i)) for i in range(8)]

        assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}
        assert len(stored(cluster, "fresh")) == 8


async def test_send_to_unknown_topic_fails_without_automatic_creation() -> None:
    """Without automatic creation there is no route, and the error has the remedy."""
    async with FakeCluster(auto_creates_topics=False) as cluster, Producer(cluster.name_server) as producer:
        with pytest.raises(NoRoute, match="none creates topics on first use"):
            await producer.send(Message("fresh", b"x"))


@pytest.mark.parametrize("brokers", [("broker-a",), ("broker-a", "broker-b")], ids=["the only shard", "every shard"])
async def test_topic_without_a_master_is_not_reported_as_unknown(brokers: tuple[str, ...]) -> None:
    """While no master is registered the error names the brokers, and does not suggest to create an existing topic."""
    async with FakeCluster(brokers) as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        cluster.masterless_names.update(brokers)

        with pytest.raises(NoMaster, match="no master is registered for 'broker-a'") as raised:
            await producer.send(Message("orders", b"x"))
        assert "create" not in str(raised.value)
        assert raised.value.broker_names == brokers

        cluster.masterless_names.clear()
        assert (await producer.send(Message("orders", b"x"))).is_acknowledged


async def test_cluster_without_brokers_is_reported() -> None:
    """If no broker is registered at all, the error states that."""
    async with FakeCluster(()) as cluster, Producer(cluster.name_server) as producer:
        with pytest.raises(NoMaster, match="no broker is registered"):
            await producer.send(Message("orders", b"x"))


async def test_producer_registers_at_once_and_unregisters_on_close() -> None:
    """The first connection sends a heartbeat with the group; closing unregisters it."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders")
        broker = cluster.broker()
        settings = ClientSettings(instance="tester")
        async with Producer(cluster.name_server, "billing", client_settings=settings) as producer:
            await producer.send(Message("orders", b"x"))
            await wait_until(lambda: broker.received[RequestCode.HEART_BEAT] == 1)
            (heartbeat,) = broker.state.clients.values()
            assert heartbeat.client_id == producer.client_id == "127.0.0.1@tester"
            assert [data.group_name for data in heartbeat.producer_data_set] == ["billing"]

        assert broker.received[RequestCode.UNREGISTER_CLIENT] == 1


async def test_broker_that_connects_during_a_heartbeat_receives_its_own() -> None:
    """A connection that is opened while another broker does not answer its first heartbeat is not forgotten."""
    settings = ClientSettings(request_timeout_ms=200, heartbeat_interval_ms=3_600_000)
    async with FakeCluster(TWO_BROKERS) as cluster, Producer(cluster.name_server, client_settings=settings) as producer:
        cluster.add_topic("orders", queues=1)
        silent, other = (cluster.broker(name) for name in TWO_BROKERS)
        silent.ignore(RequestCode.HEART_BEAT)
        first, second = await producer.queues("orders")
        await producer.send(Message("orders", b"x"), queue=first)
        await wait_until(lambda: silent.received[RequestCode.HEART_BEAT] == 1)

        await producer.send(Message("orders", b"x"), queue=second)

        await wait_until(lambda: other.received[RequestCode.HEART_BEAT] == 1)


async def test_silent_connection_is_reopened() -> None:
    """A host that failed without closing its connection does not block it for ever: after the silence timeout the next
    request opens a new one."""
    settings = ClientSettings(silent_connection_timeout_ms=80)
    async with FakeCluster() as cluster, Producer(cluster.name_server, client_settings=settings) as producer:
        cluster.add_topic("orders")
        broker = cluster.broker()
        await producer.send(Message("orders", b"1"))
        await wait_until(lambda: broker.received[RequestCode.HEART_BEAT] == 1)
        (before,) = broker.state.clients
        broker.ignore(SEND)
        with pytest.raises(SendTimeout):
            await producer.send(Message("orders", b"2"), timeout_ms=100)

        await producer.send(Message("orders", b"3"))
        await wait_until(lambda: list(broker.state.clients) not in ([before], []))

        assert not before.is_open and broker.connections == 1


async def test_slow_reply_does_not_close_the_connection() -> None:
    """A timeout on a connection with other replies fails only its request."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")
        broker = cluster.broker()
        await producer.send(Message("orders", b"1"))
        await wait_until(lambda: broker.received[RequestCode.HEART_BEAT] == 1)
        (before,) = broker.state.clients
        broker.ignore(SEND)
        with pytest.raises(SendTimeout):
            await producer.send(Message("orders", b"2"), timeout_ms=50)

        await producer.send(Message("orders", b"3"))

        assert before.is_open and list(broker.state.clients) == [before]


async def test_outstanding_bodies_are_bounded_in_bytes() -> None:
    """Sends wait when the outstanding bodies reach outstanding_bytes_max, even if slots are free."""
    settings = ProducerSettings(outstanding_bytes_max=10_000, compress_above_bytes=1 << 30)
    async with FakeCluster() as cluster, Producer(cluster.name_server, settings=settings) as producer:
        cluster.add_topic("orders")
        await producer.queues("orders")
        broker = cluster.broker()
        broker.ignore(SEND, times=2)
        body, timeout_ms = b"s" * 4000, int(patience(500))
        stuck = [asyncio.create_task(producer.send(Message("orders", body), timeout_ms=timeout_ms)) for _ in range(2)]
        await wait_until(lambda: broker.received[SEND] == 2)

        third = asyncio.create_task(producer.send(Message("orders", b"t" * 4000), timeout_ms=60_000))
        await asyncio.wait([third], timeout=0.05)
        sent_while_full = broker.received[SEND]
        await asyncio.gather(*stuck, return_exceptions=True)

        assert (await third).is_acknowledged and sent_while_full == 2


async def test_starting_twice_is_an_error() -> None:
    """A second start would duplicate every task."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        with pytest.raises(RuntimeError, match="already started"):
            await producer.start()
