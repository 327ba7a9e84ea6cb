"""The requests of the administrative client."""

from collections.abc import AsyncIterator

import pytest

from gantry_client import (
    Admin,
    BrokerRefused,
    ConsumerSettings,
    InvalidMessage,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    SubscriptionGroupConfig,
    Unavailable,
)
from gantry_remoting.server import CommandService, Connection, Listener
from gantry_remoting.settings import ListenerSettings
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.consumers import ConsumeResult
from gantry_wire.commands.documents import write_document
from gantry_wire.message import encode_host, offset_message_id
from gantry_wire.names import reply_topic

TWO_BROKERS = ("broker-a", "broker-b")


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(TWO_BROKERS) as fake:
        yield fake


@pytest.fixture
async def admin(cluster: FakeCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.name_server) as one:
        yield one


async def test_topic_is_created_and_deleted_on_every_master(cluster: FakeCluster, admin: Admin) -> None:
    """Creating and deleting reach all brokers; listing shows the topics of applications only."""
    await admin.topics.create("orders", queues=3, permission=4)
    configs = [broker.state.topics["orders"] for broker in cluster.brokers.values()]
    assert [(c.read_queue_nums, c.write_queue_nums, c.perm) for c in configs] == [(3, 3, 4)] * 2
    assert await admin.topics.all() == ["orders"]
    assert await admin.topics.all(with_internal=True) == ["TBW102", "orders"]

    await admin.topics.delete("orders")

    assert await admin.topics.all() == []
    assert cluster.name_server_requests[-1].code != RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert RequestCode.DELETE_TOPIC_IN_NAMESRV in {command.code for command in cluster.name_server_requests}


async def test_topic_named_like_a_reply_topic_is_listed(cluster: FakeCluster, admin: Admin) -> None:
    """Only the reply topics of existing clusters are internal: an archive of all topics must not miss any other."""
    own = reply_topic(cluster.broker(TWO_BROKERS[0]).state.cluster)
    for topic in ("payments_REPLY_TOPIC", "RMQ_SYS_mine", own):
        cluster.add_topic(topic, queues=1)

    assert await admin.topics.all() == ["RMQ_SYS_mine", "payments_REPLY_TOPIC"]


async def test_attributes_are_sent_as_changes(cluster: FakeCluster, admin: Admin) -> None:
    """A value sets an attribute, None removes it; invalid attributes reach no broker."""
    await admin.topics.create("orders", attributes={"message.type": "FIFO", "reserve.time": None})
    asked = [command for broker in cluster.brokers.values() for command in broker.requests if command.code == 17]
    assert [command.ext["attributes"] for command in asked] == ["+message.type=FIFO,-reserve.time"] * 2
    found = await admin.topics.settings("orders")
    assert {name: config.attributes["message.type"] for name, config in found.items()} == dict.fromkeys(
        TWO_BROKERS, "FIFO"
    )

    for wrong in ({"": "x"}, {"a": ""}, {"a": "x,+b=y"}, {"a=b": "x"}, {"-a": None}, {"a,b": None}):
        with pytest.raises(InvalidMessage, match="attribute"):
            await admin.topics.create("orders", attributes=wrong)


@pytest.mark.parametrize("topic", ["", "a b", "../x", "x" * 128, "SCHEDULE_TOPIC_XXXX"])
async def test_invalid_topic_name_reaches_no_broker(cluster: FakeCluster, admin: Admin, topic: str) -> None:
    """Names are checked before a request is sent."""
    with pytest.raises(InvalidMessage):
        await admin.topics.create(topic)

    assert all(not broker.requests for broker in cluster.brokers.values())


async def test_unknown_cluster_has_no_master(admin: Admin) -> None:
    """A request without a receiver is an error, not a success."""
    with pytest.raises(Unavailable, match="no master of cluster 'nowhere'"):
        await admin.topics.create("orders", cluster="nowhere")


async def test_stats_progress_and_lag_are_reported(cluster: FakeCluster, admin: Admin) -> None:
    """The results are the offsets of all queues, the progress of a group in each, and its lag."""
    cluster.add_topic("orders", queues=1)
    async with Producer(cluster.name_server) as producer, PullConsumer(cluster.name_server, "billing") as consumer:
        queues = await consumer.queues("orders")
        for queue in queues:
            for number in range(5):
                await producer.send(Message("orders", b"%d" % number), queue=queue)
        await consumer.commit(queues[0], 2)
        await consumer.commit(queues[1], 5)

    stats = await admin.topics.stats("orders")
    progress = await admin.groups.progress("billing", "orders")

    assert {queue.broker_name: (s.min_offset, s.max_offset) for queue, s in stats.items()} == dict.fromkeys(
        TWO_BROKERS, (0, 5)
    )
    assert {queue.broker_name: p.lag for queue, p in progress.items()} == {"broker-a": 3, "broker-b": 0}
    assert await admin.groups.lag("billing") == 3
    assert await admin.topics.groups("orders") == ["billing"]


async def test_groups_are_created_listed_and_deleted(cluster: FakeCluster, admin: Admin) -> None:
    """The configuration of a group is the same on every master; deleting it deletes its offsets and its retry topic."""
    cluster.broker().state.offsets["billing", "orders", 0] = 3
    cluster.add_topic("%RETRY%billing", queues=1)
    await admin.groups.create(SubscriptionGroupConfig(group_name="billing", retry_max_times=5))
    assert [broker.state.groups["billing"].retry_max_times for broker in cluster.brokers.values()] == [5, 5]
    assert list(await admin.groups.all()) == ["billing"]

    await admin.groups.delete("billing")

    assert await admin.groups.all() == {}
    assert cluster.broker().state.offsets == {}
    assert not any("%RETRY%billing" in broker.state.topics for broker in cluster.brokers.values())


