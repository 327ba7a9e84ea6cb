"""The broker behind its ports: which request goes to which handler, and what every request has in common.

Plain sends take the short way (`send_path`); everything else is decoded in full and looked up in one table of codes.
With access control on the guard is asked before anything else is done about a request.
A handler's refusal becomes its code and text; a request without a handler gets code 3; a bug in one handler costs its
request an answer with code 1 and a logged traceback, never another connection. What an administrator changes leaves a
line in the audit log, whatever its outcome.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import Guard
from gantry_broker.errors import BrokerError
from gantry_broker.server.admin.account_handlers import ACCOUNT_CHANGES
from gantry_broker.server.core.gate import CHANGES, Gate
from gantry_broker.server.core.handlers import Answer, HandlerTable
from gantry_broker.server.core.refusals import Refusals, Refused, store_refusal
from gantry_broker.server.send.handlers import SEND_CODES, SendHandlers
from gantry_broker.server.send.send_path import UNHANDLED, SendPath
from gantry_remoting import Connection
from gantry_remoting.audit import audited
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_wire import Command, Frame, RequestCode, ResponseCode, WireLimits, decode_command
from gantry_wire.commands.fields import FieldError

log = logging.getLogger(__name__)

FAST_PORT_REFUSES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
"""As in RocketMQ: the fast port does not hold pulls."""

ANSWERED_BY_CLIENTS: Final = frozenset(
    {
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    }
)
"""Their answers wait for a client, and have limits of their own (`PUSH_BYTES_MAX`, `CALLS_MAX`). The client's reply may
come on the very connection that asked, which therefore must be read."""

CLIENT_CHANGES: Final = frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ,
    }
)
"""Changes that clients make by themselves all day. A line in the audit log for each failed message or each renewed lock
would hide the one that matters. Commits of offsets are such, too, though a tool could send one."""

CHANGES_IN_ANY_ROLE: Final = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        *ACCOUNT_CHANGES,
    }
)
"""Changes that any member answers, and what makes a consumer act. Some are answered 3, and leave their line all the
same."""

AUDITED: Final = (CHANGES - CLIENT_CHANGES) | CHANGES_IN_ANY_ROLE
"""Requests by which an administrator changes what a broker keeps or how it behaves. Each leaves a line in the audit
log, whatever its outcome."""


@final
class BrokerService:
    """A `Service` for one listening port. Owned by the event loop."""

    def __init__(
        self,
        path: SendPath,
        sends: SendHandlers,
        table: HandlerTable,
        limits: WireLimits,
        gate: Gate,
        refusals: Refusals,
        *,
        refuses: frozenset[int],
        disconnected: Callable[[Connection], None],
        settle: Callable[[], None] = lambda: None,
        guard: Guard | None = None,  # None: no access control
        answers: DeferredAnswers | None = None,  # None: with the default limits
    ) -> None:
        """``settle`` shows what was acknowledged, so that a client finds each message that it has an answer for."""
        self._path = path
        self._sends = sends
        self._table = {code: handler for code, handler in table.items() if code not in refuses}
        self._limits = limits
        self._gate = gate
        self._refusals = refusals
        self._disconnected = disconnected
        self._settle = settle
        self._guard = guard
        self.answers: Final = answers or DeferredAnswers()
        self._audited = audited(
            self._answer,
            "broker",
            AUDITED,
            failure=self._failure,
            account_of=lambda: None if guard is None else guard.asked_by,
        )

    @property
    def codes(self) -> frozenset[int]:
        """Of requests that are answered with something else than 3 here."""
        return frozenset(self._table) | SEND_CODES

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        return self._path.handle(data, connection, self._other)

    def connected(self, connection: Connection) -> None:
        """A client makes itself known by its heartbeat. An address that is believed needs no signature."""
        if self._guard is not None and self._guard.trusted(connection.peer[0]):
            connection.is_authenticated = True

    def disconnected(self, connection: Connection) -> None:
        self._path.forget(connection)
        self._disconnected(connection)

    def _other(self, frame: Frame, connection: Connection) -> bytes | None:
        command = decode_command(frame, self._limits)
        if command.is_reply:
            connection.requests.resolve(command)
            return None
        if command.code in SEND_CODES:
            denied = None if self._guard is None else self._denied(self._guard, command, connection)
            if denied is not None:
                return None if command.is_oneway else denied.encode()
            return self._sends.take(command, connection)
        if self.answers.must_wait(command.code, connection):
            return UNHANDLED
        answer = self._audited(command, connection)
        if isinstance(answer, Awaitable):
            is_bounded = command.code not in ANSWERED_BY_CLIENTS
            self.answers.add(command.code, self._later(command, answer, connection), connection, is_bounded=is_bounded)
            return None
        return None if answer is None or command.is_oneway else answer.encode_reply(self._limits)

    def _denied(self, guard: Guard, command: Command, connection: Connection) -> Command | None:
        """The answer to a request whose sender may not ask it."""
        try:
            if command.code not in SEND_CODES and self._gate.refusal(command.code) is not None:
                # It is answered 14 in any case; the guard would read a store that may be another thread's now.
                guard.take_note(command, connection.peer[0])
                return None
            denial = guard.denial(command, connection.peer[0])
        except Exception as error:  # noqa: BLE001 - the firewall between one request and everybody else
            return self._failure(command, error)
        if denial is None or guard.asked_by is not None:
            connection.is_authenticated = True  # it is known, whether or not it may do this
        if denial is not None:
            return command.reply(*denial)
        if command.code == RequestCode.HEART_BEAT:
            connection.account = guard.asked_by
        return None

    def _answer(self, command: Command, connection: Connection) -> Answer:
        denied = None if self._guard is None else self._denied(self._guard, command, connection)
        if denied is not None:
            return denied
        handler = self._table.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            return self._refusals.not_supported(command, connection, remark)
        refusal = self._gate.refusal(command.code)
        if refusal is not None:
            return self._refusals.reply(command, refusal)
        self._path.flush_for(connection)
        self._settle()
        try:
            return handler(command, connection)
        except Exception as error:  # noqa: BLE001 - the firewall between one request and everybody else
            return self._failure(command, error)

    async def _later(self, command: Command, answer: Awaitable[Command | None], connection: Connection) -> None:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001 - the firewall between one request and everybody else
            reply = self._failure(command, error)
        if reply is not None and not command.is_oneway:
            connection.send(reply.encode_reply(self._limits))

    def _failure(self, command: Command, error: Exception) -> Command:
        """The answer to a request whose handler raised."""
        if isinstance(error, Refused):
            return command.reply(error.code, error.remark)
        if isinstance(error, FieldError):
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if isinstance(error, BrokerError):
            return self._refusals.reply(command, store_refusal(error))
        log.error("a handler failed", exc_info=error, extra={"code": command.code})
        text = f"the broker failed to handle the request: {type(error).__name__}"
        return command.reply(ResponseCode.SYSTEM_ERROR, text)

    async def drain(self) -> None:
        """Wait for slow answers under way."""
        await self.answers.drain()
