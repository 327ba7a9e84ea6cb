"""Every edit that is rolled can be: while one broker has it and the other has not, either follows the other.

A roll starts the slave again first, waits until it has everything, and moves the role to it; then the old master is its
slave until it is started again. An edit that the two could not meet over would stop in the middle, for ever.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from admin_scene import wait_for
from edit_world.batches import Batch, batches
from edit_world.local_pods import LocalPod
from edit_world.own_secrets import certificates
from edit_world.row import GROUP, Effect, Row
from edit_world.table import ROWS

NEEDS_PAGES = {"writeBuffer.medium: huge pages"}
"""Where the volume is not one that any machine has."""

ROLLED = batches(row for row in ROWS if row.effect is Effect.ROLL and str(row) not in NEEDS_PAGES)
SWITCHED = [row for row in ROWS if row.effect is Effect.REFUSED and row.path == "access.tlsSecret"]
FOLLOWS_S = 60.0
NEVER_S = 12.0
MEMORY = Path("/dev/shm")

pytestmark = pytest.mark.slow


class Pair(NamedTuple):
    """The members of a shard."""

    first: LocalPod
    second: LocalPod


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Gone after the test, also from memory."""
    buffers = Path(tempfile.mkdtemp(prefix="gantry-buffers-", dir=MEMORY))
    made = certificates()
    try:
        with (
            LocalPod(tmp_path / "first", buffers / "first", secrets=made) as first,
            LocalPod(tmp_path / "second", buffers / "second", pod=f"{GROUP}-0-slave-0", secrets=made) as second,
        ):
            yield Pair(first, second)
    finally:
        shutil.rmtree(buffers)


def follows(master: LocalPod, seconds_max: float) -> bool:
    """Whether the master has a slave that has all it wrote, in time."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        status = master.status()
        received = [slave["received"] for slave in status.get("slaves", [])]
        if received and status["wrote"] and all(one == status["wrote"] for one in received):
            return True
        time.sleep(0.1)
    return False


def is_followed(master: LocalPod) -> bool:
    """Whether a slave has said how far it is."""
    return any(slave["received"] is not None for slave in master.status().get("slaves", []))


def begin(pair: Pair, spec: Mapping[str, Any]) -> None:
    """Master and slave with something in their logs."""
    for pod in pair:
        pod.have(spec)
    pair.first.promote(1000, 2)
    pair.second.follow(1000, pair.first)
    wait_for(lambda: is_followed(pair.first), "the slave follows", FOLLOWS_S)
    asyncio.run(pair.first.write())
    assert follows(pair.first, FOLLOWS_S)


@pytest.mark.parametrize("batch", ROLLED, ids=lambda batch: batch.name)
def test_brokers_on_both_sides_of_an_edit_follow_each_other(pair: Pair, batch: Batch) -> None:
    """The new one the old one, and, once the role has moved, the old one the new one."""
    begin(pair, batch.before)

    assert pair.second.have(batch.after)
    pair.second.follow(1000, pair.first)
    assert follows(pair.first, FOLLOWS_S), "the slave that was started again has everything"
    pair.second.promote(2000, 1)
    pair.first.follow(2000, pair.second)
    assert follows(pair.second, FOLLOWS_S), "the old master has everything"


@pytest.mark.parametrize("row", SWITCHED, ids=str)
def test_an_edit_over_which_they_could_not_meet_is_refused(pair: Pair, row: Row) -> None:
    """The twin: a broker with TLS never follows one without, nor the other way round; the roll would never end."""
    begin(pair, row.spec(row.before))

    assert pair.second.have(row.spec(row.after))
    pair.second.follow(1000, pair.first)

    assert not follows(pair.first, NEVER_S)
    assert pair.second.have(row.spec(row.before))
    pair.second.follow(1000, pair.first)
    assert follows(pair.first, FOLLOWS_S), "it was the edit"
