"""The push consumer: calls a handler of the application at least once for every message of the group.

    async def handle(message):
        ...                         # returns: consumed. Raises: delivered again later.

    async with PushConsumer("127.0.0.1:9876", "billing", topics={"orders": "new || paid"}, handler=handle):
        await asyncio.Event().wait()

At least once means that a message may be delivered twice, after a crash, a rebalance or a lost reply. A handler should
detect duplicates by `message.message_id` or by its own keys. The exceptions: a message that is damaged on every replica
is skipped (`damaged_attempts_max`), and a broadcast consumer drops messages whose handler failed (`handling`).
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import final

from gantry_client.backlog import Backlog
from gantry_client.client import ConsumerClient
from gantry_client.consumer_role import ConsumerRole
from gantry_client.handling import ConcurrentHandling, Handler, HandlerCalls, Handling, send_back
from gantry_client.messages import ReceivedMessage
from gantry_client.ordered_handling import OrderedHandling
from gantry_client.replies import ReplyingClient
from gantry_client.settings import (
    ClientSettings,
    ConsumerSettings,
    MessageModel,
    NameServerAddresses,
    ProducerSettings,
)
from gantry_client.subscriptions import TopicFilters
from gantry_wire.commands.clients import MessageQueue


@final
class PushConsumer(ConsumerClient, ReplyingClient):
    """Calls a handler for every message. Use it inside `async with`; it belongs to the event loop that starts it.

    Closing it stops reading, waits for running handlers, commits, and leaves the group.
    """

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: TopicFilters,
        handler: Handler,
        is_ordered: bool = False,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        settings = settings or ConsumerSettings()
        role = ConsumerRole(group=group, is_ordered=is_ordered and settings.model is MessageModel.CLUSTERING)
        calls = HandlerCalls(handler, settings.consume_timeout_ms)
        super().__init__(name_servers, role, topics, settings, client_settings, calls=calls)
        self._reply_settings = ProducerSettings()
        self._handling = self._make_handling(calls, is_ordered=is_ordered)

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self._consumer!r}>"

    async def _join(self) -> None:
        self._handling.start()
        await super()._join()

    async def _leave(self) -> None:
        """Stop reading, wait for running handlers, and commit."""
        await super()._leave()
        await self._handling.close()

    async def run(self) -> None:
        """Start, and consume until cancelled."""
        async with self:
            await asyncio.Event().wait()

    async def commit(self) -> None:
        """Commit what is done now, without waiting for the commit interval. A failure is logged and retried."""
        self._session.require_open()
        await self._consumer.commit()

    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        self._handling.deliver(queue, backlog, messages)

    def _make_handling(self, calls: HandlerCalls, *, is_ordered: bool) -> Handling:
        return_message = partial(send_back, self._session, self.group, self.settings.max_reconsume_times)
        if not is_ordered:
            return ConcurrentHandling(calls, return_message, self.settings)
        is_broadcast = self.settings.model is MessageModel.BROADCASTING
        is_locked = (lambda queue: True) if is_broadcast else self._consumer.locks.is_held
        return OrderedHandling(calls, return_message, self.settings, is_locked=is_locked)
