"""The transactional producer: a message that is stored now and delivered when its sender says so, or never.

    begin  -> the half message is stored, as safely as any message; nobody sees it
    commit -> everybody does           roll back -> nobody ever does
    neither in time -> a broker asks any producer of the group: `check` says how it has ended, as far as it knows

A commit is answered: when `commit` returns, the message is as safe as its broker's mode promises. It is repeated until
its deadline, also at a promoted slave, since ending a transaction twice in the same way stores the message once.
(Apache RocketMQ stores it again; there each end is sent once.)
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, final

from gantry_client.client import ProducerClient
from gantry_client.clock import Deadline, wall_ms
from gantry_client.errors import (
    PASSING_CODES,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    NoRoute,
    RequestFailed,
)
from gantry_client.messages import Message, ReceivedMessage, SendReceipt, received
from gantry_client.outgoing import prepare
from gantry_client.settings import ClientSettings, NameServerAddresses, ProducerSettings
from gantry_wire import properties as names
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command, oneway
from gantry_wire.commands.clients import HeartbeatData, MessageQueue, ProducerData
from gantry_wire.commands.transactions import ENDS_ONCE, CheckTransactionState, EndTransaction
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    decode_record,
    parse_offset_message_id,
)
from gantry_wire.names import AUTO_CREATE_TOPIC
from gantry_wire.properties import format_properties

log = logging.getLogger(__name__)

RETRY_FIRST_MS: Final = 50
RETRY_MAX_MS: Final = 1_000
INTRODUCTION_PAUSE_S: Final = 1.0


class Decision(IntEnum):
    """How a transaction has ended, as its producer knows."""

    COMMIT = TRANSACTION_COMMIT
    ROLL_BACK = TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """Not yet, or not known here: the broker asks again."""


Check = Callable[[ReceivedMessage], Awaitable[Decision]]
"""Says what became of a transaction, from the message it was about. What it raises counts as UNKNOWN."""


async def unknown(message: ReceivedMessage) -> Decision:
    """For producers that end all their transactions themselves."""
    return Decision.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """An open transaction."""

    topic: str
    queue: MessageQueue
    message_id: str
    half_offset: int
    """In its broker's queue of half messages."""

    physical_offset: int


