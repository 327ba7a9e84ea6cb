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
from gantry_broker.ha.follower_runner import RunExclusively
from gantry_broker.ha.frames import Welcome
from gantry_broker.ha.role_files import PromiseFile
from gantry_broker.ha.slave_session import SlaveFacts
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.settings import BrokerSettings
from gantry_remoting import CertificateSource, PeerContexts, join_address, split_address
from gantry_status.broker_ports import broker_port_of

DISPATCH_RETRY_S: Final = 1.0
"""Seconds after which a slave tries again that lacks room for queue units, or whose log is being repaired."""

OnWelcome = Callable[[Welcome], Awaitable[None]]
"""Called with the master's permission to follow, before anything is copied."""


@final
class SlaveReplication:
    """Follows one master, or none. Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: SlaveStore,
        promises: PromiseFile,
        tables: TableSync,
        secret: GroupSecret,
        *,
        clock_ms: Callable[[], int],
        run_exclusively: RunExclusively,
        account: OwnAccount | None,
        certificates: CertificateSource[PeerContexts] | None,
    ) -> None:
        """``clock_ms`` is the clock on which grants expire. ``account`` signs requests to a Java master."""
        self.follower: Follower | ClassicFollower | None = None
        """The connection to the master; None unless this broker is a slave."""
        self.given_grants: Final = GivenGrants()
        """The permissions to acknowledge that this slave has given its master."""
        self._settings: Final = settings
        self._store: Final = store
        self._promises: Final = promises
        self._tables: Final = tables
        self._secret: Final = secret
        self._clock_ms: Final = clock_ms
        self._run_exclusively: Final = run_exclusively
        self._account: Final = account
        self._tls: Final = None if certificates is None else lambda: certificates.current.client
        self._loop: Final = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        self._on_caught_up: Callable[[], Awaitable[None]] | None = None
        self._is_dispatch_scheduled = False

    def __repr__(self) -> str:
        return f"<SlaveReplication follower={self.follower}>"

    # -- following -----------------------------------------------------------------------------------------------------

    def follow(self, address: str, on_welcome: OnWelcome, on_caught_up: Callable[[], Awaitable[None]]) -> None:
        """Follow the master at ``address``, host:port, and reconnect after failures.

        ``on_welcome`` is awaited before anything of that master is copied, ``on_caught_up`` about once a second while
        this log has everything that the master had when the stream began. RocketMQ's masters cause neither.
        """
        assert self._following is None, "stop() comes first"
        self._tables.begin_copying()
        self._on_caught_up = on_caught_up
        is_classic = self._settings.ha.is_master_classic
        self.follower = self._classic_follower(address) if is_classic else self._gantry_follower(address, on_welcome)
        self._following = asyncio.ensure_future(self.follower.run())

    def _gantry_follower(self, address: str, on_welcome: OnWelcome) -> Follower:
        async def handle_welcome(welcome: Welcome) -> None:
            self._tables.begin_copying()  # The log is truncated for the master, if needed; nothing is copied yet.
            await on_welcome(welcome)

        return Follower(
            self._store,
            self._facts,
            split_address(address),
            on_table=self._tables.receive,
            on_copied=self._schedule_dispatch,
            on_grant=lambda: self.given_grants.record_grant(self._clock_ms()),
            on_welcome=handle_welcome,
            ack_limit=self._tables.ack_limit,
            tls=self._tls,
            run_exclusively=self._run_exclusively,
        )

    def _classic_follower(self, address: str) -> ClassicFollower:
        host, port = split_address(address)
        ha, store = self._settings.ha, self._settings.store
        return ClassicFollower(
            self._store,
            ClassicMaster(
                (host, port), ha.classic_broker_address or join_address(host, broker_port_of(port)), self._account
            ),
            file_bytes=store.mapped_file_size_commit_log,
            is_flushed_wanted=store.flush.is_sync,
            on_table=self._tables.receive,
            on_copied=self._schedule_dispatch,
            run_exclusively=self._run_exclusively,
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
        """Stop following, because this broker becomes the master. From a master of RocketMQ fetch its tables first."""
        if isinstance(self.follower, ClassicFollower):
            await self.follower.finish()
        await self.stop()

    async def stop(self) -> None:
        """Stop following. The log no longer grows when this returns."""
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.follower = self._on_caught_up = None

    def report_store_progress(self) -> None:
        """Report progress of the store's threads to the master."""
        if self.follower is not None:
            self.follower.report_progress()

    async def tick(self) -> None:
        """Call ``on_caught_up`` if this log has caught up. Called about once a second."""
        follower, on_caught_up = self.follower, self._on_caught_up
        if on_caught_up is not None and isinstance(follower, Follower) and follower.has_caught_up:
            await on_caught_up()

    # -- for the status ------------------------------------------------------------------------------------------------

    @property
    def granted_ms(self) -> int:
        """Milliseconds for which a grant, a short permission to acknowledge, may still count for its master."""
        return self.given_grants.remaining_ms(self._clock_ms())

    @property
    def heartbeat_age_ms(self) -> int | None:
        """Milliseconds since the Gantry master that is followed last sent something.

        None if no Gantry master is followed, or if it has sent nothing so far.
        """
        heartbeat_at = self.follower.last_heartbeat_at if isinstance(self.follower, Follower) else None
        return None if heartbeat_at is None else max(0, int((self._loop.time() - heartbeat_at) * 1000))

    # -- what is visible -----------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Position up to which the master has confirmed the local log; -1 while it has reported no position."""
        return -1 if self.follower is None else min(self.follower.confirmed, self._store.received)

    def _schedule_dispatch(self) -> None:
        if not self._is_dispatch_scheduled:
            self._is_dispatch_scheduled = True
            self._loop.call_soon(self.dispatch_confirmed)

    def dispatch_confirmed(self) -> None:
        """Make messages visible that the master reports as confirmed and that are here."""
        self._is_dispatch_scheduled = False
        follower, store = self.follower, self._store
        if follower is None or store.copier is None:
            return
        self._tables.apply_up_to(store.store.log.wrote, follower.confirmed)
        if not store.dispatch(self.confirmed) and not self._is_dispatch_scheduled:
            self._is_dispatch_scheduled = True
            if store.is_behind:
                self._loop.call_later(DISPATCH_RETRY_S, self.dispatch_confirmed)
            else:
                self._loop.call_soon(self.dispatch_confirmed)
