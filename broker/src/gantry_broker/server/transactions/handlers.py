"""Handles requests about transactions: ending one (37), and resuming the check of an abandoned one (323).

Java's clients send 37 one-way, ours waits for the answer.

An abandoned transaction is in TRANS_CHECK_MAX_TIME_TOPIC. Resuming it stores the half message again, as if its
producer had just sent it, and its checks start from the beginning. Resuming it twice would create two transactions of
one message: the request is refused if a newer half message exists, where RocketMQ stores another one.
"""

from collections.abc import Awaitable
from typing import final

from gantry_broker.server.core.access import find_queued_message
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.service import Transactions
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.admin import HalfMessage
from gantry_wire.commands.transactions import EndTransaction
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, parse_offset_message_id

STILL_READING = "this broker is still reading the open transactions; it will check this one with its producer later"
"""The answer to the end of a transaction whose half message was not read in time."""


@final
class TransactionHandlers:
    """The handlers of transactions. Owned by the event loop."""

    def __init__(self, core: BrokerCore, ack_gate: AckGate, transactions: Transactions) -> None:
        self._core = core
        self._ack_gate = ack_gate
        self._transactions = transactions

    @handles(RequestCode.END_TRANSACTION)
    def end(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        request = EndTransaction.read(command.ext)
        if self._transactions.journal.read_up_to(request.tran_state_table_offset):
            return self._end(request, command, connection)
        return self._end_later(request, command, connection)

    async def _end_later(self, request: EndTransaction, command: Command, connection: Connection) -> Command | None:
        if not await self._transactions.wait_until_known(request.tran_state_table_offset):
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, STILL_READING)
        refusal = self._core.gate.refusal(command.code)
        if refusal is not None:
            return self._core.stats.refusals.reply(command, refusal)
        return self._end(request, command, connection)

    def _end(self, request: EndTransaction, command: Command, connection: Connection) -> Command | None:
        """End the transaction; the answer waits until the end, even a repeated one, is as durable as messages are."""
        ended = self._transactions.endings.end(request)
        if ended is None:
            return None
        reply = command.reply(ended.code, ended.remark)
        is_done = ended.code is ResponseCode.SUCCESS
        return self._ack_gate.reply_or_hold(command, reply, connection) if is_done else reply

    # ------- abandoned transactions

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, command: Command, connection: Connection) -> Command | None:
        """Resume an abandoned transaction; the answer waits until its half message is durable."""
        message = self._find_given_up(HalfMessage.read(command.ext).msg_id or "")
        if self._transactions.writer.is_resumed(message):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "the check of this message was resumed before: a newer half message exists",
            )
        if records.find_destination(message) is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the message has no valid destination topic and queue")
        self._transactions.writer.resume(message)
        return self._ack_gate.reply_or_hold(command, command.reply(), connection)

    def _find_given_up(self, message_id: str) -> StoredMessage:
        """Return the message of an abandoned transaction by its id. Raises Refused if it is anything else."""
        try:
            _, _, offset = parse_offset_message_id(message_id)
        except RemoteProtocolError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"msgId {message_id[:64]!r} is not an offset message id: {error}"
            ) from error
        message = find_queued_message(self._core.store, offset)
        if message is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"there is no message at {offset}")
        if message.topic != names.CHECK_MAX_TIME_TOPIC:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the message is of {message.topic}: only transactions that were given up can be resumed, "
                f"and those are in {names.CHECK_MAX_TIME_TOPIC}",
            )
        return message
