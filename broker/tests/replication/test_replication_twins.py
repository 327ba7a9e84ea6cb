"""Guards of replication: each is met by its hardship, and taken away in a twin that the checker must catch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from gantry_histories.findings import Kind
from replication import supervisor
from replication.hardships import HARDSHIPS
from replication.plans import Fault, Plan
from replication.rounds import scene
from replication.without import GUARDS

from gantry_spec.ballot import Ballot, Count, count
from gantry_spec.lease import LeaseRecord

pytestmark = pytest.mark.needs_root
PATIENCE_S = 5.0
"""A member that cannot follow any more need not be waited for longer."""

PLAYS = 3
QUICK = ("grants", "promises", "stream-epoch")
GUARDED = [pytest.param(guard, marks=() if guard in QUICK else pytest.mark.slow) for guard in sorted(GUARDS)]


def count_the_shortest(record: LeaseRecord, ballots: Sequence[Ballot]) -> Count:
    """The member that has the least wins, of those that have promised."""
    result = count(record, ballots)
    if result.winner is None:
        return result
    shortest = min(ballots, key=lambda one: one.place)
    print(f"{shortest.number} of {ballots}")
    return result._replace(winner=shortest)


async def test_an_election_of_the_wrong_one_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3's twin: the slave that lags is promoted, and what only the other one had is lost."""
    monkeypatch.setattr(supervisor, "count", count_the_shortest)
    plan = Plan(1, True, {"brokerRole": "SYNC_MASTER"}, ())
    async with scene(plan, tmp_path, is_root=True) as made:
        await made.drama.play(Fault.LAG_AND_KILL)

        found = {finding.kind for finding in await made.judge(PATIENCE_S)}

    assert Kind.LOST in found


def test_every_guard_has_its_hardship() -> None:
    """No guard can be taken away that nobody misses."""
    assert set(GUARDS) == set(HARDSHIPS)


@pytest.mark.verify
@pytest.mark.parametrize("guard", GUARDED)
async def test_a_hardship_breaks_no_promise(guard: str, tmp_path: Path) -> None:
    """What the guard is there for happens, and nothing is found."""
    hardship = HARDSHIPS[guard]
    async with scene(hardship.plan, tmp_path, is_root=True, has_disks=hardship.has_disks) as made:
        await hardship.play(made)

        assert await made.judge() == []


@pytest.mark.verify
@pytest.mark.parametrize("guard", GUARDED)
async def test_a_missing_guard_is_caught(guard: str, tmp_path: Path) -> None:
    """R2, R3, R5 and R9's twin: the same without the guard: the checker says what was broken, in one of three plays.

    Some of what breaks is a matter of moments: a kill has to come before what rises is overwritten.
    """
    hardship = HARDSHIPS[guard]
    found: set[Kind] = set()
    for attempt in range(PLAYS):
        path = tmp_path / str(attempt)
        path.mkdir()
        async with scene(hardship.plan, path, is_root=True, has_disks=hardship.has_disks, without=[guard]) as made:
            await hardship.play(made)

            found |= {finding.kind for finding in await made.judge(PATIENCE_S)}
        if found & hardship.kinds:
            return

    assert found & hardship.kinds, found
