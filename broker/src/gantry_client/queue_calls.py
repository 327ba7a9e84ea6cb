"""Questions about one queue: its ends, offsets in time, and how far a group has come."""

from typing import final

from gantry_client.calls import header_of, succeeded
from gantry_client.errors import NoRoute
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    QueueAddress,
    SearchOffset,
    TimestampResult,
    UpdateConsumerOffset,
)
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PullMessage


@final
class QueueCalls:
    """These questions, asked of the master that has the queue (or of a slave while there is no master)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, queue, _address_of(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message: the offset that the next one will have."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, queue, _address_of(queue))

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after `timestamp_ms`; `max_offset` when there is none."""
        question = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, question)

    async def earliest_store_time_ms(self, queue: MessageQueue) -> int | None:
        """When the oldest message was stored; None for an empty queue."""
        address = await self._address(queue)
        reply = await self._session.calls.demand(address, RequestCode.GET_EARLIEST_MSG_STORETIME, _address_of(queue))
        timestamp = header_of(reply, TimestampResult, address).timestamp
        return timestamp if timestamp >= 0 else None

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """How far `group` has consumed `queue`; None when it has not begun."""
        address = await self._address(queue)
        question = QueryConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        reply = await self._session.calls.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, question)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return header_of(succeeded(reply, address), OffsetResult, address).offset

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """`group` has consumed everything of `queue` below `offset`.

        A broker takes no offset of a group that it does not know, and makes one known when it pulls, if its settings
        allow that: so a stranger pulls once.
        """
        address = await self._address(queue)
        statement = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        reply = await self._session.calls.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, statement)
        if reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            await self._session.calls.ask(address, RequestCode.PULL_MESSAGE, _first_pull(group, queue, offset))
            reply = await self._session.calls.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, statement)
        succeeded(reply, address)

    async def _offset(self, code: RequestCode, queue: MessageQueue, question: Fields) -> int:
        address = await self._address(queue)
        reply = await self._session.calls.demand(address, code, question)
        return header_of(reply, OffsetResult, address).offset

    async def _address(self, queue: MessageQueue) -> str:
        route = await self._session.routes.get(queue.topic)
        address = route.read_address(queue.broker_name)
        if address is None:
            refreshed = await self._session.routes.refresh(queue.topic)
            address = refreshed.read_address(queue.broker_name) if refreshed is not None else None
        if address is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name!r} is not there")
        return address


def _address_of(queue: MessageQueue) -> QueueAddress:
    return QueueAddress(topic=queue.topic, queue_id=queue.queue_id)


def _first_pull(group: str, queue: MessageQueue, offset: int) -> PullMessage:
    return PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
