"""The window holds the entries that are due next, in order and in bounded memory, and knows what is cancelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.server.timers import window as module
from gantry_broker.server.timers.entries import MESSAGE, RECALL, REPLACED, Entry, cancels, decode_entry, first_key
from gantry_broker.server.timers.marks import TimerState
from gantry_broker.server.timers.window import DueWindow


def message(due_ms: int, offset: int, key: int = 0) -> bytes:
    return Entry(due_ms, MESSAGE, offset, offset, key).encode()


def drain(window: DueWindow) -> list[tuple[int, int]]:
    """Remove all entries; return their due times and offsets."""
    found = []
    while window.peek() is not None:
        entry = decode_entry(window.pop())
        found.append((entry.due_ms, entry.queue_offset))
    return found


@given(
    st.lists(st.tuples(st.integers(1_000, 1_020), st.integers(0, 50)), unique=True),
    st.lists(st.tuples(st.integers(1_000, 1_020), st.integers(51, 99)), unique=True),
)
def test_loaded_and_new_entries_come_in_due_order(loaded: list[tuple[int, int]], added: list[tuple[int, int]]) -> None:
    """Entries of a load and those that were read meanwhile are one sequence by due time and queue offset."""
    window = DueWindow()
    window.restart(1_000, keeps_recalls=False)
    window.add_run(sorted(message(*one) for one in loaded), first_key(1_010 + 1))
    for one in added:
        window.add(message(*one))

    assert drain(window) == sorted([*loaded, *(one for one in added if one[0] <= 1_010)])


def test_full_window_gives_later_entries_back_to_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many entries are added, the latest are dropped, and the window ends before them."""
    window = DueWindow()
    monkeypatch.setattr(module, "RUN_MAX", 10)
    monkeypatch.setattr(module, "FRESH_MAX", 20)
    window.restart(0, keeps_recalls=False)
    window.add_run((), first_key(10_000))
    for number in range(25):
        window.add(message(1_000 - number, number))
    assert len(window) < 25
    assert window.covered < first_key(10_000)
    kept = drain(window)

    assert kept == sorted(kept)
    assert all(message(*one) < window.covered for one in kept)


def test_recall_reaches_a_second_and_only_earlier_messages() -> None:
    """A recall cancels messages with its key that were stored before it and are due within a second after it."""
    window = DueWindow()
    window.restart(0, keeps_recalls=False)
    window.add_run((), first_key(1 << 40))
    window.add(Entry(5_000, RECALL, 9, 9, key_hash=7).encode())

    def is_cancelled(due_ms: int, offset: int, key: int = 7) -> bool:
        return any(window.find_cancellations(decode_entry(message(due_ms, offset, key))))

    assert is_cancelled(5_000, 1) and is_cancelled(5_999, 8)
    assert not is_cancelled(4_999, 1) and not is_cancelled(6_000, 1)
    assert not is_cancelled(5_000, 10) and not is_cancelled(5_000, 1, key=8) and not is_cancelled(5_000, 1, key=0)


def test_replaced_message_is_cancelled_alone() -> None:
    """A message that was stored again is not delivered at its first offset."""
    window = DueWindow()
    window.restart(0, keeps_recalls=False)
    window.add_run([Entry(5_000, REPLACED, 3, 20, 0).encode(), message(5_000, 3)], first_key(6_000))

    assert any(window.find_cancellations(decode_entry(message(5_000, 3))))
    assert not any(window.find_cancellations(decode_entry(message(5_000, 20))))


def test_all_claims_to_be_the_copy_of_a_message_are_kept() -> None:
    """A claim that is wrong does not hide the right one, in either order."""
    target = decode_entry(message(5_000, 3))
    claims = [Entry(due_ms, REPLACED, 3, origin, 0) for due_ms, origin in ((4_000, 30), (5_000, 20), (5_500, 10))]
    window = DueWindow()
    window.restart(0, keeps_recalls=False)
    window.add_run([one.encode() for one in claims], first_key(6_000))

    assert sorted(window.find_cancellations(target)) == claims
    window.uncancel(claims[1])
    assert sorted(window.find_cancellations(target)) == [claims[0], claims[2]]


def test_recall_beyond_the_window_is_known_until_it_is_read() -> None:
    """A recall that was just appended counts at once, and is in the files later, when its message is loaded."""
    window = DueWindow()
    window.restart(0, keeps_recalls=False)
    recall = Entry(1 << 40, RECALL, 9, 9, key_hash=7)
    target = decode_entry(message(1 << 40, 1, 7))
    window.cancel(recall)
    assert list(window.find_cancellations(target)) == [recall]

    window.add(recall.encode())
    assert list(window.find_cancellations(target)) == []
    window.add_run([recall.encode(), target.encode()], first_key((1 << 40) + 1))
    assert list(window.find_cancellations(target)) == [recall]


