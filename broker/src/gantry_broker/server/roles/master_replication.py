"""A master's side of replication: who it is for its slaves, what they are sent, and what their acks move.

    append -> streams -> acks -> `promised` and `confirmed` move -> answers, consumers, and slaves see it

Nothing here waits: an ack moves a position, and what waits for that position is examined once per turn of the loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final

from gantry_broker.ha.acknowledgement import AckPolicy
from gantry_broker.ha.master_session import MasterFacts, MasterSession
from gantry_broker.ha.server import ReplicationServer
from gantry_broker.ha.store_log import SlaveStore, StoreLog
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.message_store import MessageStore


@final
class MasterReplication:
    """Feeds slaves while this broker is the master, and before that compares logs with them. Owned by the loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        slave_store: SlaveStore,
        policy: AckPolicy,
        tables: TableSync,
        secret: GroupSecret,
        *,
        advanced: Callable[[], None],
    ) -> None:
        """``advanced`` releases what waits for a position of the log; ``slave_store`` takes tails while comparing."""
        self.policy: Final = policy
        self.server: Final = ReplicationServer(
            self.facts,
            StoreLog(store, slave_store),
            policy.acks,
            on_acks=self._acks_moved,
            on_join=tables.everything,
            on_refused=self._refused,
            clock_ms=policy.clock_ms,
            allows_classic=settings.ha.is_classic_allowed,
        )
        self._settings: Final = settings
        self._store: Final = store
        self._tables: Final = tables
        self._secret: Final = secret
        self._advanced: Final = advanced
        self._loop: Final = asyncio.get_running_loop()
        self._facts: MasterFacts | None = None
        self._on_refused: Callable[[MasterSession], None] | None = None
        self._moved: Final = asyncio.Event()
        self._is_table_scheduled = False
        self._has_had_replica = False
        """Whether a slave that can heal damage was connected since the start."""

    def __repr__(self) -> str:
        return f"<MasterReplication leading={self.is_leading} slaves={len(self.policy.acks)}>"

    # -- the role ------------------------------------------------------------------------------------------------------

    def facts(self) -> MasterFacts | None:
        """Who the master is for the next connection; None while no slave may follow.

        The secret is the one of the moment: streams that exist have proved that they knew the one before.
        """
        return None if self._facts is None else self._facts._replace(secret=self._secret.current)

    @property
    def is_leading(self) -> bool:
        return self._facts is not None and not self._facts.is_comparing

    @property
    def is_sure(self) -> bool:
        """Whether this master could acknowledge something now, and so no other member can be one."""
        policy = self.policy
        return self.is_leading and policy.may_acknowledge() and (not policy.is_waited_for or policy.has_enough())

    def lead(self, epoch: int, electable: list[int]) -> None:
        """Be the master from now on: slaves may follow. The store is a master's."""
        self._begin(epoch, electable, None)
        self._tables.lead()
        self.policy.judge()
        self._advanced()

    def compare(self, epoch: int, electable: list[int], on_refused: Callable[[MasterSession], None]) -> None:
        """Let slaves come only to be compared with, before this broker is a master.

        ``on_refused`` is called for each of them: every one is sent away, and its session shows why.
        """
        self._begin(epoch, electable, on_refused)

    def _begin(self, epoch: int, electable: list[int], on_refused: Callable[[MasterSession], None] | None) -> None:
        settings, ha = self._settings, self._settings.ha
        electable = [number for number in electable if number != settings.broker_id]
        self.policy.begin(electable)
        self._on_refused = on_refused
        self._facts = MasterFacts(
            cluster=settings.cluster_name, broker_name=settings.broker_name,
            file_bytes=settings.store.mapped_file_size_commit_log, epoch=epoch,
            grant_ms=ha.grant_ms if electable and not ha.acks_needed else 0, is_comparing=on_refused is not None,
            is_classic_counted=not (ha.acks_needed and electable), electable=tuple(electable),
            broker_id=settings.broker_id, acks_needed=ha.acks_needed,
        )  # fmt: skip

    def stop(self, reason: str) -> None:
        """No slave follows any more."""
        self._facts = self._on_refused = None
        self.policy.end()
        self.server.disconnect(reason)

    async def close(self) -> None:
        """Let no slave follow, and stop listening. What was acknowledged and visible stays so."""
        self._facts = None
        await self.server.close()

    def _refused(self, session: MasterSession) -> None:
        if self._on_refused is not None:
            self._on_refused(session)

    def count_expected(self) -> int:
        """How many slaves may be asked for a damaged range once they are connected."""
        ha, facts = self._settings.ha, self._facts
        if facts is None:
            return max(len(ha.electable), ha.acks_needed, int(self._settings.broker_id > 0))
        return max(len(facts.electable), ha.acks_needed, int(self._has_had_replica))

    # -- what moves ----------------------------------------------------------------------------------------------------

    def _acks_moved(self) -> None:
        """Some slave is further, or gone."""
        self._moved.set()
        if not self.is_leading:
            return
        streams, grants = self.server.streams, self.policy.grants
        if not self._has_had_replica:
            self._has_had_replica = any(stream.has_range(0) for stream in streams)
        for stream in streams:
            session = stream.session
            if isinstance(session, MasterSession) and session.is_streaming and session.hello and session.echo_ms >= 0:
                grants.granted(str(session.hello.broker_id), session.echo_ms, session.grant_ms)
        self.policy.judge()
        self._advanced()
        self.server.confirmed_moved()

    def moved(self) -> None:
        """The store's threads have got somewhere."""
        self._moved.set()
        if self.is_leading:
            self.server.confirmed_moved()

    async def moves(self) -> None:
        """Wait until an ack comes, or a thread of the store has got somewhere."""
        self._moved.clear()
        await self._moved.wait()

    @property
    def are_slaves_level(self) -> bool:
        """Whether every slave that is connected has everything."""
        return all(slave.received >= self._store.log.wrote for slave in self.policy.acks)

    @property
    def is_copied(self) -> bool:
        """Whether every slave that is connected has everything, and enough of them are."""
        is_enough = not self._settings.ha.acks_needed or self.policy.acks.acked() >= self._store.log.wrote
        return is_enough and self.are_slaves_level

    # -- tables --------------------------------------------------------------------------------------------------------

    def tables_changed(self) -> None:
        """A table that goes out at once has changed: send it at the end of this turn of the loop."""
        if not self._is_table_scheduled:
            self._is_table_scheduled = True
            self._loop.call_soon(self._send_urgent)

    def _send_urgent(self) -> None:
        self._is_table_scheduled = False
        tables = self._tables.urgent()
        if self.is_leading:
            self.server.send_tables(tables)

    def tick(self) -> None:
        """About once a second."""
        if self.is_leading:
            if self.server.streams:
                self.server.send_tables(self._tables.due())
            self.policy.judge()
            self._advanced()
