"""A master's side of replication: its identity for slaves, the data they get, and the effect of their acks.

    append -> streams -> acks -> `promised` and `confirmed` move -> answers are released, messages become visible

No request waits here: an ack moves a position, and the answers held for that position are sent in the same turn of the
loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final

from gantry_broker.ha.acknowledgement import AckPolicy
from gantry_broker.ha.classic.master_session import ClassicMasterSession
from gantry_broker.ha.master_session import MasterFacts, MasterSession
from gantry_broker.ha.server import ReplicationServer
from gantry_broker.ha.store_log import MasterStore, SlaveStore
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
        on_advanced: Callable[[], None],
        on_acks_fall: Callable[[], None],
    ) -> None:
        """``on_advanced`` releases requests that wait for a position of the log.

        ``on_acks_fall`` is called before acks stop counting, and makes visible what they have confirmed.
        ``slave_store`` receives the tails of slaves while this broker compares.
        """
        self.policy: Final = policy
        self.server: Final = ReplicationServer(
            self.facts,
            MasterStore(store, slave_store),
            policy.acks,
            on_acks=self._handle_acks,
            on_join=tables.all_tables,
            on_refused=self._handle_refusal,
            clock_ms=policy.clock_ms,
            allows_classic=settings.ha.is_classic_allowed,
        )
        self._settings: Final = settings
        self._store: Final = store
        self._tables: Final = tables
        self._secret: Final = secret
        self._on_advanced: Final = on_advanced
        self._on_acks_fall: Final = on_acks_fall
        self._loop: Final = asyncio.get_running_loop()
        self._facts: MasterFacts | None = None
        self._on_refused: Callable[[MasterSession], None] | None = None
        self._moved: Final = asyncio.Event()
        self._is_table_scheduled = False
        self._has_had_replica = False
        """Whether a slave that can repair damage was connected since the start."""

    def __repr__(self) -> str:
        return f"<MasterReplication leading={self.is_leading} slaves={len(self.policy.acks)}>"

    # -- the role ------------------------------------------------------------------------------------------------------

    def facts(self) -> MasterFacts | None:
        """Return the master's identity for the next connection; None while no slave may follow.

        It contains the current secret: existing streams have proved that they knew the previous one.
        """
        return None if self._facts is None else self._facts._replace(secret=self._secret.current)

    @property
    def is_leading(self) -> bool:
        return self._facts is not None and not self._facts.is_comparing

    @property
    def can_acknowledge(self) -> bool:
        """Whether this master could acknowledge a message now, so that no other member can be master."""
        policy = self.policy
        return (
            self.is_leading and policy.may_acknowledge() and (not policy.is_waiting_for_slaves or policy.has_enough())
        )

    def lead(self, epoch: int, electable: list[int]) -> None:
        """Begin to lead: slaves may follow. The caller has promoted the store."""
        self._begin(epoch, electable, None)
        self._tables.become_master()
        self.policy.reevaluate()
        self._on_advanced()

    def compare(self, epoch: int, electable: list[int], on_refused: Callable[[MasterSession], None]) -> None:
        """Accept slaves only for a comparison, before this broker is a master.

        ``on_refused`` is called for each of them: every slave is refused, and its session has the reason.
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
        """Stop leading, and disconnect all slaves."""
        try:
            if self.is_leading:
                self._on_acks_fall()
        finally:
            self._facts = self._on_refused = None
            self.policy.end()
            self.server.disconnect(reason)

    async def close(self) -> None:
        """Let no slave follow, and stop listening. What was acknowledged or visible stays acknowledged or visible."""
        self._facts = None
        await self.server.close()

    def _handle_refusal(self, session: MasterSession) -> None:
        if self._on_refused is not None:
            self._on_refused(session)

    def count_expected_replicas(self) -> int:
        """Return how many slaves can be asked for a damaged range once all are connected."""
        ha, facts = self._settings.ha, self._facts
        if facts is None:
            return max(len(ha.electable), ha.acks_needed, int(self._settings.broker_id > 0))
        return max(len(facts.electable), ha.acks_needed, int(self._has_had_replica))

    @property
    def has_classic_slaves(self) -> bool:
        """Whether slaves of RocketMQ's follow."""
        return any(isinstance(stream.session, ClassicMasterSession) for stream in self.server.streams)

    # -- progress ------------------------------------------------------------------------------------------------------

    def _handle_acks(self) -> None:
        """React to progress or departure of a slave."""
        self._moved.set()
        if not self.is_leading:
            return
        streams, grants = self.server.streams, self.policy.grants
        if not self._has_had_replica:
            self._has_had_replica = any(stream.has_range(0) for stream in streams)
        for stream in streams:
            session = stream.session
            if isinstance(session, MasterSession) and session.is_streaming and session.hello and session.echo_ms >= 0:
                grants.record_grant(str(session.hello.broker_id), session.echo_ms, session.grant_ms)
        self._reevaluate()
        self.server.report_confirmed()

    def _reevaluate(self) -> None:
        """Count the acks again. A slave that has left no longer counts, but what it confirmed must be shown.

        Messages become visible a moment after their acknowledgement. Without this, consumers would not see one whose
        slave leaves in that moment until a slave acknowledges it again.
        """
        acked = self._store.positions.acked
        try:
            if acked is not None and self.policy.acks.acked_offset() < acked:
                self._on_acks_fall()
        finally:
            self.policy.reevaluate()
            self._on_advanced()

    def report_store_progress(self) -> None:
        """React to progress of the store's threads: report it to slaves."""
        self._moved.set()
        if self.is_leading:
            self.server.report_confirmed()

    async def wait_for_progress(self) -> None:
        """Wait until an ack arrives, or a thread of the store makes progress."""
        self._moved.clear()
        await self._moved.wait()

    @property
    def have_slaves_caught_up(self) -> bool:
        """Whether every connected slave has the whole log."""
        return all(slave.received >= self._store.log.wrote for slave in self.policy.acks)

    @property
    def is_copied(self) -> bool:
        """Whether every connected slave has the whole log, and enough slaves are connected."""
        is_enough = not self._settings.ha.acks_needed or self.policy.acks.acked_offset() >= self._store.log.wrote
        return is_enough and self.have_slaves_caught_up

    # -- tables --------------------------------------------------------------------------------------------------------

    def schedule_urgent_tables(self) -> None:
        """Send a changed urgent table at the end of this turn of the loop."""
        if not self._is_table_scheduled:
            self._is_table_scheduled = True
            self._loop.call_soon(self._send_urgent)

    def _send_urgent(self) -> None:
        self._is_table_scheduled = False
        if self.is_leading and self.server.streams:  # A slave gets all tables when it joins.
            self.server.send_tables(self._tables.urgent_tables())

    def tick(self) -> None:
        """Send changed tables and check the acks again. Called about once a second."""
        if self.is_leading:
            if self.server.streams:
                self.server.send_tables(self._tables.due_tables())
            self._reevaluate()
