"""Consumer groups: their configuration, consumers, progress, and resetting their offsets."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, final

from gantry_client.admin_brokers import Brokers
from gantry_client.documents import (
    ConsumerConnections,
    ConsumeStats,
    ConsumeTimeSpans,
    QueueProgress,
    QueueTimeSpan,
)
from gantry_client.errors import BadReply, BrokerRefused, ClientError, InvalidMessage
from gantry_client.outgoing import check_group
from gantry_client.queue_calls import QueueCalls
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.admin import GroupField, GroupName, SubscriptionGroupConfig, TopicListing, TopicName
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.consumers import (
    CloneOffsets,
    ConsumeStatsRequest,
    ResetOffsets,
    ResetOffsetsResult,
    TopicOfGroup,
)
from gantry_wire.names import is_retry_or_dead_letter, retry_topic

_RESET_UNSUPPORTED_CODES = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.CONSUMER_NOT_ONLINE)
"""Response codes of a broker that cannot reset a group itself: offsets are committed instead."""

DELAY_MS_MAX: Final = 10 * 365 * 86_400_000
"""A longer delay is no delay: Apache's brokers compute it from the store time -1 if the message is deleted."""


@final
class Groups:
    """Requests about consumer groups, to all masters."""

    def __init__(self, session: Session, brokers: Brokers) -> None:
        self._session = session
        self._brokers = brokers
        self._queue_calls = QueueCalls(session)

    async def all(self) -> dict[str, SubscriptionGroupConfig]:
        """Return every group that is configured on any master."""
        self._session.require_open()
        groups: dict[str, SubscriptionGroupConfig] = {}
        for broker in await self._brokers.masters():
            groups |= await self._brokers.group_table(broker.address)
        return dict(sorted(groups.items()))

    async def create(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create or update a group on every master (of `cluster`, if given)."""
        self._session.require_open()
        check_group(config.group_name)
        for broker in await self._brokers.masters(cluster):
            await self._brokers.put_group(broker.address, config)

    async def delete(self, group: str, *, with_offsets: bool = True, cluster: str | None = None) -> None:
        """Delete the configuration of a group and, unless `with_offsets` is False, its offsets and its retry topic.

        As with mqadmin, brokers would keep the retry topic for ever, also an empty one. Dead letters are kept.
        """
        self._session.require_open()
        request = GroupName(group_name=group, clean_offset=with_offsets)
        retries = TopicName(topic=retry_topic(group))
        for broker in await self._brokers.masters(cluster):
            await self._session.calls.request_success(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, request)
            if with_offsets:
                await self._session.calls.request_success(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, retries)

    async def members(self, group: str) -> ConsumerConnections | None:
        """Return the consumers of `group` and their subscriptions, as the first master with any reports them.

        None if no master has any. `Consumers.connections` returns those of all masters.
        """
        self._session.require_open()
        for broker in await self._brokers.masters():
            found = await self._brokers.connections(broker.address, group)
            if found is not None:
                return found
        return None

    async def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, QueueProgress]:
        """Return the progress of `group` in every queue of `topic`, or of all topics in which it has offsets.

        Topics to which the consumers of a running group do not subscribe are left out.
        """
        return (await self.stats(group, topic)).offset_table

    async def stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return `progress` together with the delivery rate of the group in messages per second."""
        self._session.require_open()
        request = ConsumeStatsRequest(consumer_group=group, topic=topic)
        table: dict[MessageQueue, QueueProgress] = {}
        per_s = 0.0
        for broker in await self._brokers.masters():
            found = await self._session.calls.request_document(
                broker.address, RequestCode.GET_CONSUME_STATS, ConsumeStats, request
            )
            table |= found.offset_table
            per_s += found.consume_tps
        ordered = sorted(table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id))
        return ConsumeStats(offset_table=dict(ordered), consume_tps=per_s)

    async def lag(self, group: str, topic: str | None = None) -> int:
        """Return how many messages `group` has not consumed; without `topic` including those in its retry topic.

        A message whose handler failed is in the retry topic only after its delay, and is not counted until then.
        """
        return sum(progress.lag for progress in (await self.progress(group, topic)).values())

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Reset `group` to the first message stored at or after `timestamp_ms`; -1 means the end of each queue.

        Brokers move running consumers. Where a broker cannot, or has no connected consumers, the offsets are committed.
        Queues of a broker without a master are not reset, and are missing from the result.
        """
        self._session.require_open()
        request = ResetOffsets(topic=topic, group=group, timestamp=timestamp_ms, is_force=True)
        route = await self._session.routes.get(topic)
        offsets: dict[MessageQueue, int] = {}
        for broker_name in {queue.broker_name for queue in route.read_queues}:
            address = route.master_address(broker_name)
            if address is None:
                continue
            try:
                offsets |= await self._reset(address, request)
            except BrokerRefused as error:
                if error.code not in _RESET_UNSUPPORTED_CODES:
                    raise
                queues = [queue for queue in route.read_queues if queue.broker_name == broker_name]
                offsets |= await self._commit_at(group, queues, timestamp_ms)
        return offsets

    async def reset_queue(self, group: str, queue: MessageQueue, offset: int) -> int:
        """Reset `group` to `offset` in one queue and return the new offset. Raises BrokerRefused outside the queue.

        A broker without `useServerSideResetOffset` leaves resets to the consumers, for all queues at once. There the
        offset is committed instead, also one outside the queue, and the call raises InvalidMessage while the group has
        consumers.
        """
        self._session.require_open()
        request = ResetOffsets(
            topic=queue.topic, group=group, timestamp=-1, is_force=True, queue_id=queue.queue_id, offset=offset
        )
        route = await self._session.routes.get(queue.topic)
        address = route.require_master(queue.broker_name)
        if (await self._brokers.config(address)).get("useServerSideResetOffset") != "true":
            if await self.members(group) is not None:
                raise InvalidMessage(
                    f"{address} cannot reset one queue of a running group; stop the members of {group} first"
                )
            await self._queue_calls.commit(group, queue, offset)
            return offset
        table = await self._reset(address, request)
        if set(table) != {queue}:
            raise BadReply(f"{address} reset other queues than {queue}")
        return table[queue]

    async def reset_targets(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Return the offset that a reset to `timestamp_ms` would set in every queue: -1 is the end, 0 the beginning."""
        self._session.require_open()
        route = await self._session.routes.get(topic)
        queues = list(route.read_queues)
        return dict(
            zip(
                queues,
                await asyncio.gather(*(self._reset_target(queue, timestamp_ms) for queue in queues)),
                strict=True,
            )
        )

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset of `group` in every queue of `topic`; None where it has none."""
        self._session.require_open()
        route = await self._session.routes.get(topic)
        queues = list(route.read_queues)
        found = await asyncio.gather(*(self._queue_calls.committed(group, queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def clone(self, source: str, target: str, topic: str | None = None) -> None:
        """Copy the offsets of `source` to `target`, in one topic, or in all but retry and dead letter topics.

        Running consumers do not notice.
        """
        self._session.require_open()
        check_group(target)
        if topic is None:
            topics = [name for name in await self.topics(source) if not is_retry_or_dead_letter(name)]
        else:
            topics = [topic]
        for topic_name in topics:
            request = CloneOffsets(src_group=source, dest_group=target, topic=topic_name, offline=True)
            for broker in await self._brokers.masters():
                await self._session.calls.request_success(broker.address, RequestCode.CLONE_GROUP_OFFSET, request)

    async def topics(self, group: str) -> list[str]:
        """Return the topics in which `group` has offsets, including its retry topic."""
        self._session.require_open()
        found: set[str] = set()
        for broker in await self._brokers.masters():
            listing = await self._session.calls.request_document(
                broker.address, RequestCode.QUERY_TOPICS_BY_CONSUMER, TopicListing, GroupField(group=group)
            )
            found.update(listing.topic_list)
        return sorted(found)

    async def time_spans(self, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        """Return the consumed time span of `group` for every queue of `topic`."""
        self._session.require_open()
        request = TopicOfGroup(group=group, topic=topic)
        route = await self._session.routes.get(topic)
        spans: dict[MessageQueue, QueueTimeSpan] = {}
        for address in filter(None, (route.master_address(name) for name in route.brokers)):
            found = await self._session.calls.request_document(
                address, RequestCode.QUERY_CONSUME_TIME_SPAN, ConsumeTimeSpans, request
            )
            spans |= {span.message_queue: span for span in found.consume_time_span_set}
        return dict(sorted(spans.items(), key=lambda item: (item[0].broker_name, item[0].queue_id)))

    async def lag_seconds(
        self, group: str, progress: Mapping[MessageQueue, QueueProgress]
    ) -> dict[MessageQueue, float | None]:
        """Return the age of the oldest message that `group` has not consumed, for every queue of its `progress`.

        It is 0 without lag. Gantry's and Apache's brokers report for how long the message at the offset has waited.
        Where they do not, as for a topic without a route, it is the time since the last consumed message was stored
        (`lastTimestamp`): the oldest message has waited at most as long. None if the broker does not know that either.
        """
        self._session.require_open()
        topics = sorted({queue.topic for queue, one in progress.items() if one.lag > 0})
        found = await asyncio.gather(*(self.time_spans(group, topic) for topic in topics), return_exceptions=True)
        delays: dict[MessageQueue, int] = {}
        for spans in found:
            if isinstance(spans, ClientError):
                continue
            if isinstance(spans, BaseException):
                raise spans
            delays |= {queue: span.delay_time for queue, span in spans.items() if 0 < span.delay_time < DELAY_MS_MAX}
        now_ms = time.time_ns() // 1_000_000
        return {queue: _lag_seconds(one, delays.get(queue), now_ms) for queue, one in progress.items()}

    async def retry_lag(self, group: str) -> int:
        """Return how many failed messages of the group can be redelivered now; others wait for their delay."""
        progress = await self.progress(group, retry_topic(group))
        return sum(queue.lag for queue in progress.values())

    async def _reset(self, address: str, request: ResetOffsets) -> dict[MessageQueue, int]:
        reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return (await self._session.calls.request_document(address, reset, ResetOffsetsResult, request)).offset_table

    async def _commit_at(self, group: str, queues: list[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        offsets: dict[MessageQueue, int] = {}
        for queue in queues:
            offsets[queue] = await self._reset_target(queue, timestamp_ms)
            await self._queue_calls.commit(group, queue, offsets[queue])
        return offsets

    async def _reset_target(self, queue: MessageQueue, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return await self._queue_calls.max_offset(queue)
        return await self._queue_calls.offset_at(queue, timestamp_ms)


def _lag_seconds(progress: QueueProgress, delay_ms: int | None, now_ms: int) -> float | None:
    """Return the lag in seconds of one queue; `delay_ms` is None if the broker does not report it."""
    if progress.lag == 0:
        return 0.0
    if delay_ms is not None:
        return delay_ms / 1000
    return max(now_ms - progress.last_timestamp, 0) / 1000 if progress.last_timestamp > 0 else None
