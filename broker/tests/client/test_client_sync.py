"""The synchronous face: the same clients for programs without an event loop."""

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


def test_messages_go_and_come_without_a_loop(cluster: FakeCluster) -> None:
    """Send, batch, oneway, fetch, offsets: everything works from plain code."""
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


def test_polling_in_a_for_loop(cluster: FakeCluster) -> None:
    """`for message in consumer` gives messages until the program leaves the loop."""
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


def test_an_administrator_waits_for_answers(cluster: FakeCluster) -> None:
    """Questions of the asyncio administrator are answered by `wait`."""
    with Admin(cluster.name_server) as admin:
        admin.wait(admin.topics.create("fresh", queues=2))

        assert admin.wait(admin.topics.all()) == ["fresh", "orders"]
        assert len(admin.wait(admin.brokers.all())) == 1
        assert admin.wait(admin.groups.lag("nobody")) == 0


def test_closing_ends_the_thread_and_says_goodbye(cluster: FakeCluster) -> None:
    """After `with` no thread is left, the broker has been told, and the object says that it is closed."""
    with Producer(cluster.name_server) as producer:
        producer.send(Message("orders", b"x"))
        assert len(client_threads()) == 1

    assert client_threads() == []
    assert cluster.broker().received[RequestCode.UNREGISTER_CLIENT] == 1
    with pytest.raises(ClientClosed):
        producer.send(Message("orders", b"y"))
    producer.close()


def test_a_client_can_be_used_again_after_closing(cluster: FakeCluster) -> None:
    """`with` twice on one object is two lives."""
    producer = Producer(cluster.name_server)
    for _ in range(2):
        with producer:
            assert producer.send(Message("orders", b"x")).is_acknowledged


def test_an_error_while_starting_leaves_no_thread() -> None:
    """A wrong argument is raised by `with`, and nothing keeps running."""
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


def test_closing_frees_threads_that_still_wait(cluster: FakeCluster) -> None:
    """A thread inside a call when another closes the client gets an error; it never hangs."""
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


def test_a_call_outside_with_is_an_error_and_warns_of_nothing() -> None:
    """An unused coroutine is closed, not left to complain at the end of the program."""
    with pytest.raises(ClientClosed):
        Producer("127.0.0.1:1").send(Message("orders", b"x"))
    with pytest.raises(ClientClosed):
        _ = Admin("127.0.0.1:1").topics
