"""Requests of administrators to connected consumers: a thread dump, and the consumption of one message.

    mqadmin -- 307, 309 --> broker -- on the connection that registered the consumer --> proxy
        proxy -- PrintThreadStackTraceCommand, VerifyMessageCommand: a nonce, on the Telemetry stream --> consumer
              <-- ThreadStackTrace, VerifyMessageResult: the same nonce, and a status -------------------

Only the client that was asked can answer, and only once. A message that is verified has no further effect: it is
neither acknowledged nor delivered again. The proxy of RocketMQ does the same in local mode; in cluster mode it drops
these requests.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Final, final

from gantry_client.messages import to_received_message
from gantry_proxy.clients import ClientTable, ProxyClient
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import TEXT_CHARACTERS_MAX
from gantry_proxy.translation.incoming import write_message
from gantry_proxy.translation.subscriptions import consume_type, subscription_data
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.consumers import ConsumeDirectly, ConsumeResult, ConsumerRunningInfo, RunningInfoRequest
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_record

ANSWER_TIMEOUT_S: Final = 8.0
"""How long a client may take to answer. Brokers wait 10 s for the proxy."""
PENDING_MAX: Final = 256
"""How many requests may wait for clients, as many as a broker passes on at once."""
CLIENT_SILENT: Final = "the client has not answered: its SDK may not support this request"
_RESULTS: Final[dict[int, str]] = {
    pb.OK: "CR_SUCCESS",
    pb.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    pb.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""The results of a verified message by the status that the client reports, as in RocketMQ's proxy."""


@final
class _Refused(Exception):
    """The request is answered with this code and text."""

    def __init__(self, code: ResponseCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@final
class ClientRequests:
    """Passes requests on to clients, and their answers back. Owned by one event loop."""

    def __init__(self, clients: ClientTable, wall_ms: Callable[[], int], body_bytes_max: int) -> None:
        self._clients: Final = clients
        self._body_bytes_max: Final = body_bytes_max
        self._started_at_ms: Final = wall_ms()
        self._nonces: Final = itertools.count(1)
        self._pending: Final[dict[tuple[str, str], asyncio.Future[pb.TelemetryCommand]]] = {}
        """The requests that wait, by client id and nonce."""

    def __repr__(self) -> str:
        return f"<ClientRequests pending={len(self._pending)}>"

    def on_answer(self, client_id: str, command: pb.TelemetryCommand) -> None:
        """Accept what a client has answered. An answer to nothing that it was asked is dropped."""
        kind = command.WhichOneof("command")
        if kind not in ("thread_stack_trace", "verify_message_result"):
            return
        waiting = self._pending.get((client_id, getattr(command, kind).nonce))
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    async def answer(self, command: Command, address: str) -> Command | None:
        """Return the answer to a request of a broker; None if it needs none."""
        if command.is_oneway:
            return None  # a notice that a group has changed: clients of the proxy do not divide queues
        try:
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                return command.reply(body=write_document(await self._running_info(command)))
            if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return command.reply(body=write_document(await self._verify(command)))
        except _Refused as error:
            return command.reply(error.code, str(error))
        except (FieldError, RemoteProtocolError) as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"invalid request: {error}")
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {command.code} not supported: the client uses gRPC, and keeps no offsets",
        )

    async def _running_info(self, command: Command) -> ConsumerRunningInfo:
        request = RunningInfoRequest.read(command.ext)
        client = self._consumer(request.consumer_group, request.client_id)
        info = ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": consume_type(client.settings),
                "PROP_CLIENT_VERSION": f"{pb.Language.Name(client.settings.user_agent.language)} "
                f"{client.settings.user_agent.version[:64]}",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at_ms),
                "consumerGroup": client.group,
            },
            subscription_set=subscription_data(client.settings, self._started_at_ms),
        )
        if request.jstack_enable:
            nonce = self._nonce()
            ask = pb.TelemetryCommand(print_thread_stack_trace_command=pb.PrintThreadStackTraceCommand(nonce=nonce))
            answered = await self._ask(client, nonce, ask)
            _require_done(answered)
            info.jstack = answered.thread_stack_trace.thread_stack_trace
        return info

    async def _verify(self, command: Command) -> ConsumeResult:
        request = ConsumeDirectly.read(command.ext)
        client = self._consumer(request.consumer_group, request.client_id or "")
        message = to_received_message(
            decode_record(command.body), request.broker_name or "", body_bytes_max=self._body_bytes_max
        )
        nonce = self._nonce()
        verify = pb.VerifyMessageCommand(nonce=nonce, message=write_message(message))
        started = time.monotonic()
        answered = await self._ask(client, nonce, pb.TelemetryCommand(verify_message_command=verify))
        result = _RESULTS.get(answered.status.code)
        if result is None:
            _require_done(answered)
        return ConsumeResult(
            consume_result=result,
            remark=answered.status.message[:TEXT_CHARACTERS_MAX] or None,
            spent_time_mills=int((time.monotonic() - started) * 1000),
        )

    async def _ask(self, client: ProxyClient, nonce: str, command: pb.TelemetryCommand) -> pb.TelemetryCommand:
        """Send a command to a client, and return its answer. Raises _Refused."""
        if len(self._pending) >= PENDING_MAX:
            raise _Refused(ResponseCode.SYSTEM_BUSY, "too many requests wait for clients of the proxy; retry later")
        key = (client.client_id, nonce)
        waiting: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._pending[key] = waiting
        try:
            if not await client.send(command):
                raise _Refused(ResponseCode.SYSTEM_ERROR, "the client is not connected to the proxy any more")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await waiting
        except TimeoutError as error:
            raise _Refused(ResponseCode.CONSUME_MSG_TIMEOUT, CLIENT_SILENT) from error
        finally:
            del self._pending[key]

    def _consumer(self, group: str, client_id: str) -> ProxyClient:
        """Return a connected consumer. Raises _Refused."""
        client = self._clients.find(client_id)
        if client is None or client.stream is None or client.is_producer or client.group != group:
            raise _Refused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:300]}> <{client_id[:300]}> not online at the proxy"
            )
        return client

    def _nonce(self) -> str:
        return str(next(self._nonces))


def _require_done(answered: pb.TelemetryCommand) -> None:
    """Raise _Refused for a status of a client that reports no result."""
    code, text = answered.status.code, answered.status.message[:TEXT_CHARACTERS_MAX]
    if code == pb.OK:
        return
    if code == pb.NOT_IMPLEMENTED:
        raise _Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text or "the client has no listener for messages")
    name = pb.Code.Name(code) if code in pb.Code.values() else str(code)
    reply = ResponseCode.NO_PERMISSION if code == pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED else ResponseCode.SYSTEM_ERROR
    raise _Refused(reply, f"the client has answered {name} {text}".rstrip())
