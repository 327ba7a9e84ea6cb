"""Routes and name servers: which queries are sent, what is kept, and the effect of a silent name server."""

import asyncio

import pytest

from gantry_client import Admin, ClientSettings, Message, NoRoute, Producer, PullConsumer, Unavailable
from gantry_client.routes import build_route
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode
from gantry_wire.commands.nameserver import BrokerData, QueueData, TopicRoute

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
UNREACHABLE, ALSO_UNREACHABLE = "127.0.0.1:1", "127.0.0.1:2"


def route_data(*, perm: int = 6, addresses: dict[int, str] | None = None, order: str | None = None) -> TopicRoute:
    return TopicRoute(
        queue_datas=[QueueData(broker_name="b", read_queue_nums=3, write_queue_nums=2, perm=perm)],
        broker_datas=[
            BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"} if addresses is None else addresses)
        ],
        order_topic_conf=order,
    )


def test_read_and_write_queues_have_separate_numbers() -> None:
    """A topic may have fewer write queues than read queues."""
    route = build_route("t", route_data())

    assert [queue.queue_id for queue in route.write_queues] == [0, 1]
    assert [queue.queue_id for queue in route.read_queues] == [0, 1, 2]


@pytest.mark.parametrize(("perm", "writes", "reads"), [(6, 2, 3), (4, 0, 3), (2, 2, 0), (0, 0, 0), (7, 2, 3)], ids=str)
def test_permissions_exclude_queues(perm: int, writes: int, reads: int) -> None:
    """Queues without write permission are not written, those without read permission are not read."""
    route = build_route("t", route_data(perm=perm))

    assert (len(route.write_queues), len(route.read_queues)) == (writes, reads)


def test_broker_without_a_master_is_read_only() -> None:
    """Slaves serve reads; a broker name without broker 0 gets no sends."""
    route = build_route("t", route_data(addresses={1: "slave:1"}))

    assert route.write_queues == ()
    assert route.read_address("b") == "slave:1" and route.master_address("b") is None


def test_ordered_topic_has_its_configured_queues() -> None:
    """The fixed queues of an ordered topic have priority over the registered ones."""
    route = build_route("t", route_data(order="b:1;gone:2;broken:x"))

    assert [(queue.broker_name, queue.queue_id) for queue in route.write_queues] == [("b", 0), ("gone", 0), ("gone", 1)]


def test_excessive_queue_number_is_limited() -> None:
    """A route with two thousand million queues is truncated."""
    data = route_data()
    data.queue_datas[0].write_queue_nums = 2_000_000_000
    data.queue_datas[0].read_queue_nums = -5

    route = build_route("t", data)

    assert len(route.write_queues) == 65536 and route.read_queues == ()


async def test_next_name_server_is_tried_after_a_failure() -> None:
    """Any working name server suffices, at any position in the list."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders")
        async with Producer(f"{UNREACHABLE};{cluster.name_server}") as producer:
            receipt = await producer.send(Message("orders", b"x"))

        assert receipt.is_acknowledged


async def test_error_names_all_failed_name_servers() -> None:
    """If no name server replies, the error lists the attempts."""
    async with Producer([UNREACHABLE, ALSO_UNREACHABLE]) as producer:
        with pytest.raises(Unavailable) as raised:
            await producer.send(Message("orders", b"x"))

    assert all(address in str(raised.value) for address in (UNREACHABLE, ALSO_UNREACHABLE))


async def test_known_route_is_used_without_name_servers(caplog: pytest.LogCaptureFixture) -> None:
    """Sends continue while every name server is down, because the brokers still work."""
    settings = ClientSettings(route_poll_interval_ms=20)
    async with FakeCluster() as cluster, Producer(cluster.name_server, client_settings=settings) as producer:
        cluster.add_topic("orders")
        await producer.send(Message("orders", b"before"))
        await cluster.stop_name_server()

        await wait_until(lambda: "failed to refresh route" in caplog.text)
        receipt = await producer.send(Message("orders", b"after"))

        assert receipt.is_acknowledged


async def test_routes_are_refreshed_at_their_interval() -> None:
    """A running producer uses new queues of a topic without an error in between."""
    settings = ClientSettings(route_poll_interval_ms=20)
    async with FakeCluster() as cluster, Producer(cluster.name_server, client_settings=settings) as producer:
        cluster.add_topic("orders", queues=1)
        assert len(await producer.queues("orders")) == 1
        cluster.add_topic("orders", queues=5)

        asked = len(cluster.name_server_requests)
        await wait_until(lambda: len(cluster.name_server_requests) >= asked + 2)

        assert len(await producer.queues("orders")) == 5


async def test_concurrent_route_queries_are_shared() -> None:
    """A hundred concurrent first sends query the name server once."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")

        await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(100)))

        assert len([c for c in cluster.name_server_requests if c.code == ROUTE]) == 1


async def test_reading_an_unknown_topic_raises_no_route() -> None:
    """A query for a route never creates a topic."""
    async with FakeCluster() as cluster, PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(NoRoute):
            await consumer.queues("fresh")

        assert "fresh" not in cluster.broker().state.topics


async def test_waiting_requests_share_one_new_connection() -> None:
    """Requests that need the same new connection wait for one handshake."""
    async with FakeCluster() as cluster, Admin(cluster.name_server) as admin:
        addresses = [cluster.broker().address] * 20

        await asyncio.gather(*(admin.brokers.runtime(address) for address in addresses))

        await wait_until(lambda: cluster.broker().received[RequestCode.GET_BROKER_RUNTIME_INFO] == 20)
        assert cluster.broker().connections == 1
