"""How far consumer groups are: of one group (208), of all (317), and in time (303).

The topics of a group are those that it has offsets in. While it has members, those that it does not subscribe to any
more are left out, as in RocketMQ; whoever lists topics by name gets just these. ``pullOffset`` is up to where its
readers were given messages: what lies between it and ``consumerOffset`` is in their hands.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.core.topics import queue_key
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.consumers import BrokerConsumeStatsRequest, ConsumeStatsRequest, TopicOfGroup
from gantry_wire.fastjson import ObjectKey, dumps

Rate = Callable[[str, str], float]
"""Messages a second that a group is given of a topic."""


@final
class ProgressHandlers:
    """Codes 208, 303 and 317. Owned by the event loop."""

    def __init__(self, core: BrokerCore, rate: Rate = lambda group, topic: 0.0) -> None:
        self._core = core
        self._rate = rate

    def table(self) -> HandlerTable:
        return {
            RequestCode.GET_CONSUME_STATS: self.of_group,
            RequestCode.GET_BROKER_CONSUME_STATS: self.of_broker,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
        }

    def of_group(self, command: Command, connection: Connection) -> Command:
        request = ConsumeStatsRequest.read(command.ext)
        group = request.consumer_group
        topics = request.topics
        if not topics:
            known = [request.topic] if request.topic else self._core.offsets.topics_of(group)
            topics = self._read_now(group, known)
        table: dict[ObjectKey, Any] = {}
        rate = 0.0
        for topic in topics:
            config = self._core.topics.find(topic)
            if config is not None:
                table |= self._queues(group, topic, config.read_queue_nums)
                rate += self._rate(group, topic)
        return command.reply(body=dumps({"consumeTps": rate, "offsetTable": table}))

    async def of_broker(self, command: Command, connection: Connection) -> Command:
        """RocketMQ does not say here how far readers are; ``pullOffset`` is 0 there, and the total below nothing."""
        request = BrokerConsumeStatsRequest.read(command.ext)
        listing: list[dict[str, list[dict[str, Any]]]] = []
        totals = Counter[str]()
        for group in list(self._core.groups.all):
            stats = []
            for topic in self._read_now(group, self._core.offsets.topics_of(group)):
                await self._give_way()
                config = self._core.topics.find(topic)
                if config is None or (request.is_order and not config.order):
                    continue
                queues = self._queues(group, topic, config.write_queue_nums)
                for queue in queues.values():
                    totals["behind"] += queue["brokerOffset"] - queue["consumerOffset"]
                    totals["in hand"] += queue["pullOffset"] - queue["consumerOffset"]
                stats.append({"consumeTps": self._rate(group, topic), "offsetTable": queues})
            listing.append({group: stats})
        document = {
            "brokerAddr": self._core.settings.address,
            "consumeStatsList": listing,
            "totalDiff": totals["behind"],
            "totalInflightDiff": totals["in hand"],
        }
        return command.reply(body=dumps(document))

    async def _give_way(self) -> None:
        """Others have their turn between two topics, and the store may be somebody else's then."""
        await asyncio.sleep(0)
        if self._core.gate.is_still:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now, its log is being changed")

    def time_spans(self, command: Command, connection: Connection) -> Command:
        """Of each queue: when its first and last message were stored, the last consumed, and how late the next is."""
        request = TopicOfGroup.read(command.ext)
        topic, core = request.topic or "", self._core
        config = core.topics.find(topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
        spans = [self._span(request.group, topic, queue_id) for queue_id in range(config.write_queue_nums)]
        return command.reply(body=dumps({"consumeTimeSpanSet": spans}))

    def _span(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        store = self._core.store
        queue = store.find_queue(topic, queue_id)
        first, end = (0, 0) if queue is None else (queue.min_offset, queue.readable_end)
        consumed = self._core.offsets.find(group, topic, queue_id) or 0
        earliest = store.earliest_time(topic, queue_id)
        next_time = store.store_time(topic, queue_id, max(consumed, first)) if consumed < end else -1
        return {
            "consumeTimeStamp": store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else earliest,
            "delayTime": self._core.clock.wall_ms() - next_time if next_time >= 0 else 0,
            "maxTimeStamp": store.store_time(topic, queue_id, end - 1),
            "messageQueue": dict(queue_key(topic, self._core.settings.broker_name, queue_id)),
            "minTimeStamp": earliest,
        }

    def _read_now(self, group: str, topics: list[str]) -> list[str]:
        state = self._core.clients.consumers.get(group)
        if state is None or not state.subscriptions:
            return topics
        return [topic for topic in topics if topic in state.subscriptions]

    def _queues(self, group: str, topic: str, count: int) -> dict[ObjectKey, dict[str, int]]:
        name = self._core.settings.broker_name
        return {queue_key(topic, name, queue_id): self._queue(group, topic, queue_id) for queue_id in range(count)}

    def _queue(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        store, offsets = self._core.store, self._core.offsets
        queue = store.find_queue(topic, queue_id)
        end = 0 if queue is None else queue.readable_end
        consumed = max(0, offsets.find(group, topic, queue_id) or 0)
        last = store.store_time(topic, queue_id, consumed - 1) if 0 < consumed <= end else 0
        return {
            "brokerOffset": end,
            "consumerOffset": consumed,
            "lastTimestamp": max(0, last),
            "pullOffset": max(consumed, offsets.pull_offset(group, topic, queue_id)),
        }
