"""A slave's side of replication: one follower of one master, and how far consumers may read here.

stream -> append -> ack -> what the master reports as confirmed becomes visible
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import OwnAccount
from gantry_broker.ha.acknowledgement import GivenGrants
from gantry_broker.ha.classic.follower import ClassicFollower, ClassicMaster
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.follower_runner import Standstill
from gantry_broker.ha.frames import Welcome
from gantry_broker.ha.role_files import PromiseFile
from gantry_broker.ha.slave_session import SlaveFacts
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.settings import BrokerSettings
from gantry_remoting import CertificateSource, PeerContexts, join_address, split_address

SHOW_RETRY_S: Final = 1.0
"""How soon a slave without room for a queue's entries tries again."""

OnWelcome = Callable[[Welcome], Awaitable[None]]


@final
class SlaveReplication:
    """Follows a master, or none. Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: SlaveStore,
        promises: PromiseFile,
        tables: TableSync,
        secret: GroupSecret,
        *,
        clock_ms: Callable[[], int],
        standstill: Standstill,
        account: OwnAccount | None,
        certificates: CertificateSource[PeerContexts] | None,
    ) -> None:
        """``clock_ms`` is what grants are counted on. ``account`` signs what a Java master is asked."""
        self.follower: Follower | ClassicFollower | None = None
        self.given: Final = GivenGrants()
        self._settings: Final = settings
        self._store: Final = store
        self._promises: Final = promises
        self._tables: Final = tables
        self._secret: Final = secret
        self._clock_ms: Final = clock_ms
        self._standstill: Final = standstill
        self._account: Final = account
        self._tls: Final = None if certificates is None else lambda: certificates.current.client
        self._loop: Final = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        self._on_caught_up: Callable[[], Awaitable[None]] | None = None
        self._is_show_scheduled = False

    def __repr__(self) -> str:
        return f"<SlaveReplication follower={self.follower}>"

    # -- following -----------------------------------------------------------------------------------------------------

    def follow(self, address: str, on_welcome: OnWelcome, on_caught_up: Callable[[], Awaitable[None]]) -> None:
        """Follow the master at ``address``, host:port, again and again.

        ``on_welcome`` is awaited before anything of that master is copied, ``on_caught_up`` about once a second when
        everything is here that the master had when the stream began.
        """
        assert self._following is None, "stop() comes first"
        self._tables.begin_copying()
        self._on_caught_up = on_caught_up
        is_classic = self._settings.ha.is_master_classic
        self.follower = self._classic_follower(address) if is_classic else self._our_follower(address, on_welcome)
        self._following = asyncio.ensure_future(self.follower.run())

    def _our_follower(self, address: str, on_welcome: OnWelcome) -> Follower:
        async def welcomed(welcome: Welcome) -> None:
            self._tables.begin_copying()  # the log is cut to what this master has, too, and nothing is copied yet
            await on_welcome(welcome)

        return Follower(
            self._store,
            self._facts,
            split_address(address),
            on_table=self._tables.take,
            on_copied=self._copied,
            on_grant=lambda: self.given.given(self._clock_ms()),
            on_welcome=welcomed,
            tls=self._tls,
            standstill=self._standstill,
        )

    def _classic_follower(self, address: str) -> ClassicFollower:
        host, port = split_address(address)
        ha, store = self._settings.ha, self._settings.store
        credentials = None if self._account is None else self._account.credentials
        return ClassicFollower(
            self._store,
            ClassicMaster((host, port), ha.classic_broker_address or join_address(host, port - 1), credentials),
            file_bytes=store.mapped_file_size_commit_log,
            is_flushed_wanted=store.flush.is_sync,
            on_table=self._tables.take,
            on_copied=self._copied,
            standstill=self._standstill,
        )

    def _facts(self) -> SlaveFacts:
        settings, store = self._settings, self._store.store
        return SlaveFacts(
            cluster=settings.cluster_name, broker_name=settings.broker_name, broker_id=settings.broker_id,
            store_uuid=store.identity.uuid, file_bytes=settings.store.mapped_file_size_commit_log,
            promised_epoch=self._promises.promise.epoch, is_crash_safe=store.pools.status.is_crash_safe,
            address=settings.address, secret=self._secret.current,
        )  # fmt: skip

    async def finish(self) -> None:
        """Stop following, to become the master: what only a master of RocketMQ's knows is asked a last time."""
        if isinstance(self.follower, ClassicFollower):
            await self.follower.finish()
        await self.stop()

    async def stop(self) -> None:
        """Stop following. The log stands still when this returns."""
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.follower = self._on_caught_up = None

    def moved(self) -> None:
        """The store's threads have got somewhere."""
        if self.follower is not None:
            self.follower.progressed()

    async def tick(self) -> None:
        """About once a second."""
        follower, on_caught_up = self.follower, self._on_caught_up
        if on_caught_up is not None and isinstance(follower, Follower) and follower.has_caught_up:
            await on_caught_up()

    # -- for the status ------------------------------------------------------------------------------------------------

    @property
    def granted_ms(self) -> int:
        """For how much longer a grant that was given may count for its master."""
        return self.given.rest_ms(self._clock_ms())

    @property
    def heartbeat_age_ms(self) -> int | None:
        """How long ago the master sent something; None if it never has, or none is followed."""
        heartbeat_at = self.follower.last_heartbeat_at if isinstance(self.follower, Follower) else None
        return None if heartbeat_at is None else max(0, int((self._loop.time() - heartbeat_at) * 1000))

    # -- what is visible -----------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """How far the master has confirmed what is here; -1 while it has not reported that."""
        return -1 if self.follower is None else min(self.follower.confirmed, self._store.received)

    def _copied(self) -> None:
        if not self._is_show_scheduled:
            self._is_show_scheduled = True
            self._loop.call_soon(self.show)

    def show(self) -> None:
        """Let consumers read what the master reports as confirmed, as far as it is here."""
        self._is_show_scheduled = False
        follower, store = self.follower, self._store
        if follower is None or store.copier is None:
            return
        self._tables.settle(store.store.log.wrote, follower.confirmed)
        if not store.dispatch(self.confirmed) and not self._is_show_scheduled:
            self._is_show_scheduled = True
            if store.is_behind:
                self._loop.call_later(SHOW_RETRY_S, self.show)
            else:
                self._loop.call_soon(self.show)
