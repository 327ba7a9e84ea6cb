"""Reading one queue: the pull request, and what the reply means for the next one.

A reply carries more than messages: it advances the reader even when no message matched (20), reports that there are no
new messages (19), or that the offset is outside the queue or was reset (21). `FetchResult.next_offset` is valid in each
case.
Brokers filter tags by hash; the tag itself is compared here, so a colliding tag is never delivered. SQL92 filters are
evaluated by the broker only.

The checksum of every stored body is verified before the body is decompressed. A body that does not match is never
delivered. The messages before it are; the next pull begins at the damaged message, and then the other replicas of the
broker are tried.
"""

import logging
from dataclasses import dataclass, replace
from enum import Enum
from typing import final

from gantry_client.calls import parse_header
from gantry_client.errors import BadReply, BrokerRefused, DamagedMessage, NoRoute, RequestFailed, RouteProblem
from gantry_client.messages import ReceivedMessage, to_received_message
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_client.subscriptions import expression_type
from gantry_wire.batch import split_record
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.nameserver import MASTER_ID
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.filters import MessageFilter, TagFilter
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.message import RecordFault, StoredMessage, check_record, decode_record
from gantry_wire.properties import TAGS, UNIQUE_KEY

log = logging.getLogger(__name__)

SUSPEND_MARGIN_MS = 15_000
"""How long the client waits beyond the hold time of a pull; RocketMQ's clients wait 30 s for a pull held 15 s."""

RESET_REMARK = "OFFSET_RESET"
"""The remark of a broker for an offset that moved because the group was reset."""


class FetchStatus(Enum):
    """The outcome of one pull request."""

    FOUND = "messages"
    NO_MATCH = "messages, but none that the filter takes"
    NO_NEW = "nothing yet"
    OFFSET_MOVED = "the offset is outside the queue; continue at next_offset"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """The result of one pull request."""

    status: FetchStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    """The offset of the next pull, beyond all messages of this result and those that the filter excluded."""
    min_offset: int
    max_offset: int
    """The queue holds `[min_offset, max_offset)`."""

    is_reset: bool = False
    """Whether the offset moved because an administrator reset the group; `next_offset` is the new offset."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """The parameters of one pull request."""

    group: str
    queue: MessageQueue
    offset: int
    messages_max: int
    filter: MessageFilter
    suspend_ms: int = 0
    """How long the broker may hold the request while there are no messages; 0 to reply at once."""
    commit_offset: int | None = None
    """The offset to commit for the group with this pull, if any."""
    body_bytes_max: int = BODY_INFLATED_BYTES_MAX
    """A larger decompressed body is not decompressed, and its message fails."""

    subscription_version: int = 0
    """The version of the subscription in the consumer's heartbeats; 0 for a consumer without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PullReply:
    """The decoded reply of one broker."""

    result: FetchResult
    """The messages before a damaged message; the next pull begins at the damaged one."""
    suggested_broker_id: int
    """The broker id of the replica from which to pull next."""

    damaged: StoredMessage | None
    """The first message, if it is damaged and the result therefore makes no progress."""


@final
class Fetcher:
    """Pulls from queues, each from the replica that its broker suggested. Belongs to one consumer.

    After a failed pull the next one goes to the master.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._suggested: dict[MessageQueue, int] = {}

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Pull from the broker that has the queue. Raises NoRoute or a RequestFailed.

        Raises DamagedMessage only if the first message is damaged on every replica that returns it.
        """
        route = await self._session.routes.get(request.queue.topic)
        preferred = self._suggested.get(request.queue, MASTER_ID)
        address = route.read_address(request.queue.broker_name, preferred)
        if address is None:
            reason = f"broker {request.queue.broker_name!r} is not registered"
            raise NoRoute(request.queue.topic, reason, RouteProblem.NOT_REGISTERED)
        try:
            answer = await self._pull(request, route, address)
        except RequestFailed:
            self._suggested.pop(request.queue, None)  # The slave may be gone; the master suggests another one.
            raise
        self._suggested[request.queue] = answer.suggested_broker_id
        if answer.damaged is None:
            return answer.result
        return await self._fetch_from_another_replica(request, route, address, answer.damaged)

    async def _pull(self, request: FetchRequest, route: Route, address: str) -> _PullReply:
        is_master = address == route.master_address(request.queue.broker_name)
        reply = await self._session.pool.request(
            address, _command(request, is_master=is_master), request.suspend_ms + SUSPEND_MARGIN_MS
        )
        return _decode_reply(reply, request, address)

    async def _fetch_from_another_replica(
        self, request: FetchRequest, route: Route, address: str, damaged: StoredMessage
    ) -> FetchResult:
        """Fetch from another replica, starting at the damaged message. Raises DamagedMessage."""
        tried_addresses, queue, offset = [address], request.queue, damaged.queue_offset
        message_id = damaged.properties.get(UNIQUE_KEY) or damaged.offset_message_id
        log_fields = {"topic": queue.topic, "queue": queue.queue_id, "offset": offset, "message_id": message_id}
        for other in route.brokers.get(queue.broker_name, {}).values():
            if other == address:
                continue
            try:
                answer = await self._pull(replace(request, suspend_ms=0, commit_offset=None), route, other)
            except RequestFailed as error:
                log.info(
                    "failed to read damaged message from another replica", extra={**log_fields, "reason": str(error)}
                )
                continue
            if answer.damaged is not None:
                tried_addresses.append(other)
            elif answer.result.status is FetchStatus.FOUND and answer.result.next_offset > offset:
                log.warning(
                    "read damaged message from another replica", extra={**log_fields, "damaged": address, "from": other}
                )
                return answer.result
        raise DamagedMessage(
            f"{queue.topic}/{queue.queue_id} of {queue.broker_name}", offset, message_id, tuple(tried_addresses)
        )


