"""A summary has the checkpoints that were open at the summary before, and a start reads the records after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from gantry_broker.server.pop import open_records
from gantry_broker.server.pop.open_records import COMPACTED_FROM, MESSAGES_MAX, OpenRecords, Summary


@dataclass(eq=False)
class One:
    record_offset: int
    offsets: Sequence[int] = field(default=(0,))
    is_open: bool = True


def records_of(ones: Iterable[One]) -> OpenRecords[One]:
    found = OpenRecords[One](lambda one: one.is_open, 0)
    for one in ones:
        found.add(one, open_max=8)
    return found


def old_of(summary: Summary[One]) -> list[int]:
    return [one.record_offset for one in summary.old]


def test_open_checkpoints_become_old_with_the_second_summary() -> None:
    """The first summary starts at the oldest one, the second after all that the first has seen."""
    first, second, third = ones = [One(3), One(5), One(9)]
    found = records_of(ones[:2])
    assert found.summarize(8) == (3, 3, [])
    found.add(third, open_max=3)
    assert found.summarize(12) == (3, 9, [first, second])
    first.is_open = False
    assert found.oldest(12) == 5
    assert found.summarize(15) == (5, 15, [second, third])
    second.is_open = third.is_open = False
    assert found.summarize(20) == (20, 20, [])


def test_start_is_at_the_first_checkpoint_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary has a limited number of checkpoints, and none with more messages than bits."""
    monkeypatch.setattr(open_records, "OLD_MAX", 2)
    found = records_of(One(offset) for offset in range(5))
    found.summarize(5)
    assert found.summarize(5) == (0, 2, found._old)
    assert old_of(found.summarize(5)) == [0, 1]

    large = records_of([One(0), One(1, range(MESSAGES_MAX + 1)), One(2)])
    large.summarize(3)
    assert (large.summarize(3).start, old_of(large.summarize(3))) == (1, [0])


def test_healed_checkpoint_is_read_with_all_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is before those of old ones: if it is not in the summary, those after it must not be, either."""
    monkeypatch.setattr(open_records, "OLD_MAX", 2)
    found = records_of([One(3), One(5), One(9)])
    found.summarize(10)
    found.summarize(10)
    found.add(One(4), open_max=4)
    summary = found.summarize(10)
    assert (summary.oldest, summary.start, old_of(summary)) == (3, 4, [3])


def test_checkpoints_that_are_done_take_no_memory() -> None:
    """One that stays open at the front keeps no others in memory."""
    found = records_of([One(0)])
    for offset in range(1, 3 * COMPACTED_FROM):
        found.add(One(offset, is_open=False), open_max=1)
    assert len(found) <= COMPACTED_FROM + 4
