"""Pending timers are counted by topic, once each, also if a start reads or delivers them again."""

from __future__ import annotations

import random

import pytest

from gantry_broker.server.timers import pending as module
from gantry_broker.server.timers import urgent
from gantry_broker.server.timers.entries import MESSAGE, Entry, decode_entry
from gantry_broker.server.timers.marks import TimerState
from gantry_broker.server.timers.pending import PendingCounts, ReadMessage
from gantry_broker.server.timers.urgent import UrgentMessages


def message(due_ms: int, offset: int, origin: int | None = None) -> Entry:
    return Entry(due_ms, MESSAGE, offset, offset if origin is None else origin, 0)


def read(counts: PendingCounts, start: int, end: int, topic: str = "T") -> None:
    counts.note_read(start, end, [ReadMessage(offset, topic, None) for offset in range(start, end)])


def test_messages_are_counted_from_their_reading_to_their_end() -> None:
    """Each topic has a count of its own, and a topic without pending messages has none."""
    counts = PendingCounts()
    read(counts, 0, 3)
    read(counts, 3, 4, "Other")
    counts.note_done(message(5, 0), "T", is_late=False)
    counts.note_done(message(5, 3), "Other", is_late=False)

    assert (counts.by_topic(), counts.total()) == ({"T": 2}, 2)


def test_start_counts_nothing_twice() -> None:
    """What a start reads and delivers again, since its state is older than the count, is counted already."""
    counts, state = PendingCounts(), TimerState()
    read(counts, 0, 10)
    for offset in range(4):
        counts.note_done(message(100 + offset, offset), "T", is_late=False)
        state = state.advance(100 + offset, offset, 10)
    saved, counted = counts.by_topic(), counts.counted_state(state)

    again = PendingCounts()
    again.load(saved, counted)
    read(again, 2, 10)
    read(again, 10, 12)
    for offset in range(1, 6):
        again.note_done(message(100 + offset, offset), "T", is_late=False)

    assert again.by_topic() == {"T": 12 - 6}
    assert again.counted_state(TimerState()).last.due_ms == 103, "the older state is not the counted one"
    assert again.counted_state(state.advance(105, 5, 12))[:1] == (12,)


def test_copy_of_a_counted_message_is_not_counted() -> None:
    """A message that was stored again is one message; its copy counts only if the first is not in the log any more."""
    counts = PendingCounts()
    read(counts, 0, 5)
    counts.note_read(5, 6, [ReadMessage(5, "T", 2)])
    assert counts.total() == 5

    rebuilt = PendingCounts()
    rebuilt.skip_to(3)
    rebuilt.note_read(3, 6, [ReadMessage(3, "T", None), ReadMessage(4, "T", None), ReadMessage(5, "T", 2)])
    assert rebuilt.total() == 3


def test_gap_is_not_counted() -> None:
    """A slave, whose master sends counts for an earlier position, waits for the next count."""
    counts = PendingCounts()
    counts.load({"T": 7}, TimerState(10))
    read(counts, 12, 15)
    assert (counts.total(), counts.read) == (7, 10)

    read(counts, 8, 15)
    assert (counts.total(), counts.read) == (12, 15)


def test_number_of_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many topics further ones are not counted, and those that are counted keep their counts."""
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    counts = PendingCounts()
    for offset, topic in enumerate("ABCAB"):
        read(counts, offset, offset + 1, topic)

    assert counts.by_topic() == {"A": 2, "B": 2}


def test_late_messages_cost_no_more_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each slice of deliveries the smallest offset is needed: finding it examines the slice, and not all.

    Otherwise a broker that is late, since it has little CPU time, needs more of it for each message, and gets later.
    """
    examined = 0

    def decode(data: bytes) -> Entry:
        nonlocal examined
        examined += 1
        return decode_entry(data)

    monkeypatch.setattr(urgent, "decode_entry", decode)
    late = UrgentMessages()
    for number in range(10_000):
        late.push(message(number * 7919 % 10_000, number).encode())
    for _ in range(10_000):
        late.pop()
        assert late.first_offset is not None or not len(late)

    assert examined == 20_000


@pytest.mark.parametrize("seed", range(5))
def test_late_messages_are_in_due_order_with_their_smallest_offset(seed: int) -> None:
    """Late messages come in due order, and a start reads from the smallest offset of those that are left."""
    rng = random.Random(seed)
    late, model = UrgentMessages(), list[Entry]()
    for number in range(500):
        if model and rng.random() < 0.45:
            assert late.pop() == min(model).encode()
            model.remove(min(model))
        else:
            entry = message(rng.randrange(100), number)
            late.push(entry.encode())
            late.push(entry.encode())
            model.append(entry)
        assert len(late) == len(model)
        assert late.first_offset == min((one.queue_offset for one in model), default=None)
        assert late.peek() == (min(model).encode() if model else None)
        assert all(one.encode() in late for one in model)
    late.clear()
    assert (len(late), late.first_offset, late.peek()) == (0, None, None)
