"""Requests about one queue: its first offset and its end, offsets by time, and committed offsets."""

from contextlib import suppress
from typing import final

from gantry_client.admin_replicas import Replicas
from gantry_client.errors import BadReply, BrokerRefused, NoRoute, RouteProblem
from gantry_client.session import Session
from gantry_wire.codes import ResponseCode
from gantry_wire.commands.clients import MessageQueue


@final
class QueueCalls:
    """The requests of `Replicas`, sent to the master of the queue, or to a slave while there is no master."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replicas = Replicas(session)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        return await self._replicas.min_offset(await self._address(queue), queue.topic, queue.queue_id)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message that the broker delivers to consumers."""
        return await self._replicas.max_offset(await self._address(queue), queue.topic, queue.queue_id)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after `timestamp_ms`, or `max_offset`."""
        return await self._replicas.offset_at(await self._address(queue), queue.topic, queue.queue_id, timestamp_ms)

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of `group` in `queue`; None if it has none."""
        return await self._replicas.committed(await self._address(queue), group, queue.topic, queue.queue_id)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit `offset`, below which `group` has consumed everything in `queue`.

        A broker refuses offsets of an unknown group, and creates the group at its first pull if its settings allow
        that. So after a refusal one pull is made before the commit is repeated.
        """
        address, topic, queue_id = await self._address(queue), queue.topic, queue.queue_id
        try:
            await self._replicas.commit(address, group, topic, queue_id, offset)
        except BrokerRefused as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            with suppress(BrokerRefused, BadReply):
                await self._replicas.pull(address, topic, queue_id, offset, group=group, messages_max=1)
            await self._replicas.commit(address, group, topic, queue_id, offset)

    async def _address(self, queue: MessageQueue) -> str:
        route = await self._session.routes.get(queue.topic)
        address = route.read_address(queue.broker_name)
        if address is None:
            refreshed = await self._session.routes.refresh(queue.topic)
            address = refreshed.read_address(queue.broker_name) if refreshed is not None else None
        if address is None:
            reason = f"broker {queue.broker_name!r} is not registered"
            raise NoRoute(queue.topic, reason, RouteProblem.NOT_REGISTERED)
        return address
