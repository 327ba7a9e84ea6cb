"""A batch is delivered once, whatever becomes of its drivers: every moment at which one may die, in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_kit.sink_world import QUERY, Died, HalfState, Life, World, WorldQueue, attempt

from pyspark_rocketmq.errors import BatchForgotten, BatchTorn
from pyspark_rocketmq.sink import deciding
from pyspark_rocketmq.sink.deciding import Decisions
from pyspark_rocketmq.sink.halves import Halves
from pyspark_rocketmq.sink.markers import NO_BATCH, Marker, MarkerKind, decode
from pyspark_rocketmq.sink.options import OnForgotten

ROWS = ["a", "b", "c"]


async def test_a_batch_is_committed_by_one_marker() -> None:
    """Nothing is delivered before it, everything behind it."""
    world = World()
    halves = world.store(ROWS)
    assert world.delivered == []

    committed = await attempt(world).commit(halves)

    assert world.delivered == ROWS
    assert (committed.rows, committed.is_replay, committed.is_suspicious) == (3, False, False)
    assert [decode(body).kind for body in world.markers] == [MarkerKind.COMMIT]


def _calls() -> Iterator[tuple[int, bool]]:
    """Each call that a driver makes for such a batch: never made, and made without an answer."""
    world, life = World(), Life()
    asyncio.run(attempt(world, life=life).commit(world.store(ROWS)))
    return itertools.product(range(1, life.calls + 1), (False, True))


@pytest.mark.parametrize(("dies_at", "is_carried_out"), list(_calls()))
@pytest.mark.parametrize("again_dies_at", [None, 2, 4, 6])
async def test_a_driver_may_die_at_any_moment(dies_at: int, is_carried_out: bool, again_dies_at: int | None) -> None:
    """Also its successor, in the replay; what nobody lists is never delivered, and the next batch goes on."""
    world = World()
    for run, life in enumerate((Life(dies_at, is_carried_out=is_carried_out), Life(again_dies_at), Life())):
        try:
            await attempt(world, run=f"run-{run}", life=life).commit(world.store(ROWS))
        except Died:
            continue
        break
    await attempt(world, batch=1).commit(world.store(["d"]))

    assert sorted(world.delivered) == [*ROWS, "d"]
    assert all(row in ROWS for row in world.open_rows), "halves of dead attempts, which nobody will ever list"


async def test_a_replay_delivers_the_rows_that_were_decided_and_not_its_own() -> None:
    """Also if the plan is not deterministic, and this attempt would have had others."""
    world = World()
    with pytest.raises(Died):
        await attempt(world, life=Life(4)).commit(world.store(ROWS))
    assert world.delivered == []

    committed = await attempt(world, run="run-2").commit(world.store(["x", "y"]))

    assert world.delivered == ROWS
    assert (committed.is_replay, committed.rolled_back, committed.is_suspicious) == (True, 2, True)
    assert [state for state in world.states.values() if state is HalfState.OPEN] == []


async def test_a_marker_that_is_hidden_after_a_crash_decides_all_the_same() -> None:
    """The first look cannot see it; the second one, up to our own marker, does."""
    world = World()
    with pytest.raises(Died):
        await attempt(world, life=Life(3)).commit(world.store(ROWS))
    world.hidden = len(world.markers)

    committed = await attempt(world).commit(world.store(["x"]))

    assert world.delivered == ROWS
    assert committed.is_replay


async def test_of_two_drivers_at_once_the_first_marker_decides() -> None:
    """One that was thought dead looks, stands still, and goes on when its successor is done."""
    world = World()
    old = Decisions(WorldQueue(world, Life()), QUERY, 0, "old")
    await old.look()
    mine = world.store(["old"])
    await attempt(world, run="new").commit(world.store(["new"]))

    marker = await old.commit(mine)

    assert await old.halves_of(marker) != mine
    assert world.delivered == ["new"]
    assert len(world.markers) == 2


async def test_what_an_old_driver_says_later_hides_no_batch() -> None:
    """Its marker of batch 0 comes behind that of batch 1: whoever looks for batch 1 reads on."""
    world = World()
    old = Decisions(WorldQueue(world, Life()), QUERY, 0, "old")
    await old.look()
    await attempt(world, batch=0, run="new").commit(world.store(["a"]))
    with pytest.raises(Died):
        await attempt(world, batch=1, run="new", life=Life(4)).commit(world.store(["b"]))
    await old.commit(world.store(["x"]))
    for number in range(100):
        await attempt(world, query=f"other-{number}").commit(world.store([]))

    await attempt(world, batch=1, run="newer").commit(world.store(["b again"]))

    assert world.delivered == ["a", "b"]


async def test_an_abort_rolls_back() -> None:
    """Where a task has failed nobody can have committed, and nobody is asked."""
    world = World()
    halves = world.store(ROWS)

    assert await attempt(world).abort(halves, is_whole=False) == 3

    assert world.markers == []
    assert world.open_rows == []
    await attempt(world).commit(world.store(ROWS))
    assert world.delivered == ROWS


async def test_an_abort_after_a_commit_that_was_decided_rolls_nothing_back() -> None:
    """Spark calls abort when commit has raised, also when that was after the marker."""
    world = World()
    halves = world.store(ROWS)
    with pytest.raises(Died):
        await attempt(world, life=Life(5)).commit(halves)

    assert await attempt(world).abort(halves, is_whole=True) == 0

    await attempt(world).commit(world.store(ROWS))
    assert world.delivered == ROWS


async def test_a_commit_that_comes_behind_its_abort_does_not_count() -> None:
    """Its marker was under way when the driver gave up; the abort's marker is before it."""
    world = World()
    halves = world.store(ROWS)
    late = Decisions(WorldQueue(world, Life()), QUERY, 0)
    look = await late.look()
    assert await attempt(world).abort(halves, is_whole=True) == 3
    marker = Marker(
        kind=MarkerKind.COMMIT, query=QUERY, batch=0, attempt=halves.fingerprint, scanned=look.end, newest=NO_BATCH,
        payload=halves.pack(),
    )  # fmt: skip
    world.markers.append(marker.encode())

    await attempt(world).commit(world.store(["again"]))

    assert world.delivered == ["again"]


