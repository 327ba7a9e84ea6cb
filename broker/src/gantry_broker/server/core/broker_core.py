"""The parts of a running broker that its request handlers share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gantry_access import AccountStore
from gantry_broker.ports import Clock, Disk
from gantry_broker.server.core.archive_port import Archive
from gantry_broker.server.core.clients import ClientRegistry
from gantry_broker.server.core.gate import Gate
from gantry_broker.server.core.groups import GroupTable
from gantry_broker.server.core.live_settings import LiveSettings
from gantry_broker.server.core.offsets import ConsumerOffsets
from gantry_broker.server.core.persist import Persistence
from gantry_broker.server.core.queue_locks import QueueLocks
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.request_modes import RequestModes
from gantry_broker.server.core.send_routes import SendRoutes
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.server.core.topic_statistics import TopicStatistics
from gantry_broker.server.core.topics import TopicTable
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.message_store import MessageStore
from gantry_wire import ResponseCode


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCore:
    """The state of one broker. Every part belongs to the event loop."""

    live: LiveSettings
    """The settings, and the changes to them while the broker runs."""

    clock: Clock
    disk: Disk
    store: MessageStore
    store_host: bytes
    """This broker's address as records hold it."""

    topics: TopicTable
    groups: GroupTable
    accounts: AccountStore | None
    """Users and policies, if this broker stores them."""

    offsets: ConsumerOffsets
    """The committed offsets of consumer groups, and their resets."""

    clients: ClientRegistry
    """The connected producers and consumers, and their groups."""

    locks: QueueLocks
    """Locks of queues for ordered consumption, which clients take."""

    send_routes: SendRoutes
    """What the path of sends needs of each topic, computed once."""

    stats: BrokerStats
    """Counters of the whole broker, for `brokerStatus` and the status page."""

    topic_statistics: TopicStatistics
    """Counters by topic and group, for RocketMQ's tools."""

    persistence: Persistence
    """Writes the tables to their files."""

    gate: Gate
    """Decides which requests are accepted in the present role."""

    request_modes: RequestModes
    """Whether a group reads a topic by pull or by pop."""

    wait_until_published: Callable[[], Awaitable[None]]
    """Waits, for a limited time, until the connected name servers have the present table of topics."""
    is_slave: Callable[[], bool]
    """Whether this broker is a slave: its master may have data that it lacks."""
    is_sure_master: Callable[[], bool]
    """Whether this broker is the master and knows that no other member is."""
    oldest_unacked: Callable[[], Awaitable[Mapping[tuple[str, str, int], int] | None]]
    """Returns the offset of the oldest message that is popped and not acked, by topic, group and queue; None if it is
    unknown."""
    archive: Archive | None = None
    """The archive with messages that the log does not have any more; None without one."""
    progress_listing_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that lists the progress of all groups."""
    tag_query_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that searches the queues of a topic for a tag."""

    @property
    def settings(self) -> BrokerSettings:
        """The present settings. Read them at each use: some change while the broker runs."""
        return self.live.current

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the offset of a consumer, at most the end of the queue.

        A consumer that was further on a former master, and whose next pull was refused, commits an offset beyond the
        end. The queue would grow past it, and the group would skip these messages.
        """
        queue = self.store.queues.get(topic, queue_id)
        self.offsets.commit(group, topic, queue_id, min(offset, 0 if queue is None else queue.end))

    def readable_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the offsets ``[first, end)`` of a queue that are in the log; (0, 0) if the queue does not exist."""
        queue = self.store.queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.readable_end)

    def served_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the offsets ``[first, end)`` of a queue that pulls may read, from the archive or from the log."""
        first, end = self.readable_range(topic, queue_id)
        archived = None if self.archive is None else self.archive.find(topic, queue_id)
        return (first if archived is None else min(first, archived.begin)), end

    def check_archive_known(self, topic: str, queue_id: int) -> None:
        """Raise Refused if older messages of a queue than those of the log may be in an archive that is unknown."""
        if self.archive is not None and not self.archive.is_known and self.readable_range(topic, queue_id)[0] > 0:
            text = "[ARCHIVE]it is not known yet which messages the archive has; try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, text)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first message of a queue that pulls may read, or -1."""
        archived = None if self.archive is None else self.archive.find(topic, queue_id)
        if archived is not None and archived.begin < self.readable_range(topic, queue_id)[0]:
            return archived.first_time_ms
        return self.store.times.earliest_time(topic, queue_id)

    def must_search_archive(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> bool:
        """Return whether the message for a time is not in the log any more, but may be in the archive.

        With ``upper`` that is the last one at or before the time, otherwise the first one at or after it. Raises
        Refused while it is not known what the archive has.
        """
        self.check_archive_known(topic, queue_id)
        first, _ = self.readable_range(topic, queue_id)
        archived = None if self.archive is None else self.archive.find(topic, queue_id)
        if archived is None or archived.begin >= first:
            return False
        earliest = self.store.times.earliest_time(topic, queue_id)
        return earliest < 0 or (timestamp_ms < earliest if upper else timestamp_ms <= earliest)

    async def search_archive(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the archived offset for a time, or that of the log if the archive has none. Raises Refused."""
        found = None
        if self.archive is not None:
            found = await self.archive.search(topic, queue_id, timestamp_ms, upper=upper)
        return self.store.times.offset_by_time(topic, queue_id, timestamp_ms, upper) if found is None else found
