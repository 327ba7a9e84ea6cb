"""Forwards requests of administrators to consumers, on the consumers' own connections, with a deadline.

    administrator -- 307, 309, 223 --> broker -- 307, 309, 221, on the consumer's connection --> consumer
                  <-- its answer, or 207 ---                                      <------------

    307 running info          the state of a consumer: its queues, subscriptions and statistics
    309 consume directly      a consumer consumes one message, which the broker sends it, and reports the result
    223 consumer status       the offsets of every consumer in a topic, as the consumers know them; requested with 221

Only the administrator's request waits: both connections carry other requests meanwhile. Each call is a task and a
waiter, so their number is limited. As in RocketMQ, a request (307, 309) for a consumer that is not connected is
answered with code 1 and a text, and one for a consumer that takes too long with code 207. 223 leaves out the latter.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.clients import Member
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refusal, Refused
from gantry_broker.server.pull.queries import read_requested_record
from gantry_remoting import Connection, ConnectionClosed, RemotingTimeout
from gantry_status import RefusalReason
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.consumers import ConsumeDirectly, ConsumerStatus, ConsumerStatusRequest, RunningInfoRequest
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import parse_offset_message_id

CALLS_MAX: Final = 256
"""The limit of concurrent calls to consumers."""

CALL_TIMEOUT_MS: Final = 10_000
"""The timeout of 307 and 309, as in RocketMQ's brokers."""

STATUS_TIMEOUT_MS: Final = 5_000
"""The timeout of 221, for all consumers together."""

STATUS_CALLS_MAX: Final = CALLS_MAX // 2
"""The limit of concurrent calls of requests 221, so that a large group leaves some for other requests."""

CALLS_FULL: Final = Refusal(
    ResponseCode.SYSTEM_BUSY,
    "[OVERLOAD]system busy: too many concurrent requests to consumers",
    RefusalReason.CONSUMER_CALLS_FULL,
)
"""The answer when too many calls to consumers are in progress."""

VERSION_RESET: Final = 28
"""V3_0_7_SNAPSHOT: the first version of clients that supports 220 and 221."""

VERSION_CALLS: Final = 62
"""V3_1_8_SNAPSHOT: the first version of clients that supports 307 and 309."""


NAME_CHARACTERS_MAX: Final = 300
"""The limit of characters of a name in a refusal."""


