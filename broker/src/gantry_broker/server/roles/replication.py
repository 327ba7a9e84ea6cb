"""The log's way to slaves, or from a master, joined with the broker's store and tables.

    Replication -+- master         feeds slaves; `policy` decides what it may acknowledge
                 +- slave          follows a master
                 +- healer         fetches damaged ranges from replicas, whichever side they are on
                 `- peak, speeds   how fast the log and the streams grow

Which of the two sides is at work, or neither, is decided elsewhere (``roles``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, final

from gantry_access import OwnAccount
from gantry_broker.ha.acknowledgement import AckPolicy
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.follower_runner import Standstill
from gantry_broker.ha.healing import Healer, RangeSource
from gantry_broker.ha.role_files import PromiseFile
from gantry_broker.ha.server import BEAT_INTERVAL_S, MasterStream, ReplicationServer
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.master_replication import MasterReplication
from gantry_broker.server.roles.slave_replication import SlaveReplication
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import CertificateSource, PeerContexts

log = logging.getLogger(__name__)

PEAK_WINDOWS: Final = 60
"""Samples, about one a second, of which the peak rate of a log is the maximum."""


@final
class PeakRate:
    """How much a log has grown in a second lately, at most: what a master may have taken unseen is estimated by it.

    Every second lies in two neighbouring samples, so pairs are counted.
    """

    def __init__(self) -> None:
        self._grown: Final[deque[int]] = deque(maxlen=PEAK_WINDOWS)
        self._last: int | None = None

    def sample(self, wrote: int) -> None:
        """The log ends there now."""
        if self._last is not None:
            self._grown.append(max(0, wrote - self._last))
        self._last = wrote

    def bytes_per_s(self, wrote: int) -> int | None:
        """At least what was taken in any second since about a minute ago, where the log ends at ``wrote`` now.

        None before the first sample.
        """
        if self._last is None:
            return None
        grown = [*self._grown, max(0, wrote - self._last)]
        return max(one + other for one, other in zip([0, *grown], grown, strict=False))


@final
class StreamSpeeds:
    """How many bytes went to each slave, or came from the master, in the last second. Owned by the loop."""

    def __init__(self, server: ReplicationServer, store: MessageStore) -> None:
        self.own = 0
        """Of a slave's log."""

        self._server: Final = server
        self._store: Final = store
        self._sent: dict[MasterStream, int] = {}
        self._speeds: dict[MasterStream, int] = {}
        self._wrote = 0
        self._sampled_at: float | None = None

    def __repr__(self) -> str:
        return f"<StreamSpeeds slaves={len(self._speeds)} own={self.own}>"

    def of(self, stream: MasterStream) -> int:
        """0 before there were two samples."""
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
    """Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        tables: TableSync,
        promises: PromiseFile,
        *,
        standstill: Standstill,
        advanced: Callable[[], None],
        meanwhile: Callable[[], None],
        clock_ms: Callable[[], int],
        account: OwnAccount | None,
        certificates: CertificateSource[PeerContexts] | None,
        quiet: Callable[[], AbstractAsyncContextManager[object]],
    ) -> None:
        """``standstill`` runs a change of the store that no request may see half done.

        ``advanced`` releases what waits for a position of the log, ``meanwhile`` is called after an append, when
        slaves and the disk are at work. ``clock_ms`` runs while the machine sleeps: grants are counted on it.
        ``account`` signs what a Java master is asked. ``quiet`` keeps files from being deleted or cut.
        """
        self.store: Final = SlaveStore(store)
        self.tables: Final = tables
        self.policy: Final = AckPolicy(settings.ha, store, clock_ms)
        self.acks: Final = self.policy.acks
        self.secret: Final = GroupSecret(settings.ha.secret_path)
        self.master: Final = MasterReplication(
            settings, store, self.store, self.policy, tables, self.secret, advanced=advanced
        )
        self.slave: Final = SlaveReplication(
            settings, self.store, promises, tables, self.secret,
            clock_ms=clock_ms, standstill=standstill, account=account, certificates=certificates,
        )  # fmt: skip
        self.peak: Final = PeakRate()
        self.speeds: Final = StreamSpeeds(self.master.server, store)
        self.healer: Final = Healer(store, self._replicas, quiet, count_expected=self._count_replicas)
        self._settings: Final = settings
        self._log: Final = store
        self._server: Final = self.master.server
        self._meanwhile: Final = meanwhile
        self._tls: Final = None if certificates is None else lambda: certificates.current.server
        self._loop: Final = asyncio.get_running_loop()
        self._ticks: asyncio.Task[None] | None = None
        store.on_wrote.append(self._wrote)

    def __repr__(self) -> str:
        return f"<Replication {self.master} {self.slave}>"

    @property
    def confirmed(self) -> int:
        """Up to where consumers may read here.

        It never lies behind what was shown: a slave that leaves takes its ack along, but no message from consumers.
        """
        store = self._log
        is_copy = self.slave.follower is not None or self.store.copier is not None
        confirmed = self.slave.confirmed if is_copy else store.positions.confirmed
        return max(confirmed, store.dispatcher.dispatched)

    async def start(self) -> None:
        """Listen for slaves. Raises OSError for a port that was asked for and is taken, or a secret that is missing."""
        ha, port = self._settings.ha, self._settings.ha_listen_port
        await self.secret.start()
        self._ticks = asyncio.ensure_future(self._tick())
        if port is None:
            return
        try:
            await self._server.start(self._settings.listen_host, port, self._tls)
        except OSError as error:
            if self._settings.ha_port is not None or ha.acks_needed:
                raise
            # No slaves were configured: a neighbour's port beside ours must not keep this broker from serving.
            facts = {"port": port, "reason": str(error)}
            log.warning("replication port is taken; no slave can follow", extra=facts)

    async def close(self) -> None:
        """Stop following, and let no slave follow."""
        await self.slave.stop()
        await self.healer.close()
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.wait([self._ticks])
        await self.secret.close()
        await self.master.close()

    def _wrote(self) -> None:
        """The log was appended to."""
        self._server.appended()
        self._meanwhile()

    def moved(self) -> None:
        """The store's threads have got somewhere."""
        self.slave.moved()
        self.master.moved()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            now = self._loop.time()
            self.peak.sample(self._log.log.wrote)
            self.speeds.sample(now)
            self.healer.look(now)
            await self.slave.tick()
            self.master.tick()

    def _replicas(self) -> list[RangeSource]:
        """The replicas that may be asked for a damaged range."""
        if isinstance(self.slave.follower, Follower):
            return [self.slave.follower]
        return list(self._server.streams) if self.master.is_leading else []

    def _count_replicas(self) -> int:
        """How many replicas may be asked for a damaged range once they are connected."""
        if self.slave.follower is not None:
            return int(isinstance(self.slave.follower, Follower))  # a master, unless it is RocketMQ's
        return self.master.count_expected()
