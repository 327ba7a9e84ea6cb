"""The transactions of this broker: half messages are stored, ended, checked with producers, and abandoned.

    producer   half --------------> stored, code 0; not visible to consumers
               end ---------------> [committed, op] or [op], appended together; answered when that may be acknowledged
    broker     no end in time ----> [half again, op], then a check request to any live producer of the group
               checked too often, or too old -----> [a copy in TRANS_CHECK_MAX_TIME_TOPIC, op]

Only the log decides which transactions are open (`journal.py`): the state in memory is read from it, so a start and a
promotion lose nothing. `endings.py` ends transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import BrokerError, IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.endings import TransactionEndings
from gantry_broker.server.transactions.halves import Half
from gantry_broker.server.transactions.journal import TransactionJournal, TransactionWriter
from gantry_broker.server.transactions.records import Outcome
from gantry_remoting import Connection
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.message import StoredMessage

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""How often the log is read and transactions are checked."""
FAILURE_PAUSE_S: Final = 1.0
"""The pause after the store has refused an append."""
READ_TIMEOUT_S: Final = 10.0
"""How long the end of a transaction waits until the journal has read its half message."""
READ_POLL_S: Final = 0.005
"""How often a request that waits looks whether its half message was read."""

CHECKS_PER_SLICE_MAX: Final = 16
"""The limit of checks in one slice."""

ABSENT_RETRY_MS: Final = 1_000
"""How soon a check is retried that was not possible: no producer of the group is connected, the half message is being
healed, or the store has refused its next copy."""

HOUR_MS: Final = 3_600_000


@final
class TransactionChecker:
    """Checks open transactions with their producers, and abandons those that stay open. Owned by the event loop.

    A check does not count while no producer of the group is connected: a producer that was away for a while finds its
    transactions unchanged.
    """

    def __init__(
        self,
        core: BrokerCore,
        journal: TransactionJournal,
        writer: TransactionWriter,
        may_see_half_message: Callable[[Connection, str], bool],
    ) -> None:
        """``may_see_half_message`` decides whether a peer may see the half message in a check request for a topic."""
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self._may_see_half_message: Final = may_see_half_message
        self._rotation = 0
        self.check_count = 0
        self.given_up_count = 0

    def check_due(self) -> bool:
        """Check some transactions that are due. True if there may be more. Raises errors of the store."""
        halves, now_ms = self._journal.halves, self._core.clock.wall_ms()
        for _ in range(CHECKS_PER_SLICE_MAX):
            half = halves.next_due(now_ms)
            if half is None:
                return False
            try:
                self._check(half, now_ms)
            except BrokerError:
                halves.check_later(half, now_ms + ABSENT_RETRY_MS)
                raise
        return True

    def _check(self, half: Half, now_ms: int) -> None:
        message = self._journal.read_message(half)
        destination = None if message is None else records.find_destination(message)
        if message is None and self._core.store.guard.damage.may_be_healed(half.physical):
            self._journal.halves.check_later(half, now_ms + ABSENT_RETRY_MS)
            return
        if message is None or destination is None:
            log.error("unreadable half message; abandoning the transaction", extra={"offset": half.queue_offset})
            self._writer.end(half, Outcome.GIVEN_UP, [])
            return
        settings = self._core.settings
        is_too_old = now_ms - half.open_since_ms > settings.store.retention.reserved_hours * HOUR_MS
        if half.checks >= settings.transaction_check_max or is_too_old:
            self._give_up(half, message)
            return
        producer = self._producer(half.group, destination[0])
        if producer is None:
            self._journal.halves.check_later(half, now_ms + ABSENT_RETRY_MS)
            return
        renewed = self._writer.renew(half, message)
        if renewed is None:
            self._journal.halves.check_later(half, now_ms + settings.transaction_check_interval_ms)
            renewed = message
        self.check_count += 1
        producer.send(records.check_request(renewed, *destination, settings.broker_name).encode())

    def _give_up(self, half: Half, message: StoredMessage) -> None:
        core = self._core
        topic = core.topics.ensure(names.CHECK_MAX_TIME_TOPIC, 1).topic_name
        copy = records.copy_draft(message, core.store.queues.get_or_create(topic, 0), message.properties)
        self._writer.end(half, Outcome.GIVEN_UP, [copy])
        self.given_up_count += 1
        unique = message.properties.get(keys.UNIQUE_KEY, "")
        facts = {"group": half.group, "checks": half.checks, "message_id": unique}
        log.warning("transaction abandoned", extra=facts)

    def _producer(self, group: str, topic: str) -> Connection | None:
        """Return a live producer of the group that may see the message, in rotation; None if there is none."""
        members = self._core.clients.producers.get(group, {})
        alive = [one for one in members if one.is_open and self._may_see_half_message(one, topic)]
        self._rotation += 1
        return alive[self._rotation % len(alive)] if alive else None


@final
class Transactions:
    """The transactions of one broker. Owned by the event loop; ``run`` is its task."""

    def __init__(
        self,
        core: BrokerCore,
        may_see_half_message: Callable[[Connection, str], bool] = lambda peer, topic: True,  # without access control
    ) -> None:
        """``may_see_half_message`` decides whether a peer may see a half message for a topic."""
        self.journal: Final = TransactionJournal(core)
        self.writer: Final = TransactionWriter(core, self.journal)
        self.endings: Final = TransactionEndings(core, self.journal, self.writer)
        self.checker: Final = TransactionChecker(core, self.journal, self.writer, may_see_half_message)

    def __repr__(self) -> str:
        return f"<Transactions {self.journal!r}>"

    def on_log_changed(self, end: int) -> None:
        """Forget records from ``end`` on, where the log ends now: other records will be appended there."""
        self.journal.healed.on_log_changed(end)
        self.writer.on_log_changed(end)

    async def wait_until_known(self, half_offset: int) -> bool:
        """Wait until the journal has read this half message; False on timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_TIMEOUT_S
        while not self.journal.read_up_to(half_offset):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(READ_POLL_S)
        return True

    async def run(self) -> None:
        """Read the log, check transactions, and save the restart offsets, until cancelled."""
        while True:
            try:
                pause_s = self._step()
            except BrokerError as error:
                log.warning("failed to process transactions; will retry", extra={"reason": str(error)})
                pause_s = FAILURE_PAUSE_S
            await asyncio.sleep(pause_s)

    def _step(self) -> float:
        """Do one slice of the work; return the pause after it in seconds."""
        journal = self.journal
        if not journal.is_master:
            return TICK_S
        if not journal.read_next():
            return TICK_S if journal.is_waiting else 0
        if not journal.is_ready:
            return TICK_S
        journal.save_progress()
        is_more = self.checker.check_due()
        with suppress(IndexRebuilding):  # the ended transactions are unknown yet: retried in a later step
            journal.process_healed()
        return 0 if is_more else TICK_S
