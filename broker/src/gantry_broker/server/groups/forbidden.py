"""Which group may not read which topic: code 353."""

from typing import final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.groups.offset_handlers import group_fault_refusal
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.admin import GroupForbidden
from gantry_wire.fastjson import dumps


@final
class ForbiddenHandlers:
    """Code 353. Owned by the event loop.

    A group is kept from one topic; whatever its clients subscribe to otherwise goes on. Pulls are refused, however they
    name their subscription: RocketMQ looks only at those of subscriptions from heartbeats.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.update}

    async def update(self, command: Command, connection: Connection) -> Command:
        """Changed if the request says how, and answered with how it is: after a change when that is on the disk."""
        asked = GroupForbidden.read(command.ext)
        refusal = group_fault_refusal(asked.group)
        if refusal is not None:
            raise refusal
        fault = names.topic_fault(asked.topic)
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic[{asked.topic[:300]}] is illegal: {fault.value}")
        if asked.readable is not None:
            self._core.groups.forbid(asked.group, asked.topic, is_forbidden=not asked.readable)
            await self._core.persistence.settled("subscriptionGroup")
        is_forbidden = self._core.groups.is_forbidden(asked.group, asked.topic)
        return command.reply(body=dumps({"group": asked.group, "readable": not is_forbidden, "topic": asked.topic}))
