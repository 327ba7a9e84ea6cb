"""Replication of the log, to slaves or from a master, connected to the broker's store and tables.

    Replication -+- master         feeds slaves; `policy` decides what it may acknowledge
                 +- slave          follows a master
                 +- healer         fetches damaged ranges from replicas, on either side
                 `- peak, speeds   how fast the log and the streams grow

``roles`` decides which of the two sides is active, if any.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, final

from gantry_access import OwnAccount
from gantry_broker.ha.acknowledgement import AckPolicy
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.follower_runner import RunExclusively
from gantry_broker.ha.healing import Healer, RangeSource
from gantry_broker.ha.role_files import PromiseFile
from gantry_broker.ha.server import HEARTBEAT_INTERVAL_S, MasterStream, ReplicationServer
from gantry_broker.ha.settings import AckLevel
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.master_replication import MasterReplication
from gantry_broker.server.roles.slave_replication import SlaveReplication
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.damage import Damage
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import CertificateSource, PeerContexts

log = logging.getLogger(__name__)

PEAK_WINDOWS: Final = 60
"""Number of samples, about one a second, of which the peak rate of a log is the maximum."""


@final
class PeakRate:
    """The highest growth of a log in one second lately. It bounds what the old master accepted after its last report.

    Every second overlaps two neighbouring samples, so pairs of samples are counted.
    """

    def __init__(self) -> None:
        self._grown: Final[deque[int]] = deque(maxlen=PEAK_WINDOWS)
        self._last: int | None = None

    def sample(self, wrote: int) -> None:
        """Record that the log ends at ``wrote`` now."""
        if self._last is not None:
            self._grown.append(max(0, wrote - self._last))
        self._last = wrote

    def bytes_per_s(self, wrote: int) -> int | None:
        """Return at least the bytes of any second in the last minute, for a log that ends at ``wrote`` now.

        None before the first sample.
        """
        if self._last is None:
            return None
        grown = [*self._grown, max(0, wrote - self._last)]
        return max(one + other for one, other in zip([0, *grown], grown, strict=False))


@final
class StreamSpeeds:
    """Bytes that were sent to each slave, or received from the master, in the last second. Owned by the loop."""

    def __init__(self, server: ReplicationServer, store: MessageStore) -> None:
        self.own = 0
        """Growth of a slave's own log, in bytes per second."""

        self._server: Final = server
        self._store: Final = store
        self._sent: dict[MasterStream, int] = {}
        self._speeds: dict[MasterStream, int] = {}
        self._wrote = 0
        self._sampled_at: float | None = None

    def __repr__(self) -> str:
        return f"<StreamSpeeds slaves={len(self._speeds)} own={self.own}>"

    def of(self, stream: MasterStream) -> int:
        """Return the speed of one stream in bytes per second; 0 before the second sample."""
        return self._speeds.get(stream, 0)

    def sample(self, now: float) -> None:
        """Take a sample at loop time ``now``."""
        sampled_at = self._sampled_at
        if sampled_at is not None and now <= sampled_at:
            return
        wrote = self._store.log.wrote
        sent = {stream: stream.session.sent for stream in self._server.streams if stream.session is not None}
        if sampled_at is not None:
            elapsed_s = now - sampled_at
            self._speeds = {
                stream: int(max(0, position - self._sent.get(stream, position)) / elapsed_s)
                for stream, position in sent.items()
            }
            self.own = int(max(0, wrote - self._wrote) / elapsed_s)
        self._sent, self._wrote, self._sampled_at = sent, wrote, now


