"""Who produces: code 328."""

from typing import Any, final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.core.clients import Member
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode
from gantry_wire.fastjson import dumps


@final
class ProducerHandlers:
    """Code 328. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.GET_ALL_PRODUCER_INFO: self.all}

    def all(self, command: Command, connection: Connection) -> Command:
        """Every producer of every group."""
        clock = self._core.clock
        shift_ms = clock.wall_ms() - clock.monotonic_ms()
        groups = self._core.clients.producers
        data = {group: [_producer(one, shift_ms) for one in members.values()] for group, members in groups.items()}
        return command.reply(body=dumps({"data": data}))


def _producer(member: Member, shift_ms: int) -> dict[str, Any]:
    """A client as Java's ProducerInfo bean; addresses of channels begin with a slash there."""
    return {
        "clientId": member.client_id,
        "language": member.language,
        "lastUpdateTimestamp": member.seen_at_ms + shift_ms,
        "remoteIP": f"/{member.address}",
        "version": member.version,
    }
