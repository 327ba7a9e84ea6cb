"""The log's way to slaves, or from a master, joined with who waits for it here.

    a master   append -> streams -> acks -> `promised` and `confirmed` move -> answers, consumers, and slaves are told
    a slave    stream -> append -> ack -> what the master says is confirmed is shown

Which of the two it is, or neither, is decided elsewhere (``roles``). Nothing here waits: acks move a position, and
whoever waits for that is looked at once per turn of the loop.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, final

from gantry_access import OwnAccount
from gantry_broker.ha.acknowledgement import AckSet, GivenGrants, Grants
from gantry_broker.ha.classic.follower import ClassicFollower, ClassicMaster
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.frames import Table, Welcome
from gantry_broker.ha.healing import Healer, RangeSource
from gantry_broker.ha.master_session import MasterFacts, MasterSession
from gantry_broker.ha.peak_rate import PeakRate
from gantry_broker.ha.server import BEAT_INTERVAL_S, ReplicationServer
from gantry_broker.ha.settings import AckLevel, Degrade
from gantry_broker.ha.slave_session import SlaveFacts
from gantry_broker.ha.store_log import SlaveStore, StoreLog
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import CertificateSource, PeerContexts, join_address, split_address

log = logging.getLogger(__name__)

SHOW_RETRY_S: Final = 1.0
"""How soon a slave without room for a queue's entries tries again."""


