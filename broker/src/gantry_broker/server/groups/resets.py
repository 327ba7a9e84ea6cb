"""Moving a consumer group: where it goes on in a topic (222), or in another one's place (314).

    222, useServerSideResetOffset=true    the offset is set, and readers are sent there with their next pull, or at once
                                          if it is held; groups without members are moved, too
    222, ...=false                        members are told (220) and move by themselves; without members it is refused
    314                                   the offsets are copied; readers of the group that run now know nothing of it

As in RocketMQ the first way does what it is told, and the second goes forward only if it is forced to. A target that
the queue does not hold is refused: RocketMQ lets one pass that lies one beyond its end. So is one queue in the second
way: RocketMQ then moves all of them.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.topics import queue_key
from gantry_broker.server.groups.members import SHOWN, ConsumerCalls, refuse_old
from gantry_broker.server.groups.offset_handlers import subscribed
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names, oneway
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.consumers import CloneOffsets, ResetOffsets
from gantry_wire.fastjson import dumps

log = logging.getLogger(__name__)

Wake = Callable[[Iterable[tuple[str, int]]], None]


@final
class ResetHandlers:
    """Codes 222 and 314. Owned by the event loop."""

    def __init__(self, core: BrokerCore, calls: ConsumerCalls, wake: Wake) -> None:
        """``wake`` has pulls looked at again that wait at these queues."""
        self._core = core
        self._calls = calls
        self._wake = wake

    # Changes are made before anything else is handled; only the answers wait, for the disk.

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, command: Command, connection: Connection) -> Command | Awaitable[Command]:
        request = ResetOffsets.read(command.ext)
        config = self._core.topics.find(request.topic)
        if not self._core.settings.is_reset_kept:
            return self._tell(command, request, config)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic[:SHOWN]} does not exist")
        if request.group not in self._core.groups.all:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {request.group[:SHOWN]} does not exist")
        offsets = self._targets(request, config)
        if not offsets:
            raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in offsets.items():
            self._core.offsets.reset(request.group, request.topic, queue_id, offset)
        self._wake((request.topic, queue_id) for queue_id in offsets)
        log.info("a group is moved", extra={"group": request.group, "topic": request.topic, "offsets": offsets})
        return self._when_settled(command, self._table(request.topic, offsets))

    @handles(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """All topics but its retries, if none is named: RocketMQ then copies none.

        Of a group that is online, what it subscribes to.
        """
        request = CloneOffsets.read(command.ext)
        core, source = self._core, request.src_group
        every = (topic for topic in core.offsets.topics_of(source) if not names.is_retry_or_dead_letter(topic))
        topics = [request.topic] if request.topic else list(every)
        for topic in topics if request.offline else subscribed(core, source, topics):
            if topic in core.topics:
                core.offsets.clone(source, request.dest_group, topic)
        return self._when_settled(command)

    # ------- where to

    def _targets(self, request: ResetOffsets, config: TopicConfig) -> dict[int, int]:
        queue_id, offset = request.queue_id, request.offset
        if queue_id is None or queue_id < 0:
            every = range(config.read_queue_nums)
            return {each: self._at(request.topic, each, request.timestamp) for each in every}
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic:[{request.topic[:SHOWN]}]"
            )
        if offset is None or offset == -1:
            return {queue_id: self._at(request.topic, queue_id, request.timestamp)}
        first, end = self._core.readable_range(request.topic, queue_id)
        if not first <= offset <= end:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{first}-{end}]"
            )
        return {queue_id: offset}

    def _at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message of that time or later; the end for a time before all times."""
        if timestamp_ms < 0:
            return self._core.readable_range(topic, queue_id)[1]
        return self._core.store.times.offset_by_time(topic, queue_id, timestamp_ms)

    def _table(self, topic: str, offsets: dict[int, int]) -> bytes:
        name = self._core.settings.broker_name
        return dumps({"offsetTable": {queue_key(topic, name, each): offset for each, offset in offsets.items()}})

    async def _when_settled(self, command: Command, body: bytes = b"") -> Command:
        """The change is on disk: a start afterwards knows it."""
        self._core.persistence.mark("consumerOffset", now=False)
        await self._core.persistence.settled("consumerOffset")
        return command.reply(body=body)

    # ------- the older way

    def _tell(self, command: Command, request: ResetOffsets, config: TopicConfig | None) -> Command:
        """Every member gets the whole table, and takes out of it the queues that are its own."""
        topic, group = request.topic, request.group
        if config is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic[:SHOWN]}",
            )
        if request.queue_id is not None and request.queue_id >= 0:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {request.queue_id} alone is not moved: useServerSideResetOffset=false",
            )
        offsets: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            committed = self._core.offsets.find(group, topic, queue_id)
            if committed is None:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group[:SHOWN]}> not exist")
            target = self._at(topic, queue_id, request.timestamp)
            offsets[queue_id] = target if request.is_force or target < committed else committed
        members = self._calls.members(group)
        if not members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group[:SHOWN]} Topic: {topic[:SHOWN]} "
                f"Timestamp: {request.timestamp}",
            )
        refuse_old(members)
        body = self._table(topic, offsets)
        told = self._listed(topic, offsets) if command.language == "CPP" else body
        ext = ResetOffsets(topic=topic, group=group, timestamp=request.timestamp, is_force=False).write()
        for member in members:
            member.connection.send(oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, told).encode())
        return command.reply(body=body)

    def _listed(self, topic: str, offsets: dict[int, int]) -> bytes:
        """The table as members in C++ read it: their JSON has no objects for keys."""
        name = self._core.settings.broker_name
        rows = [
            {"brokerName": name, "offset": offset, "queueId": queue_id, "topic": topic}
            for queue_id, offset in offsets.items()
        ]
        return dumps({"offsetTable": rows})
