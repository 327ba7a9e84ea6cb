"""Guards of replication: each is met by its hardship, and taken away in a twin that the checker must catch."""

from __future__ import annotations

from pathlib import Path

import pytest
from replication.hardships import HARDSHIPS
from replication.rounds import scene
from replication.without import GUARDS

pytestmark = pytest.mark.needs_root
PATIENCE_S = 5.0
"""A member that cannot follow any more need not be waited for longer."""


def test_every_guard_has_its_hardship() -> None:
    """No guard can be taken away that nobody misses."""
    assert set(GUARDS) == set(HARDSHIPS)


@pytest.mark.parametrize("guard", sorted(GUARDS))
async def test_a_hardship_breaks_no_promise(guard: str, tmp_path: Path) -> None:
    """What the guard is there for happens, and nothing is found."""
    hardship = HARDSHIPS[guard]
    async with scene(hardship.plan, tmp_path, is_root=True) as made:
        await hardship.play(made)

        assert await made.judge() == []


@pytest.mark.parametrize("guard", sorted(GUARDS))
async def test_a_missing_guard_is_caught(guard: str, tmp_path: Path) -> None:
    """R2, R3, R5 and R9's twin: the same without the guard: the checker says what was broken."""
    hardship = HARDSHIPS[guard]
    async with scene(hardship.plan, tmp_path, is_root=True, without=[guard]) as made:
        await hardship.play(made)

        found = {finding.kind for finding in await made.judge(PATIENCE_S)}

    assert found & hardship.kinds, found
