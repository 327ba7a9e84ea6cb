"""One consumer of a group: a reader for every queue that is assigned to it, and the committed offsets.

The consumers of a group do not communicate with each other. Each queries a broker for the consumers of the group and
computes its own share; brokers send a notification when a consumer joins or leaves, and every 20 s all rebalance.
While they disagree, a queue may have two readers or none: messages arrive twice or late, and are never lost, because a
new owner starts at the offset that the old one committed, which covers only done messages. Ordered groups add locks on
the broker, so that two consumers do not consume one queue at the same time, unless a handler outlives its lock.

This module does not process messages: it passes them to `deliver`.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, final

from gantry_client.background import BackgroundTasks
from gantry_client.backlog import BacklogLimits
from gantry_client.consume_rates import ConsumeRates
from gantry_client.consumer_requests import ConsumerRequests
from gantry_client.consumer_role import ConsumerRole
from gantry_client.documents import ConsumerIds
from gantry_client.errors import BrokerRefused, ClientError, Unavailable
from gantry_client.fetching import Fetcher, FetchRequest
from gantry_client.handling import HandlerCalls
from gantry_client.offset_store import commit_readers, find_start_offset, make_offset_store
from gantry_client.queue_calls import QueueCalls
from gantry_client.queue_locks import QueueLocks
from gantry_client.queue_reader import Deliver, QueueReader
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_client.settings import ConsumerSettings, MessageModel
from gantry_client.subscriptions import Subscription
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import CheckClientConfig, ConsumerData, ConsumerGroup, MessageQueue
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import MASTER_ID
from gantry_wire.filters import TagFilter

log = logging.getLogger(__name__)

RETRY_FIRST_MS: Final = 250
"""The delay before an incomplete rebalance is repeated; it doubles up to the rebalance interval."""


@final
@dataclass(slots=True)
class Assignment:
    """The queues that one consumer should read, as far as they are known.

    An assignment may be incomplete: a topic may not exist yet, a broker may not reply, or may not have received our
    heartbeat. Then the known queues are assigned, the queues of unknown topics do not change, and the rebalance is
    repeated soon.
    """

    queues: set[MessageQueue] = field(default_factory=set)
    """The queues that are known to belong to this consumer."""

    unknown_topics: set[str] = field(default_factory=set)
    """Topics whose assignment could not be determined; their queues are neither acquired nor released."""


@final
class Assigner:
    """Computes the assignments of one consumer. Belongs to one event loop."""

    def __init__(self, session: Session, group: str, model: MessageModel) -> None:
        self._session = session
        self._group = group
        self._model = model

    async def assign(self, topics: Iterable[str]) -> Assignment:
        """Return the queues of `topics` that this consumer should read now."""
        assignment = Assignment()
        for topic in topics:
            try:
                assignment.queues.update(await self._compute_share(topic))
            except ClientError as error:
                log.info("could not assign queues of topic", extra={"topic": topic, "reason": str(error)})
                assignment.unknown_topics.add(topic)
        return assignment

    async def _compute_share(self, topic: str) -> Sequence[MessageQueue]:
        route = await self._session.routes.get(topic)
        if self._model is MessageModel.BROADCASTING:
            return route.read_queues
        client_ids = await self._members(route)
        if self._session.client_id not in client_ids:
            await self._session.heartbeat_all()
            raise Unavailable("the broker does not list this client as a member of the group yet")
        return allocate_averagely(route.read_queues, client_ids, self._session.client_id)

    async def _members(self, route: Route) -> list[str]:
        """Return the client ids of the group, from the first broker of the topic that replies."""
        request = ConsumerGroup(consumer_group=self._group)
        failures: list[str] = []
        for _, address in route.read_addresses():
            try:
                ids = await self._session.calls.request_document(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerIds, request
                )
                return ids.consumer_id_list
            except ClientError as error:
                failures.append(str(error))
        await self._session.heartbeat_all()
        raise Unavailable(f"no broker returned the members of the group: {'; '.join(failures)}")


@final
class GroupConsumer:
    """A consumer of a group from `start` to `close`. Belongs to one event loop."""

    def __init__(
        self,
        session: Session,
        role: ConsumerRole,
        settings: ConsumerSettings,
        subscriptions: dict[str, Subscription],
        deliver: Deliver,
        calls: HandlerCalls | None,
    ) -> None:
        """Create a consumer; ``calls`` invokes the application's handler, for push consumers only."""
        self.role = role
        self.subscriptions = subscriptions
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.locks = QueueLocks(session, role.group)
        self.calls = calls
        self.rates = calls.rates if calls is not None else ConsumeRates(time.monotonic)
        self._session = session
        self.settings = settings
        self._deliver = deliver
        self._queue_calls = QueueCalls(session)
        self._fetcher = Fetcher(session)
        self._assigner = Assigner(session, role.group, settings.model)
        self._offsets = make_offset_store(role.group, settings, self._queue_calls, session.settings.instance)
        self._tasks = BackgroundTasks(role.group)
        self._reading: dict[MessageQueue, asyncio.Task[None]] = {}
        self._rebalance_wanted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<GroupConsumer {self.role.group} topics={sorted(self.subscriptions)} queues={len(self.readers)}>"

    async def start(self) -> None:
        """Join the group. Returns before the first queue is assigned. Raises BrokerRefused for a refused filter."""
        for subscription in self.subscriptions.values():
            await _check_filter(self._session, self.role.group, subscription)
        self._session.enter_consumer_group(self.role.group, self.describe)
        self._session.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_membership_change)
        self._requests = ConsumerRequests(self._session, self)
        self._tasks.start(self._rebalance_forever(), "rebalance")
        self._tasks.repeat(self.settings.commit_interval_ms, self.commit, "commit")
        if self.role.is_ordered:
            self._tasks.repeat(self.settings.lock_interval_ms, self._renew_locks, "locks")

    async def close(self) -> None:
        """Stop reading, wait for running handlers, commit done messages, and release the locks."""
        await self._tasks.close()
        await self._release(list(self.readers), self.settings.close_timeout_ms)

    async def subscribe(self, subscription: Subscription) -> None:
        """Subscribe to another topic, or change its filter. Raises BrokerRefused for a refused filter."""
        await _check_filter(self._session, self.role.group, subscription)
        self.subscriptions[subscription.topic] = subscription
        stale = [queue for queue in self.readers if queue.topic == subscription.topic]
        await self._release(stale, self.settings.handover_timeout_ms)
        await self._register_with_brokers()
        self._rebalance_wanted.set()

    async def commit(self) -> None:
        """Write the offsets that have moved to the offset store; a failure is logged and retried at the next commit."""
        await commit_readers(self._offsets, self.readers.values())

    def commit_soon(self) -> None:
        """Commit the offsets in the background."""
        self._tasks.start(self._commit_logging_errors(), "commit-now")

    async def _commit_logging_errors(self) -> None:
        try:
            await self.commit()
        except ClientError as error:
            log.warning("failed to commit offsets", extra={"group": self.role.group, "reason": str(error)})

    # ------- rebalancing

    async def _rebalance_forever(self) -> None:
        retry_ms = RETRY_FIRST_MS
        await self._register_with_brokers()
        while True:
            is_complete = await self._rebalance()
            interval_ms = self.settings.rebalance_interval_ms
            wait_ms = interval_ms if is_complete else min(retry_ms, interval_ms)
            retry_ms = RETRY_FIRST_MS if is_complete else wait_ms * 2
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                continue
            finally:
                self._rebalance_wanted.clear()

    async def _register_with_brokers(self) -> None:
        """Load the routes and send heartbeats, so that brokers list this consumer before the first rebalance."""
        for topic in list(self.subscriptions):
            try:
                await self._session.routes.get(topic)
            except ClientError as error:
                log.info("topic has no route yet", extra={"topic": topic, "reason": str(error)})
        await self._session.heartbeat_all()

    async def _rebalance(self) -> bool:
        """Release and acquire queues; return False if the rebalance must be repeated soon."""
        await self.commit()  # So the new owner of a released queue receives as few messages as possible twice.
        assignment = await self._assigner.assign(list(self.subscriptions))
        undecided = assignment.unknown_topics & self.subscriptions.keys()
        lost = [queue for queue in self.readers if queue not in assignment.queues and queue.topic not in undecided]
        await self._release(lost, self.settings.handover_timeout_ms)
        gained = [queue for queue in assignment.queues if queue not in self.readers]
        taken = await self._take_over(gained)
        if lost or taken:
            log.info("queues rebalanced", extra={"group": self.role.group, "queues": len(self.readers)})
        return not assignment.unknown_topics and len(taken) == len(gained)

    async def _take_over(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Start reading `queues` and return those for which it succeeded."""
        if self.role.is_ordered and queues:
            locked = await self.locks.lock(queues)
            queues = [queue for queue in queues if queue in locked]
        results = await asyncio.gather(*(self._start_reading(queue) for queue in queues), return_exceptions=True)
        taken: list[MessageQueue] = []
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, ClientError):
                log.warning("failed to start reading queue", extra={"queue": repr(queue), "reason": str(result)})
            elif isinstance(result, BaseException):
                raise result
            else:
                taken.append(queue)
        return taken

    async def _start_reading(self, queue: MessageQueue) -> None:
        offset, committed = await find_start_offset(queue, self._offsets, self._queue_calls, self.settings)
        subscription = self.subscriptions[queue.topic]
        request = FetchRequest(
            group=self.role.group,
            queue=queue,
            offset=offset,
            messages_max=self.settings.fetch_messages_max,
            filter=subscription.filter,
            suspend_ms=self.settings.suspend_ms,
            body_bytes_max=self.settings.body_bytes_max,
            subscription_version=subscription.version,
        )
        limits = BacklogLimits(
            messages_max=self.settings.cached_messages_max,
            bytes_max=self.settings.cached_bytes_max,
            span_max=self.settings.cached_span_max,
        )
        rates = self.rates.for_topic(queue.topic)
        reader = QueueReader(
            self._session, self._fetcher, request, limits=limits, deliver=self._deliver, rates=rates,
            damaged_attempts_max=self.settings.damaged_attempts_max, committed=committed,
        )  # fmt: skip
        self.readers[queue] = reader
        self._reading[queue] = self._tasks.start(reader.run(), f"read-{queue.topic}-{queue.queue_id}")

    async def _release(self, queues: list[MessageQueue], timeout_ms: int) -> None:
        """Stop reading `queues`, wait up to `timeout_ms` for running handlers, commit, and unlock."""
        readers = [self.readers.pop(queue) for queue in queues]
        for reader in readers:
            self._reading.pop(reader.queue).cancel()
            reader.backlog.drop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*(reader.backlog.wait_until_idle() for reader in readers))
        except TimeoutError:
            log.warning("handlers still running for released queues", extra={"group": self.role.group})
        finally:
            await commit_readers(self._offsets, readers)
            if self.role.is_ordered:
                # A queue whose handler still runs stays locked until the lock expires: order has priority over speed.
                idle = [reader.queue for reader in readers if reader.backlog.is_idle]
                await asyncio.gather(*(self.locks.unlock(queue) for queue in idle))

    async def _renew_locks(self) -> None:
        await self.locks.lock(list(self.readers))

    def _on_membership_change(self, command: Command, address: str) -> None:
        try:
            group = ConsumerGroup.read(command.ext).consumer_group
        except FieldError as error:
            log.warning(
                "invalid notification of changed group members", extra={"broker": address, "reason": str(error)}
            )
            return
        if group == self.role.group:
            self._rebalance_wanted.set()

    def describe(self) -> ConsumerData:
        """Return the description of this consumer for heartbeats."""
        return ConsumerData(
            group_name=self.role.group,
            consume_type="CONSUME_PASSIVELY" if self.role.is_passive else "CONSUME_ACTIVELY",
            message_model=self.settings.model.value,
            consume_from_where=self.settings.start_from.value,
            subscription_data_set=[subscription.data() for subscription in self.subscriptions.values()],
        )


async def _check_filter(session: Session, group: str, subscription: Subscription) -> None:
    """Have every reachable broker of the topic validate the filter, if it is an SQL92 filter."""
    if isinstance(subscription.filter, TagFilter):
        return
    with _logging_unless_refused(subscription.topic):
        route = await session.routes.get(subscription.topic)
        names = dict.fromkeys(queue.broker_name for queue in route.read_queues)
        request = CheckClientConfig(client_id=session.client_id, group=group, subscription_data=subscription.data())
        for address in filter(None, (route.read_address(name, MASTER_ID) for name in names)):
            with _logging_unless_refused(subscription.topic):
                await session.calls.request_success(address, RequestCode.CHECK_CLIENT_CONFIG, body=request)


@contextmanager
def _logging_unless_refused(topic: str) -> Iterator[None]:
    """Log errors of servers that cannot be asked to validate a filter; raise the refusal of one that can."""
    try:
        yield
    except BrokerRefused:
        raise
    except ClientError as error:
        log.info("could not validate message filter", extra={"topic": topic, "reason": str(error)})


def allocate_averagely(
    queues: Iterable[MessageQueue], client_ids: Iterable[str], client_id: str
) -> Sequence[MessageQueue]:
    """Return the queues of `client_id`: a contiguous range of the sorted list, empty for an unlisted client id.

    Every consumer computes this separately from the same two lists, so all must get the same result: the order of
    queues and of client ids and the division are those of RocketMQ's default strategy, which Java's clients use, too.

        5 queues, 2 consumers:   [ 0 1 2 | 3 4 ]         the first consumers get one more
        2 queues, 3 consumers:   [ 0 | 1 | - ]           the last consumers get none
    """
    ordered = sorted(set(queues), key=_java_order)
    ids = sorted(set(client_ids), key=_utf16)
    if client_id not in ids:
        return []
    share, extra = divmod(len(ordered), len(ids))
    index = ids.index(client_id)
    start = index * share + min(index, extra)
    return ordered[start : start + share + (1 if index < extra else 0)]


def _java_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return _utf16(queue.topic), _utf16(queue.broker_name), queue.queue_id


def _utf16(text: str) -> bytes:
    """Return the sort key of Java's string comparison, which uses UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
