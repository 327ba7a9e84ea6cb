"""The transactional producer: a message is stored first, and delivered only if its sender commits it.

    begin     -> the half message is stored, as safely as any message, and is invisible to consumers
    commit    -> the message becomes visible         roll back -> it never does
    no end    -> a broker sends a check to any producer of the group, and `check` returns the decision if it knows it

A commit is acknowledged: when `commit` returns, the message is as safe as the mode of its broker promises. It is
retried until its deadline, also on a promoted slave, because a repeated commit stores the message once. Apache's
brokers store it again, and this client retries there, too: query `idempotent_commits` where that matters.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, final

from gantry_client.client import ProducerClient
from gantry_client.clock import Deadline, deadline_after, wall_ms
from gantry_client.errors import (
    TRANSIENT_CODES,
    BadReply,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    NoRoute,
    RequestFailed,
)
from gantry_client.messages import Message, ReceivedMessage, SendReceipt, to_received_message
from gantry_client.outgoing import prepare_message
from gantry_client.settings import ClientSettings, NameServerAddresses, ProducerSettings
from gantry_wire import properties as property_names
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
"""The pause before a failed commit or rollback is repeated; it doubles up to ``RETRY_MAX_MS``."""
RETRY_MAX_MS: Final = 1_000
REGISTRATION_PAUSE_S: Final = 1.0
"""The pause between attempts to register with the brokers at the start."""


class Decision(IntEnum):
    """The decision on a transaction, as far as its producer knows it."""

    COMMIT = TRANSACTION_COMMIT
    ROLL_BACK = TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """Not decided yet, or not known here; the broker checks again later."""


Check = Callable[[ReceivedMessage], Awaitable[Decision]]
"""Returns the decision on a transaction, given its message. An exception counts as UNKNOWN."""


async def always_unknown(message: ReceivedMessage) -> Decision:
    """Return UNKNOWN; the check of producers that end all their transactions themselves."""
    return Decision.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """An open transaction, whose message is stored but invisible."""

    topic: str
    queue: MessageQueue
    message_id: str
    half_offset: int
    """The offset in the broker's queue of half messages."""

    physical_offset: int
    """The offset of the half message in the broker's log."""