@final
class ConsumerCalls:
    """Calls to consumers. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self.core: Final = core
        self.status_slots: Final = asyncio.Semaphore(STATUS_CALLS_MAX)
        """Limits the calls of requests 221; see ``STATUS_CALLS_MAX``."""
        self._running = 0

    def __repr__(self) -> str:
        return f"<ConsumerCalls running={self._running}>"

    def list_members(self, group: str) -> list[Member]:
        """Return the consumers of a group that are connected."""
        state = self.core.clients.consumers.get(group)
        return [] if state is None else [member for member in state.members.values() if member.connection.is_open]

    def find_member(self, group: str, client_id: str | None) -> Member | None:
        """Return the consumer with this client id, on its newest connection; None if it is not connected."""
        found = [member for member in self.list_members(group) if member.client_id == client_id]
        return found[-1] if found else None

    async def call(
        self, member: Member, code: int, ext: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> Command:
        """Call a consumer and return its answer.

        Raises ``Refused`` if too many calls are pending, ConnectionClosed and RemotingTimeout.
        """
        with self._count_call():
            return await member.connection.request(Command(code=code, ext=dict(ext), body=body), timeout_ms)

    @contextmanager
    def _count_call(self) -> Iterator[None]:
        if self._running >= CALLS_MAX:
            self.core.stats.refusals.count(CALLS_FULL)
            raise Refused(CALLS_FULL.code, CALLS_FULL.remark)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


# Handlers read the broker's tables and log synchronously, and await only the answers of consumers.


@handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
def get_running_info(calls: ConsumerCalls, command: Command, connection: Connection) -> Awaitable[Command]:
    request = RunningInfoRequest.read(command.ext)
    member = _find_callable_member(calls, request.consumer_group, request.client_id)
    return _forward(calls, command, request.consumer_group, member, command.ext)


@handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
def consume_directly(calls: ConsumerCalls, command: Command, connection: Connection) -> Awaitable[Command]:
    """Send a consumer the message as it is in the log, with the flags of topic and group."""
    request = ConsumeDirectly.read(command.ext)
    core, group = calls.core, request.consumer_group
    member = _find_callable_member(calls, group, request.client_id)
    record = _read_record(calls, request.msg_id or "")
    ext = {**command.ext, "brokerName": core.settings.broker_name}
    topic = core.topics.find(request.topic) if request.topic else None
    if topic is not None:
        ext["topicSysFlag"] = str(topic.topic_sys_flag)
    config = core.groups.all.get(group)
    if config is not None:
        ext["groupSysFlag"] = str(config.group_sys_flag)
    return _forward(calls, command, group, member, ext, record)


@handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
def get_consumer_status(calls: ConsumerCalls, command: Command, connection: Connection) -> Awaitable[Command]:
    """Answer with the status of each consumer that answers in time; others are left out, as in RocketMQ."""
    request = ConsumerStatusRequest.read(command.ext)
    members = calls.list_members(request.group)
    if not members:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{request.group[:NAME_CHARACTERS_MAX]}]",
        )
    check_client_versions(members)
    chosen = [member for member in members if request.client_addr in (None, "", member.client_id)]
    return _collect_statuses(calls, command, chosen, ConsumerStatusRequest(topic=request.topic, group=request.group))


async def _collect_statuses(
    calls: ConsumerCalls, command: Command, members: list[Member], request: ConsumerStatusRequest
) -> Command:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STATUS_TIMEOUT_MS / 1000

    async def ask(member: Member) -> ConsumerStatus | None:
        async with calls.status_slots:
            left_ms = int((deadline - loop.time()) * 1000)
            return await _request_status(calls, member, request, left_ms) if left_ms > 0 else None

    answers = await asyncio.gather(*map(ask, members))
    table = {
        member.client_id: answer.message_queue_table
        for member, answer in zip(members, answers, strict=True)
        if answer is not None
    }
    return command.reply(body=write_document(ConsumerStatus(consumer_table=table)))


async def _request_status(
    calls: ConsumerCalls, member: Member, request: ConsumerStatusRequest, timeout_ms: int
) -> ConsumerStatus | None:
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        answer = await calls.call(member, code, request.write(), timeout_ms=timeout_ms)
        return (
            read_document(answer.body, ConsumerStatus) if answer.code == ResponseCode.SUCCESS and answer.body else None
        )
    except (ConnectionClosed, RemotingTimeout, FieldError, Refused):
        return None


async def _forward(
    calls: ConsumerCalls, command: Command, group: str, member: Member, ext: dict[str, str], body: bytes = b""
) -> Command:
    who = f"consumer <{group[:NAME_CHARACTERS_MAX]}> <{member.client_id[:NAME_CHARACTERS_MAX]}>"
    try:
        answer = await calls.call(member, command.code, ext, body, timeout_ms=CALL_TIMEOUT_MS)
    except RemotingTimeout as error:
        return command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, f"{who} Timeout: {error}")
    except ConnectionClosed as error:
        return command.reply(ResponseCode.SYSTEM_ERROR, f"invoke {who} Exception: {error}")
    return command.reply(answer.code, answer.remark, ext=answer.ext, body=answer.body)


def _find_callable_member(calls: ConsumerCalls, group: str, client_id: str | None) -> Member:
    member = calls.find_member(group, client_id)
    if member is None:
        who = f"<{group[:NAME_CHARACTERS_MAX]}> <{(client_id or 'null')[:NAME_CHARACTERS_MAX]}>"
        raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
    if member.version < VERSION_CALLS:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{member.client_id[:NAME_CHARACTERS_MAX]}> Version <{member.version}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT",
        )
    return member


def _read_record(calls: ConsumerCalls, message_id: str) -> bytes:
    """Return the visible message with this offset message id. Raises Refused."""
    try:
        _, _, offset = parse_offset_message_id(message_id)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the message cannot be looked up: {error}") from error
    return read_requested_record(calls.core.store, offset)


def check_client_versions(members: list[Member]) -> None:
    """Raise Refused if a consumer's version supports neither resets (220) nor status requests (221)."""
    for member in members:
        if member.version < VERSION_RESET:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the client does not support this feature. version={member.version}"
            )
