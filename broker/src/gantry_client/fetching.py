"""Reading one queue: a pull request, and what the broker's answer means for the next one.

The answer to a pull is never just messages: it moves the reader along even when nothing matched (20), tells it that
there is nothing yet (19), or that its offset is outside the queue (21). `FetchResult.next_offset` is right in all of
them. Brokers filter tags by hash; the text is compared again here, so a colliding tag is never delivered. What a filter
over properties takes is the broker's word alone.
"""

from dataclasses import dataclass
from enum import Enum
from typing import final

from gantry_client.calls import header_of
from gantry_client.errors import BadReply, BrokerRefused, NoRoute
from gantry_client.messages import ReceivedMessage, received
from gantry_client.routes import MASTER_ID
from gantry_client.session import Session
from gantry_client.subscriptions import expression_type
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.filters import MessageFilter, TagFilter
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.message import StoredMessage, decode_records
from gantry_wire.properties import TAGS

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


@final
class Fetcher:
    """Pulls queues and remembers for each which replica its broker suggests. Belongs to one consumer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._suggested: dict[MessageQueue, int] = {}

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """The answer of the broker that has the queue. Raises NoRoute or a RequestFailed."""
        route = await self._session.routes.get(request.queue.topic)
        preferred = self._suggested.get(request.queue, MASTER_ID)
        address = route.read_address(request.queue.broker_name, preferred)
        if address is None:
            raise NoRoute(request.queue.topic, f"broker {request.queue.broker_name!r} is not there")
        is_master = address == route.master_address(request.queue.broker_name)
        reply = await self._session.pool.request(
            address, _command(request, is_master=is_master), request.suspend_ms + SUSPEND_MARGIN_MS
        )
        return self._result(reply, request, address)

    def _result(self, reply: Command, request: FetchRequest, address: str) -> FetchResult:
        status = STATUSES.get(reply.code)
        if status is None:
            raise BrokerRefused(reply.code, reply.remark, address)
        header = header_of(reply, PullResult, address)
        self._suggested[request.queue] = header.suggest_which_broker_id
        return FetchResult(
            status=status,
            messages=_messages(reply.body, request, address) if status is FetchStatus.FOUND else (),
            next_offset=header.next_begin_offset,
            min_offset=header.min_offset,
            max_offset=header.max_offset,
            is_reset=status is FetchStatus.OFFSET_MOVED and reply.remark == RESET_REMARK,
        )


STATUSES = {
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


def _messages(body: bytes, request: FetchRequest, address: str) -> tuple[ReceivedMessage, ...]:
    try:
        records = decode_records(body)
    except RemoteProtocolError as error:
        raise BadReply(f"{address} sent a damaged message: {error}") from error
    return tuple(
        received(record, request.queue.broker_name, body_bytes_max=request.body_bytes_max)
        for record in records
        if _is_wanted(request.filter, record)
    )


def _is_wanted(wanted: MessageFilter, record: StoredMessage) -> bool:
    if not isinstance(wanted, TagFilter) or wanted.takes_all:
        return True
    return wanted.accepts_tags(record.properties.get(TAGS))
