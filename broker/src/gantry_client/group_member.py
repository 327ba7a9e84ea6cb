"""One member of a consumer group: a reader for every queue that is its own, and committed offsets.

The members of a group never speak to each other. Each asks a broker who is in the group and computes its own share;
brokers send a notice when the membership changes, and every 20 s all look again. While they disagree two members may
read one queue, or none: messages come twice or late, and are never lost, because a new owner begins at what the old one
committed, and that is only what was done. Ordered groups add broker-side locks, so that two never consume one queue.

Who consumes the messages is none of this module's business: it hands them to `deliver`.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from gantry_client.background import BackgroundTasks
from gantry_client.backlog import BacklogLimits
from gantry_client.consume_rates import ConsumeRates
from gantry_client.documents import ConsumerIds
from gantry_client.errors import BrokerRefused, ClientError, Unavailable
from gantry_client.fetching import Fetcher, FetchRequest
from gantry_client.handling import HandlerCalls
from gantry_client.member_questions import MemberQuestions
from gantry_client.member_role import MemberRole
from gantry_client.offset_store import commit_readers, make_offset_store, start_offset
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
"""How soon an incomplete division is tried again; doubles up to the rebalance interval."""


@final
@dataclass(slots=True)
class Assignment:
    """The queues that one member should read, as far as that is known.

    An answer may be incomplete: a topic that nobody has created yet, a broker that does not answer, a broker that does
    not know us yet. Then what is known is acted upon, what is unknown stays as it is, and the question is asked again
    soon.
    """

    queues: set[MessageQueue] = field(default_factory=set)
    unknown_topics: set[str] = field(default_factory=set)
    """Topics whose division could not be found out; queues of theirs are neither taken nor given up."""


@final
class Assigner:
    """Works out assignments for one member. Belongs to one event loop."""

    def __init__(self, session: Session, group: str, model: MessageModel) -> None:
        self._session = session
        self._group = group
        self._model = model

    async def assign(self, topics: Iterable[str]) -> Assignment:
        """What this member should read of `topics` now."""
        assignment = Assignment()
        for topic in topics:
            try:
                assignment.queues.update(await self._share(topic))
            except ClientError as error:
                log.info("a topic is not divided", extra={"topic": topic, "reason": str(error)})
                assignment.unknown_topics.add(topic)
        return assignment

    async def _share(self, topic: str) -> Sequence[MessageQueue]:
        route = await self._session.routes.get(topic)
        if self._model is MessageModel.BROADCASTING:
            return route.read_queues
        client_ids = await self._members(route)
        if self._session.client_id not in client_ids:
            await self._session.heartbeat_all()
            raise Unavailable("the broker does not count us among its consumers yet")
        return allocate_averagely(route.read_queues, client_ids, self._session.client_id)

    async def _members(self, route: Route) -> list[str]:
        """Who is in the group, by the first broker of the topic that answers."""
        question = ConsumerGroup(consumer_group=self._group)
        failures: list[str] = []
        for _, address in route.read_addresses():
            try:
                ids = await self._session.calls.document(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerIds, question
                )
                return ids.consumer_id_list
            except ClientError as error:
                failures.append(str(error))
        await self._session.heartbeat_all()
        raise Unavailable(f"no broker says who is in the group: {'; '.join(failures)}")


@final
class GroupMember:
    """A member from `start` to `close`. Belongs to one event loop."""

    def __init__(
        self,
        session: Session,
        role: MemberRole,
        settings: ConsumerSettings,
        subscriptions: dict[str, Subscription],
        deliver: Deliver,
        calls: HandlerCalls | None,
    ) -> None:
        """``calls`` are those of the application's handler, where messages are pushed at one."""
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
        return f"<GroupMember {self.role.group} topics={sorted(self.subscriptions)} queues={len(self.readers)}>"

    async def start(self) -> None:
        """Become a member. Returns before the first queue is assigned. Raises BrokerRefused for a refused filter."""
        for subscription in self.subscriptions.values():
            await _check_filter(self._session, self.role.group, subscription)
        self._session.enter_consumer_group(self.role.group, self.describe)
        self._session.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_notice)
        self._questions = MemberQuestions(self._session, self)
        self._tasks.start(self._rebalance_forever(), "rebalance")
        self._tasks.repeat(self.settings.commit_interval_ms, self.commit, "commit")
        if self.role.is_ordered:
            self._tasks.repeat(self.settings.lock_interval_ms, self._renew_locks, "locks")

    async def close(self) -> None:
        """Stop reading, wait for handlers that run, commit what is done, give the locks back."""
        await self._tasks.close()
        await self._give_up(list(self.readers), self.settings.close_timeout_ms)

    async def subscribe(self, subscription: Subscription) -> None:
        """Want one more topic, or other tags of it. Raises BrokerRefused for a refused filter."""
        await _check_filter(self._session, self.role.group, subscription)
        self.subscriptions[subscription.topic] = subscription
        stale = [queue for queue in self.readers if queue.topic == subscription.topic]
        await self._give_up(stale, self.settings.handover_timeout_ms)
        await self._introduce()
        self._rebalance_wanted.set()

    async def commit(self) -> None:
        """Tell the offset store how far every queue is done."""
        await commit_readers(self._offsets, self.readers.values())

    def commit_soon(self) -> None:
        """Do so in the background."""
        self._tasks.start(self._commit_now(), "commit-now")

    async def _commit_now(self) -> None:
        try:
            await self.commit()
        except ClientError as error:
            log.warning("offsets are not committed", extra={"group": self.role.group, "reason": str(error)})

    # ------- rebalancing

    async def _rebalance_forever(self) -> None:
        retry_ms = RETRY_FIRST_MS
        await self._introduce()
        while True:
            is_complete = await self._rebalance()
            retry_ms = RETRY_FIRST_MS if is_complete else min(retry_ms * 2, self.settings.rebalance_interval_ms)
            wait_ms = self.settings.rebalance_interval_ms if is_complete else retry_ms
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                continue
            finally:
                self._rebalance_wanted.clear()

    async def _introduce(self) -> None:
        """Be known to the brokers before the first question, so that they count us."""
        for topic in list(self.subscriptions):
            try:
                await self._session.routes.get(topic)
            except ClientError as error:
                log.info("a topic has no route", extra={"topic": topic, "reason": str(error)})
        await self._session.heartbeat_all()

    async def _rebalance(self) -> bool:
        """Give up and take queues; False when something has to be tried again soon."""
        await self.commit()  # Whoever takes a queue over now begins as far on as possible.
        assignment = await self._assigner.assign(list(self.subscriptions))
        kept = assignment.unknown_topics & self.subscriptions.keys()
        lost = [queue for queue in self.readers if queue not in assignment.queues and queue.topic not in kept]
        await self._give_up(lost, self.settings.handover_timeout_ms)
        gained = [queue for queue in assignment.queues if queue not in self.readers]
        taken = await self._take(gained)
        if lost or taken:
            log.info("queues are divided anew", extra={"group": self.role.group, "queues": len(self.readers)})
        return not assignment.unknown_topics and len(taken) == len(gained)

    async def _take(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Begin to read `queues`; those that could be begun."""
        if self.role.is_ordered and queues:
            locked = await self.locks.lock(queues)
            queues = [queue for queue in queues if queue in locked]
        results = await asyncio.gather(*(self._begin(queue) for queue in queues), return_exceptions=True)
        taken: list[MessageQueue] = []
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, ClientError):
                log.warning("a queue is not begun", extra={"queue": repr(queue), "reason": str(result)})
            elif isinstance(result, BaseException):
                raise result
            else:
                taken.append(queue)
        return taken

    async def _begin(self, queue: MessageQueue) -> None:
        offset, committed = await start_offset(queue, self._offsets, self._queue_calls, self.settings)
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
        rates = self.rates.of(queue.topic)
        reader = QueueReader(
            self._session, self._fetcher, request, limits=limits, deliver=self._deliver, rates=rates,
            damaged_attempts_max=self.settings.damaged_attempts_max, committed=committed,
        )  # fmt: skip
        self.readers[queue] = reader
        self._reading[queue] = self._tasks.start(reader.run(), f"read-{queue.topic}-{queue.queue_id}")

    async def _give_up(self, queues: list[MessageQueue], timeout_ms: int) -> None:
        """Stop reading `queues`, let running handlers end for so long, commit, unlock."""
        readers = [self.readers.pop(queue) for queue in queues]
        for reader in readers:
            self._reading.pop(reader.queue).cancel()
            reader.backlog.drop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*(reader.backlog.wait_until_idle() for reader in readers))
        except TimeoutError:
            log.warning("handlers still run for queues given up", extra={"group": self.role.group})
        finally:
            await commit_readers(self._offsets, readers)
            if self.role.is_ordered:
                # A queue whose handler still runs stays locked until the lock runs out: order matters more than speed.
                idle = [reader.queue for reader in readers if reader.backlog.is_idle]
                await asyncio.gather(*(self.locks.unlock(queue) for queue in idle))

    async def _renew_locks(self) -> None:
        await self.locks.lock(list(self.readers))

    def _on_notice(self, command: Command, address: str) -> None:
        try:
            group = ConsumerGroup.read(command.ext).consumer_group
        except FieldError as error:
            log.warning("a notice cannot be read", extra={"broker": address, "reason": str(error)})
            return
        if group == self.role.group:
            self._rebalance_wanted.set()

    def describe(self) -> ConsumerData:
        """What heartbeats say of us."""
        return ConsumerData(
            group_name=self.role.group,
            consume_type="CONSUME_PASSIVELY" if self.role.is_passive else "CONSUME_ACTIVELY",
            message_model=self.settings.model.value,
            consume_from_where=self.settings.start_from.value,
            subscription_data_set=[subscription.data() for subscription in self.subscriptions.values()],
        )


async def _check_filter(session: Session, group: str, subscription: Subscription) -> None:
    """Ask every broker of the topic whether it can filter so; one that cannot be asked may be there later."""
    if isinstance(subscription.filter, TagFilter):
        return
    question = CheckClientConfig(client_id=session.client_id, group=group, subscription_data=subscription.data())
    try:
        route = await session.routes.get(subscription.topic)
        names = dict.fromkeys(queue.broker_name for queue in route.read_queues)
        for address in filter(None, (route.read_address(name, MASTER_ID) for name in names)):
            await session.calls.demand(address, RequestCode.CHECK_CLIENT_CONFIG, body=question)
    except BrokerRefused:
        raise
    except ClientError as error:
        log.info("a filter is not checked", extra={"topic": subscription.topic, "reason": str(error)})


def allocate_averagely(
    queues: Iterable[MessageQueue], client_ids: Iterable[str], client_id: str
) -> Sequence[MessageQueue]:
    """The queues of `client_id`: a run of neighbours in the sorted list. None for one that is not among the ids.

    Every member computes this alone from the same two lists, so all must compute the same: the order of queues and of
    client ids and the way of dividing are those of RocketMQ's default strategy, and Java members of a group agree with
    us.

        5 queues, 2 members:   [ 0 1 2 | 3 4 ]         the first ones get one more
        2 queues, 3 members:   [ 0 | 1 | - ]           the last ones get none
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
    """Java compares texts by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
