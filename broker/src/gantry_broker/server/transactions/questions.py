"""What is asked about transactions that nobody has ended, and when that is given up.

    no end in time -----> [half again, op], then the question to any live producer of the group
    asked too often, or too old -----> [a copy in TRANS_CHECK_MAX_TIME_TOPIC, op]

A question is not counted while no producer of the group is there: a producer that is away for a while finds its
transactions where it left them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.halves import Half
from gantry_broker.server.transactions.journal import TransactionJournal
from gantry_broker.server.transactions.records import Outcome
from gantry_remoting import Connection
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.message import StoredMessage

log = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 16
"""In one slice."""

ABSENT_RETRY_MS: Final = 1_000
"""How soon it is looked again whether a producer of the group is there."""

HOUR_MS: Final = 3_600_000


@final
class Questions:
    """Owned by the event loop."""

    def __init__(
        self, core: BrokerCore, journal: TransactionJournal, may_be_shown: Callable[[Connection, str], bool]
    ) -> None:
        """``may_be_shown`` says whether a peer may see an unpublished message of a topic; a question holds it."""
        self._core: Final = core
        self._journal: Final = journal
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
        if message is None and self._journal.may_be_healed(half.physical):
            self._journal.halves.ask_again(half, now_ms + ABSENT_RETRY_MS)
            return
        if message is None or place is None:
            log.error("a half message cannot be read, and is passed over", extra={"offset": half.queue_offset})
            self._journal.end(half, Outcome.GIVEN_UP, [])
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
        renewed = self._journal.renew(half, message)
        if renewed is None:
            self._journal.halves.ask_again(half, now_ms + settings.transaction_check_interval_ms)
            renewed = message
        self.asked += 1
        producer.send(records.question(renewed, *place, settings.broker_name).encode())

    def _give_up(self, half: Half, message: StoredMessage) -> None:
        core = self._core
        topic = core.topics.ensure(names.CHECK_MAX_TIME_TOPIC, 1).topic_name
        copy = records.copy_draft(message, core.store.queues.get_or_create(topic, 0), message.properties)
        self._journal.end(half, Outcome.GIVEN_UP, [copy])
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
