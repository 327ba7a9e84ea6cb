"""Consumer groups: their configuration, who is in them, how far they are, and moving them."""

import asyncio
from typing import final

from gantry_client.admin_brokers import Brokers
from gantry_client.documents import (
    ConsumerConnections,
    ConsumeStats,
    ConsumeTimeSpans,
    QueueProgress,
    QueueTimeSpan,
)
from gantry_client.errors import BadReply, BrokerRefused, InvalidMessage
from gantry_client.outgoing import check_group
from gantry_client.queue_calls import QueueCalls
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.admin import GroupField, GroupName, SubscriptionGroupConfig, TopicListing
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.consumers import (
    CloneOffsets,
    ConsumeStatsRequest,
    ResetOffsets,
    ResetOffsetsResult,
    TopicOfGroup,
)
from gantry_wire.names import retry_topic

_CANNOT_TELL = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.CONSUMER_NOT_ONLINE)
"""How a broker says that a reset is not its matter."""


@final
class Groups:
    """Questions and orders about consumer groups."""

    def __init__(self, session: Session, brokers: Brokers) -> None:
        self._session = session
        self._brokers = brokers
        self._queue_calls = QueueCalls(session)

    async def all(self) -> dict[str, SubscriptionGroupConfig]:
        """Every group that any master knows."""
        self._session.require_open()
        groups: dict[str, SubscriptionGroupConfig] = {}
        for broker in await self._brokers.masters():
            groups |= await self._brokers.group_table(broker.address)
        return dict(sorted(groups.items()))

    async def create(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create the group on every master, or change it there."""
        self._session.require_open()
        check_group(config.group_name)
        for broker in await self._brokers.masters(cluster):
            await self._brokers.put_group(broker.address, config)

    async def delete(self, group: str, *, with_offsets: bool = True, cluster: str | None = None) -> None:
        """Delete the group's configuration, and how far it was."""
        self._session.require_open()
        order = GroupName(group_name=group, clean_offset=with_offsets)
        for broker in await self._brokers.masters(cluster):
            await self._session.calls.demand(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, order)

    async def members(self, group: str) -> ConsumerConnections | None:
        """Who consumes for `group` now, and what; None when nobody does."""
        self._session.require_open()
        for broker in await self._brokers.masters():
            found = await self._brokers.connections(broker.address, group)
            if found is not None:
                return found
        return None

    async def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, QueueProgress]:
        """How far `group` is in every queue that it has consumed; `lag` is what is left."""
        return (await self.stats(group, topic)).offset_table

    async def stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """`progress`, and how many messages a second the group is given."""
        self._session.require_open()
        question = ConsumeStatsRequest(consumer_group=group, topic=topic)
        table: dict[MessageQueue, QueueProgress] = {}
        per_s = 0.0
        for broker in await self._brokers.masters():
            found = await self._session.calls.document(
                broker.address, RequestCode.GET_CONSUME_STATS, ConsumeStats, question
            )
            table |= found.offset_table
            per_s += found.consume_tps
        ordered = sorted(table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id))
        return ConsumeStats(offset_table=dict(ordered), consume_tps=per_s)

    async def lag(self, group: str, topic: str | None = None) -> int:
        """Messages that `group` has not consumed, those waiting to be retried included."""
        return sum(progress.lag for progress in (await self.progress(group, topic)).values())

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Have `group` go on at the first message stored at or after `timestamp_ms`; -1 means at the end.

        Brokers move consumers that are running. One that cannot, or that has no members to tell, gets plain commits.
        """
        self._session.require_open()
        order = ResetOffsets(topic=topic, group=group, timestamp=timestamp_ms, is_force=True)
        route = await self._session.routes.get(topic)
        offsets: dict[MessageQueue, int] = {}
        for broker_name in {queue.broker_name for queue in route.read_queues}:
            address = route.master_address(broker_name)
            if address is None:
                continue
            try:
                offsets |= await self._reset(address, order)
            except BrokerRefused as error:
                if error.code not in _CANNOT_TELL:
                    raise
                queues = [queue for queue in route.read_queues if queue.broker_name == broker_name]
                offsets |= await self._commit_at(group, queues, timestamp_ms)
        return offsets

    async def reset_queue(self, group: str, queue: MessageQueue, offset: int) -> int:
        """Have `group` go on at `offset` of this queue; where it goes on. Raises BrokerRefused outside of the queue.

        A broker that leaves the moving to members would move all queues: it gets a plain commit, and is refused here
        while the group has members.
        """
        self._session.require_open()
        order = ResetOffsets(
            topic=queue.topic, group=group, timestamp=-1, is_force=True, queue_id=queue.queue_id, offset=offset
        )
        route = await self._session.routes.get(queue.topic)
        address = route.demand_master(queue.broker_name)
        if (await self._brokers.config(address)).get("useServerSideResetOffset") != "true":
            if await self.members(group) is not None:
                raise InvalidMessage(f"{address} cannot move one queue of a group that is running: stop {group} first")
            await self._queue_calls.commit(group, queue, offset)
            return offset
        table = await self._reset(address, order)
        if set(table) != {queue}:
            raise BadReply(f"{address} has reset other queues than {queue}")
        return table[queue]

    async def places(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Where a reset to that time would lead in every queue: -1 is the end, 0 the beginning."""
        self._session.require_open()
        route = await self._session.routes.get(topic)
        queues = list(route.read_queues)
        return dict(
            zip(queues, await asyncio.gather(*(self._place(queue, timestamp_ms) for queue in queues)), strict=True)
        )

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """How far `group` is in every queue of `topic`; None where it has not begun."""
        self._session.require_open()
        route = await self._session.routes.get(topic)
        queues = list(route.read_queues)
        found = await asyncio.gather(*(self._queue_calls.committed(group, queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def clone(self, source: str, target: str, topic: str | None = None) -> None:
        """Have `target` go on where `source` is, in one topic or in all; its running members know nothing of it."""
        self._session.require_open()
        check_group(target)
        topics = [topic] if topic is not None else await self.topics(source)
        for one in topics:
            order = CloneOffsets(src_group=source, dest_group=target, topic=one, offline=True)
            for broker in await self._brokers.masters():
                await self._session.calls.demand(broker.address, RequestCode.CLONE_GROUP_OFFSET, order)

    async def topics(self, group: str) -> list[str]:
        """Topics that `group` has offsets in, its own retry topic among them."""
        self._session.require_open()
        found: set[str] = set()
        for broker in await self._brokers.masters():
            listing = await self._session.calls.document(
                broker.address, RequestCode.QUERY_TOPICS_BY_CONSUMER, TopicListing, GroupField(group=group)
            )
            found.update(listing.topic_list)
        return sorted(found)

    async def time_spans(self, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        """How far `group` is in time, for every queue of `topic`."""
        self._session.require_open()
        question = TopicOfGroup(group=group, topic=topic)
        route = await self._session.routes.get(topic)
        spans: dict[MessageQueue, QueueTimeSpan] = {}
        for address in filter(None, (route.master_address(name) for name in route.brokers)):
            found = await self._session.calls.document(
                address, RequestCode.QUERY_CONSUME_TIME_SPAN, ConsumeTimeSpans, question
            )
            spans |= {span.message_queue: span for span in found.consume_time_span_set}
        return dict(sorted(spans.items(), key=lambda item: (item[0].broker_name, item[0].queue_id)))

    async def retry_lag(self, group: str) -> int:
        """Messages of the group that failed and wait to be delivered again."""
        progress = await self.progress(group, retry_topic(group))
        return sum(queue.lag for queue in progress.values())

    async def _reset(self, address: str, order: ResetOffsets) -> dict[MessageQueue, int]:
        reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return (await self._session.calls.document(address, reset, ResetOffsetsResult, order)).offset_table

    async def _commit_at(self, group: str, queues: list[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        offsets: dict[MessageQueue, int] = {}
        for queue in queues:
            offsets[queue] = await self._place(queue, timestamp_ms)
            await self._queue_calls.commit(group, queue, offsets[queue])
        return offsets

    async def _place(self, queue: MessageQueue, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return await self._queue_calls.max_offset(queue)
        return await self._queue_calls.offset_at(queue, timestamp_ms)