@final
class TransactionProducer(ProducerClient):
    """Sends messages in transactions. Use it inside `async with`; it belongs to the event loop that starts it.

    Transactions that are open when it is closed stay open.
    """

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        check: Check = always_unknown,
        *,
        topics: Collection[str] = (),
        answers_checks: bool = True,
        settings: ProducerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        """Create a producer; ``topics`` names topics whose brokers may send checks from the start on.

        ``topics`` is needed only where brokers do not create topics automatically. With ``answers_checks`` False the
        producer is not registered, so brokers send it no checks. Unless another producer of the group is connected,
        they do not count checks either, and an open transaction stays open as long as the broker keeps messages.
        """
        super().__init__(name_servers, group, settings, client_settings, is_announced=answers_checks)
        self._answers_checks: Final = answers_checks
        self._topics: Final = (*topics, AUTO_CREATE_TOPIC)
        self._check = check
        self._session.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    async def _join(self) -> None:
        if self._answers_checks:
            self._session.tasks.start(self._register_with_brokers(), "transaction-registration")

    async def idempotent_commits(self, topic: str) -> dict[str, bool]:
        """Return for each master of `topic` whether repeated commits of a transaction store its message once.

        Gantry's brokers do, as long as they have their key index; Apache's brokers store it again. Raises NoRoute and
        RequestFailed.
        """
        self._session.require_open()
        route = await self._session.routes.for_sending(topic)
        groups = [ProducerData(group_name=self.group)] if self._answers_checks else []
        heartbeat = HeartbeatData(client_id=self._session.client_id, producer_data_set=groups)
        found: dict[str, bool] = {}
        for name in sorted({queue.broker_name for queue in route.write_queues}):
            reply = await self._session.calls.request_success(
                route.require_master(name), RequestCode.HEART_BEAT, body=heartbeat
            )
            found[name] = reply.ext.get(ENDS_ONCE) == "true"
        return found

    async def begin(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> HalfMessage:
        """Store `message` as a half message, invisible to consumers. Raises like `Producer.send`.

        A message with a sharding key needs `queue`. The key does not select it, because transactions become visible in
        the order of their commits, and not of their sends.

        A half message that is stored but not acknowledged (codes 10, 11, 12) raises BrokerRefused. It is rolled back;
        if that fails, it stays open.
        """
        self._session.require_open()
        if message.delay_level:
            raise InvalidMessage("a transaction cannot be delayed by a level; delay_ms begins with its commit")
        if message.sharding_key is not None and queue is None:
            raise InvalidMessage(
                f"sharding key {message.sharding_key[:64]!r} does not select the queue of a transaction; give a queue"
            )
        outgoing = prepare_message(message, self._session.unique_ids.next(wall_ms()), self.settings)
        transaction_properties = format_properties(
            {property_names.TRANSACTION_PREPARED: "true", property_names.PRODUCER_GROUP: self.group}
        )
        outgoing = replace(
            outgoing,
            properties=outgoing.properties + transaction_properties,
            sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED,
        )
        deadline = deadline_after(timeout_ms, self.settings.send_timeout_ms)
        receipt = await self._sender.send(outgoing, queue, deadline)
        half = _make_half(message.topic, receipt)
        if not receipt.is_acknowledged:
            with suppress(ClientError):
                await self.roll_back(half)
            raise BrokerRefused(
                receipt.status, "the half message is stored but not acknowledged", receipt.queue.broker_name
            )
        return half

    async def commit(self, half: HalfMessage, *, timeout_ms: int | None = None) -> None:
        """Commit the message. After RequestFailed or NoRoute the outcome is unknown until the broker checks."""
        await self._end(half, Decision.COMMIT, timeout_ms)

    async def roll_back(self, half: HalfMessage, *, timeout_ms: int | None = None) -> None:
        """Roll back, so that the message is discarded. Raises RequestFailed or NoRoute."""
        await self._end(half, Decision.ROLL_BACK, timeout_ms)

    @asynccontextmanager
    async def transaction(self, message: Message, *, queue: MessageQueue | None = None) -> AsyncIterator[HalfMessage]:
        """Begin a transaction, commit it at the end of the block, and roll it back if the block raises."""
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
        end_request = EndTransaction(
            producer_group=self.group, tran_state_table_offset=half.half_offset, commit_log_offset=half.physical_offset,
            commit_or_rollback=decision, topic=half.topic, msg_id=half.message_id, transaction_id=half.message_id,
            bname=half.queue.broker_name,
        )  # fmt: skip
        deadline, pause_ms = deadline_after(timeout_ms, self.settings.send_timeout_ms), RETRY_FIRST_MS
        while True:
            try:
                await self._end_once(end_request, half, deadline)
                return
            except (RequestFailed, NoRoute) as error:
                is_final = isinstance(error, BrokerRefused) and error.code not in TRANSIENT_CODES
                if is_final or deadline.remaining_ms <= pause_ms:
                    raise
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(min(pause_ms, deadline.remaining_ms) / 1000):
                    await self._session.routes.refresh(half.topic)

    async def _end_once(self, end_request: EndTransaction, half: HalfMessage, deadline: Deadline) -> None:
        route = await self._session.routes.for_sending_until(half.topic, deadline)
        address = route.require_master(half.queue.broker_name)
        await self._session.calls.request_success(
            address, RequestCode.END_TRANSACTION, end_request, timeout_ms=max(1, deadline.remaining_ms)
        )

    # ------- checks by brokers

    async def _register_with_brokers(self) -> None:
        """Send heartbeats before the first message: brokers may have checks for a producer that restarted."""
        routes = self._session.routes
        while not routes.addresses(masters_only=True):
            for topic in self._topics:
                with suppress(ClientError):
                    await routes.refresh(topic)
            await self._session.announce(routes.addresses(masters_only=True))
            await asyncio.sleep(REGISTRATION_PAUSE_S)

    def _on_check(self, command: Command, address: str) -> None:
        self._session.tasks.start(self._send_decision(command, address), "transaction-check")

    async def _send_decision(self, command: Command, address: str) -> None:
        """Call `check` and send the decision to the broker. An invalid request is ignored; the broker repeats it."""
        try:
            request = CheckTransactionState.read(command.ext)
            message = to_received_message(decode_record(command.body), request.bname or "")
        except (ValueError, RemoteProtocolError) as error:
            log.warning("invalid transaction check request", extra={"broker": address, "reason": str(error)})
            return
        try:
            decision = await self._check(message)
        except Exception as error:
            log.error(
                "transaction check failed; broker will retry", exc_info=error, extra={"message_id": message.message_id}
            )
            decision = Decision.UNKNOWN
        end_request = EndTransaction(
            producer_group=self.group, tran_state_table_offset=request.tran_state_table_offset,
            commit_log_offset=request.commit_log_offset, commit_or_rollback=decision, topic=request.topic,
            from_transaction_check=True, msg_id=message.message_id, transaction_id=request.transaction_id,
            bname=request.bname,
        )  # fmt: skip
        with suppress(ClientError):
            answer = oneway(RequestCode.END_TRANSACTION, end_request.write())
            await self._session.pool.send_oneway(address, answer, self.settings.send_timeout_ms)


def _make_half(topic: str, receipt: SendReceipt) -> HalfMessage:
    try:
        _, _, physical_offset = parse_offset_message_id(receipt.offset_message_id)
    except RemoteProtocolError as error:
        raise BadReply(f"{receipt.queue.broker_name} stored a half message without a valid id: {error}") from error
    return HalfMessage(
        topic=topic, queue=receipt.queue, message_id=receipt.message_id, half_offset=receipt.queue_offset,
        physical_offset=physical_offset,
    )  # fmt: skip
