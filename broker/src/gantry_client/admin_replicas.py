"""Requests to one replica, by its address: for readers that choose the replica themselves and read in bulk.

Consumers read from the master, or from the replica that it suggests. The data pipelines read slaves on purpose, and
decode many records at a time, so a pull here returns the records undecoded.
"""

from dataclasses import dataclass, field
from typing import final

from gantry_client.calls import parse_header, require_success
from gantry_client.fetching import FetchStatus, parse_pull_reply
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
from gantry_wire.filters import EXPRESSION_TAG


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RawPullResult:
    """The result of one pull, with the records undecoded."""

    status: FetchStatus
    records: bytes = field(repr=False)
    """Stored records, concatenated; their checksums are not verified."""
    next_offset: int
    """The offset of the next pull."""

    min_offset: int
    """The offset of the queue's first message on the replica."""

    max_offset: int
    """The end of the queue on the replica."""


@final
class Replicas:
    """Requests to the broker process at an address."""

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
    ) -> RawPullResult:
        """Return what the replica has of a queue from `offset` on, without waiting. Brokers limit the amount, too."""
        self._session.require_open()
        request = PullMessage(
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
            expression_type=EXPRESSION_TAG,
            max_msg_bytes=bytes_max,
        )
        reply = await self._session.calls.request(address, RequestCode.PULL_MESSAGE, request)
        status, header = parse_pull_reply(reply, address)
        return RawPullResult(
            status=status,
            records=bytes(reply.body) if status is FetchStatus.FOUND else b"",
            next_offset=header.next_begin_offset,
            min_offset=header.min_offset,
            max_offset=header.max_offset,
        )

    async def min_offset(self, address: str, topic: str, queue_id: int) -> int:
        """Return the offset of the oldest message of a queue on the replica."""
        return await self._end(address, RequestCode.GET_MIN_OFFSET, topic, queue_id)

    async def max_offset(self, address: str, topic: str, queue_id: int) -> int:
        """Return one past the newest message that the replica delivers to consumers."""
        return await self._end(address, RequestCode.GET_MAX_OFFSET, topic, queue_id)

    async def offset_at(self, address: str, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after `timestamp_ms`, or the end of the queue."""
        self._session.require_open()
        request = SearchOffset(topic=topic, queue_id=queue_id, timestamp=timestamp_ms)
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return (await self._session.calls.request_header(address, search, OffsetResult, request)).offset

    async def committed(self, address: str, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of `group` on this replica; None if it has none."""
        self._session.require_open()
        request = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False)
        reply = await self._session.calls.request(address, RequestCode.QUERY_CONSUMER_OFFSET, request)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return parse_header(require_success(reply, address), OffsetResult, address).offset

    async def commit(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit `offset`, below which `group` has consumed everything.

        A slave accepts it, too, but loses it when it next copies the offsets of its master.
        """
        self._session.require_open()
        request = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        await self._session.calls.request_success(address, RequestCode.UPDATE_CONSUMER_OFFSET, request)

    async def _end(self, address: str, code: RequestCode, topic: str, queue_id: int) -> int:
        self._session.require_open()
        request = QueueAddress(topic=topic, queue_id=queue_id)
        return (await self._session.calls.request_header(address, code, OffsetResult, request)).offset
