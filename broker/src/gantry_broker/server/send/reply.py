"""Replies: a consumer answers a message, and the broker pushes the answer to the requester.

    requester --- message with CORRELATION_ID, REPLY_TO_CLIENT ---> topic ---> consumer
        ^                                                                         |
        `------ code 326, on the connection of its heartbeats --- broker <--- code 324 or 325

A reply is a message to the cluster's reply topic, which has no consumers: the stored copy is for inspection. It is
stored first, in the same turn of the loop, since a role may change during the push; a failure to store it is logged
and does not affect the requester. Code 0 means that the requester has the reply, and that the copy, if there is one, is
as durable as the mode promises (10, 11 and 12 concern the copy alone), except with `WAIT=false`, or if the log is being
changed when the requester confirms the reply. Code 1 with a text means that the requester has not confirmed it: after a
timeout it may have received it nevertheless.
Only the answer to the replier waits for the requester, for `PUSH_TIMEOUT_MS` at most. Pending replies take no more than
`PUSH_BYTES_MAX` together: each is held in memory until its requester has confirmed it.
"""

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.broker_properties import remove_broker_properties
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.timer_properties import is_timer
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.send.handlers import (
    OutgoingMessage,
    SendHandlers,
    encode_stored_properties,
    is_waiting_for_store,
    read_send,
)
from gantry_remoting import Connection, ConnectionClosed, RemotingTimeout
from gantry_remoting.addresses import join_address
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.send import PushReply, SendMessageV2, SendResult
from gantry_wire.properties import format_properties, parse_properties

log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS: Final = 3000
"""How long a requester may take to confirm its reply: the default timeout of the replier's send."""

PUSH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The limit of memory for all pending replies."""

PUSH_OVERHEAD_BYTES: Final = 2048
"""The memory of a pending reply besides its body and properties: a task, a waiter, a header."""

NOT_STORED: Final = SendResult(msg_id="0", queue_id=0, queue_offset=0)
"""The send result of a reply that was not stored; clients read these fields in any case."""


@final
@dataclass(frozen=True, slots=True)
class CheckedReply:
    """A reply after all checks of its request."""

    send: SendMessageV2
    """The fields of the request."""

    command: Command
    connection: Connection
    """The connection of the replier, which gets the answer."""

    config: TopicConfig
    """The reply topic of the cluster."""

    properties: dict[str, str]

    @property
    def memory_bytes(self) -> int:
        """The memory that the pending reply takes."""
        return PUSH_OVERHEAD_BYTES + len(self.command.body) + len(self.send.properties or "")


@final
class ReplyHandlers:
    """The handlers of replies, codes 324 and 325. Owned by the event loop."""

    def __init__(self, core: BrokerCore, sends: SendHandlers, ack_gate: AckGate) -> None:
        self._core = core
        self._sends = sends
        self._ack_gate = ack_gate
        self._push_bytes = 0

    def __repr__(self) -> str:
        return f"<ReplyHandlers push_bytes={self._push_bytes}>"

    @handles(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def reply(self, command: Command, connection: Connection) -> Awaitable[Command | None]:
        """Store the reply and push it to the requester."""
        reply = self._check(command, connection)
        if self._push_bytes + reply.memory_bytes > PUSH_BYTES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]too many pending replies")
        stored = self._store(reply)
        self._push_bytes += reply.memory_bytes
        return self._push(reply, stored)

    def _check(self, command: Command, connection: Connection) -> CheckedReply:
        send = read_send(command)
        if send.batch:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be a batch")
        if names.is_retry_or_dead_letter(send.topic):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"a reply cannot be sent to the topic {send.topic[:300]}")
        config = self._sends.admit(send, command, connection)
        properties = remove_broker_properties(parse_properties(send.properties or ""))
        if properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true":
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be a half message")
        if is_timer(properties):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be a timer message: it is pushed at once")
        encode_stored_properties(properties)
        return CheckedReply(send, command, connection, config, properties)

    def _store(self, reply: CheckedReply) -> SendResult | None:
        """Store the copy of a reply and return its position; None if it is not stored."""
        if not self._core.settings.is_reply_stored:
            return None
        send = reply.send
        queue_id = max(send.queue_id, 0)
        message = OutgoingMessage(send.topic, queue_id, reply.command.body, reply.properties, send.reconsume_times or 0)
        try:
            message_id, offset = self._sends.append_one(message, send, reply.config, reply.connection)
        except (BrokerError, Refused) as error:
            log.warning(
                "failed to store copy of reply; pushing it only", extra={"topic": send.topic, "reason": str(error)}
            )
            return None
        return SendResult(msg_id=message_id, queue_id=queue_id, queue_offset=offset)

    async def _push(self, reply: CheckedReply, stored: SendResult | None) -> Command | None:
        """Push the reply, and return the answer to the replier."""
        command, connection = reply.command, reply.connection
        try:
            fault = await self._push_to_requester(reply)
        finally:
            self._push_bytes -= reply.memory_bytes
        ext = {**(stored or NOT_STORED).write(), **self._sender_fields()}
        if fault is not None:
            log.info("failed to push reply to requester", extra={"reason": fault})
            return command.reply(ResponseCode.SYSTEM_ERROR, fault, ext=ext)
        answer = command.reply(ext=ext)
        if stored is None or self._core.gate.is_store_lent or not connection.is_open:
            return answer
        is_waiting = is_waiting_for_store(reply.properties)
        return self._ack_gate.reply_or_hold(command, answer, connection, is_waiting=is_waiting)

    async def _push_to_requester(self, reply: CheckedReply) -> str | None:
        """Push the reply to the requester; return None if it was received, or the reason if not."""
        requester = reply.properties.get(keys.REPLY_TO_CLIENT)
        if requester is None:
            return f"reply message properties[{keys.REPLY_TO_CLIENT}] is null"
        target = self._core.clients.producers_by_id.get(requester)
        if target is None:
            return f"push reply message fail, channel of <{requester[:300]}> not found."
        code, ext = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._header(reply).write()
        try:
            answer = await target.request(Command(code=code, ext=ext, body=reply.command.body), PUSH_TIMEOUT_MS)
        except (ConnectionClosed, RemotingTimeout) as error:
            return f"push reply message to {requester[:300]} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            remark = (answer.remark or "")[:300]
            return f"push reply message to {requester[:300]} fail: it answered {answer.code}, {remark}"
        return None

    def _header(self, reply: CheckedReply) -> PushReply:
        send, core = reply.send, self._core
        now_ms = core.clock.wall_ms()
        return PushReply(
            producer_group=send.producer_group,
            topic=send.topic,
            default_topic=send.default_topic,
            default_topic_queue_nums=send.default_topic_queue_nums,
            queue_id=send.queue_id,
            sys_flag=send.sys_flag,
            born_timestamp=send.born_timestamp,
            flag=send.flag,
            born_host=join_address(*reply.connection.peer),
            store_host=core.settings.address,
            store_timestamp=now_ms,
            properties=format_properties({**reply.properties, keys.PUSH_REPLY_TIME: str(now_ms)}),
            reconsume_times=send.reconsume_times,
            unit_mode=send.unit_mode,
        )

    def _sender_fields(self) -> dict[str, str]:
        added = self._core.send_routes.added_properties
        return {keys.MESSAGE_REGION: added[keys.MESSAGE_REGION], keys.TRACE_ON: added[keys.TRACE_ON]}
