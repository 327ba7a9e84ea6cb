"""Records that a broker's data is complete: when it has caught up, and the damage that starts have found is resolved.

    damaged range of ``completeness.json`` --- verified ---> good: healed, copied again, or no longer in the log
                                                `----------> damaged, and no other member has it: resolved, too
                                                `----------> damaged: reported, to be fetched from a replica

A range is verified by checksums, and not taken for healed because it is not in the table of damage: a start reads only
the end of the log, so that after a clean stop the table is empty. Damage that every other member lacks does not keep a
vote back: that would protect nothing, and could leave a shard without enough voters. Only a master asks all members. A
slave asks its master, which is enough if it is the only electable slave.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.role_files import RoleFile
from gantry_broker.server.roles.replication import Replication
from gantry_broker.store.damage import Damage, DamageState
from gantry_broker.store.data_completeness import ByteRange, DataCompleteness
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

VERIFIED_BYTES_MAX: Final = 32 << 20
"""How many bytes of damaged ranges are verified in one second, since the loop's thread reads them."""


@final
class CompletenessRecorder:
    """Decides when ``completeness.json`` records complete data again. Owned by the loop."""

    def __init__(
        self, completeness: DataCompleteness, store: MessageStore, replication: Replication, role_file: RoleFile,
        broker_id: int,
    ) -> None:  # fmt: skip
        self.is_loss_accepted = False
        """Whether a person has accepted the loss of missing log data since the start."""

        self._completeness: Final = completeness
        self._store: Final = store
        self._replication: Final = replication
        self._role_file: Final = role_file
        self._broker_id: Final = broker_id
        self._lock: Final = asyncio.Lock()
        self.is_waiting = False
        """Whether this broker has caught up, or was promoted, and its data is not complete nevertheless."""

        replication.on_tick.append(self._retry)

    def __repr__(self) -> str:
        return f"<CompletenessRecorder {self._completeness.is_complete} damaged={len(self._completeness.damaged)}>"

    async def record_caught_up(self) -> None:
        """Record that no data is missing: any data in doubt was copied, or exists on no member.

        Nothing is recorded before all damage that starts have found is resolved. On a master that is checked again
        every second; a slave calls this every second while it has caught up.
        """
        losses, completeness = self._store.losses, self._completeness
        async with self._lock:
            try:
                if losses.record.missing:
                    await asyncio.to_thread(losses.forget_missing_end)
                if not losses.record.missing:
                    is_anew, is_accepted = self._store.is_log_discarded, self.is_loss_accepted
                    damaged = () if is_anew else self._unresolved()
                    await asyncio.to_thread(
                        completeness.record_caught_up,
                        is_copied_anew=is_anew,
                        is_loss_accepted=is_accepted,
                        damaged=damaged,
                    )
            except (OSError, StoreError) as error:
                log.warning("could not record data completeness", extra={"reason": str(error)})
            self.is_waiting = completeness.is_complete is not True

    async def _retry(self) -> None:
        if self.is_waiting and self._replication.master.is_leading:
            await self.record_caught_up()

    def _unresolved(self) -> tuple[ByteRange, ...]:
        """Return the parts of the damaged ranges that are not resolved, or not verified yet. Report their damage."""
        unresolved: list[ByteRange] = []
        budget = VERIFIED_BYTES_MAX
        for start, end in self._completeness.damaged:
            first = self._first_unresolved(start, end, budget) if budget > 0 else start
            budget -= max(0, first - start)
            if first < end:
                unresolved.append((first, end))
        return tuple(unresolved)

    def _first_unresolved(self, start: int, end: int, bytes_max: int) -> int:
        """Return where the first unresolved record of ``[start, end)`` begins; at least ``end`` if there is none.

        About ``bytes_max`` are verified at most; the rest counts as unresolved. The records there may be others than
        those of the start that found the damage: the log may have been cut, so that one begins before ``start``.
        """
        guard, commit_log = self._store.guard, self._store.log
        stop, position = min(end, commit_log.wrote), max(start, commit_log.min_physical)
        if position < stop and position not in guard.damage:
            position = guard.find_record_start(position)
        until = min(stop, position + bytes_max)
        while position < until:
            damage = guard.damage.at(position)
            if damage is not None:
                if not self._is_lost(damage):
                    return position
                position = damage.end
            elif size := len(guard.read_verified_through(position, until)):
                position += size
            elif position not in guard.damage:
                return position  # It is damaged, and the table of damage is full.
        return end if position >= stop else position

    def _is_lost(self, damage: Damage) -> bool:
        """Return whether no other member has what is damaged here.

        The state of the damage may be from another role, so all expected replicas must be connected: the healer asks
        each replica that connects, before this is called.
        """
        master = self._replication.master
        if not master.is_leading:
            is_only_slave = self._role_file.record.electable == [self._broker_id]
            return damage.state is DamageState.LOST and is_only_slave
        expected = master.count_expected_replicas()
        connected = sum(stream.has_range(damage.end) for stream in master.server.streams)
        return not expected or (damage.state is DamageState.LOST and connected >= expected)
