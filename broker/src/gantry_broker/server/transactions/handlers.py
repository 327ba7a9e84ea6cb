"""Code 37: a producer says how its transaction has ended. Java's clients send it oneway, ours waits for the answer."""

from collections.abc import Awaitable
from typing import final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.transactions.service import Transactions
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.transactions import EndTransaction

NOT_KNOWN = "this broker does not know yet which transactions are open; it asks how this one has ended later"


@final
class TransactionHandlers:
    """Owned by the event loop."""

    def __init__(self, core: BrokerCore, ack_gate: AckGate, transactions: Transactions) -> None:
        self._core = core
        self._ack_gate = ack_gate
        self._transactions = transactions

    def table(self) -> HandlerTable:
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        asked = EndTransaction.read(command.ext)
        if self._transactions.knows(asked.tran_state_table_offset):
            return self._end(asked, command, connection)
        return self._end_later(asked, command, connection)

    async def _end_later(self, asked: EndTransaction, command: Command, connection: Connection) -> Command | None:
        if not await self._transactions.learn(asked.tran_state_table_offset):
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_KNOWN)
        refusal = self._core.gate.refusal(command.code)
        if refusal is not None:
            return self._core.stats.refusals.reply(command, refusal)
        return self._end(asked, command, connection)

    def _end(self, asked: EndTransaction, command: Command, connection: Connection) -> Command | None:
        """The answer waits until the end is as safe as messages are, also that of an end which was said before."""
        ended = self._transactions.end(asked)
        if ended is None:
            return None
        reply = command.reply(ended.code, ended.remark)
        is_done = ended.code is ResponseCode.SUCCESS and not command.is_oneway
        return self._ack_gate.answer(reply, connection) if is_done else reply
