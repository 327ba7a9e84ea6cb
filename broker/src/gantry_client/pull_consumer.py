"""The pull consumer: the application chooses the queue and the offset, and commits itself.

Nothing is automatic: no rebalancing, no commit, no retry topic. It serves tools, stream processors and the data
pipelines. Applications that only need every message handled use `PushConsumer`.
"""

from collections.abc import Sequence
from typing import final

from gantry_client.client import Client
from gantry_client.errors import InvalidMessage, NoRoute, RouteProblem
from gantry_client.fetching import Fetcher, FetchRequest, FetchResult
from gantry_client.outgoing import check_group
from gantry_client.queue_calls import QueueCalls
from gantry_client.session import Session
from gantry_client.settings import ClientSettings, ConsumerSettings, NameServerAddresses
from gantry_client.subscriptions import FilterExpression, make_filter
from gantry_wire.commands.clients import MessageQueue


@final
class PullConsumer(Client):
    """Reads queues by offset for one group. Use it inside `async with`; it belongs to the event loop that starts it."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.settings = settings or ConsumerSettings()
        super().__init__(Session(name_servers, client_settings))
        self._fetcher = Fetcher(self._session)
        self._queue_calls = QueueCalls(self._session)

    def __repr__(self) -> str:
        return f"<PullConsumer {self.group}>"

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of `topic` that can be read now. Raises NoRoute."""
        self._session.require_open()
        route = await self._session.routes.get(topic)
        if not route.read_queues:
            raise NoRoute(topic, "no broker grants read permission", RouteProblem.NO_PERMISSION)
        return route.read_queues

    async def refresh(self, topic: str) -> None:
        """Refresh the route of `topic`, so that a promoted master is found at once. Raises RequestFailed."""
        self._session.require_open()
        await self._session.routes.refresh(topic)

    async def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: FilterExpression = "*",
        messages_max: int | None = None,
        wait_ms: int = 0,
    ) -> FetchResult:
        """Return messages of `queue` from `offset` on; the broker may hold the request up to `wait_ms` for some.

        `tags` may also be an `Sql`. Continue at the `next_offset` of the result, for any status.
        """
        self._session.require_open()
        if offset < 0 or wait_ms < 0:
            raise InvalidMessage("offset and wait_ms must not be negative")
        request = FetchRequest(
            group=self.group,
            queue=queue,
            offset=offset,
            messages_max=messages_max or self.settings.fetch_messages_max,
            filter=make_filter(tags),
            suspend_ms=wait_ms,
            body_bytes_max=self.settings.body_bytes_max,
        )
        return await self._fetcher.fetch(request)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group in `queue`; None if it has none."""
        self._session.require_open()
        return await self._queue_calls.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit `offset`, below which everything in `queue` is consumed."""
        self._session.require_open()
        await self._queue_calls.commit(self.group, queue, offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        self._session.require_open()
        return await self._queue_calls.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message that the broker delivers to consumers."""
        self._session.require_open()
        return await self._queue_calls.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after `timestamp_ms`, or `max_offset`."""
        self._session.require_open()
        return await self._queue_calls.offset_at(queue, timestamp_ms)