def boottime_ms() -> int:
    """A clock that goes on while the machine sleeps: grants are counted on it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@final
class Replication:
    """Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        tables: TableSync,
        *,
        standstill: Callable[[Callable[[], None]], Awaitable[None]],
        advanced: Callable[[], None],
        meanwhile: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = boottime_ms,
        account: OwnAccount | None = None,
        certificates: CertificateSource[PeerContexts] | None = None,
        quiet: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """``standstill`` runs what nobody may see half done, ``advanced`` looks at everybody who waits.

        ``meanwhile`` is called after an append, when whoever makes it safe is at work: there is time for other things.
        ``account`` signs what a Java master is asked. ``quiet`` keeps files from being deleted or cut.
        """
        ha = settings.ha
        self.store: Final = SlaveStore(store)
        self.acks: Final = AckSet(acks_needed=ha.acks_needed, is_flushed_wanted=ha.ack_level is AckLevel.FLUSHED)
        self.grants = Grants(())
        self.given: Final = GivenGrants()
        self.facts: MasterFacts | None = None
        """Who we are as a master; None for anybody else."""

        self.is_degraded = False
        """Whether sends go on without the slaves that they ought to wait for."""

        self.on_refused: Callable[[MasterSession], None] = lambda session: None
        """Told of a slave that was sent away."""

        self.on_welcome: Callable[[Welcome], Awaitable[None]] | None = None
        """Told of a master that has taken us, before anything of it is copied."""

        self.on_caught_up: Callable[[], Awaitable[None]] | None = None
        """Told when all is here that a master had when it was followed."""

        self.promised_epoch = 0
        """Nobody below it is followed."""

        self.peak: Final = PeakRate()

        self.follower: Follower | ClassicFollower | None = None
        self.secret: Final = GroupSecret(settings.ha.secret_path, self._secret_changed)
        self.server: ReplicationServer | None = None
        self._settings: Final = settings
        self._ha: Final = ha
        self._log: Final = store
        self._source: Final = StoreLog(store, self.store)
        self._tables: Final = tables
        self._standstill: Final = standstill
        self._advanced: Final = advanced
        self._meanwhile: Final = meanwhile
        self._account: Final = account
        self.clock_ms: Final = clock_ms
        self._loop = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        self._ticks: asyncio.Task[None] | None = None
        self._move = asyncio.Event()
        self._is_show_scheduled = False
        self._is_table_scheduled = False
        self._certificates: Final = certificates
        self._has_had_replica = False
        """Whether a slave that can heal damage was connected since the start."""

        self.healer: Final = Healer(store, self._replicas, quiet, count_expected=self._count_replicas)
        store.on_wrote = self._wrote
        tables.on_urgent = self._tables_changed
        self._show_nothing_new()

    def __repr__(self) -> str:
        return (
            f"<Replication leads={self.facts is not None} follows={self.follower is not None} slaves={len(self.acks)}>"
        )

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for slaves. Raises OSError for a port that was asked for and is taken, or a secret that is missing."""
        ha, port = self._ha, self._settings.ha_listen_port
        await self.secret.start()
        self.server = ReplicationServer(
            lambda: self.facts,
            self._source,
            self.acks,
            on_acks=self._acks_moved,
            on_join=self._tables.everything,
            on_refused=lambda session: self.on_refused(session),
            clock_ms=self.clock_ms,
            allows_classic=ha.is_classic_allowed,
        )
        self._ticks = asyncio.ensure_future(self._tick())
        if port is None:
            return
        try:
            tls = None if self._certificates is None else self._server_tls
            await self.server.start(self._settings.listen_host, port, tls)
        except OSError as error:
            if self._settings.ha_port is not None or ha.acks_needed:
                raise
            # Nobody has asked for slaves: a neighbour's port beside ours must not keep this broker from serving.
            log.warning(
                "no slave can follow: the replication port is taken", extra={"port": port, "reason": str(error)}
            )

    def _server_tls(self) -> ssl.SSLContext:
        assert self._certificates is not None, "only asked where there are some"
        return self._certificates.current.server

    def _client_tls(self) -> ssl.SSLContext:
        assert self._certificates is not None, "only asked where there are some"
        return self._certificates.current.client

    async def close(self) -> None:
        """Follow nobody, and let nobody follow."""
        await self.stop_following()
        await self.healer.close()
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.wait([self._ticks])
        await self.secret.close()
        self.facts = None
        if self.server is not None:
            await self.server.close()

    def _replicas(self) -> list[RangeSource]:
        """Who may be asked for a damaged range."""
        if isinstance(self.follower, Follower):
            return [self.follower]
        return list(self.server.streams) if self.is_leading and self.server is not None else []

    def _count_replicas(self) -> int:
        """How many replicas may be asked for a damaged range once they are connected."""
        if self.follower is not None:
            return int(isinstance(self.follower, Follower))  # a master, unless it is RocketMQ's
        if self.facts is None:
            return max(len(self._ha.electable), self._ha.acks_needed, int(self._settings.broker_id > 0))
        return max(len(self.facts.electable), self._ha.acks_needed, int(self._has_had_replica))

    def damage_resolved(self) -> None:
        """A damaged range is healed, or given up: streams that waited before it go on."""
        if self.server is not None:
            self.server.appended()

    # -- a master's side -----------------------------------------------------------------------------------------------

    def count_on(self) -> None:
        """The log is going to be this broker's: its queues go on where the last master's did."""
        self._tables.count_on()

    def lead(self, epoch: int, electable: list[int], *, is_comparing: bool = False) -> None:
        """Be a master from now on: slaves may come. The store is a master's, or is going to be after comparing."""
        settings, ha = self._settings, self._ha
        electable = [number for number in electable if number != settings.broker_id]
        self.grants = Grants([str(number) for number in electable])
        self.acks.begin_epoch(self._log.identity.epochs[-1].start, electable)
        grant_ms = ha.grant_ms if electable and not ha.acks_needed else 0
        self.facts = MasterFacts(
            cluster=settings.cluster_name, broker_name=settings.broker_name,
            file_bytes=settings.store.mapped_file_size_commit_log, epoch=epoch, grant_ms=grant_ms,
            secret=self.secret.current, is_comparing=is_comparing,
            is_classic_counted=not (ha.acks_needed and electable), electable=tuple(electable),
            broker_id=settings.broker_id, acks_needed=ha.acks_needed,
        )  # fmt: skip
        if not is_comparing:
            self._tables.lead()
            self._judge()
            self._advanced()

    def _secret_changed(self) -> None:
        """Streams from now on need it; those that exist have proved that they knew the one before."""
        if self.facts is not None:
            self.facts = self.facts._replace(secret=self.secret.current)

    def stop_leading(self, reason: str) -> None:
        """No slave follows any more."""
        self.facts, self.is_degraded = None, False
        self.grants = Grants(())
        self._show_nothing_new()
        if self.server is not None:
            self.server.disconnect(reason)

    def _show_nothing_new(self) -> None:
        """What is not shown yet waits for the next master, or for slaves."""
        if self._ha.is_waited_for:
            self._log.wait_for_slaves(-1)

    @property
    def is_leading(self) -> bool:
        return self.facts is not None and not self.facts.is_comparing

    def may_acknowledge(self) -> bool:
        """Whether nobody else can be the master now, as far as this broker has to know that by itself."""
        return self.is_waited_for or self.grants.may_acknowledge(self.clock_ms())

    @property
    def is_sure(self) -> bool:
        """Whether this master could acknowledge something now, and so nobody else can be one."""
        return self.is_leading and self.may_acknowledge() and (not self.is_waited_for or self.has_enough())

    def missing(self) -> str:
        """Why nothing may be acknowledged."""
        names = ", ".join(self.grants.missing(self.clock_ms()))
        return f"nothing is acknowledged: slaves {names} say nothing, and no Lease is held"

    @property
    def is_waited_for(self) -> bool:
        """Whether sends wait for slaves now."""
        return self._ha.acks_needed > 0 and not self.is_degraded

    def has_enough(self) -> bool:
        """Whether as many slaves as are needed are connected, and close to the end of the log."""
        return self.acks.has_enough(self._log.wrote, self._ha.gap_bytes_max)

    def _judge(self) -> None:
        """Do slaves count, and how far are they?"""
        if not self._ha.acks_needed:
            self._log.wait_for_nobody()
            return
        is_degraded = self._ha.degrade is Degrade.ASYNC and not self.has_enough()
        if is_degraded != self.is_degraded:
            self.is_degraded = is_degraded
            what = "are not waited for any more" if is_degraded else "are waited for again"
            log.warning("slaves %s", what, extra={"slaves": len(self.acks), "wrote": self._log.wrote})
        if is_degraded:
            self._log.wait_for_nobody()
        else:
            self._log.wait_for_slaves(self.acks.acked())

    def _acks_moved(self) -> None:
        """Some slave is further, or gone."""
        self._move.set()
        if not self.is_leading or self.server is None:
            return
        if not self._has_had_replica:
            self._has_had_replica = any(stream.has_range(0) for stream in self.server.streams)
        for stream in self.server.streams:
            session = stream.session
            if isinstance(session, MasterSession) and session.is_streaming and session.hello and session.echo_ms >= 0:
                self.grants.granted(str(session.hello.broker_id), session.echo_ms, session.grant_ms)
        self._judge()
        self._advanced()
        self.server.confirmed_moved()

    @property
    def is_copied(self) -> bool:
        """Whether every slave that is here has everything, and enough of them are."""
        wrote, acks = self._log.wrote, self.acks
        is_enough = not self._ha.acks_needed or acks.acked() >= wrote
        return is_enough and self.are_slaves_level

    @property
    def are_slaves_level(self) -> bool:
        """Whether every slave that is here has everything."""
        return all(slave.received >= self._log.wrote for slave in self.acks)

    async def moves(self) -> None:
        """Wait until an ack comes, or a thread of the store has got somewhere."""
        self._move.clear()
        await self._move.wait()

    def _wrote(self) -> None:
        """An append, by whomever."""
        if self.server is not None:
            self.server.appended()
        self._meanwhile()

    def moved(self) -> None:
        """The store's threads have got somewhere."""
        self._move.set()
        if self.follower is not None:
            self.follower.progressed()
        if self.is_leading and self.server is not None:
            self.server.confirmed_moved()

    def _tables_changed(self) -> None:
        if not self._is_table_scheduled:
            self._is_table_scheduled = True
            self._loop.call_soon(self._send_urgent)

    def _send_urgent(self) -> None:
        self._is_table_scheduled = False
        self._send_tables(self._tables.urgent())

    def _send_tables(self, tables: list[Table]) -> None:
        if self.is_leading and self.server is not None:
            self.server.send_tables(tables)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            self.peak.looked(self._log.wrote)
            self.healer.look(self._loop.time())
            if self.on_caught_up is not None and isinstance(self.follower, Follower) and self.follower.has_caught_up:
                await self.on_caught_up()
            if self.is_leading and self.server is not None:
                if self.server.streams:
                    self._send_tables(self._tables.due())
                self._judge()
                self._advanced()

    # -- a slave's side ------------------------------------------------------------------------------------------------

    def follow(self, address: str) -> None:
        """Follow the master at ``address``, host:port, again and again."""
        assert self._following is None, "stop_following() comes first"
        self._tables.begin_copying()
        self.follower = self._classic_follower(address) if self._ha.is_master_classic else self._our_follower(address)
        self._following = asyncio.ensure_future(self.follower.run())

    def _our_follower(self, address: str) -> Follower:
        return Follower(
            self.store,
            self._slave_facts,
            split_address(address),
            on_table=self._tables.take,
            on_copied=self._copied,
            on_grant=self._granted,
            on_welcome=self._welcomed,
            tls=None if self._certificates is None else self._client_tls,
            standstill=self._standstill,
        )

    def _classic_follower(self, address: str) -> ClassicFollower:
        host, port = split_address(address)
        store = self._settings.store
        credentials = None if self._account is None else self._account.credentials
        return ClassicFollower(
            self.store,
            ClassicMaster((host, port), self._ha.classic_broker_address or join_address(host, port - 1), credentials),
            file_bytes=store.mapped_file_size_commit_log,
            is_flushed_wanted=store.flush.is_sync,
            on_table=self._tables.take,
            on_copied=self._copied,
            standstill=self._standstill,
        )

    async def finish_following(self) -> None:
        """Follow nobody, to become the master: what only a master of RocketMQ's knows is asked a last time."""
        if isinstance(self.follower, ClassicFollower):
            await self.follower.finish()
        await self.stop_following()

    async def stop_following(self) -> None:
        """Follow nobody. The log stands still when this returns."""
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.follower = None

    @property
    def shown(self) -> int:
        """Up to where a slave's consumers may see."""
        confirmed = -1 if self.follower is None else self.follower.confirmed
        return max(min(confirmed, self.store.received), self._log.dispatched)

    @property
    def granted_ms(self) -> int:
        """For how much longer a grant that was given may count for its master."""
        return self.given.rest_ms(self.clock_ms())

    @property
    def heard_ms(self) -> int | None:
        """For how long the master has said nothing; None if it never has, or none is followed."""
        heartbeat_at = self.follower.last_heartbeat_at if isinstance(self.follower, Follower) else None
        return None if heartbeat_at is None else max(0, int((self._loop.time() - heartbeat_at) * 1000))

    async def _welcomed(self, welcome: Welcome) -> None:
        """The log is cut to what this master has, too, and nothing is copied yet."""
        self._tables.begin_copying()
        if self.on_welcome is not None:
            await self.on_welcome(welcome)

    def _granted(self) -> None:
        self.given.given(self.clock_ms())

    def _slave_facts(self) -> SlaveFacts:
        settings, store = self._settings, self._log
        return SlaveFacts(
            cluster=settings.cluster_name, broker_name=settings.broker_name, broker_id=settings.broker_id,
            store_uuid=store.identity.uuid, file_bytes=settings.store.mapped_file_size_commit_log,
            promised_epoch=self.promised_epoch, is_crash_safe=store.pool_status.is_crash_safe,
            address=settings.address, secret=self.secret.current,
        )  # fmt: skip

    def _copied(self) -> None:
        if not self._is_show_scheduled:
            self._is_show_scheduled = True
            self._loop.call_soon(self.show)

    def show(self) -> None:
        """Let consumers see what the master says is confirmed, as far as it is here."""
        self._is_show_scheduled = False
        follower = self.follower
        if follower is None or self.store.copier is None:
            return
        self._tables.settle(self._log.wrote, follower.confirmed)
        if not self.store.dispatch(min(follower.confirmed, self.store.received)) and not self._is_show_scheduled:
            self._is_show_scheduled = True
            if self.store.is_behind:
                self._loop.call_later(SHOW_RETRY_S, self.show)
            else:
                self._loop.call_soon(self.show)