RECALLS = st.builds(
    Entry,
    due_ms=st.integers(4_000, 4_004) | st.integers(3_000, 5_000),
    kind=st.just(RECALL),
    queue_offset=st.integers(0, 9),
    origin=st.integers(0, 5),
    key_hash=st.integers(1, 2),
)


@given(
    st.lists(st.tuples(st.sampled_from(("add", "add", "add", "remove", "forget")), RECALLS), max_size=30),
    st.integers(3_900, 5_000),
    st.integers(0, 5),
)
def test_recalls_of_one_key_cancel_what_each_of_them_does(
    steps: list[tuple[str, Entry]], due_ms: int, origin: int
) -> None:
    """The window yields exactly those recalls that cancel a message, each once, and counts what it has."""
    window, model = DueWindow(), set[Entry]()
    window.restart(0, keeps_recalls=False)
    for step, recall in steps:
        if step == "add":
            window.cancel(recall)
            model.add(recall)
        elif step == "remove":
            window.uncancel(recall)
            model.discard(recall)
        else:
            window.forget_recalls(recall.due_ms)
            model = {one for one in model if one.due_ms >= recall.due_ms - 1_000}
    target = Entry(due_ms, MESSAGE, 9, origin, 1)

    assert sorted(window.find_cancellations(target)) == sorted(
        one for one in model if one.key_hash == 1 and cancels(one, target)
    )
    assert f"recalls={len(model)}>" in repr(window)


class CountingEntry(Entry):
    """An entry that counts how often entries are compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountingEntry.comparisons += 1
        return super().__eq__(other)

    __hash__ = Entry.__hash__


@pytest.mark.parametrize("step_ms", [0, 1])
def test_many_recalls_with_one_key_are_compared_a_few_times_each(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    """Recalls of any number with one key, added twice, cost what those of different keys cost; so do their messages."""
    monkeypatch.setattr(CountingEntry, "comparisons", 0)
    window, count = DueWindow(), 4_000
    window.restart(0, keeps_recalls=False)
    for _ in range(2):
        for number in range(count):
            window.cancel(CountingEntry(5_000 + number * step_ms, RECALL, number, number, 7))
    first = [next(window.find_cancellations(Entry(9_000, MESSAGE, n, n, 7)), None) for n in range(3_000)]

    assert CountingEntry.comparisons <= 4 * count
    assert all(first) == (step_ms == 1)


def test_many_recalls_with_one_key_are_forgotten() -> None:
    """Recalls count one by one, so that those of delivered messages are forgotten, even if all have one key."""
    window = DueWindow()
    window.restart(0, keeps_recalls=False)
    for number in range(module.RECALLS_MIN):
        window.cancel(Entry(1_000, RECALL, number, number, key_hash=7))

    window.forget_recalls_if_many(1_000_000)

    assert "recalls=0" in repr(window)


def test_old_recalls_are_forgotten() -> None:
    """Recalls whose messages are all delivered take no memory."""
    window = DueWindow()
    window.restart(0, keeps_recalls=False)
    for number in range(100):
        window.cancel(Entry(number * 1_000, RECALL, number, number, key_hash=number + 1))
    window.forget_recalls(50_000)

    assert "recalls=51" in repr(window)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_state_passes_exactly_what_was_delivered(steps: list[tuple[int, int]], back: int, start: int) -> None:
    """A state counts as delivered what is before its mark; a clock that was set back concerns later messages only."""
    state = TimerState()
    for due_ms, offset in sorted(steps):
        state = state.advance(due_ms, offset, 21)
    last = sorted(steps)[-1]
    for due_ms in range(22):
        for offset in range(22):
            assert state.is_passed(due_ms, offset) == ((due_ms, offset) <= last)

    changed = state.set_back(start, back)
    for due_ms in range(22):
        for offset in range(22):
            expected = (due_ms, offset) <= (last if offset < start else (back, -1))
            assert changed.is_passed(due_ms, offset) == expected
    merged = changed.advance(30, 0, 30)
    assert len(merged.marks) == 1


def test_clamped_state_knows_nothing_beyond_the_end() -> None:
    """After the end of a queue was lost, messages from there on are new: they are read, and none is skipped."""
    state = TimerState().advance(100, 7, 50).set_back(40, 20).clamp(30)

    assert (state.read, len(state.marks)) == (30, 1)
    assert not state.set_back(30, 10).is_passed(50, 31)