async def test_connected_members_of_a_group_are_listed(cluster: FakeCluster, admin: Admin) -> None:
    """A group without members gives None; a running consumer is listed with its subscriptions."""
    cluster.add_topic("orders", queues=1)

    async def handle(message: ReceivedMessage) -> None: ...

    assert await admin.groups.members("billing") is None
    async with PushConsumer(cluster.name_server, "billing", topics={"orders": "new"}, handler=handle) as consumer:
        await wait_until(lambda: len(consumer.queues) >= 2)
        members = await admin.groups.members("billing")

    assert members is not None
    assert [member.client_id for member in members.connection_set] == [consumer.client_id]
    assert members.subscription_table["orders"].sub_string == "new"


async def test_message_is_found_by_ids_and_key(cluster: FakeCluster, admin: Admin) -> None:
    """All three lookups find the same message; messages that only share a hash are excluded."""
    async with Producer(cluster.name_server) as producer:
        receipt = await producer.send(Message("orders", b"this", keys=["key-1"]))
        await producer.send(Message("orders", b"other", keys=["key-2"]))

    viewed = await admin.messages.view(receipt.offset_message_id, "orders")
    by_key = await admin.messages.by_key("orders", "key-1")
    by_id = await admin.messages.by_id("orders", receipt.message_id)

    assert viewed.body == b"this" and viewed.queue == receipt.queue
    assert [message.body for message in by_key] == [b"this"]
    assert [message.body for message in by_id] == [b"this"]
    assert await admin.messages.by_key("orders", "none") == []


async def test_invalid_message_id_is_refused(admin: Admin) -> None:
    """Not every hex string is an offset message id."""
    for text in ("", "xyz", "00" * 15, "7F"):
        with pytest.raises(InvalidMessage):
            await admin.messages.view(text)


async def test_id_of_no_message_raises_broker_refused(cluster: FakeCluster, admin: Admin) -> None:
    """The error has the code of the broker, which decides whether a valid id belongs to a message."""
    async with Producer(cluster.name_server) as producer:
        receipt = await producer.send(Message("orders", b"x"))
    unused = receipt.offset_message_id[:-4] + "FFFF"

    with pytest.raises(BrokerRefused) as raised:
        await admin.messages.view(unused)
    assert raised.value.code == 1


async def test_reset_falls_back_to_commits(cluster: FakeCluster, admin: Admin) -> None:
    """On a broker that does not support code 222 the offsets are committed, by time or at the end."""
    cluster.add_topic("orders", queues=1)
    queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)
    async with Producer(cluster.name_server) as producer:
        for number in range(4):
            await producer.send(Message("orders", b"%d" % number), queue=queue)

    assert (await admin.groups.reset_offsets("billing", "orders", 0))[queue] == 0
    assert cluster.broker().state.offsets["billing", "orders", 0] == 0
    assert (await admin.groups.reset_offsets("billing", "orders", -1))[queue] == 4
    assert cluster.broker().state.offsets["billing", "orders", 0] == 4


async def test_offsets_by_time_and_runtime_info_are_returned(cluster: FakeCluster, admin: Admin) -> None:
    """The results are offsets at a time for all queues, the runtime information of a broker, and brokers by name."""
    cluster.add_topic("orders", queues=1)

    assert set((await admin.topics.offsets_at("orders", 0)).values()) == {0}
    assert (await admin.brokers.runtime(cluster.broker().address))["putTps"] == "0 0 0"
    assert [broker.name for broker in await admin.brokers.all()] == list(TWO_BROKERS)
    assert [broker.is_master for broker in await admin.brokers.masters("DefaultCluster")] == [True, True]


async def test_unknown_topic_raises_no_route(admin: Admin) -> None:
    """Requests about a topic that does not exist raise NoRoute."""
    with pytest.raises(NoRoute):
        await admin.topics.stats("nothing")


async def test_lag_of_a_group_without_offsets_is_everything(cluster: FakeCluster, admin: Admin) -> None:
    """A consumer offset of -1, which brokers return for a queue without one, is a lag of the whole queue."""
    cluster.add_topic("orders", queues=1)
    async with Producer(cluster.name_server) as producer:
        await producer.send(Message("orders", b"x"))
    for broker in cluster.brokers.values():
        broker.state.offsets["billing", "orders", 0] = -1

    assert await admin.groups.lag("billing") == 1


async def test_start_from_enum_matches_java() -> None:
    """The names in heartbeats are Java's."""
    assert {rule.value for rule in StartFrom} == {
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    }
    assert ConsumerSettings().start_from is StartFrom.LAST


async def test_message_is_consumed_directly_at_an_unbracketed_ipv6_address(cluster: FakeCluster, admin: Admin) -> None:
    """RocketMQ's brokers register IPv6 addresses without brackets; the broker in a message id is found there, too."""
    asked: list[Command] = []

    def answer(command: Command, connection: Connection) -> Command:
        asked.append(command)
        return command.reply(body=write_document(ConsumeResult(consume_result="CR_SUCCESS")))

    listener = Listener(CommandService(answer), ListenerSettings(host="::1", port=0))
    await listener.start()
    try:
        cluster.slaves[TWO_BROKERS[1]] = {1: f"::1:{listener.port}"}
        stored_at = offset_message_id(encode_host("::1", listener.port), 4711)

        result = await admin.consumers.consume("billing", "client", stored_at)
    finally:
        await listener.close()

    assert result.consume_result == "CR_SUCCESS"
    (command,) = asked
    assert (command.ext["msgId"], command.ext["brokerName"]) == (stored_at, TWO_BROKERS[1])
