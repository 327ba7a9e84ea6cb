"""Every edit that needs a roll can be rolled: a broker with the edit and one without can follow each other.

A roll restarts the slave first, waits until it is in sync, and switches over to it; then the old master is its slave
until it is restarted. If the two could not replicate, the roll would stop in the middle, for ever.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
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
"""The edits with a storage medium that this machine may not have."""

ROLLED_BATCHES = batches(row for row in ROWS if row.effect is Effect.ROLL and str(row) not in NEEDS_PAGES)
TLS_SWITCHES = [row for row in ROWS if row.effect is Effect.REFUSED and row.path == "access.tlsSecret"]
FOLLOWS_S = 60.0
"""The limit for a slave to catch up."""

NEVER_S = 12.0
"""How long to wait for a slave that must not catch up."""

MEMORY = Path("/dev/shm")
"""The file system in memory for write buffers."""

pytestmark = pytest.mark.slow


class Pair(NamedTuple):
    """Master and slave of one shard."""

    first: LocalPod
    """The master at the start."""

    second: LocalPod


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return a pair that is stopped after the test, and whose buffers in memory are deleted then."""
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


def has_caught_up_slave(master: LocalPod, seconds_max: float) -> bool:
    """Return whether the master has, in time, a slave with all that it wrote."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        status = master.status()
        received = [slave["received"] for slave in status.get("slaves", [])]
        if received and status["wrote"] and all(one == status["wrote"] for one in received):
            return True
        time.sleep(0.1)
    return False


def is_followed(master: LocalPod) -> bool:
    """Return whether a slave has reported its progress."""
    return any(slave["received"] is not None for slave in master.status().get("slaves", []))


def start_pair(pair: Pair, spec: Mapping[str, Any]) -> None:
    """Start master and slave with messages in their logs."""
    for pod in pair:
        pod.run_spec(spec)
    pair.first.promote(1000, 2)
    pair.second.follow(1000, pair.first)
    wait_for(lambda: is_followed(pair.first), "the slave follows", FOLLOWS_S)
    asyncio.run(pair.first.write())
    assert has_caught_up_slave(pair.first, FOLLOWS_S)


@pytest.mark.parametrize("batch", ROLLED_BATCHES, ids=lambda batch: batch.name)
def test_brokers_before_and_after_an_edit_follow_each_other(pair: Pair, batch: Batch) -> None:
    """The new one follows the old one, and after the switchover the old one the new one."""
    start_pair(pair, batch.before)

    assert pair.second.run_spec(batch.after)
    pair.second.follow(1000, pair.first)
    assert has_caught_up_slave(pair.first, FOLLOWS_S), "the restarted slave did not catch up"
    pair.second.promote(2000, 1)
    pair.first.follow(2000, pair.second)
    assert has_caught_up_slave(pair.second, FOLLOWS_S), "the old master did not catch up as a slave"


@pytest.mark.parametrize("row", TLS_SWITCHES, ids=str)
def test_edit_that_brokers_could_not_roll_over_is_refused(pair: Pair, row: Row) -> None:
    """The twin: a broker with TLS cannot follow one without, nor vice versa; the roll would never end."""
    start_pair(pair, row.spec(row.before))

    assert pair.second.run_spec(row.spec(row.after))
    pair.second.follow(1000, pair.first)

    assert not has_caught_up_slave(pair.first, NEVER_S)
    assert pair.second.run_spec(row.spec(row.before))
    pair.second.follow(1000, pair.first)
    assert has_caught_up_slave(pair.first, FOLLOWS_S), "without the edit the slave did not catch up either"
