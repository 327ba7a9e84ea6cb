"""What the broker has counted: code 315."""

from typing import final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import StatisticsKey
from gantry_wire.fastjson import dumps

WINDOWS = ("statsMinute", "statsHour", "statsDay")


@final
class StatisticsHandlers:
    """Code 315. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, command: Command, connection: Connection) -> Command:
        """One counter over the last minute, hour and day. What nobody has counted is no counter, as in RocketMQ."""
        asked = StatisticsKey.read(command.ext)
        found = self._core.statistics.find(asked.stats_name, asked.stats_key)
        if found is None:
            name, key = asked.stats_name[:64], asked.stats_key[:600]
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return command.reply(body=dumps({name: one._asdict() for name, one in zip(WINDOWS, found, strict=True)}))
