"""The pull consumer: the application says which queue to read, from where, and what is done.

Nothing happens by itself here: no rebalancing, no commit, no retry topic. It is what tools, stream processors and the
data pipelines need. Applications that just want every message once handled use `PushConsumer`.
"""

from collections.abc import Sequence
from typing import final

from gantry_client.client import Client
from gantry_client.errors import InvalidMessage, NoRoute
from gantry_client.fetching import Fetcher, FetchRequest, FetchResult
from gantry_client.outgoing import check_group
from gantry_client.queue_calls import QueueCalls
from gantry_client.session import Session
from gantry_client.settings import ClientSettings, ConsumerSettings, NameServerAddresses
from gantry_client.subscriptions import Wanted, make_filter
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
        """The queues of `topic` that can be read now. Raises NoRoute."""
        self._session.require_open()
        route = await self._session.routes.get(topic)
        if not route.read_queues:
            raise NoRoute(topic, "no broker lets anybody read it")
        return route.read_queues

    async def refresh(self, topic: str) -> None:
        """Ask again where `topic` is: a broker that was promoted is found at once. Raises RequestFailed."""
        self._session.require_open()
        await self._session.routes.refresh(topic)

    async def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: Wanted = "*",
        messages_max: int | None = None,
        wait_ms: int = 0,
    ) -> FetchResult:
        """Messages of `queue` from `offset` on; with `wait_ms` the broker may hold the question until there are some.

        `tags` may also be an `Sql`. Go on at the result's `next_offset`, whatever its status.
        """
        self._session.require_open()
        if offset < 0 or wait_ms < 0:
            raise InvalidMessage("offset and wait_ms begin at 0")
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
        """How far the group has consumed `queue`; None when it has not begun."""
        self._session.require_open()
        return await self._queue_calls.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Everything of `queue` below `offset` is consumed."""
        self._session.require_open()
        await self._queue_calls.commit(self.group, queue, offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        self._session.require_open()
        return await self._queue_calls.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message."""
        self._session.require_open()
        return await self._queue_calls.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after `timestamp_ms`; `max_offset` when there is none."""
        self._session.require_open()
        return await self._queue_calls.offset_at(queue, timestamp_ms)
