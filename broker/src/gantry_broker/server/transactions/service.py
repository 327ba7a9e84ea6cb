"""Transactions of this broker: half messages are kept, ended, asked about, and given up.

    producer   half --------------> stored, code 0; no consumer sees it
               end ---------------> [committed, op] or [op], in one piece; the answer when that is promised
    broker     no end in time ----> [half again, op], then the question to any live producer of the group
               asked too often, or too old -----> [a copy in TRANS_CHECK_MAX_TIME_TOPIC, op]

Only the log decides what is open (`journal.py`): memory is what was read of it, so a start and a promotion lose
nothing. How one is ended is in `endings.py`, how one is asked about in `questions.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import BrokerError, IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.transactions.endings import Endings
from gantry_broker.server.transactions.journal import TransactionJournal
from gantry_broker.server.transactions.questions import Questions
from gantry_remoting import Connection

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
FAILURE_PAUSE_S: Final = 1.0
LEARN_S: Final = 10.0
LEARN_POLL_S: Final = 0.005


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
        self.endings: Final = Endings(core, self.journal)
        self.questions: Final = Questions(core, self.journal, may_be_shown)

    def __repr__(self) -> str:
        return f"<Transactions {self.journal!r}>"

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
