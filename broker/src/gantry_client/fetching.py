"""Reading one queue: a pull request, and what the broker's answer means for the next one.

The answer to a pull is never just messages: it moves the reader along even when nothing matched (20), tells it that
there is nothing yet (19), or that its offset is outside the queue (21). `FetchResult.next_offset` is right in all of
them. Brokers filter tags by hash; the text is compared again here, so a colliding tag is never delivered. What a filter
over properties takes is the broker's word alone.

The checksum of every stored body is compared, before it is unpacked. A body that does not match is never handed on.
What precedes it in the answer is; the next pull begins at it, and then the other replicas of its broker are asked.
"""

import logging
from dataclasses import dataclass, replace
from enum import Enum
from typing import final

from gantry_client.calls import header_of
from gantry_client.errors import BadReply, BrokerRefused, DamagedMessage, NoRoute, RequestFailed
from gantry_client.messages import ReceivedMessage, received
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_client.subscriptions import expression_type
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
"""How much longer than the broker may hold a pull we wait for its answer; RocketMQ's clients wait 30 s for 15."""

RESET_REMARK = "OFFSET_RESET"
"""What a broker says of an offset that moved because the group was reset."""


class FetchStatus(Enum):
    """What a pull found."""

    FOUND = "messages"
    NO_MATCH = "messages, but none that the filter takes"
    NO_NEW = "nothing yet"
    OFFSET_MOVED = "the offset is outside the queue; go on at next_offset"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """The answer to one pull."""

    status: FetchStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    """Where the next pull should begin; beyond every message given, also those that were filtered out."""
    min_offset: int
    max_offset: int
    """The queue holds `[min_offset, max_offset)`."""

    is_reset: bool = False
    """The offset moved because an administrator moved the group; `next_offset` is where it goes on."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """One pull."""

    group: str
    queue: MessageQueue
    offset: int
    messages_max: int
    filter: MessageFilter
    suspend_ms: int = 0
    """How long the broker may hold the request when there is nothing; 0 not at all."""
    commit_offset: int | None = None
    """Offset of the group to commit by the way."""
    body_bytes_max: int = BODY_INFLATED_BYTES_MAX
    subscription_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """One broker's answer."""

    result: FetchResult
    """What precedes a damaged message; the next pull begins at that."""
    suggested: int
    damaged: StoredMessage | None
    """Set where the very first message is damaged, so that the result is no step forward."""


@final
class Fetcher:
    """Pulls queues and remembers for each which replica its broker suggests. Belongs to one consumer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._suggested: dict[MessageQueue, int] = {}

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """The answer of the broker that has the queue. Raises NoRoute or a RequestFailed.

        That is DamagedMessage only where the first message is damaged on every replica that answers.
        """
        route = await self._session.routes.get(request.queue.topic)
        preferred = self._suggested.get(request.queue, MASTER_ID)
        address = route.read_address(request.queue.broker_name, preferred)
        if address is None:
            raise NoRoute(request.queue.topic, f"broker {request.queue.broker_name!r} is not there")
        answer = await self._ask(request, route, address)
        self._suggested[request.queue] = answer.suggested
        if answer.damaged is None:
            return answer.result
        return await self._from_another_replica(request, route, address, answer.damaged)

    async def _ask(self, request: FetchRequest, route: Route, address: str) -> _Answer:
        is_master = address == route.master_address(request.queue.broker_name)
        reply = await self._session.pool.request(
            address, _command(request, is_master=is_master), request.suspend_ms + SUSPEND_MARGIN_MS
        )
        return _answer(reply, request, address)

    async def _from_another_replica(
        self, request: FetchRequest, route: Route, address: str, damaged: StoredMessage
    ) -> FetchResult:
        """What another replica has from the damaged message on. Raises DamagedMessage."""
        asked, queue, offset = [address], request.queue, damaged.queue_offset
        message_id = damaged.properties.get(UNIQUE_KEY) or damaged.offset_message_id
        facts = {"topic": queue.topic, "queue": queue.queue_id, "offset": offset, "message_id": message_id}
        for other in route.brokers.get(queue.broker_name, {}).values():
            if other == address:
                continue
            try:
                answer = await self._ask(replace(request, suspend_ms=0, commit_offset=None), route, other)
            except RequestFailed as error:
                log.info("replica could not be asked for a damaged message", extra={**facts, "reason": str(error)})
                continue
            if answer.damaged is not None:
                asked.append(other)
            elif answer.result.status is FetchStatus.FOUND and answer.result.next_offset > offset:
                log.warning(
                    "read damaged message from another replica", extra={**facts, "damaged": address, "from": other}
                )
                return answer.result
        raise DamagedMessage(f"{queue.topic}/{queue.queue_id} of {queue.broker_name}", offset, message_id, tuple(asked))


def _answer(reply: Command, request: FetchRequest, address: str) -> _Answer:
    status, header = read_pull(reply, address)
    records, damaged = _records(reply.body, address) if status is FetchStatus.FOUND else ([], None)
    next_offset = header.next_begin_offset
    if damaged is not None:
        if not request.offset <= damaged.queue_offset < next_offset:
            raise BadReply(f"{address} sent a damaged message with an offset outside of its answer")
        next_offset = damaged.queue_offset
    result = FetchResult(
        status=status,
        messages=tuple(
            received(record, request.queue.broker_name, body_bytes_max=request.body_bytes_max)
            for record in records
            if _is_wanted(request.filter, record)
        ),
        next_offset=next_offset,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
        is_reset=status is FetchStatus.OFFSET_MOVED and reply.remark == RESET_REMARK,
    )
    return _Answer(result=result, suggested=header.suggest_which_broker_id, damaged=None if records else damaged)


def read_pull(reply: Command, address: str) -> tuple[FetchStatus, PullResult]:
    """What the answer to a pull says of the queue. Raises BrokerRefused and BadReply."""
    status = _STATUSES.get(reply.code)
    if status is None:
        raise BrokerRefused(reply.code, reply.remark, address)
    return status, header_of(reply, PullResult, address)


_STATUSES = {
    int(ResponseCode.SUCCESS): FetchStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): FetchStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): FetchStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): FetchStatus.OFFSET_MOVED,
}


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
    """The records of an answer up to the first one whose body does not match its checksum, and that one.

    Raises BadReply where the bytes are no records at all.
    """
    records: list[StoredMessage] = []
    position = 0
    while position < len(body):
        try:
            records.append(decode_record(body, position))
        except RemoteProtocolError as error:
            if check_record(body, position).fault is not RecordFault.CRC:
                raise BadReply(f"{address} sent a damaged message: {error}") from error
            return records, decode_record(body, position, verify_crc=False)
        position += records[-1].size
    return records, None


def _is_wanted(wanted: MessageFilter, record: StoredMessage) -> bool:
    if not isinstance(wanted, TagFilter) or wanted.takes_all:
        return True
    return wanted.accepts_tags(record.properties.get(TAGS))
