"""What members of consumer groups say of themselves: passed on to them, and their answers passed back.

    307 running info          what a member has in hand, and how it gets on
    309 consume directly      a member consumes one message, which the broker hands it, and says how that went
    223 consumer status       how far every member is in a topic, in its own view; asked with 221

A member that is not here is answered as RocketMQ does, with 1 and a text, and one that takes too long with 207.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.core.clients import Member
from gantry_broker.server.groups.consumer_calls import (
    CALL_TIMEOUT_MS,
    STATUS_TIMEOUT_MS,
    VERSION_CALLS,
    VERSION_RESET,
    ConsumerCalls,
)
from gantry_broker.server.pull.queries import shown_record
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection, ConnectionClosed, RemotingTimeout
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.consumers import ConsumeDirectly, ConsumerStatus, ConsumerStatusRequest, RunningInfoRequest
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import parse_offset_message_id

SHOWN: Final = 300
"""Characters of a name in a refusal."""


@final
class MemberHandlers:
    """Codes 223, 307 and 309. Owned by the event loop."""

    def __init__(self, core: BrokerCore, calls: ConsumerCalls) -> None:
        self._core = core
        self._calls = calls

    def table(self) -> HandlerTable:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
        }

    # The broker's tables and log are read before anything else is handled; only the members are waited for.

    def running_info(self, command: Command, connection: Connection) -> Awaitable[Command]:
        request = RunningInfoRequest.read(command.ext)
        member = self._member(request.consumer_group, request.client_id)
        return self._passed_on(command, request.consumer_group, member, command.ext)

    def consume(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """The member gets the message as it lies in the log, and what it needs to know of topic and group."""
        request = ConsumeDirectly.read(command.ext)
        core, group = self._core, request.consumer_group
        member = self._member(group, request.client_id)
        record = self._record(request.msg_id or "")
        ext = {**command.ext, "brokerName": core.settings.broker_name}
        topic = core.topics.find(request.topic) if request.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        config = core.groups.all.get(group)
        if config is not None:
            ext["groupSysFlag"] = str(config.group_sys_flag)
        return self._passed_on(command, group, member, ext, record)

    def status(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """Of each member that answers in time; who does not is left out, as RocketMQ leaves it out."""
        request = ConsumerStatusRequest.read(command.ext)
        members = self._calls.members(request.group)
        if not members:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{request.group[:SHOWN]}]"
            )
        refuse_old(members)
        wanted = [member for member in members if request.client_addr in (None, "", member.client_id)]
        return self._statuses(command, wanted, ConsumerStatusRequest(topic=request.topic, group=request.group))

    async def _statuses(self, command: Command, members: list[Member], question: ConsumerStatusRequest) -> Command:
        answers = await asyncio.gather(*(self._status_of(member, question) for member in members))
        table = {
            member.client_id: said.message_queue_table
            for member, said in zip(members, answers, strict=True)
            if said is not None
        }
        return command.reply(body=write_document(ConsumerStatus(consumer_table=table)))

    async def _status_of(self, member: Member, question: ConsumerStatusRequest) -> ConsumerStatus | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            said = await self._calls.ask(member, code, question.write(), timeout_ms=STATUS_TIMEOUT_MS)
            return read_document(said.body, ConsumerStatus) if said.code == ResponseCode.SUCCESS and said.body else None
        except (ConnectionClosed, RemotingTimeout, FieldError):
            return None

    async def _passed_on(
        self, command: Command, group: str, member: Member, ext: dict[str, str], body: bytes = b""
    ) -> Command:
        who = f"consumer <{group[:SHOWN]}> <{member.client_id[:SHOWN]}>"
        try:
            said = await self._calls.ask(member, command.code, ext, body, timeout_ms=CALL_TIMEOUT_MS)
        except RemotingTimeout as error:
            return command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, f"{who} Timeout: {error}")
        except ConnectionClosed as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"invoke {who} Exception: {error}")
        return command.reply(said.code, said.remark, ext=said.ext, body=said.body)

    def _member(self, group: str, client_id: str | None) -> Member:
        member = self._calls.member(group, client_id)
        if member is None:
            who = f"<{group[:SHOWN]}> <{(client_id or 'null')[:SHOWN]}>"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
        if member.version < VERSION_CALLS:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{member.client_id[:SHOWN]}> Version <{member.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return member

    def _record(self, message_id: str) -> bytes:
        """The message with the id that a broker gave it, if consumers may see it."""
        try:
            _, _, offset = parse_offset_message_id(message_id)
        except RemoteProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the message cannot be looked up: {error}") from error
        record = shown_record(self._core.store, offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return record


def refuse_old(members: list[Member]) -> None:
    """Raises where a member is of a version that knows nothing of moving groups."""
    for member in members:
        if member.version < VERSION_RESET:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the client does not support this feature. version={member.version}"
            )
