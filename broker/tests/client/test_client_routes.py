"""Routes and name servers: what is asked, what is kept, and what a silent name server costs."""

import asyncio

import pytest

from gantry_client import Admin, ClientSettings, Message, NoRoute, Producer, PullConsumer, Unavailable
from gantry_client.routes import build_route
from gantry_testing.client import FakeCluster, wait_until
from gantry_wire.codes import RequestCode
from gantry_wire.commands.nameserver import BrokerData, QueueData, TopicRoute

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
NOBODY = "127.0.0.1:1"


def route_data(*, perm: int = 6, addresses: dict[int, str] | None = None, order: str | None = None) -> TopicRoute:
    return TopicRoute(
        queue_datas=[QueueData(broker_name="b", read_queue_nums=3, write_queue_nums=2, perm=perm)],
        broker_datas=[
            BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"} if addresses is None else addresses)
        ],
        order_topic_conf=order,
    )


def test_read_and_write_queues_follow_their_own_numbers() -> None:
    """A topic may have fewer queues to write than to read; each side sees its own."""
    route = build_route("t", route_data())

    assert [queue.queue_id for queue in route.write_queues] == [0, 1]
    assert [queue.queue_id for queue in route.read_queues] == [0, 1, 2]


@pytest.mark.parametrize(("perm", "writes", "reads"), [(6, 2, 3), (4, 0, 3), (2, 2, 0), (0, 0, 0), (7, 2, 3)], ids=str)
def test_permissions_hide_queues(perm: int, writes: int, reads: int) -> None:
    """Queues without the write bit are not written, those without the read bit are not read."""
    route = build_route("t", route_data(perm=perm))

    assert (len(route.write_queues), len(route.read_queues)) == (writes, reads)


def test_a_broker_without_a_master_is_read_and_not_written() -> None:
    """Slaves serve reads; nobody writes to a name whose broker 0 is gone."""
    route = build_route("t", route_data(addresses={1: "slave:1"}))

    assert route.write_queues == ()
    assert route.read_address("b") == "slave:1" and route.master_address("b") is None


def test_an_ordered_topic_has_the_queues_that_its_configuration_names() -> None:
    """The fixed list of an ordered topic wins over what brokers register now."""
    route = build_route("t", route_data(order="b:1;gone:2;broken:x"))

    assert [(queue.broker_name, queue.queue_id) for queue in route.write_queues] == [("b", 0), ("gone", 0), ("gone", 1)]


def test_a_lying_queue_number_costs_no_memory() -> None:
    """A route that claims two thousand million queues is cut, not believed."""
    data = route_data()
    data.queue_datas[0].write_queue_nums = 2_000_000_000
    data.queue_datas[0].read_queue_nums = -5

    route = build_route("t", data)

    assert len(route.write_queues) == 65536 and route.read_queues == ()


async def test_the_next_name_server_is_asked_when_one_does_not_answer() -> None:
    """Any living name server is enough, wherever it stands in the list."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders")
        async with Producer(f"{NOBODY};{cluster.name_server}") as producer:
            receipt = await producer.send(Message("orders", b"x"))

        assert receipt.is_acknowledged


async def test_no_name_server_at_all_is_an_error_that_names_them() -> None:
    """When none answers, the error says what was tried, and in time."""
    async with Producer([NOBODY]) as producer:
        with pytest.raises(Unavailable, match=NOBODY):
            await producer.send(Message("orders", b"x"))


async def test_a_known_route_outlives_its_name_server(caplog: pytest.LogCaptureFixture) -> None:
    """Sends go on while every name server is down: brokers are asked, not the phone book."""
    settings = ClientSettings(route_poll_interval_ms=20)
    async with FakeCluster() as cluster, Producer(cluster.name_server, client_settings=settings) as producer:
        cluster.add_topic("orders")
        await producer.send(Message("orders", b"before"))
        await cluster.stop_name_server()

        await wait_until(lambda: "routes are not refreshed" in caplog.text)
        receipt = await producer.send(Message("orders", b"after"))

        assert receipt.is_acknowledged


async def test_routes_are_asked_for_again_at_their_interval() -> None:
    """A topic that grows is seen by a running producer without any error in between."""
    settings = ClientSettings(route_poll_interval_ms=20)
    async with FakeCluster() as cluster, Producer(cluster.name_server, client_settings=settings) as producer:
        cluster.add_topic("orders", queues=1)
        assert len(await producer.queues("orders")) == 1
        cluster.add_topic("orders", queues=5)

        asked = len(cluster.name_server_requests)
        await wait_until(lambda: len(cluster.name_server_requests) >= asked + 2)

        assert len(await producer.queues("orders")) == 5


async def test_users_that_need_a_route_at_once_share_one_question() -> None:
    """A hundred first sends ask the name server once."""
    async with FakeCluster() as cluster, Producer(cluster.name_server) as producer:
        cluster.add_topic("orders")

        await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(100)))

        assert len([c for c in cluster.name_server_requests if c.code == ROUTE]) == 1


async def test_an_unknown_topic_cannot_be_read() -> None:
    """Readers get NoRoute; nobody creates a topic by looking at it."""
    async with FakeCluster() as cluster, PullConsumer(cluster.name_server, "group") as consumer:
        with pytest.raises(NoRoute):
            await consumer.queues("fresh")

        assert "fresh" not in cluster.broker().state.topics


async def test_a_connection_is_made_once_for_many_waiting_requests() -> None:
    """Requests that need the same new connection wait for one handshake."""
    async with FakeCluster() as cluster, Admin(cluster.name_server) as admin:
        addresses = [cluster.broker().address] * 20

        await asyncio.gather(*(admin.brokers.runtime(address) for address in addresses))

        await wait_until(lambda: cluster.broker().received[RequestCode.GET_BROKER_RUNTIME_INFO] == 20)
        assert cluster.broker().connections == 1
