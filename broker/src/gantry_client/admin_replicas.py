"""Questions to one replica, by its address: for whoever reads one of his own choice, and in bulk.

Consumers ask the master, or whom it suggests. The data pipelines read slaves on purpose, and unpack records themselves,
many at a time, so a pull is answered here with its records as they came.
"""

from dataclasses import dataclass, field
from typing import final

from gantry_client.calls import header_of, succeeded
from gantry_client.fetching import FetchStatus, read_pull
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    QueueAddress,
    SearchOffset,
    UpdateConsumerOffset,
)
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PullMessage


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The answer to one pull, with nothing unpacked."""

    status: FetchStatus
    records: bytes = field(repr=False)
    """Stored records, one behind the other; nothing of them was checked."""
    next_offset: int
    min_offset: int
    max_offset: int


@final
class Replicas:
    """Questions to a broker process at an address."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def pull(
        self,
        address: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        group: str,
        messages_max: int,
        bytes_max: int | None = None,
        tags: str = "*",
    ) -> Pulled:
        """What the replica has of a queue from `offset` on, at once; brokers have limits of their own for how much."""
        self._session.require_open()
        question = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=messages_max,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=tags,
            expression_type="TAG",
            max_msg_bytes=bytes_max,
        )
        reply = await self._session.calls.ask(address, RequestCode.PULL_MESSAGE, question)
        status, header = read_pull(reply, address)
        return Pulled(
            status=status,
            records=bytes(reply.body) if status is FetchStatus.FOUND else b"",
            next_offset=header.next_begin_offset,
            min_offset=header.min_offset,
            max_offset=header.max_offset,
        )

    async def min_offset(self, address: str, topic: str, queue_id: int) -> int:
        """The offset of the oldest message that the replica has of a queue."""
        return await self._end(address, RequestCode.GET_MIN_OFFSET, topic, queue_id)

    async def max_offset(self, address: str, topic: str, queue_id: int) -> int:
        """One past the newest message that it shows to consumers."""
        return await self._end(address, RequestCode.GET_MAX_OFFSET, topic, queue_id)

    async def offset_at(self, address: str, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message stored at or after `timestamp_ms`; the queue's end when there is none."""
        self._session.require_open()
        question = SearchOffset(topic=topic, queue_id=queue_id, timestamp=timestamp_ms)
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return (await self._session.calls.header(address, search, OffsetResult, question)).offset

    async def committed(self, address: str, group: str, topic: str, queue_id: int) -> int | None:
        """How far `group` has consumed a queue, as this replica knows it; None when it has not begun."""
        self._session.require_open()
        question = QueryConsumerOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        reply = await self._session.calls.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, question)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return header_of(succeeded(reply, address), OffsetResult, address).offset

    async def commit(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """`group` has consumed everything of a queue below `offset`; to be said to a master."""
        self._session.require_open()
        statement = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        await self._session.calls.demand(address, RequestCode.UPDATE_CONSUMER_OFFSET, statement)

    async def _end(self, address: str, code: RequestCode, topic: str, queue_id: int) -> int:
        self._session.require_open()
        question = QueueAddress(topic=topic, queue_id=queue_id)
        return (await self._session.calls.header(address, code, OffsetResult, question)).offset
