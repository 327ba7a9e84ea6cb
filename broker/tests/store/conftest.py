"""Fixtures that the tests of the store share: a store on each kind of disk.

A module that needs a store with other contents or settings overrides `world`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_testing.store_world import StoreWorld, make_world
from gantry_testing.verifying import fill_store


@pytest.fixture(params=["real", "faulty"])
def kind(request: pytest.FixtureRequest) -> str:
    """Run the test on a real disk and on the faulty one in memory."""
    return str(request.param)


@pytest.fixture
def world(kind: str, tmp_path: Path) -> StoreWorld:
    """An open store without messages."""
    made = make_world(kind, tmp_path)
    made.open()
    return made


@pytest.fixture
def filled_world(kind: str, tmp_path: Path) -> StoreWorld:
    """An open store with several files of each kind."""
    return fill_store(make_world(kind, tmp_path))
