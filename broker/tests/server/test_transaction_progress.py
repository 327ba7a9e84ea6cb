"""A new master reads open transactions from restart offsets that its own log supports."""

from __future__ import annotations

import pytest

from gantry_broker.ports import SystemClock
from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.core.stamped_documents import WAITING_MAX
from gantry_broker.server.transactions.journal import TransactionProgress
from gantry_wire.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP

OTHERS = {"T@readers": {0: 7}}


def offsets_document(half: int, op: int) -> OffsetDocument:
    own = {HALF_TOPIC: half, OP_HALF_TOPIC: op}
    return OffsetDocument({**OTHERS, **{f"{topic}@{TRANSACTION_GROUP}": {0: offset} for topic, offset in own.items()}})


class FakeSlave:
    """A slave that receives documents of its master."""

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


@pytest.mark.parametrize("is_careful", [True, False], ids=["careful", "not careful, the twin"])
def test_restart_offsets_beyond_the_log_are_not_applied(is_careful: bool) -> None:
    """The master has ended half message 85 and dies before that was copied: here it is still open."""
    slave = FakeSlave(is_careful=is_careful)
    slave.take(offsets_document(85, 40), end=1000)
    slave.progress.apply_up_to(1000)
    slave.take(offsets_document(86, 41), end=1300)
    slave.progress.become_master(1200)

    assert slave.begin == ((85, 40) if is_careful else (86, 41))
    assert slave.offsets.find("readers", "T", 0) == 7, "expected consumers' offsets to be taken at once"


def test_restart_offsets_within_the_log_are_applied() -> None:
    """In order, and the newest that it has reached counts."""
    slave = FakeSlave()
    for step in range(1, 5):
        slave.take(offsets_document(step, step), end=step * 100)
    slave.progress.apply_up_to(250)
    assert slave.begin == (2, 2)
    slave.progress.apply_up_to(299)
    assert slave.begin == (2, 2)
    slave.progress.become_master(300)
    assert slave.begin == (3, 3)
    slave.progress.apply_up_to(1000)
    assert slave.begin == (3, 3), "the master has applied a further document"


def test_following_another_master_resets_the_restart_offsets() -> None:
    """The slave's log was cut, and its own offsets may point into the removed part."""
    slave = FakeSlave()
    slave.take(offsets_document(9, 9), end=100)
    slave.progress.apply_up_to(100)
    slave.take(offsets_document(10, 10), end=200)
    slave.progress.begin_copying()
    slave.progress.apply_up_to(1000)

    assert slave.begin == (0, 0)


def test_slave_far_behind_keeps_a_limited_number_of_documents() -> None:
    """The oldest, which it reaches first, and the newest."""
    slave = FakeSlave()
    for step in range(WAITING_MAX + 10):
        slave.take(offsets_document(step, step), end=step)
    slave.progress.apply_up_to(WAITING_MAX + 8)
    assert slave.begin == (WAITING_MAX - 2, WAITING_MAX - 2)
    slave.progress.apply_up_to(1 << 40)
    assert slave.begin == (WAITING_MAX + 9, WAITING_MAX + 9)
