"""A batch is delivered once, at whichever step its drivers die, with brokers in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_kit.model_brokers import (
    QUERY,
    CallCounter,
    DriverDied,
    HalfState,
    ModelBrokers,
    ModelMarkerQueue,
    make_driver,
)

from pyspark_rocketmq.errors import BatchForgotten, BatchTorn
from pyspark_rocketmq.sink import batch_decider
from pyspark_rocketmq.sink.batch_decider import BatchDecider
from pyspark_rocketmq.sink.half_message_list import HalfMessageList
from pyspark_rocketmq.sink.markers import NO_BATCH, Marker, MarkerKind, decode
from pyspark_rocketmq.sink.options import OnForgotten

ROWS = ["a", "b", "c"]


async def test_batch_is_committed_by_one_marker() -> None:
    """Nothing is delivered before the marker, everything after it."""
    brokers = ModelBrokers()
    halves = brokers.store(ROWS)
    assert brokers.delivered == []

    committed = await make_driver(brokers).commit(halves)

    assert brokers.delivered == ROWS
    assert (committed.rows, committed.is_replay, committed.may_have_orphans) == (3, False, False)
    assert [decode(body).kind for body in brokers.markers] == [MarkerKind.COMMIT]


def _failing_calls() -> Iterator[tuple[int, bool]]:
    """Return each call that a driver makes for such a batch: never executed, and executed without a response."""
    brokers, calls = ModelBrokers(), CallCounter()
    asyncio.run(make_driver(brokers, calls=calls).commit(brokers.store(ROWS)))
    return itertools.product(range(1, calls.count + 1), (False, True))


@pytest.mark.parametrize(("dies_at_call", "is_executed"), list(_failing_calls()))
@pytest.mark.parametrize("successor_dies_at_call", [None, 2, 4, 6])
async def test_driver_may_die_at_any_call(
    dies_at_call: int, is_executed: bool, successor_dies_at_call: int | None
) -> None:
    """So may its successor; half messages in no marker are never delivered, and the next batch works."""
    brokers = ModelBrokers()
    for run, calls in enumerate(
        (CallCounter(dies_at_call, is_executed=is_executed), CallCounter(successor_dies_at_call), CallCounter())
    ):
        try:
            await make_driver(brokers, run=f"run-{run}", calls=calls).commit(brokers.store(ROWS))
        except DriverDied:
            continue
        break
    await make_driver(brokers, batch=1).commit(brokers.store(["d"]))

    assert sorted(brokers.delivered) == [*ROWS, "d"]
    assert all(row in ROWS for row in brokers.open_rows), "a half message of a live batch was left open"


async def test_replay_delivers_the_decided_rows() -> None:
    """This holds even if the plan is not deterministic, and the new attempt has other rows."""
    brokers = ModelBrokers()
    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(4)).commit(brokers.store(ROWS))
    assert brokers.delivered == []

    committed = await make_driver(brokers, run="run-2").commit(brokers.store(["x", "y"]))

    assert brokers.delivered == ROWS
    assert (committed.is_replay, committed.rolled_back, committed.may_have_orphans) == (True, 2, True)
    assert [state for state in brokers.states.values() if state is HalfState.OPEN] == []


async def test_marker_hidden_after_a_crash_still_decides() -> None:
    """The first scan cannot see it; the second one, up to the new marker, does."""
    brokers = ModelBrokers()
    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(3)).commit(brokers.store(ROWS))
    brokers.hidden_markers = len(brokers.markers)

    committed = await make_driver(brokers).commit(brokers.store(["x"]))

    assert brokers.delivered == ROWS
    assert committed.is_replay


async def test_first_marker_of_two_concurrent_drivers_decides() -> None:
    """A driver that was thought dead scans, stops, and continues when its successor is done."""
    brokers = ModelBrokers()
    old = BatchDecider(ModelMarkerQueue(brokers, CallCounter()), QUERY, 0, "old")
    await old.scan()
    mine = brokers.store(["old"])
    await make_driver(brokers, run="new").commit(brokers.store(["new"]))

    marker = await old.commit(mine)

    assert await old.halves_of(marker) != mine
    assert brokers.delivered == ["new"]
    assert len(brokers.markers) == 2


async def test_late_marker_of_an_old_batch_hides_no_newer_one() -> None:
    """A marker of batch 0 is stored after that of batch 1: a scan for batch 1 continues past it."""
    brokers = ModelBrokers()
    old = BatchDecider(ModelMarkerQueue(brokers, CallCounter()), QUERY, 0, "old")
    await old.scan()
    await make_driver(brokers, batch=0, run="new").commit(brokers.store(["a"]))
    with pytest.raises(DriverDied):
        await make_driver(brokers, batch=1, run="new", calls=CallCounter(4)).commit(brokers.store(["b"]))
    await old.commit(brokers.store(["x"]))
    for number in range(100):
        await make_driver(brokers, query=f"other-{number}").commit(brokers.store([]))

    await make_driver(brokers, batch=1, run="newer").commit(brokers.store(["b again"]))

    assert brokers.delivered == ["a", "b"]


async def test_abort_rolls_back_without_reading_the_queue() -> None:
    """If a task has failed no commit was attempted, so the queue is not read."""
    brokers = ModelBrokers()
    halves = brokers.store(ROWS)

    assert await make_driver(brokers).abort(halves, is_full_batch=False) == 3

    assert brokers.markers == []
    assert brokers.open_rows == []
    await make_driver(brokers).commit(brokers.store(ROWS))
    assert brokers.delivered == ROWS


async def test_abort_after_a_decided_commit_rolls_nothing_back() -> None:
    """Spark calls abort when commit has raised, even if that was after the marker."""
    brokers = ModelBrokers()
    halves = brokers.store(ROWS)
    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(5)).commit(halves)

    assert await make_driver(brokers).abort(halves, is_full_batch=True) == 0

    await make_driver(brokers).commit(brokers.store(ROWS))
    assert brokers.delivered == ROWS


async def test_commit_marker_after_its_abort_marker_is_invalid() -> None:
    """The commit marker was in flight when the driver gave up; the abort marker is before it."""
    brokers = ModelBrokers()
    halves = brokers.store(ROWS)
    late = BatchDecider(ModelMarkerQueue(brokers, CallCounter()), QUERY, 0)
    scan = await late.scan()
    assert await make_driver(brokers).abort(halves, is_full_batch=True) == 3
    marker = Marker(
        kind=MarkerKind.COMMIT, query=QUERY, batch=0, attempt=halves.fingerprint, scanned=scan.end, newest=NO_BATCH,
        payload=halves.pack(),
    )  # fmt: skip
    brokers.markers.append(marker.encode())

    await make_driver(brokers).commit(brokers.store(["again"]))

    assert brokers.delivered == ["again"]


async def test_partly_expired_batch_is_raised_as_a_loss() -> None:
    """Brokers have given up a part of it: the rest is delivered, and the commit still fails."""
    brokers = ModelBrokers()
    halves = brokers.store(ROWS)
    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(4)).commit(halves)
    brokers.states[1] = HalfState.GIVEN_UP

    with pytest.raises(BatchTorn, match="1 of 3"):
        await make_driver(brokers).commit(brokers.store(ROWS))

    assert brokers.delivered == ["a", "c"]


async def test_expired_markers_are_not_taken_for_missing_ones() -> None:
    """It is unknown whether the batch was committed: the query stops until the user decides."""
    brokers = ModelBrokers()
    await make_driver(brokers, batch=7).commit(brokers.store(ROWS))
    brokers.first_marker = len(brokers.markers)

    with pytest.raises(BatchForgotten, match="batch 7 of query query-1"):
        await make_driver(brokers, batch=7).commit(brokers.store(ROWS))
    assert brokers.delivered == ROWS
    await make_driver(brokers, batch=8).commit(brokers.store(["d"]), OnForgotten.PROCEED)
    assert brokers.delivered == [*ROWS, "d"]


async def test_long_list_is_split_and_its_last_marker_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts without the last marker decide nothing; with it a replay finds them all."""
    monkeypatch.setattr(batch_decider, "PART_BYTES_MAX", 40)
    brokers = ModelBrokers()
    rows = [str(number) for number in range(200)]
    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(5)).commit(brokers.store(rows))
    assert {decode(body).kind for body in brokers.markers} == {MarkerKind.PART}

    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(30)).commit(brokers.store(rows))
    assert 0 < len(brokers.delivered) < 200
    await make_driver(brokers).commit(brokers.store(["x"]))

    assert brokers.delivered == rows


