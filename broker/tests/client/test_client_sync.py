"""The synchronous API: the same clients for programs without an event loop."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gantry_client import ClientClosed, ConsumerSettings, FetchStatus, InvalidMessage, Message, StartFrom
from gantry_client.sync import Admin, PollConsumer, Producer, PullConsumer
from gantry_testing.client import FakeCluster, ThreadedCluster
from gantry_wire.codes import RequestCode


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fake.add_topic("orders", queues=1)
    with ThreadedCluster(fake):
        yield fake


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gantry-client"]


def test_messages_are_sent_and_received_without_an_event_loop(cluster: FakeCluster) -> None:
    """Single, batch and concurrent sends, fetch and offsets work from plain code."""
    with Producer(cluster.name_server) as producer, PullConsumer(cluster.name_server, "group") as consumer:
        producer.send(Message("orders", b"1"))
        producer.send_batch([Message("orders", b"2"), Message("orders", b"3")])
        (receipt,) = producer.send_many([Message("orders", b"4")])
        (queue,) = consumer.queues("orders")

        result = consumer.fetch(queue, consumer.min_offset(queue))
        consumer.commit(queue, result.next_offset)

        assert [message.body for message in result.messages] == [b"1", b"2", b"3", b"4"]
        assert receipt.queue_offset == 3
        assert consumer.committed(queue) == consumer.max_offset(queue) == 4
        assert consumer.fetch(queue, 4).status is FetchStatus.NO_NEW


def test_poll_consumer_iterates_in_a_for_loop(cluster: FakeCluster) -> None:
    """`for message in consumer` yields messages until the program leaves the loop."""
    settings = ConsumerSettings(start_from=StartFrom.FIRST)
    with Producer(cluster.name_server) as producer:
        producer.send_many([Message("orders", b"%d" % number) for number in range(3)])
    bodies = []

    with PollConsumer(cluster.name_server, "group", topics="orders", settings=settings) as consumer:
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 3:
                consumer.commit()
                break

    assert bodies == [b"0", b"1", b"2"]
    assert cluster.broker().state.offsets["group", "orders", 0] == 3


def test_administrative_requests_use_wait(cluster: FakeCluster) -> None:
    """The coroutines of the asyncio client run in `wait`."""
    with Admin(cluster.name_server) as admin:
        admin.wait(admin.topics.create("fresh", queues=2))

        assert admin.wait(admin.topics.all()) == ["fresh", "orders"]
        assert len(admin.wait(admin.brokers.all())) == 1
        assert admin.wait(admin.groups.lag("unknown")) == 0


def test_closing_ends_the_thread_and_unregisters(cluster: FakeCluster) -> None:
    """After `with` no thread remains, the client is unregistered, and calls raise ClientClosed."""
    with Producer(cluster.name_server) as producer:
        producer.send(Message("orders", b"x"))
        assert len(client_threads()) == 1

    assert client_threads() == []
    assert cluster.broker().received[RequestCode.UNREGISTER_CLIENT] == 1
    with pytest.raises(ClientClosed):
        producer.send(Message("orders", b"y"))
    producer.close()


def test_client_can_be_started_again_after_closing(cluster: FakeCluster) -> None:
    """Each `with` on one object is a separate session."""
    producer = Producer(cluster.name_server)
    for _ in range(2):
        with producer:
            assert producer.send(Message("orders", b"x")).is_acknowledged


def test_failed_start_leaves_no_thread() -> None:
    """An invalid argument is raised by `with`, and no thread keeps running."""
    with pytest.raises(InvalidMessage), Producer("127.0.0.1:1", group="not a group"):
        pass

    assert client_threads() == []


def test_many_threads_share_one_producer(cluster: FakeCluster) -> None:
    """Sends of 16 threads arrive once each, over one connection."""
    with Producer(cluster.name_server) as producer, ThreadPoolExecutor(16) as threads:
        receipts = list(threads.map(lambda number: producer.send(Message("orders", b"%d" % number)), range(200)))
        connections = len(cluster.broker().state.clients)

    assert {receipt.queue_offset for receipt in receipts} == set(range(200))
    assert connections == 1


def test_closing_unblocks_waiting_threads(cluster: FakeCluster) -> None:
    """A thread in a call gets an error when another thread closes the client; it never hangs."""
    cluster.broker().ignore(RequestCode.SEND_MESSAGE_V2, times=10)
    producer = Producer(cluster.name_server)
    producer.start()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(producer.send, Message("orders", b"x"), timeout_ms=30_000)
        reached = threading.Event()
        while not reached.wait(0.002):
            if cluster.broker().received[RequestCode.SEND_MESSAGE_V2]:
                reached.set()

        producer.close()

        error = waiting.exception(timeout=20)
    assert error is not None


def test_call_outside_with_is_an_error_without_warning() -> None:
    """The unused coroutine is closed, so that Python issues no warning."""
    with pytest.raises(ClientClosed):
        Producer("127.0.0.1:1").send(Message("orders", b"x"))
    with pytest.raises(ClientClosed):
        _ = Admin("127.0.0.1:1").topics
