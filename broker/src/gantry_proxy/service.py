"""The service of RocketMQ 5 over gRPC: each method of the protocol with its handler, and what all calls have in common.

    admission      a call beyond the limits of the proxy or of its client is refused
    identity       headers, account, deadline
    handler        the reply, or an error
    status         a refusal is written into the reply; an unexpected error is logged, and reported as internal

Unary calls and both kinds of streams of messages have a reply for every outcome. The Telemetry stream has none for its
end, so refused settings end it with a gRPC status.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, final

import msgspec

from gantry_access import Account
from gantry_client.errors import ClientError
from gantry_proxy.access import AccountUnread
from gantry_proxy.context import CLIENT_ID, NO_DEADLINE_MS, CallContext
from gantry_proxy.core import ProxyCore
from gantry_proxy.handlers import acknowledging, offsets, receiving, routing, sending, sessions, transactions
from gantry_proxy.metrics import ProxyMetrics
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.rpc.call import Call
from gantry_proxy.rpc.protocol import CallFailed, Method, MethodKind, StatusCode
from gantry_proxy.statuses import ProxyError, status, status_of

log = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
READ_TIMEOUT_S: Final = 20.0
"""How long a client may take to read one message of a stream; beyond it the stream ends."""

Unary = Callable[[ProxyCore, CallContext, Any], Awaitable[Any]]
Streaming = Callable[[ProxyCore, CallContext, Any], AsyncIterator[Any]]

UNARY: Final[dict[str, Unary]] = {
    "QueryRoute": routing.query_route,
    "QueryAssignment": routing.query_assignment,
    "Heartbeat": sessions.heartbeat,
    "NotifyClientTermination": sessions.notify_client_termination,
    "SendMessage": sending.send_message,
    "RecallMessage": sending.recall_message,
    "EndTransaction": transactions.end_transaction,
    "AckMessage": acknowledging.ack_message,
    "ChangeInvisibleDuration": acknowledging.change_invisible_duration,
    "ForwardMessageToDeadLetterQueue": acknowledging.forward_to_dead_letters,
    "UpdateOffset": offsets.update_offset,
    "GetOffset": offsets.get_offset,
    "QueryOffset": offsets.query_offset,
    "SyncLiteSubscription": sessions.sync_lite_subscription,
}
STREAMING: Final[dict[str, Streaming]] = {
    "ReceiveMessage": receiving.receive_message,
    "PullMessage": offsets.pull_message,
}
TELEMETRY: Final = "Telemetry"
Begin = Callable[[ProxyCore, CallContext, Any, Callable[[Any | Exception], None]], bool]
BEGIN: Final[dict[str, Begin]] = {"SendMessage": sending.begin_send, "AckMessage": acknowledging.begin_ack}
"""The shortcuts of methods that are called for each message; see `Method.begin`."""


Caller = tuple[str, str | None]
"""An access key, which is empty without access control, and a client id; None for all clients of the account."""


@final
class TelemetryStream:
    """The writing side of one Telemetry stream. Owned by the task of its call."""

    def __init__(self, call: Call, task: "asyncio.Task[Any] | None") -> None:
        self._call: Final = call
        self._task: Final = task
        self.is_closing = False

    async def write(self, command: pb.TelemetryCommand) -> None:
        await self._call.write(command)

    def close(self) -> None:
        """End the stream: its task stops reading, and ends the call."""
        if not self.is_closing and self._task is not None:
            self.is_closing = True
            self._task.cancel()


@final
class MessagingService:
    """The handlers of all methods. Owned by the event loop of the server."""

    def __init__(self, core: ProxyCore, metrics: ProxyMetrics) -> None:
        self._core: Final = core
        self._metrics: Final = metrics
        self._running: Final[dict[Caller, int]] = {}
        """Running calls of each client of an account, and of each account. The account is part of the key of a client,
        since the client id is chosen by the caller: no other account can take the slots of a client."""

    def __repr__(self) -> str:
        return f"<MessagingService running={self._metrics.running}>"

    def methods(self) -> dict[str, Method]:
        """Return the methods of the service by path, for a server."""
        methods: dict[str, Method] = {}
        for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods:
            request, reply = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
            kind, handle = self._handler(method.name, reply)
            begin = self._begin(method.name, reply) if method.name in BEGIN else None
            methods[f"/{SERVICE}/{method.name}"] = Method(
                kind, handle, request.FromString, reply.SerializeToString, begin, is_endless=method.name == TELEMETRY
            )
        return methods

    def _handler(self, name: str, reply_type: Any) -> tuple[MethodKind, Callable[[Any, Call], Awaitable[Any]]]:
        if name in UNARY:
            return MethodKind.UNARY, self._unary(name, reply_type)
        if name in STREAMING:
            return MethodKind.STREAMING, self._streaming(name, reply_type)
        assert name == TELEMETRY, f"method {name} has no handler"
        return MethodKind.BIDIRECTIONAL, self._telemetry

    # ------- calls with replies

    def _unary(self, method: str, reply_type: Any) -> Callable[[Any, Call], Awaitable[Any]]:
        handle = UNARY[method]

        async def call(request: Any, rpc: Call) -> Any:
            started = time.monotonic()
            try:
                context = await self._context(rpc)
                self._admit(context)
                try:
                    reply = await handle(self._core, context, request)
                finally:
                    self._leave(context)
            except Exception as error:  # noqa: BLE001  every call has a reply
                reply = reply_type(status=self._status(method, error))
            self._metrics.record(method, reply.status.code, time.monotonic() - started)
            return reply

        return call

    def _begin(self, method: str, reply_type: Any) -> Callable[[Any, Call], bool]:
        """Return what begins a call without a task, or leaves it to the handler of its method."""
        begin, core = BEGIN[method], self._core

        def call(request: Any, rpc: Call) -> bool:
            started = time.monotonic()
            context: CallContext | None = None

            def finish(outcome: Any | Exception) -> None:
                if context is not None:
                    self._leave(context)
                is_error = isinstance(outcome, Exception)
                reply: Any = reply_type(status=self._status(method, outcome)) if is_error else outcome
                self._metrics.record(method, reply.status.code, time.monotonic() - started)
                rpc.finish(reply)

            try:
                account = core.guard.authenticate_at_once(rpc.headers, rpc.peer)
                caller = _make_context(rpc, account)
                if not self._has_room(caller):
                    return False
                self._enter(caller)
                context = caller
                is_begun = begin(core, caller, request, finish)
            except AccountUnread:
                return False
            except Exception as error:  # noqa: BLE001  every call has a reply
                finish(error)
                return True
            if not is_begun:
                self._leave(caller)
            return is_begun

        return call

    def _streaming(self, method: str, reply_type: Any) -> Callable[[Any, Call], Awaitable[None]]:
        handle = STREAMING[method]

        async def call(request: Any, rpc: Call) -> None:
            started, code = time.monotonic(), pb.OK
            try:
                context = await self._context(rpc)
                self._admit(context)
                try:
                    async with aclosing(handle(self._core, context, request)) as replies:  # type: ignore[type-var]
                        async for reply in replies:
                            if not rpc.send(reply):
                                await rpc.wait_until_sent(READ_TIMEOUT_S)
                finally:
                    self._leave(context)
            except CallFailed:
                raise
            except Exception as error:  # noqa: BLE001  every call has a reply
                refusal = self._status(method, error)
                code = refusal.code
                await rpc.write(reply_type(status=refusal), READ_TIMEOUT_S)
            finally:
                self._metrics.record(method, code, time.monotonic() - started)
            if method == "ReceiveMessage":
                await rpc.write(receiving.end_of_replies(self._core), READ_TIMEOUT_S)

        return call

    # ------- Telemetry

    async def _telemetry(self, _request: None, rpc: Call) -> None:
        stream = TelemetryStream(rpc, asyncio.current_task())
        client_id = ""
        try:
            context = await self._context(rpc)
            client_id = context.client_id
            while (command := await rpc.read()) is not None:
                await self._on_command(context, stream, command)
        except asyncio.CancelledError:
            if not stream.is_closing:
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise CallFailed(StatusCode.UNAVAILABLE, "the proxy closed the stream: connect again") from None
        except ProxyError as error:
            raise CallFailed(_rpc_code(error), error.text) from error
        finally:
            self._core.clients.disconnect(client_id, stream)

    async def _on_command(self, context: CallContext, stream: TelemetryStream, command: pb.TelemetryCommand) -> None:
        """Handle what a client sends: its settings, or the answer to what it was asked."""
        if command.WhichOneof("command") != "settings":
            asked = self._core.clients.find(context.client_id)
            if asked is not None and asked.stream is stream:  # another account may have opened one with the same id
                self._core.client_requests.on_answer(context.client_id, command)
            return
        guard = self._core.guard  # the stream may have been opened hours ago
        present = msgspec.structs.replace(context, account=await guard.confirm(context.account, context.peer))
        reply = await sessions.accept_settings(self._core, present, command.settings, stream)
        client = self._core.clients.find(context.client_id)
        if client is not None and reply is not None:
            await client.send(reply)

    # ------- common

    async def _context(self, rpc: Call) -> CallContext:
        return _make_context(rpc, await self._core.guard.authenticate(rpc.headers, rpc.peer))

    def _admit(self, context: CallContext) -> None:
        """Count a call that begins; `_leave` must follow. Raises ProxyError if too many are running."""
        if not self._has_room(context):
            self._metrics.refused += 1
            raise ProxyError(pb.TOO_MANY_REQUESTS, "too many calls are running: wait for replies before calling again")
        self._enter(context)

    def _has_room(self, context: CallContext) -> bool:
        limits, account_key, running = self._core.limits, context.account_key, self._running
        if account_key and 0 < limits.calls_per_account_max <= running.get((account_key, None), 0):
            return False
        is_client_free = running.get((account_key, context.client_id), 0) < limits.calls_per_client_max
        return self._metrics.running < limits.calls_max and is_client_free

    def _enter(self, context: CallContext) -> None:
        running = self._running
        self._metrics.running += 1
        for caller in self._callers(context):
            running[caller] = running.get(caller, 0) + 1

    def _leave(self, context: CallContext) -> None:
        running = self._running
        self._metrics.running -= 1
        for caller in self._callers(context):
            if running[caller] > 1:
                running[caller] -= 1
            else:
                del running[caller]

    def _callers(self, context: CallContext) -> tuple[Caller, ...]:
        """Return whom a call counts for."""
        account_key = context.account_key
        own = account_key, context.client_id
        return (own, (account_key, None)) if self._core.limits.calls_per_account_max else (own,)

    def _status(self, method: str, error: Exception) -> pb.Status:
        if isinstance(error, ProxyError | ClientError):
            return status_of(error)
        log.error("unexpected error in call", extra={"method": method}, exc_info=error)
        return status(pb.INTERNAL_SERVER_ERROR, f"unexpected error in the proxy: {type(error).__name__}")


def _make_context(rpc: Call, account: Account | None) -> CallContext:
    remaining_s = rpc.remaining_s
    return CallContext(
        client_id=rpc.headers.get(CLIENT_ID, ""),
        peer=rpc.peer,
        remaining_ms=NO_DEADLINE_MS if remaining_s is None else max(0, int(remaining_s * 1000)),
        headers=rpc.headers,
        account=account,
    )


def _rpc_code(error: ProxyError) -> StatusCode:
    if error.code == pb.UNAUTHORIZED:
        return StatusCode.UNAUTHENTICATED
    if error.code == pb.FORBIDDEN:
        return StatusCode.PERMISSION_DENIED
    if error.code == pb.TOO_MANY_REQUESTS:
        return StatusCode.RESOURCE_EXHAUSTED
    if error.code == pb.HA_NOT_AVAILABLE:
        return StatusCode.UNAVAILABLE
    return StatusCode.INVALID_ARGUMENT
