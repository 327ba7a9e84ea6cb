"""A slave begins to read open transactions where its own log allows, whatever its master said last."""

from __future__ import annotations

import pytest

from gantry_broker.ports import SystemClock
from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.core.stamped_documents import WAITING_MAX
from gantry_broker.server.transactions.journal import TransactionProgress
from gantry_wire.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP

OTHERS = {"T@readers": {0: 7}}


def said(half: int, op: int) -> OffsetDocument:
    own = {HALF_TOPIC: half, OP_HALF_TOPIC: op}
    return OffsetDocument({**OTHERS, **{f"{topic}@{TRANSACTION_GROUP}": {0: offset} for topic, offset in own.items()}})


class Slave:
    """What a slave does with its master's documents."""

    def __init__(self, *, is_careful: bool = True) -> None:
        self.offsets = ConsumerOffsets(SystemClock())
        self.progress = TransactionProgress(self.offsets)
        self._is_careful = is_careful

    def take(self, document: OffsetDocument, end: int) -> None:
        if self._is_careful:
            self.progress.receive(document, end)
        self.offsets.load(document)

    @property
    def begin(self) -> tuple[int, int]:
        half, op = (self.offsets.find(TRANSACTION_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC))
        return half or 0, op or 0


@pytest.mark.parametrize("is_careful", [True, False], ids=["careful", "twin"])
def test_an_end_that_this_log_lacks_is_not_believed(is_careful: bool) -> None:
    """The master has ended half message 85 and dies before that was copied: here it is still open."""
    slave = Slave(is_careful=is_careful)
    slave.take(said(85, 40), end=1000)
    slave.progress.reach(1000)
    slave.take(said(86, 41), end=1300)
    slave.progress.lead(1200)

    assert slave.begin == ((85, 40) if is_careful else (86, 41))
    assert slave.offsets.find("readers", "T", 0) == 7, "consumers' offsets are taken at once"


def test_what_the_log_has_reached_is_believed() -> None:
    """In order, and the newest that it has reached counts."""
    slave = Slave()
    for step in range(1, 5):
        slave.take(said(step, step), end=step * 100)
    slave.progress.reach(250)
    assert slave.begin == (2, 2)
    slave.progress.reach(299)
    assert slave.begin == (2, 2)
    slave.progress.lead(300)
    assert slave.begin == (3, 3)
    slave.progress.reach(1000)
    assert slave.begin == (3, 3), "a master believes nobody"


def test_who_follows_another_master_begins_anew() -> None:
    """Its log was cut: what it knew itself may be of the part that is gone."""
    slave = Slave()
    slave.take(said(9, 9), end=100)
    slave.progress.reach(100)
    slave.take(said(10, 10), end=200)
    slave.progress.begin_copying()
    slave.progress.reach(1000)

    assert slave.begin == (0, 0)


def test_a_slave_that_is_far_behind_keeps_a_bounded_number() -> None:
    """The oldest, which it reaches first, and the newest."""
    slave = Slave()
    for step in range(WAITING_MAX + 10):
        slave.take(said(step, step), end=step)
    slave.progress.reach(WAITING_MAX + 8)
    assert slave.begin == (WAITING_MAX - 2, WAITING_MAX - 2)
    slave.progress.reach(1 << 40)
    assert slave.begin == (WAITING_MAX + 9, WAITING_MAX + 9)
