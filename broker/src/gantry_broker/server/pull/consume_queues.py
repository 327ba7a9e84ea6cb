"""A consume queue as it lies there: where each message is in the log, how large, and the hash of its tag (321).

With a group its subscription is told along, and for one in SQL92 what its filter is. ``eval`` is false, as RocketMQ
says it for every unit without an extension, and there are no extensions here. An index that the queue does not hold is
answered 0 with a text and no body, which is what RocketMQ's tool expects of it.
"""

import json
from typing import Any, Final, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.core.clients import Subscription
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.consumers import QueryConsumeQueue
from gantry_wire.fastjson import dumps
from gantry_wire.filters import is_tag_type

UNITS_MAX: Final = 10_000
"""Units in one answer, whatever the client asks for: each is some hundred bytes of it."""


@final
class ConsumeQueueHandlers:
    """Code 321. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.QUERY_CONSUME_QUEUE: self.query}

    def query(self, command: Command, connection: Connection) -> Command:
        request = QueryConsumeQueue.read(command.ext)
        topic, queue_id, index = request.topic, request.queue_id, request.index
        queue = self._core.store.find_queue(topic, queue_id)
        if queue is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic[:300]} is not exist!")
        if not queue.min_offset <= index < queue.readable_end:
            return command.reply(remark=f"Index {index} of {queue_id}@{topic} is not exist!")
        end = index + max(0, min(request.count, UNITS_MAX))
        rows = [
            {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": code}
            for physical, size, code in queue.units(index, end)
        ]
        document: dict[str, Any] = {
            "maxQueueIndex": queue.readable_end,
            "minQueueIndex": queue.min_offset,
            "queueData": rows,
        }
        if request.consumer_group is not None:
            document |= self._subscription(request.consumer_group, topic)
        return command.reply(body=dumps(document))

    def _subscription(self, group: str, topic: str) -> dict[str, Any]:
        found = self._core.clients.subscription(group, topic)
        if found is None:
            return {"filterData": f"{group}@{topic} is not online!"}
        return {"filterData": filter_text(group, found), "subscriptionData": msgspec.to_builtins(found.data)}


def filter_text(group: str, subscription: Subscription) -> str:
    """What is kept of a filter over properties, as RocketMQ prints it; it keeps nothing of tags."""
    data = subscription.data
    if is_tag_type(data.expression_type):
        return "null"
    kept = {
        "clientVersion": data.sub_version,
        "consumerGroup": group,
        "dead": False,
        "deadTime": 0,
        "expression": data.sub_string,
        "expressionType": data.expression_type,
        "topic": data.topic,
    }
    return json.dumps(kept, indent="\t", separators=(",", ":"), ensure_ascii=False)
