"""Resets the offsets of a consumer group in a topic (222), or copies those of another group (314).

    222, useServerSideResetOffset=true    the offset is set, and readers are redirected with their next pull, or at once
                                          if it is held; works for groups without consumers, too
    222, ...=false                        consumers are notified (220) and reset themselves; refused without any
    314                                   the offsets are copied; running readers of the group are not redirected

As in RocketMQ the first way sets any offset, and the second moves forward only with the force flag. A target outside
the queue is refused; RocketMQ accepts the one after its end. A single queue is refused in the second way; RocketMQ then
resets all queues.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.queue_table import QueueTable
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.groups.members import NAME_CHARACTERS_MAX, ConsumerCalls, check_client_versions
from gantry_broker.server.groups.offset_handlers import keep_subscribed
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names, oneway
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.consumers import CloneOffsets, ResetOffsets
from gantry_wire.fastjson import dumps

log = logging.getLogger(__name__)

Wake = Callable[[Iterable[tuple[str, int]]], None]
"""Retries the held pulls of queues, each given by topic and queue id."""


@final
class ResetHandlers:
    """The handlers of resets, codes 222 and 314. Owned by the event loop."""

    def __init__(self, core: BrokerCore, calls: ConsumerCalls, wake: Wake) -> None:
        """``wake`` retries the held pulls of queues."""
        self._core = core
        self._calls = calls
        self._wake = wake

    # Handlers make their changes synchronously; only the answers wait, for the disk.

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, command: Command, connection: Connection) -> Command | Awaitable[Command]:
        request = ResetOffsets.read(command.ext)
        config = self._core.topics.find(request.topic)
        searched = [] if config is None else self._list_archived(request, config)
        if searched:
            return self._reset_after_search(command, request, searched)
        return self._reset(command, request, {})

    def _list_archived(self, request: ResetOffsets, config: TopicConfig) -> list[int]:
        """Return the queues whose messages of the requested time are in the archive only."""
        is_single = request.queue_id is not None and request.queue_id >= 0
        if is_single and request.offset not in (None, -1):
            return []
        count = max(config.read_queue_nums, config.write_queue_nums)
        queue_ids = [request.queue_id or 0] if is_single else range(count)
        find = self._core.must_search_archive
        return [one for one in queue_ids if request.timestamp >= 0 and find(request.topic, one, request.timestamp)]

    async def _reset_after_search(self, command: Command, request: ResetOffsets, queue_ids: list[int]) -> Command:
        search = self._core.search_archive
        archived = {one: await search(request.topic, one, request.timestamp) for one in queue_ids}
        refusal = self._core.gate.refusal(command.code)
        if refusal is not None:  # the role was lost meanwhile
            raise Refused(refusal.code, refusal.remark)
        answer = self._reset(command, request, archived)
        return answer if isinstance(answer, Command) else await answer

    def _reset(
        self, command: Command, request: ResetOffsets, archived: Mapping[int, int]
    ) -> Command | Awaitable[Command]:
        """Reset the offsets. ``archived`` has the targets of queues that were searched in the archive."""
        config = self._core.topics.find(request.topic)
        if not self._core.settings.is_reset_kept:
            return self._notify_members(command, request, config, archived)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic[:NAME_CHARACTERS_MAX]} does not exist")
        if request.group not in self._core.groups.all:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {request.group[:NAME_CHARACTERS_MAX]} does not exist"
            )
        offsets = self._find_targets(request, config, archived)
        if not offsets:
            raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in offsets.items():
            self._core.offsets.reset(request.group, request.topic, queue_id, offset)
        self._wake((request.topic, queue_id) for queue_id in offsets)
        log.info(
            "consumer group offsets reset", extra={"group": request.group, "topic": request.topic, "offsets": offsets}
        )
        return self._reply_when_written(command, self._encode_offsets(request.topic, offsets))

    @handles(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """Copy offsets from one group to another.

        Without a topic, in all but retry and dead letter topics; RocketMQ copies none then. If the source group is
        online, only the topics that it subscribes to are copied, unless the request says ``offline``.
        """
        request = CloneOffsets.read(command.ext)
        core, source = self._core, request.src_group
        every = (topic for topic in core.offsets.topics_of(source) if not names.is_retry_or_dead_letter(topic))
        topics = [request.topic] if request.topic else list(every)
        for topic in topics if request.offline else keep_subscribed(core, source, topics):
            if topic in core.topics:
                core.offsets.clone(source, request.dest_group, topic)
        return self._reply_when_written(command)

    # ------- target offsets

    def _find_targets(self, request: ResetOffsets, config: TopicConfig, archived: Mapping[int, int]) -> dict[int, int]:
        queue_id, offset = request.queue_id, request.offset
        if queue_id is None or queue_id < 0:
            every = range(config.read_queue_nums)
            return {each: self._find_offset(request.topic, each, request.timestamp, archived) for each in every}
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{request.topic[:NAME_CHARACTERS_MAX]}]",
            )
        if offset is None or offset == -1:
            return {queue_id: self._find_offset(request.topic, queue_id, request.timestamp, archived)}
        first, end = self._core.served_range(request.topic, queue_id)
        if not first <= offset <= end:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{first}-{end}]"
            )
        return {queue_id: offset}

    def _find_offset(self, topic: str, queue_id: int, timestamp_ms: int, archived: Mapping[int, int]) -> int:
        """Return the offset of the first message of this time or later; the end of the queue for a negative time."""
        if timestamp_ms < 0:
            return self._core.readable_range(topic, queue_id)[1]
        if queue_id in archived:
            return archived[queue_id]
        return self._core.store.times.offset_by_time(topic, queue_id, timestamp_ms)

    def _encode_offsets(self, topic: str, offsets: dict[int, int]) -> bytes:
        table = QueueTable(self._core.settings.broker_name)
        table.add(topic, offsets.items())
        return dumps({"offsetTable": table.render()})

    async def _reply_when_written(self, command: Command, body: bytes = b"") -> Command:
        """Write the offsets to disk, wait until popped messages are reset durably, too, and answer afterwards."""
        self._core.persistence.mark("consumerOffset", now=False)
        await self._core.persistence.wait_until_written("consumerOffset")
        await self._core.offsets.wait_for_changes()
        return command.reply(body=body)

    # ------- resets by members

    def _notify_members(
        self, command: Command, request: ResetOffsets, config: TopicConfig | None, archived: Mapping[int, int]
    ) -> Command:
        """Send every consumer the offsets of all queues; it resets the queues that it has."""
        topic, group = request.topic, request.group
        if config is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic[:NAME_CHARACTERS_MAX]}",
            )
        if request.queue_id is not None and request.queue_id >= 0:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {request.queue_id}: a single queue cannot be reset with useServerSideResetOffset=false",
            )
        offsets: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            committed = self._core.offsets.find(group, topic, queue_id)
            if committed is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group[:NAME_CHARACTERS_MAX]}> not exist"
                )
            target = self._find_offset(topic, queue_id, request.timestamp, archived)
            offsets[queue_id] = target if request.is_force or target < committed else committed
        members = self._calls.list_members(group)
        if not members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group[:NAME_CHARACTERS_MAX]} "
                f"Topic: {topic[:NAME_CHARACTERS_MAX]} Timestamp: {request.timestamp}",
            )
        check_client_versions(members)
        body = self._encode_offsets(topic, offsets)
        notice_body = self._encode_offsets_for_cpp(topic, offsets) if command.language == "CPP" else body
        ext = ResetOffsets(topic=topic, group=group, timestamp=request.timestamp, is_force=False).write()
        for member in members:
            member.connection.send(oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, notice_body).encode())
        return command.reply(body=body)

    def _encode_offsets_for_cpp(self, topic: str, offsets: dict[int, int]) -> bytes:
        """Return the table in the format of consumers in C++, whose JSON has no objects as keys."""
        name = self._core.settings.broker_name
        rows = [
            {"brokerName": name, "offset": offset, "queueId": queue_id, "topic": topic}
            for queue_id, offset in offsets.items()
        ]
        return dumps({"offsetTable": rows})
