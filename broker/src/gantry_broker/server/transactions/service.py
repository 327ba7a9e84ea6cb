"""Transactions of this broker: half messages are kept, ended, asked about, and given up.

    producer   half --------------> stored, code 0; no consumer sees it
               end ---------------> [committed, op] or [op], in one piece; the answer when that is promised
    broker     no end in time ----> [half again, op], then the question to any live producer of the group
               asked too often, or too old -----> [a copy in TRANS_CHECK_MAX_TIME_TOPIC, op]

Only the log decides what is open (`journal.py`): memory is what was read of it, so a start and a promotion lose
nothing. How one is ended is in `endings.py`.
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
from gantry_broker.server.transactions.endings import Endings
from gantry_broker.server.transactions.halves import Half
from gantry_broker.server.transactions.journal import TransactionJournal, TransactionWriter
from gantry_broker.server.transactions.records import Outcome
from gantry_remoting import Connection
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.message import StoredMessage

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
FAILURE_PAUSE_S: Final = 1.0
LEARN_S: Final = 10.0
LEARN_POLL_S: Final = 0.005

QUESTIONS_MAX: Final = 16
"""In one slice."""

ABSENT_RETRY_MS: Final = 1_000
"""How soon it is looked again whether a producer of the group is there."""

HOUR_MS: Final = 3_600_000


@final
class Questions:
    """Asks producers about open transactions, and gives up after enough answers. Owned by the event loop.

    A question is not counted while no producer of the group is there: a producer that is away for a while finds its
    transactions where it left them.
    """

    def __init__(
        self,
        core: BrokerCore,
        journal: TransactionJournal,
        writer: TransactionWriter,
        may_be_shown: Callable[[Connection, str], bool],
    ) -> None:
        """``may_be_shown`` says whether a peer may see an unpublished message of a topic; a question holds it."""
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self._may_be_shown: Final = may_be_shown
        self._turn = 0
        self.asked = 0
        self.given_up = 0

    def ask_some(self) -> bool:
        """Ask about some that are due. True if there may be more. Raises what the store raises."""
        halves, now_ms = self._journal.halves, self._core.clock.wall_ms()
        for _ in range(QUESTIONS_MAX):
            half = halves.next_due(now_ms)
            if half is None:
                return False
            try:
                self._ask(half, now_ms)
            except BrokerError:
                halves.ask_again(half, now_ms + ABSENT_RETRY_MS)
                raise
        return True

    def _ask(self, half: Half, now_ms: int) -> None:
        message = self._journal.message(half)
        place = None if message is None else records.real_place(message)
        if message is None and self._core.store.guard.damage.may_be_healed(half.physical):
            self._journal.halves.ask_again(half, now_ms + ABSENT_RETRY_MS)
            return
        if message is None or place is None:
            log.error("a half message cannot be read, and is passed over", extra={"offset": half.queue_offset})
            self._writer.end(half, Outcome.GIVEN_UP, [])
            return
        settings = self._core.settings
        is_too_old = now_ms - half.open_since_ms > settings.store.retention.reserved_hours * HOUR_MS
        if half.checks >= settings.transaction_check_max or is_too_old:
            self._give_up(half, message)
            return
        producer = self._producer(half.group, place[0])
        if producer is None:
            self._journal.halves.ask_again(half, now_ms + ABSENT_RETRY_MS)
            return
        renewed = self._writer.renew(half, message)
        if renewed is None:
            self._journal.halves.ask_again(half, now_ms + settings.transaction_check_interval_ms)
            renewed = message
        self.asked += 1
        producer.send(records.question(renewed, *place, settings.broker_name).encode())

    def _give_up(self, half: Half, message: StoredMessage) -> None:
        core = self._core
        topic = core.topics.ensure(names.CHECK_MAX_TIME_TOPIC, 1).topic_name
        copy = records.copy_draft(message, core.store.queues.get_or_create(topic, 0), message.properties)
        self._writer.end(half, Outcome.GIVEN_UP, [copy])
        self.given_up += 1
        unique = message.properties.get(keys.UNIQUE_KEY, "")
        facts = {"group": half.group, "asked": half.checks, "message_id": unique}
        log.warning("a transaction was given up", extra=facts)

    def _producer(self, group: str, topic: str) -> Connection | None:
        """Any live producer of the group that may be shown the message; another one each time."""
        members = self._core.clients.producers.get(group, {})
        alive = [one for one in members if one.is_open and self._may_be_shown(one, topic)]
        self._turn += 1
        return alive[self._turn % len(alive)] if alive else None


@final
class Transactions:
    """Owned by the event loop; ``run`` is its task."""

    def __init__(
        self,
        core: BrokerCore,
        may_be_shown: Callable[[Connection, str], bool] = lambda peer, topic: True,  # without access control
    ) -> None:
        """``may_be_shown`` says whether a peer may see an unpublished message of a topic."""
        self.journal: Final = TransactionJournal(core)
        self.writer: Final = TransactionWriter(core, self.journal)
        self.endings: Final = Endings(core, self.journal, self.writer)
        self.questions: Final = Questions(core, self.journal, self.writer, may_be_shown)

    def __repr__(self) -> str:
        return f"<Transactions {self.journal!r}>"

    def log_cut(self, end: int) -> None:
        """Forget what lay behind ``end`` in the log."""
        self.journal.healed.log_cut(end)
        self.writer.log_cut(end)

    async def learn(self, half_offset: int) -> bool:
        """Wait until the journal knows this half message; False when that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEARN_S
        while not self.journal.knows(half_offset):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(LEARN_POLL_S)
        return True

    async def run(self) -> None:
        """Read, ask, give up, and note how far that is, until cancelled."""
        while True:
            try:
                pause_s = self._step()
            except BrokerError as error:
                log.warning("transactions wait for the store", extra={"reason": str(error)})
                pause_s = FAILURE_PAUSE_S
            await asyncio.sleep(pause_s)

    def _step(self) -> float:
        """A slice of that; how long to rest after it."""
        journal = self.journal
        if not journal.is_master:
            return TICK_S
        if not journal.read_on():
            return TICK_S if journal.is_waiting else 0
        if not journal.is_ready:
            return TICK_S
        journal.note()
        is_more = self.questions.ask_some()
        with suppress(IndexRebuilding):  # what has ended is not known yet: in a later step
            journal.take_healed()
        return 0 if is_more else TICK_S
