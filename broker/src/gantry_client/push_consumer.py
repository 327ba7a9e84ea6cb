"""The push consumer: the application writes a handler, and every message of the group gets handled at least once.

    async def handle(message):
        ...                         # returns: consumed. Raises: delivered again later.

    async with PushConsumer("127.0.0.1:9876", "billing", topics={"orders": "new || paid"}, handler=handle):
        await asyncio.Event().wait()

At least once means: a message may come twice, after a crash, a rebalance or a lost answer. A handler should tell by
`message.message_id` or by its own keys whether it has done this one before.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import final

from gantry_client.backlog import Backlog
from gantry_client.client import MemberClient
from gantry_client.handling import ConcurrentHandling, Handler, HandlerCalls, Handling, send_back
from gantry_client.member_role import MemberRole
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
from gantry_client.subscriptions import Topics
from gantry_wire.commands.clients import MessageQueue


@final
class PushConsumer(MemberClient, ReplyingClient):
    """Calls a handler for every message. Use it inside `async with`; it belongs to the event loop that starts it.

    Closing it stops reading, lets running handlers end, commits, and leaves the group.
    """

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: Topics,
        handler: Handler,
        is_ordered: bool = False,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        settings = settings or ConsumerSettings()
        role = MemberRole(group=group, is_ordered=is_ordered and settings.model is MessageModel.CLUSTERING)
        calls = HandlerCalls(handler, settings.consume_timeout_ms)
        super().__init__(name_servers, role, topics, settings, client_settings, calls=calls)
        self._reply_settings = ProducerSettings()
        self._handling = self._make_handling(calls, is_ordered=is_ordered)

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self._member!r}>"

    async def _join(self) -> None:
        self._handling.start()
        await super()._join()

    async def _leave(self) -> None:
        """Stop reading, let running handlers end, and commit."""
        await super()._leave()
        await self._handling.close()

    async def run(self) -> None:
        """Consume until cancelled."""
        async with self:
            await asyncio.Event().wait()

    async def commit(self) -> None:
        """Commit what is done now, without waiting for the next time."""
        self._session.require_open()
        await self._member.commit()

    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        self._handling.deliver(queue, backlog, messages)

    def _make_handling(self, calls: HandlerCalls, *, is_ordered: bool) -> Handling:
        give_back = partial(send_back, self._session, self.group, self.settings.max_reconsume_times)
        if not is_ordered:
            return ConcurrentHandling(calls, give_back, self.settings)
        is_broadcast = self.settings.model is MessageModel.BROADCASTING
        is_locked = (lambda queue: True) if is_broadcast else self._member.locks.is_held
        return OrderedHandling(calls, give_back, self.settings, is_locked=is_locked)
