"""The clients for programs without an event loop.

Each object runs one asyncio client on an event loop in a separate thread and waits for it; `with` starts and stops
both. Methods may be called from any thread, also concurrently: sends of several threads share one connection for each
broker. Only a `PollConsumer` is polled by one thread at a time: a poll during another one raises RuntimeError. Inside a
running event loop, use the asyncio clients: these classes would block the loop.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, final

from gantry_client import admin, poll_consumer, producer, pull_consumer
from gantry_client.errors import ClientClosed
from gantry_client.fetching import FetchResult
from gantry_client.messages import Message, ReceivedMessage, SendReceipt
from gantry_client.producer import DEFAULT_GROUP, Selector
from gantry_client.replies import Reply
from gantry_client.settings import ClientSettings, ConsumerSettings, NameServerAddresses, ProducerSettings
from gantry_client.subscriptions import FilterExpression, TopicFilters
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.structs import make_structs_ready

T = TypeVar("T")


class _Startable(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=_Startable)

LOOP_STOP_TIMEOUT_S = 5.0
"""How long closing waits for the thread of the loop."""


class _Synchronous(Generic[C]):
    """One asyncio client that is created and used on an event loop in another thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._client: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<sync {self._client!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread, the loop and the client."""
        make_structs_ready()
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="gantry-client", daemon=True)
        self._thread.start()
        self._loop = loop
        try:
            self._client = self.wait(self._start_client())
        except BaseException:
            self._stop_loop()
            raise

    def close(self) -> None:
        """Close the client, then end its thread. Closing twice does nothing."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            self.wait(client.close())
        finally:
            self._stop_loop()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop of the client and return its result."""
        if self._loop is None:
            work.close()
            raise ClientClosed("the client is not started or already closed; use it inside `with`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed by another thread") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    @property
    def _async(self) -> C:
        if self._client is None:
            raise ClientClosed("the client is not started or already closed; use it inside `with`")
        return self._client

    async def _start_client(self) -> C:
        client = self._make()
        await client.start()
        return client

    def _stop_loop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None and self._thread is not None, "only called after start"
        asyncio.run_coroutine_threadsafe(_cancel_pending_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(LOOP_STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            loop.close()


async def _cancel_pending_tasks() -> None:
    """Cancel all other tasks, so that no thread waits for a result of the stopped loop."""
    pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


@final
class Producer(_Synchronous[producer.Producer]):
    """The synchronous form of `gantry_client.Producer`, for `with`."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str = DEFAULT_GROUP,
        *,
        settings: ProducerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        super().__init__(
            lambda: producer.Producer(name_servers, group, settings=settings, client_settings=client_settings)
        )

    def send(
        self, message: Message, *, queue: MessageQueue | Selector | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send one message and wait for the reply of the broker."""
        return self.wait(self._async.send(message, queue=queue, timeout_ms=timeout_ms))

    def recall(self, handle: str, *, timeout_ms: int | None = None) -> str:
        """Recall a message that waits for its delay or time; return its message id."""
        return self.wait(self._async.recall(handle, timeout_ms=timeout_ms))

    def request(
        self, message: Message, *, queue: MessageQueue | Selector | None = None, timeout_ms: int | None = None
    ) -> Reply:
        """Send one message and wait for the reply of its consumer."""
        return self.wait(self._async.request(message, queue=queue, timeout_ms=timeout_ms))

    def reply(self, request: ReceivedMessage, body: bytes, *, timeout_ms: int | None = None) -> None:
        """Reply to a message that was sent as a request."""
        self.wait(self._async.reply(request, body, timeout_ms=timeout_ms))

    def send_oneway(self, message: Message, *, queue: MessageQueue | Selector | None = None) -> None:
        """Send one message and do not wait for the broker."""
        self.wait(self._async.send_oneway(message, queue=queue))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together."""
        sending = self._async.send_batch(messages, queue=queue, timeout_ms=timeout_ms, message_ids=message_ids)
        return self.wait(sending)

    def send_many(self, messages: Sequence[Message], *, timeout_ms: int | None = None) -> list[SendReceipt]:
        """Send messages concurrently and wait for all replies; raises the first error after all have ended."""
        return self.wait(_send_many(self._async, messages, timeout_ms))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues to which messages of `topic` can be sent now."""
        return self.wait(self._async.queues(topic))


async def _send_many(
    client: producer.Producer, messages: Sequence[Message], timeout_ms: int | None
) -> list[SendReceipt]:
    results = await asyncio.gather(
        *(client.send(message, timeout_ms=timeout_ms) for message in messages), return_exceptions=True
    )
    receipts: list[SendReceipt] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        receipts.append(result)
    return receipts


@final
class PullConsumer(_Synchronous[pull_consumer.PullConsumer]):
    """The synchronous form of `gantry_client.PullConsumer`, for `with`."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        super().__init__(
            lambda: pull_consumer.PullConsumer(name_servers, group, settings=settings, client_settings=client_settings)
        )

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of `topic` that can be read now."""
        return self.wait(self._async.queues(topic))

    def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: FilterExpression = "*",
        messages_max: int | None = None,
        wait_ms: int = 0,
    ) -> FetchResult:
        """Return messages of `queue` from `offset` on."""
        return self.wait(self._async.fetch(queue, offset, tags=tags, messages_max=messages_max, wait_ms=wait_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group in `queue`; None if it has none."""
        return self.wait(self._async.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit `offset`, below which everything in `queue` is consumed."""
        self.wait(self._async.commit(queue, offset))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        return self.wait(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message that the broker delivers to consumers."""
        return self.wait(self._async.max_offset(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after `timestamp_ms`."""
        return self.wait(self._async.offset_at(queue, timestamp_ms))


@final
class PollConsumer(_Synchronous[poll_consumer.PollConsumer]):
    """The synchronous form of `gantry_client.PollConsumer`, for `with` and `for`."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: TopicFilters,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        super().__init__(
            lambda: poll_consumer.PollConsumer(
                name_servers, group, topics=topics, settings=settings, client_settings=client_settings
            )
        )

    def poll(self, messages_max: int = 32, *, timeout_ms: int = 1000) -> list[ReceivedMessage]:
        """Return up to `messages_max` messages; those of the previous poll count as consumed now."""
        return self.wait(self._async.poll(messages_max, timeout_ms=timeout_ms))

    def commit(self) -> None:
        """Mark the messages of the last poll as consumed, and commit the offsets. A failure is logged and retried."""
        self.wait(self._async.commit())

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages one by one without end; each is consumed when the next is requested."""
        while True:
            yield from self.poll(1)


@final
class Admin(_Synchronous[admin.Admin]):
    """The synchronous form of `gantry_client.Admin`: pass the coroutines of its methods to `wait`.

    with Admin("127.0.0.1:9876") as administrator:
        administrator.wait(administrator.topics.create("orders"))
    """

    def __init__(self, name_servers: NameServerAddresses, *, client_settings: ClientSettings | None = None) -> None:
        super().__init__(lambda: admin.Admin(name_servers, client_settings=client_settings))

    @property
    def topics(self) -> admin.Topics:
        """Requests about topics, for `wait`."""
        return self._async.topics

    @property
    def groups(self) -> admin.Groups:
        """Requests about consumer groups, for `wait`."""
        return self._async.groups

    @property
    def consumers(self) -> admin.Consumers:
        """Requests to the consumers of groups, for `wait`."""
        return self._async.consumers

    @property
    def brokers(self) -> admin.Brokers:
        """Requests about brokers, for `wait`."""
        return self._async.brokers

    @property
    def messages(self) -> admin.Messages:
        """Requests about messages, for `wait`."""
        return self._async.messages

    @property
    def replicas(self) -> admin.Replicas:
        """Requests to single replicas, for `wait`."""
        return self._async.replicas
