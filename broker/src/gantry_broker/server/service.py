"""Dispatches the requests of a listening port to their handlers.

Plain sends (no batch, delay, transaction or retry) take the fast path (`send_path`), other sends the slow one
(`send.handlers`). Without access control, pulls in the usual form (`pull.pull_frames`) go directly to their handler.
Every other request is decoded in full and looked up in one table of codes. With access control on,
the guard checks a request before anything else is done about it. A handler's refusal becomes the code and the text of
the answer; a request without a handler gets code 3; an unexpected error in a handler is answered with code 1 and logged
with its traceback, and affects no other connection. Each change that an administrator asks for leaves a line in the
audit log, also if it fails.
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
from gantry_broker.server.pull.handlers import PullHandlers
from gantry_broker.server.pull.pull_frames import PullRequest, decode_pull
from gantry_broker.server.send.handlers import SEND_CODES, SendHandlers
from gantry_broker.server.send.send_path import UNHANDLED, Parts, SendPath
from gantry_remoting import Connection
from gantry_remoting.audit import with_audit_log
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_wire import Command, Frame, RequestCode, ResponseCode, WireLimits, decode_command
from gantry_wire.commands.fields import FieldError

log = logging.getLogger(__name__)

FAST_PORT_REFUSED_CODES: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
"""Requests that the fast port answers with code 3. As in RocketMQ it does not serve pulls, which may be held."""

ANSWERED_BY_CLIENTS: Final = frozenset(
    {
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    }
)
"""Requests whose answers wait for a client, with limits of their own (`PUSH_BYTES_MAX`, `CALLS_MAX`). The client's
reply may come on the connection of the request, which therefore must be read meanwhile."""

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
"""Requests of which only those that the archive answers are deferred, with limits of their own."""

CLIENT_CHANGES: Final = frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RECALL_MESSAGE,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
"""Changes that clients make in normal operation. A line in the audit log for each failed message or each renewed lock
would hide the one that matters. Commits of offsets are left out for the same reason, although a tool could send one:
neither `CHANGES` nor `CHANGES_ON_ANY_MEMBER` contains them."""

CHANGES_ON_ANY_MEMBER: Final = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        *ACCOUNT_CHANGES,
    }
)
"""Changes that the gate (``core.gate``) accepts on a slave, too, though their handlers may refuse them there, and
requests that make a consumer act. Some are answered with code 3, and are audited nevertheless."""

AUDITED: Final = (CHANGES - CLIENT_CHANGES) | CHANGES_ON_ANY_MEMBER
"""Requests by which an administrator changes what a broker stores or how it behaves. Each leaves a line in the audit
log, also if it fails."""


@final
class BrokerService:
    """A `Service` for one listening port. Owned by the event loop."""

    def __init__(
        self,
        send_path: SendPath,
        sends: SendHandlers,
        pulls: PullHandlers,
        table: HandlerTable,
        limits: WireLimits,
        gate: Gate,
        refusals: Refusals,
        *,
        refused_codes: frozenset[int],
        on_disconnect: Callable[[Connection], None],
        make_visible: Callable[[], None] = lambda: None,
        guard: Guard | None = None,  # None: no access control
        answers: DeferredAnswers | None = None,  # None: with the default limits
    ) -> None:
        """``make_visible`` is called before each request that is not a send.

        So a client finds every message whose send was acknowledged.
        """
        self._send_path = send_path
        self._sends = sends
        self._pulls = pulls if guard is None and RequestCode.PULL_MESSAGE not in refused_codes else None
        """The handler of pulls in the usual form; None if they take the same path as other requests."""

        self._table = {code: handler for code, handler in table.items() if code not in refused_codes}
        self._limits = limits
        self._gate = gate
        self._refusals = refusals
        self._on_disconnect = on_disconnect
        self._make_visible = make_visible
        self._guard = guard
        self.answers: Final = answers or DeferredAnswers()
        self._audited = with_audit_log(
            self._answer,
            "broker",
            AUDITED,
            failure=self._failure_reply,
            account_of=lambda: None if guard is None else guard.requester,
        )

    @property
    def codes(self) -> frozenset[int]:
        """The codes that have a handler at this port, also those whose handler refuses them (`admin.unsupported`)."""
        return frozenset(self._table) | SEND_CODES

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        return self._send_path.handle(data, connection, self._handle_frame)

    def connected(self, connection: Connection) -> None:
        """Mark the connection as authenticated if its address is trusted. A client registers by its heartbeat later."""
        if self._guard is not None and self._guard.is_trusted(connection.peer[0]):
            connection.is_authenticated = True

    def disconnected(self, connection: Connection) -> None:
        self._send_path.forget(connection)
        self._on_disconnect(connection)

    def _handle_frame(self, frame: Frame, connection: Connection) -> Parts | None:
        if self._pulls is not None and self._gate.request_refusal is None:
            request = decode_pull(frame)
            if request is not None:
                return self._pull(self._pulls, request, connection)
        return self._handle_command(decode_command(frame, self._limits), connection)

    def _pull(self, pulls: PullHandlers, request: PullRequest, connection: Connection) -> Parts | None:
        """Answer a pull in the usual form. It needs none of the other steps: it is not audited.

        Only pulls of messages in the archive are deferred, whose number `archiveWaitingReadsMax` limits.
        """
        if self._send_path.batch:
            self._send_path.flush_for(connection)
        self._make_visible()
        try:
            answer = pulls.pull_usual(request, connection, self._limits)
        except Exception as error:  # noqa: BLE001 - an error in one request must not affect others
            answer = self._failure_reply(request.to_command(), error)
        if isinstance(answer, tuple):
            return answer
        if isinstance(answer, Awaitable):
            waiting = self._send_when_ready(request.to_command(), answer, connection)
            self.answers.add(RequestCode.PULL_MESSAGE, waiting, connection, is_bounded=False)
            return None
        return None if answer is None or request.is_oneway else (answer.encode_reply(self._limits),)

    def _handle_command(self, command: Command, connection: Connection) -> Parts | None:
        if command.is_reply:
            connection.requests.resolve(command)
            return None
        if command.code in SEND_CODES:
            denied = None if self._guard is None else self._denial_reply(self._guard, command, connection)
            if denied is not None:
                return None if command.is_oneway else (denied.encode(),)
            reply = self._sends.handle(command, connection)
            return None if reply is None else (reply,)
        if self.answers.pause_if_full(command.code, connection):
            return UNHANDLED
        answer = self._audited(command, connection)
        if isinstance(answer, Awaitable):
            is_bounded = command.code not in ANSWERED_BY_CLIENTS | PULLS
            self.answers.add(
                command.code, self._send_when_ready(command, answer, connection), connection, is_bounded=is_bounded
            )
            return None
        return None if answer is None or command.is_oneway else (answer.encode_reply(self._limits),)

    def _denial_reply(self, guard: Guard, command: Command, connection: Connection) -> Command | None:
        """Return the answer to a request that access control denies; None if it is permitted."""
        try:
            if command.code not in SEND_CODES and self._gate.refusal(command.code) is not None:
                # The request is refused in any case. The guard would read the store, which may belong to another thread
                # now.
                guard.identify(command, connection.peer[0])
                return None
            denial = guard.denial(command, connection.peer[0])
        except Exception as error:  # noqa: BLE001 - an error in one request must not affect others
            return self._failure_reply(command, error)
        if denial is None or guard.requester is not None:
            connection.is_authenticated = True  # the account is known, even if it lacks this permission
        if denial is not None:
            return command.reply(*denial)
        if command.code == RequestCode.HEART_BEAT:
            connection.account = guard.requester
        return None

    def _answer(self, command: Command, connection: Connection) -> Answer:
        denied = None if self._guard is None else self._denial_reply(self._guard, command, connection)
        if denied is not None:
            return denied
        handler = self._table.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            return self._refusals.reply_not_supported(command, connection, remark)
        refusal = self._gate.refusal(command.code)
        if refusal is not None:
            return self._refusals.reply(command, refusal)
        self._send_path.flush_for(connection)
        self._make_visible()
        try:
            return handler(command, connection)
        except Exception as error:  # noqa: BLE001 - an error in one request must not affect others
            return self._failure_reply(command, error)

    async def _send_when_ready(
        self, command: Command, answer: Awaitable[Command | None], connection: Connection
    ) -> None:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001 - an error in one request must not affect others
            reply = self._failure_reply(command, error)
        if reply is not None and not command.is_oneway:
            connection.send(reply.encode_reply(self._limits))

    def _failure_reply(self, command: Command, error: Exception) -> Command:
        """Return the answer to a request whose handler raised ``error``."""
        if isinstance(error, Refused):
            return command.reply(error.code, error.remark)
        if isinstance(error, FieldError):
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if isinstance(error, BrokerError):
            return self._refusals.reply(command, store_refusal(error))
        log.error("unexpected error while handling request", exc_info=error, extra={"code": command.code})
        text = f"the broker failed to handle the request: {type(error).__name__}"
        return command.reply(ResponseCode.SYSTEM_ERROR, text)

    async def drain(self) -> None:
        """Wait until all deferred answers are sent."""
        await self.answers.drain()