def _decode_reply(reply: Command, request: FetchRequest, address: str) -> _PullReply:
    status, header = parse_pull_reply(reply, address)
    records, damaged = _records(reply.body, address) if status is FetchStatus.FOUND else ([], None)
    next_offset = header.next_begin_offset
    if damaged is not None:
        if not request.offset <= damaged.queue_offset < next_offset:
            raise BadReply(f"{address} sent a damaged message whose offset is outside its reply")
        next_offset = damaged.queue_offset
    result = FetchResult(
        status=status,
        messages=tuple(
            to_received_message(record, request.queue.broker_name, body_bytes_max=request.body_bytes_max)
            for record in records
            if record.queue_offset >= request.offset and _is_wanted(request.filter, record)
        ),
        next_offset=next_offset,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
        is_reset=status is FetchStatus.OFFSET_MOVED and reply.remark == RESET_REMARK,
    )
    return _PullReply(
        result=result, suggested_broker_id=header.suggest_which_broker_id, damaged=None if records else damaged
    )


def parse_pull_reply(reply: Command, address: str) -> tuple[FetchStatus, PullResult]:
    """Decode the status and header of a reply to a pull. Raises BrokerRefused and BadReply."""
    status = _STATUSES.get(reply.code)
    if status is None:
        raise BrokerRefused(reply.code, reply.remark, address)
    return status, parse_header(reply, PullResult, address)


_STATUSES = {
    int(ResponseCode.SUCCESS): FetchStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): FetchStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): FetchStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): FetchStatus.OFFSET_MOVED,
}
"""The outcome of a pull, by the response code."""


def _command(request: FetchRequest, *, is_master: bool) -> Command:
    sys_flag = PULL_SUBSCRIPTION
    if request.suspend_ms:
        sys_flag |= PULL_SUSPEND
    if request.commit_offset is not None and is_master:
        sys_flag |= PULL_COMMIT_OFFSET
    header = PullMessage(
        consumer_group=request.group,
        topic=request.queue.topic,
        queue_id=request.queue.queue_id,
        queue_offset=request.offset,
        max_msg_nums=request.messages_max,
        sys_flag=sys_flag,
        commit_offset=request.commit_offset or 0,
        suspend_timeout_millis=request.suspend_ms,
        sub_version=request.subscription_version,
        subscription=request.filter.expression,
        expression_type=expression_type(request.filter),
    )
    return Command(code=RequestCode.PULL_MESSAGE, ext=header.write())


def _records(body: bytes, address: str) -> tuple[list[StoredMessage], StoredMessage | None]:
    """Decode the records up to the first whose body does not match its checksum, and return that one separately.

    Raises BadReply if the bytes are not records.
    """
    records: list[StoredMessage] = []
    position = 0
    while position < len(body):
        try:
            record = decode_record(body, position)
            records += split_record(record)
        except RemoteProtocolError as error:
            if check_record(body, position).fault is not RecordFault.CRC:
                raise BadReply(f"{address} sent a damaged message: {error}") from error
            return records, decode_record(body, position, verify_crc=False)
        position += record.size
    return records, None


def _is_wanted(wanted: MessageFilter, record: StoredMessage) -> bool:
    if not isinstance(wanted, TagFilter) or wanted.accepts_all:
        return True
    return wanted.accepts_tags(record.properties.get(TAGS))