async def test_a_batch_that_was_away_too_long_is_a_loss_and_said() -> None:
    """Its brokers have given half of it up: what can be delivered is, and the rest is no success."""
    world = World()
    halves = world.store(ROWS)
    with pytest.raises(Died):
        await attempt(world, life=Life(4)).commit(halves)
    world.states[1] = HalfState.GIVEN_UP

    with pytest.raises(BatchTorn, match="1 of 3"):
        await attempt(world).commit(world.store(ROWS))

    assert world.delivered == ["a", "c"]


async def test_markers_that_have_expired_are_not_taken_for_none() -> None:
    """Nobody knows then whether the batch was committed: the query stops, until somebody who knows says so."""
    world = World()
    await attempt(world, batch=7).commit(world.store(ROWS))
    world.first = len(world.markers)

    with pytest.raises(BatchForgotten, match="batch 7 of query query-1"):
        await attempt(world, batch=7).commit(world.store(ROWS))
    assert world.delivered == ROWS
    await attempt(world, batch=8).commit(world.store(["d"]), OnForgotten.PROCEED)
    assert world.delivered == [*ROWS, "d"]


async def test_a_list_that_is_too_long_is_cut_and_its_last_marker_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that one the others are nothing; with it a replay finds them all."""
    monkeypatch.setattr(deciding, "PART_BYTES_MAX", 40)
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


async def test_a_batch_without_rows_is_no_marker() -> None:
    """But one that was decided with rows is delivered."""
    world = World()
    await attempt(world).commit(Halves())
    assert world.markers == []
    with pytest.raises(Died):
        await attempt(world, batch=1, life=Life(4)).commit(world.store(ROWS))

    await attempt(world, batch=1).commit(Halves())

    assert world.delivered == ROWS


async def test_looking_for_a_batch_reads_what_is_new_and_not_the_whole_queue() -> None:
    """However long a query runs: a few calls for each batch."""
    world = World()
    for batch in range(200):
        await attempt(world, batch=batch).commit(world.store([str(batch)]))
    life = Life()

    await attempt(world, batch=200, life=life).commit(world.store(["last"]))

    assert life.calls <= 5
    assert len(world.delivered) == 201


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=6), st.integers(1, 4))
def test_whatever_dies_whenever_each_batch_is_delivered_once(deaths: list[tuple[int, bool, bool]], rows: int) -> None:
    """Drivers die at calls of chance, with Spark's abort behind it or without; batches follow each other."""
    world, plan = World(), iter(deaths)
    wanted = [[f"{batch}-{row}" for row in range(rows)] for batch in range(3)]
    for batch, batch_rows in enumerate(wanted):
        for run in itertools.count():
            dies_at, is_carried_out, is_aborted = next(plan, (None, False, False))
            halves = world.store(batch_rows)
            life = Life(dies_at, is_carried_out=is_carried_out)
            try:
                asyncio.run(attempt(world, batch=batch, run=f"{batch}-{run}", life=life).commit(halves))
            except Died:
                if is_aborted:
                    asyncio.run(attempt(world, batch=batch, run=f"{batch}-{run}").abort(halves, is_whole=True))
                continue
            break

    assert sorted(world.delivered) == sorted(itertools.chain.from_iterable(wanted))