@final
class TransactionProducer(ProducerClient):
    """Sends messages in transactions. Use it inside `async with`; it belongs to the event loop that starts it.

    What is open when it is closed stays open.
    """

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        check: Check = unknown,
        *,
        topics: Collection[str] = (),
        is_asked: bool = True,
        settings: ProducerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        """``topics`` are those whose brokers may ask from the start on, where none makes topics on first use.

        With ``is_asked`` False no broker hears of this producer: none asks it, or counts questions, and what is open
        stays open for as long as the broker keeps messages, unless another producer of the group is there.
        """
        super().__init__(name_servers, group, settings, client_settings, is_announced=is_asked)
        self._is_asked: Final = is_asked
        self._topics: Final = (*topics, AUTO_CREATE_TOPIC)
        self._check = check
        self._session.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._asked)

    async def _join(self) -> None:
        if self._is_asked:
            self._session.tasks.start(self._introduce(), "transaction-introduction")

    async def ends_once(self, topic: str) -> dict[str, bool]:
        """Whether each master of `topic` stores a message once, however often its transaction is committed.

        Gantry's brokers say so, as long as they have their key index; Apache's do store it again. Raises NoRoute and
        RequestFailed.
        """
        self._session.require_open()
        route = await self._session.routes.for_sending(topic)
        groups = [ProducerData(group_name=self.group)] if self._is_asked else []
        beat = HeartbeatData(client_id=self._session.client_id, producer_data_set=groups)
        found: dict[str, bool] = {}
        for name in sorted({queue.broker_name for queue in route.write_queues}):
            reply = await self._session.calls.demand(route.demand_master(name), RequestCode.HEART_BEAT, body=beat)
            found[name] = reply.ext.get(ENDS_ONCE) == "true"
        return found

    async def begin(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> HalfMessage:
        """Store `message` where nobody sees it. Raises as `Producer.send` does.

        A half message that is stored but not promised (codes 10, 11, 12) is rolled back and raises BrokerRefused.
        """
        self._session.require_open()
        if message.delay_level:
            raise InvalidMessage("a transaction cannot be delayed")
        outgoing = prepare(message, self._session.unique_ids.next(wall_ms()), self.settings)
        own = format_properties({names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: self.group})
        outgoing = replace(
            outgoing, properties=outgoing.properties + own, sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED
        )
        deadline = Deadline(timeout_ms or self.settings.send_timeout_ms)
        receipt = await self._sender.send(outgoing, queue, deadline)
        half = _half_of(message.topic, receipt)
        if not receipt.is_acknowledged:
            with suppress(ClientError):
                await self.roll_back(half)
            raise BrokerRefused(
                receipt.status, "the half message is stored but not promised", receipt.queue.broker_name
            )
        return half

    async def commit(self, half: HalfMessage, *, timeout_ms: int | None = None) -> None:
        """Have the message delivered. Raises RequestFailed or NoRoute; then nobody knows until the broker asks."""
        await self._end(half, Decision.COMMIT, timeout_ms)

    async def roll_back(self, half: HalfMessage, *, timeout_ms: int | None = None) -> None:
        """Have the message forgotten. Raises RequestFailed or NoRoute."""
        await self._end(half, Decision.ROLL_BACK, timeout_ms)

    @asynccontextmanager
    async def transaction(self, message: Message, *, queue: MessageQueue | None = None) -> AsyncIterator[HalfMessage]:
        """Commit at the end of the block, roll back when it raises."""
        half = await self.begin(message, queue=queue)
        try:
            yield half
        except BaseException:
            with suppress(ClientError):
                await self.roll_back(half)
            raise
        await self.commit(half)

    async def _end(self, half: HalfMessage, decision: Decision, timeout_ms: int | None) -> None:
        self._session.require_open()
        asked = EndTransaction(
            producer_group=self.group, tran_state_table_offset=half.half_offset, commit_log_offset=half.physical_offset,
            commit_or_rollback=decision, topic=half.topic, msg_id=half.message_id, transaction_id=half.message_id,
            bname=half.queue.broker_name,
        )  # fmt: skip
        deadline, pause_ms = Deadline(timeout_ms or self.settings.send_timeout_ms), RETRY_FIRST_MS
        while True:
            try:
                await self._end_once(asked, half, max(1, deadline.remaining_ms))
                return
            except (RequestFailed, NoRoute) as error:
                is_final = isinstance(error, BrokerRefused) and error.code not in PASSING_CODES
                if is_final or deadline.remaining_ms <= pause_ms:
                    raise
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._session.routes.refresh(half.topic)

    async def _end_once(self, asked: EndTransaction, half: HalfMessage, timeout_ms: int) -> None:
        route = await self._session.routes.for_sending(half.topic)
        address = route.demand_master(half.queue.broker_name)
        await self._session.calls.demand(address, RequestCode.END_TRANSACTION, asked, timeout_ms=timeout_ms)

    # ------- what brokers ask

    async def _introduce(self) -> None:
        """Be known to the brokers before anything is sent: they have questions for a producer that is back."""
        routes = self._session.routes
        while not routes.addresses(masters_only=True):
            for topic in self._topics:
                with suppress(ClientError):
                    await routes.refresh(topic)
            await self._session.greet(routes.addresses(masters_only=True))
            await asyncio.sleep(INTRODUCTION_PAUSE_S)

    def _asked(self, command: Command, address: str) -> None:
        self._session.tasks.start(self._answer(command, address), "transaction-check")

    async def _answer(self, command: Command, address: str) -> None:
        """Ask `check`, and tell the broker. A question that cannot be read is left to the next one."""
        try:
            question = CheckTransactionState.read(command.ext)
            message = received(decode_record(command.body), question.bname or "")
        except (ValueError, RemoteProtocolError) as error:
            log.warning(
                "a question about a transaction cannot be read", extra={"broker": address, "reason": str(error)}
            )
            return
        try:
            decision = await self._check(message)
        except Exception as error:
            log.error("the check of a transaction failed", exc_info=error, extra={"message_id": message.message_id})
            decision = Decision.UNKNOWN
        asked = EndTransaction(
            producer_group=self.group, tran_state_table_offset=question.tran_state_table_offset,
            commit_log_offset=question.commit_log_offset, commit_or_rollback=decision, topic=question.topic,
            from_transaction_check=True, msg_id=message.message_id, transaction_id=question.transaction_id,
            bname=question.bname,
        )  # fmt: skip
        with suppress(ClientError):
            answer = oneway(RequestCode.END_TRANSACTION, asked.write())
            await self._session.pool.send_oneway(address, answer, self.settings.send_timeout_ms)


def _half_of(topic: str, receipt: SendReceipt) -> HalfMessage:
    _, _, physical_offset = parse_offset_message_id(receipt.offset_message_id)
    return HalfMessage(
        topic=topic, queue=receipt.queue, message_id=receipt.message_id, half_offset=receipt.queue_offset,
        physical_offset=physical_offset,
    )  # fmt: skip
