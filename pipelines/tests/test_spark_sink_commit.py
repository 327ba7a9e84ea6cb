"""A batch is delivered once, at whichever step its drivers die, with brokers in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_kit.sink_world import QUERY, Died, HalfState, Life, World, WorldQueue, attempt

from pyspark_rocketmq.errors import BatchForgotten, BatchTorn
from pyspark_rocketmq.sink import batch_decider
from pyspark_rocketmq.sink.batch_decider import BatchDecider
from pyspark_rocketmq.sink.half_message_list import HalfMessageList
from pyspark_rocketmq.sink.markers import NO_BATCH, Marker, MarkerKind, decode
from pyspark_rocketmq.sink.options import OnForgotten

ROWS = ["a", "b", "c"]


async def test_batch_is_committed_by_one_marker() -> None:
    """Nothing is delivered before the marker, everything after it."""
    world = World()
    halves = world.store(ROWS)
    assert world.delivered == []

    committed = await attempt(world).commit(halves)

    assert world.delivered == ROWS
    assert (committed.rows, committed.is_replay, committed.may_have_orphans) == (3, False, False)
    assert [decode(body).kind for body in world.markers] == [MarkerKind.COMMIT]


def _calls() -> Iterator[tuple[int, bool]]:
    """Return each call that a driver makes for such a batch: never executed, and executed without a response."""
    world, life = World(), Life()
    asyncio.run(attempt(world, life=life).commit(world.store(ROWS)))
    return itertools.product(range(1, life.calls + 1), (False, True))


@pytest.mark.parametrize(("dies_at", "is_executed"), list(_calls()))
@pytest.mark.parametrize("again_dies_at", [None, 2, 4, 6])
async def test_driver_may_die_at_any_call(dies_at: int, is_executed: bool, again_dies_at: int | None) -> None:
    """So may its successor; half messages in no marker are never delivered, and the next batch works."""
    world = World()
    for run, life in enumerate((Life(dies_at, is_executed=is_executed), Life(again_dies_at), Life())):
        try:
            await attempt(world, run=f"run-{run}", life=life).commit(world.store(ROWS))
        except Died:
            continue
        break
    await attempt(world, batch=1).commit(world.store(["d"]))

    assert sorted(world.delivered) == [*ROWS, "d"]
    assert all(row in ROWS for row in world.open_rows), "a half message of a live batch was left open"


async def test_replay_delivers_the_decided_rows() -> None:
    """This holds even if the plan is not deterministic, and the new attempt has other rows."""
    world = World()
    with pytest.raises(Died):
        await attempt(world, life=Life(4)).commit(world.store(ROWS))
    assert world.delivered == []

    committed = await attempt(world, run="run-2").commit(world.store(["x", "y"]))

    assert world.delivered == ROWS
    assert (committed.is_replay, committed.rolled_back, committed.may_have_orphans) == (True, 2, True)
    assert [state for state in world.states.values() if state is HalfState.OPEN] == []


async def test_marker_hidden_after_a_crash_still_decides() -> None:
    """The first scan cannot see it; the second one, up to the new marker, does."""
    world = World()
    with pytest.raises(Died):
        await attempt(world, life=Life(3)).commit(world.store(ROWS))
    world.hidden = len(world.markers)

    committed = await attempt(world).commit(world.store(["x"]))

    assert world.delivered == ROWS
    assert committed.is_replay


async def test_first_marker_of_two_concurrent_drivers_decides() -> None:
    """A driver that was thought dead scans, stops, and continues when its successor is done."""
    world = World()
    old = BatchDecider(WorldQueue(world, Life()), QUERY, 0, "old")
    await old.scan()
    mine = world.store(["old"])
    await attempt(world, run="new").commit(world.store(["new"]))

    marker = await old.commit(mine)

    assert await old.halves_of(marker) != mine
    assert world.delivered == ["new"]
    assert len(world.markers) == 2


async def test_late_marker_of_an_old_batch_hides_no_newer_one() -> None:
    """A marker of batch 0 is stored after that of batch 1: a scan for batch 1 continues past it."""
    world = World()
    old = BatchDecider(WorldQueue(world, Life()), QUERY, 0, "old")
    await old.scan()
    await attempt(world, batch=0, run="new").commit(world.store(["a"]))
    with pytest.raises(Died):
        await attempt(world, batch=1, run="new", life=Life(4)).commit(world.store(["b"]))
    await old.commit(world.store(["x"]))
    for number in range(100):
        await attempt(world, query=f"other-{number}").commit(world.store([]))

    await attempt(world, batch=1, run="newer").commit(world.store(["b again"]))

    assert world.delivered == ["a", "b"]


async def test_abort_rolls_back_without_reading_the_queue() -> None:
    """If a task has failed no commit was attempted, so the queue is not read."""
    world = World()
    halves = world.store(ROWS)

    assert await attempt(world).abort(halves, is_full_batch=False) == 3

    assert world.markers == []
    assert world.open_rows == []
    await attempt(world).commit(world.store(ROWS))
    assert world.delivered == ROWS


async def test_abort_after_a_decided_commit_rolls_nothing_back() -> None:
    """Spark calls abort when commit has raised, even if that was after the marker."""
    world = World()
    halves = world.store(ROWS)
    with pytest.raises(Died):
        await attempt(world, life=Life(5)).commit(halves)

    assert await attempt(world).abort(halves, is_full_batch=True) == 0

    await attempt(world).commit(world.store(ROWS))
    assert world.delivered == ROWS


async def test_commit_marker_after_its_abort_marker_is_invalid() -> None:
    """The commit marker was in flight when the driver gave up; the abort marker is before it."""
    world = World()
    halves = world.store(ROWS)
    late = BatchDecider(WorldQueue(world, Life()), QUERY, 0)
    scan = await late.scan()
    assert await attempt(world).abort(halves, is_full_batch=True) == 3
    marker = Marker(
        kind=MarkerKind.COMMIT, query=QUERY, batch=0, attempt=halves.fingerprint, scanned=scan.end, newest=NO_BATCH,
        payload=halves.pack(),
    )  # fmt: skip
    world.markers.append(marker.encode())

    await attempt(world).commit(world.store(["again"]))

    assert world.delivered == ["again"]


async def test_partly_expired_batch_is_raised_as_a_loss() -> None:
    """Brokers have given up a part of it: the rest is delivered, and the commit still fails."""
    world = World()
    halves = world.store(ROWS)
    with pytest.raises(Died):
        await attempt(world, life=Life(4)).commit(halves)
    world.states[1] = HalfState.GIVEN_UP

    with pytest.raises(BatchTorn, match="1 of 3"):
        await attempt(world).commit(world.store(ROWS))

    assert world.delivered == ["a", "c"]


async def test_expired_markers_are_not_taken_for_missing_ones() -> None:
    """It is unknown whether the batch was committed: the query stops until the user decides."""
    world = World()
    await attempt(world, batch=7).commit(world.store(ROWS))
    world.first = len(world.markers)

    with pytest.raises(BatchForgotten, match="batch 7 of query query-1"):
        await attempt(world, batch=7).commit(world.store(ROWS))
    assert world.delivered == ROWS
    await attempt(world, batch=8).commit(world.store(["d"]), OnForgotten.PROCEED)
    assert world.delivered == [*ROWS, "d"]


async def test_long_list_is_split_and_its_last_marker_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts without the last marker decide nothing; with it a replay finds them all."""
    monkeypatch.setattr(batch_decider, "PART_BYTES_MAX", 40)
    world = World()
    rows = [str(number) for number in range(200)]
    with pytest.raises(Died):
        await attempt(world, life=Life(5)).commit(world.store(rows))
    assert {decode(body).kind for body in world.markers} == {MarkerKind.PART}

    with pytest.raises(Died):
        await attempt(world, life=Life(30)).commit(world.store(rows))
    assert 0 < len(world.delivered) < 200
    await attempt(world).commit(world.store(["x"]))

    assert world.delivered == rows