@final
class Replication:
    """Both sides of replication, of which at most one is active. Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        tables: TableSync,
        promises: PromiseFile,
        *,
        run_exclusively: RunExclusively,
        on_advanced: Callable[[], None],
        on_acks_fall: Callable[[], None],
        on_log_appended: Callable[[], None],
        clock_ms: Callable[[], int],
        account: OwnAccount | None,
        certificates: CertificateSource[PeerContexts] | None,
        pause_retention: Callable[[], AbstractAsyncContextManager[object]],
    ) -> None:
        """``run_exclusively`` runs a change of the store that no request may see half done.

        ``on_advanced`` releases requests that wait for a position of the log. ``on_acks_fall`` is called before acks of
        slaves stop counting, and makes visible what they have confirmed. ``on_log_appended`` is called after an
        append, while slaves and the disk work. ``clock_ms`` runs while the machine sleeps, because grants expire on it.
        ``account`` signs requests to a Java master. ``pause_retention`` keeps files from being deleted or
        truncated.
        """
        self.slave_store: Final = SlaveStore(store, is_flush_awaited=settings.ha.ack_level is AckLevel.FLUSHED)
        self.tables: Final = tables
        self.policy: Final = AckPolicy(settings.ha, store, clock_ms)
        self.acks: Final = self.policy.acks
        self.secret: Final = GroupSecret(settings.ha.secret_path)
        self.master: Final = MasterReplication(
            settings, store, self.slave_store, self.policy, tables, self.secret,
            on_advanced=on_advanced, on_acks_fall=on_acks_fall,
        )  # fmt: skip
        """The side that is active while this broker is a master."""
        self.slave: Final = SlaveReplication(
            settings, self.slave_store, promises, tables, self.secret,
            clock_ms=clock_ms, run_exclusively=run_exclusively, account=account, certificates=certificates,
        )  # fmt: skip
        """The side that is active while this broker is a slave."""
        self.peak: Final = PeakRate()
        """The highest growth of the log in one second lately."""
        self.speeds: Final = StreamSpeeds(self.master.server, store)
        self.healer: Final = Healer(
            store, self._replicas, pause_retention, count_expected=self._count_replicas, on_lost=self._void
        )
        self.on_tick: Final[list[Callable[[], Awaitable[None]]]] = []
        """Awaited about once a second, after new replicas were asked for damaged ranges."""
        self._settings: Final = settings
        self._message_store: Final = store
        self._server: Final = self.master.server
        self._on_log_appended: Final = on_log_appended
        self._run_exclusively: Final = run_exclusively
        self._tls: Final = None if certificates is None else lambda: certificates.current.server
        self._loop: Final = asyncio.get_running_loop()
        self._tick_task: asyncio.Task[None] | None = None
        store.on_wrote.append(self._on_appended)

    def __repr__(self) -> str:
        return f"<Replication {self.master} {self.slave}>"

    @property
    def confirmed(self) -> int:
        """Position up to which consumers may read here.

        It is never behind what was visible before: when a slave leaves, its acks no longer count, but messages stay
        visible.
        """
        store = self._message_store
        is_copy = self.slave.follower is not None or self.slave_store.copier is not None
        confirmed = self.slave.confirmed if is_copy else store.positions.confirmed
        return max(confirmed, store.dispatcher.dispatched)

    async def start(self) -> None:
        """Listen for slaves. Raises OSError for an unusable secret, and for a port that is taken.

        A default port that is taken is only logged, if no send waits for slaves.
        """
        ha, port = self._settings.ha, self._settings.ha_listen_port
        await self.secret.start()
        self._tick_task = asyncio.ensure_future(self._tick())
        if port is None:
            return
        try:
            await self._server.start(self._settings.listen_host, port, self._tls)
        except OSError as error:
            if self._settings.ha_port is not None or ha.acks_needed:
                raise
            # No send waits for slaves: a default port taken by another process must not keep this broker from serving.
            facts = {"port": port, "reason": str(error)}
            log.warning("replication port is taken; no slave can follow", extra=facts)

    async def close(self) -> None:
        """Stop following, and let no slave follow."""
        await self.slave.stop()
        await self.healer.close()
        if self._tick_task is not None:
            self._tick_task.cancel()
            await asyncio.wait([self._tick_task])
        await self.secret.close()
        await self.master.close()

    def _on_appended(self) -> None:
        """Feed the slaves after an append."""
        self._server.feed_streams()
        self._on_log_appended()

    def report_store_progress(self) -> None:
        """React to progress of the store's threads: report it to the master and to slaves."""
        self.slave.report_store_progress()
        self.master.report_store_progress()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            now = self._loop.time()
            self.peak.sample(self._message_store.log.wrote)
            self.speeds.sample(now)
            self.healer.retry_damaged(now)
            await self.slave.tick()
            self.master.tick()
            for listener in self.on_tick:
                await listener()

    def _replicas(self) -> list[RangeSource]:
        """Return the replicas that can be asked for a damaged range."""
        if isinstance(self.slave.follower, Follower):
            return [self.slave.follower]
        return list(self._server.streams) if self.master.is_leading else []

    def _count_replicas(self) -> int:
        """Return how many replicas can be asked for a damaged range once they are connected."""
        if self.slave.follower is not None:
            return int(isinstance(self.slave.follower, Follower))  # A master of RocketMQ's cannot be asked.
        return self.master.count_expected_replicas()

    async def _void(self, damage: Damage) -> None:
        """Replace a lost range, at which a slave waits, by void records, and end this broker: its next start continues.

        Slaves are disconnected first: their acks of a void record would acknowledge the lost message to its sender.
        """
        if not self.master.is_leading or self.master.has_classic_slaves:
            return  # A queue of RocketMQ's cannot lack a message.
        try:
            void = self._message_store.prepare_void(damage.start)
        except ValueError as error:
            log.error("damaged message cannot be replaced", extra={"offset": damage.start, "reason": str(error)})
            return
        self.master.stop("a damaged message that no member has is being removed from the log")
        await self._run_exclusively(void)
