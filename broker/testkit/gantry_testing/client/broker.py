"""A broker in memory, with faults that a test can inject."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import final

from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_remoting.server import CommandService, Connection, Listener
from gantry_remoting.settings import ListenerSettings
from gantry_testing.client import consuming, managing, sending
from gantry_testing.client.log import FakeLog
from gantry_testing.client.state import BrokerState, Handler
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.fields import FieldError
from gantry_wire.message import StoredMessage, encode_host

_HANDLERS: dict[int, Handler] = sending.HANDLERS | consuming.HANDLERS | managing.HANDLERS

UNBOUNDED = ListenerSettings(deferred_answers_max=1 << 40, deferred_answers_per_connection_max=1 << 40)
"""Held pulls are deferred answers here, and a real broker holds many of one connection."""

Fault = Callable[[Command, Connection], Command | None]
"""Replaces the handling of a request: returns another answer, or None for no answer."""


@final
class FakeBroker:
    """A master on a free port of the loopback address."""

    def __init__(self, name: str, cluster: str = "DefaultCluster") -> None:
        self.name = name
        self.state = BrokerState(name=name, cluster=cluster, log=FakeLog(encode_host("127.0.0.1", 0)))
        self.received: Counter[int] = Counter()
        """The number of received requests by code."""
        self.requests: list[Command] = []
        """Every request, in order of arrival."""
        self._faults: dict[int, deque[Fault]] = {}
        self._service = CommandService(
            self._dispatch, disconnected=self.state.forget, answers=DeferredAnswers(UNBOUNDED)
        )
        self._listener: Listener | None = None
        self._port = 0

    def __repr__(self) -> str:
        return f"<FakeBroker {self.name} {self.address} requests={len(self.requests)}>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._listener is not None

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._listener.connections) if self._listener is not None else 0

    async def start(self) -> None:
        """Listen: on a free port the first time, later on the same port."""
        self._listener = Listener(self._service, ListenerSettings(host="127.0.0.1", port=self._port))
        await self._listener.start()
        self._port = self._listener.port
        self.state.log.store_host = encode_host("127.0.0.1", self._port)

    async def stop(self) -> None:
        """Close the port and every connection; stored messages stay."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()
            self.state.log.wake()
            await self._service.drain()

    def drop_connections(self) -> None:
        """Close every connection, as a restarting network device does."""
        assert self._listener is not None, "a broker that does not run has no connections"
        for connection in list(self._listener.connections):
            connection.close("closed by the test")

    def refuse(self, code: RequestCode, with_code: int, remark: str = "refused by the test", *, times: int = 1) -> None:
        """Answer the next ``times`` requests with the error ``with_code``, without handling them."""
        self.fault(code, lambda command, _: command.reply(with_code, remark), times=times)

    def ignore(self, code: RequestCode, *, times: int = 1) -> None:
        """Accept the next ``times`` requests and never answer them."""
        self.fault(code, lambda command, _: None, times=times)

    def drop(self, code: RequestCode, *, times: int = 1) -> None:
        """Close the connection instead of answering, for the next ``times`` requests."""

        def close(command: Command, connection: Connection) -> None:
            connection.close("closed by the test")

        self.fault(code, close, times=times)

    def fault(self, code: RequestCode, fault: Fault, *, times: int = 1) -> None:
        """Let ``fault`` handle the next ``times`` requests with this code, instead of the broker."""
        self._faults.setdefault(code, deque()).extend([fault] * times)

    def heal(self) -> None:
        """Remove every fault that has not occurred yet."""
        self._faults.clear()

    # ------- inspection by tests

    def messages(self, topic: str) -> list[StoredMessage]:
        """Return every stored message of `topic`."""
        return self.state.log.all_messages(topic)

    def _dispatch(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        self.received[command.code] += 1
        self.requests.append(command)
        faults = self._faults.get(command.code)
        if faults:
            return faults.popleft()(command, connection)
        handle = _HANDLERS.get(command.code)
        if handle is None:
            remark = f" request type {command.code} not supported"
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        try:
            return handle(self.state, command, connection)
        except FieldError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