async def test_batch_without_rows_writes_no_marker() -> None:
    """A batch that was decided with rows is still delivered."""
    brokers = ModelBrokers()
    await make_driver(brokers).commit(HalfMessageList())
    assert brokers.markers == []
    with pytest.raises(DriverDied):
        await make_driver(brokers, batch=1, calls=CallCounter(4)).commit(brokers.store(ROWS))

    await make_driver(brokers, batch=1).commit(HalfMessageList())

    assert brokers.delivered == ROWS


async def test_scan_does_not_read_the_whole_queue() -> None:
    """A batch needs only a few calls, however long a query runs."""
    brokers = ModelBrokers()
    for batch in range(200):
        await make_driver(brokers, batch=batch).commit(brokers.store([str(batch)]))
    calls = CallCounter()

    await make_driver(brokers, batch=200, calls=calls).commit(brokers.store(["last"]))

    assert calls.count <= 5
    assert len(brokers.delivered) == 201


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=6), st.integers(1, 4))
def test_each_batch_is_delivered_once_with_random_deaths(deaths: list[tuple[int, bool, bool]], rows: int) -> None:
    """Drivers die at random calls, with Spark's abort after it or without; batches follow each other."""
    brokers, plan = ModelBrokers(), iter(deaths)
    wanted = [[f"{batch}-{row}" for row in range(rows)] for batch in range(3)]
    for batch, batch_rows in enumerate(wanted):
        for run in itertools.count():
            dies_at_call, is_executed, is_aborted = next(plan, (None, False, False))
            halves = brokers.store(batch_rows)
            calls = CallCounter(dies_at_call, is_executed=is_executed)
            try:
                asyncio.run(make_driver(brokers, batch=batch, run=f"{batch}-{run}", calls=calls).commit(halves))
            except DriverDied:
                if is_aborted:
                    asyncio.run(
                        make_driver(brokers, batch=batch, run=f"{batch}-{run}").abort(halves, is_full_batch=True)
                    )
                continue
            break

    assert sorted(brokers.delivered) == sorted(itertools.chain.from_iterable(wanted))