async def test_batch_without_rows_writes_no_marker() -> None:
    """A batch that was decided with rows is still delivered."""
    world = World()
    await attempt(world).commit(HalfMessageList())
    assert world.markers == []
    with pytest.raises(Died):
        await attempt(world, batch=1, life=Life(4)).commit(world.store(ROWS))

    await attempt(world, batch=1).commit(HalfMessageList())

    assert world.delivered == ROWS


async def test_scan_does_not_read_the_whole_queue() -> None:
    """A batch needs only a few calls, however long a query runs."""
    world = World()
    for batch in range(200):
        await attempt(world, batch=batch).commit(world.store([str(batch)]))
    life = Life()

    await attempt(world, batch=200, life=life).commit(world.store(["last"]))

    assert life.calls <= 5
    assert len(world.delivered) == 201


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=6), st.integers(1, 4))
def test_each_batch_is_delivered_once_with_random_deaths(deaths: list[tuple[int, bool, bool]], rows: int) -> None:
    """Drivers die at random calls, with Spark's abort after it or without; batches follow each other."""
    world, plan = World(), iter(deaths)
    wanted = [[f"{batch}-{row}" for row in range(rows)] for batch in range(3)]
    for batch, batch_rows in enumerate(wanted):
        for run in itertools.count():
            dies_at, is_executed, is_aborted = next(plan, (None, False, False))
            halves = world.store(batch_rows)
            life = Life(dies_at, is_executed=is_executed)
            try:
                asyncio.run(attempt(world, batch=batch, run=f"{batch}-{run}", life=life).commit(halves))
            except Died:
                if is_aborted:
                    asyncio.run(attempt(world, batch=batch, run=f"{batch}-{run}").abort(halves, is_full_batch=True))
                continue
            break

    assert sorted(world.delivered) == sorted(itertools.chain.from_iterable(wanted))
