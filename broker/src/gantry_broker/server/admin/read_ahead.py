"""How the log is read: code 2004."""

import logging
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode

log = logging.getLogger(__name__)

FIELD: Final = "READ_AHEAD_MODE"
MODES: Final = {"0": True, "1": False}
"""RocketMQ takes the numbers that madvise has: 0 for reading in order, 1 for reading here and there."""


@final
class ReadAheadHandlers:
    """Owned by the event loop. Holds until the broker stops, as in RocketMQ; a slave has a mode of its own."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.SET_COMMITLOG_READ_MODE: self.set}

    def set(self, command: Command, connection: Connection) -> Command:
        mode = command.ext.get(FIELD, "")
        if mode not in MODES:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{FIELD} is 0 (read ahead) or 1 (do not)")
        self._core.store.read_in_order(MODES[mode])
        log.info("how the log is read was changed", extra={"is_read_ahead": MODES[mode]})
        return command.reply(remark=f"set commitlog readahead mode success, mode: {mode}")
