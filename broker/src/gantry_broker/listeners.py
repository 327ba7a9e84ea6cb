"""The ports on which a broker serves clients."""

from typing import Final, final

from gantry_access import Guard
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import HandlerTable
from gantry_broker.server.core.tls import BrokerTls
from gantry_broker.server.pull.handlers import PullHandlers
from gantry_broker.server.pull.visibility import Visibility
from gantry_broker.server.send.handlers import SendHandlers
from gantry_broker.server.send.send_path import SendPath
from gantry_broker.server.service import FAST_PORT_REFUSED_CODES, BrokerService
from gantry_remoting import Connection, Listener
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_wire.limits import WireLimits


@final
class BrokerListeners:
    """The main port, and the fast port if there is one. Owned by the event loop.

    Both serve the same table of handlers, except that the fast port refuses pulls, which may be held.
    """

    def __init__(
        self,
        core: BrokerCore,
        send_path: SendPath,
        sends: SendHandlers,
        pulls: PullHandlers,
        visibility: Visibility,
        *,
        tls: BrokerTls,
        guard: Guard | None,
    ) -> None:
        self.opened: Final[list[Listener]] = []
        """The open listeners, the main port first."""

        self.services: Final[list[BrokerService]] = []
        self._core: Final = core
        self._send_path: Final = send_path
        self._sends: Final = sends
        self._pulls: Final = pulls
        self._visibility: Final = visibility
        self._tls: Final = tls
        self._guard: Final = guard

    def __repr__(self) -> str:
        return f"<BrokerListeners ports={len(self.opened)} connections={self.count_connections()}>"

    async def open(self, table: HandlerTable) -> None:
        """Listen. Raises OSError for a port that is taken; the caller then closes the open ones."""
        settings = self._core.settings
        ports = [(settings.listen_port, frozenset[int]())]
        if settings.fast_listen_port is not None:
            ports.append((settings.fast_listen_port, frozenset(int(code) for code in FAST_PORT_REFUSED_CODES)))
        for port, refused_codes in ports:
            port_settings = settings.listener(port)
            service = BrokerService(
                self._send_path,
                self._sends,
                self._pulls,
                table,
                WireLimits(frame_bytes_max=settings.frame_bytes_max),
                self._core.gate,
                self._core.stats.refusals,
                refused_codes=refused_codes,
                on_disconnect=self._on_disconnect,
                make_visible=self._visibility.make_visible,
                guard=self._guard,
                answers=DeferredAnswers(port_settings),
            )
            listener = Listener(service, port_settings, certificates=self._tls.clients)
            await listener.start()
            self.services.append(service)
            self.opened.append(listener)

    def _on_disconnect(self, connection: Connection) -> None:
        self._pulls.hold.drop_connection(connection)
        self._core.clients.remove_connection(connection)

    @property
    def codes(self) -> frozenset[int]:
        """Codes of requests with a handler; none before the ports are open."""
        return frozenset[int]().union(*(service.codes for service in self.services))

    def count_connections(self) -> int:
        return sum(len(listener.connections) for listener in self.opened)

    def set_limits(self, *, first_frame_bytes_max: int) -> None:
        """Set the limit of a frame before its connection has authenticated."""
        for listener in self.opened:
            listener.set_limits(first_frame_bytes_max=first_frame_bytes_max)

    def close_connections(self, reason: str) -> None:
        """Close every client's connection, and continue to listen."""
        for listener in self.opened:
            for connection in tuple(listener.connections):
                connection.close(reason)

    async def drain(self) -> None:
        """Wait for deferred answers in progress."""
        for service in self.services:
            await service.drain()

    async def close(self) -> None:
        for listener in self.opened:
            await listener.close()
