"""A roll on a hanging disk: the event loop does not hang with it."""

from __future__ import annotations

import dataclasses

import pytest

from gantry_broker.errors import DiskTooSlow
from gantry_broker.server.core.refusals import store_refusal
from gantry_broker.store import next_file
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld


def test_sends_are_refused_until_the_next_file_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits once; later sends are refused at once, unstored, until the disk works again."""
    monkeypatch.setattr(next_file, "NEXT_FILE_WAIT_S", 0.05)
    world = StoreWorld(FaultyDisk(), "/data/store", dataclasses.replace(TINY, is_preallocating=True))
    world.open()
    world.faulty_disk.sync_gate.clear()
    with pytest.raises(DiskTooSlow):
        world.send(count=100)
    stored = world.store.queues.get_or_create("orders", 0).end

    for _ in range(3):
        with pytest.raises(DiskTooSlow) as refused:
            world.send()
    assert world.store.queues.get_or_create("orders", 0).end == stored
    assert store_refusal(refused.value)[0] == 14
    assert "too slow" in store_refusal(refused.value)[1]
    world.faulty_disk.sync_gate.set()
    world.store.log.next.future.result(10)  # type: ignore[union-attr]
    world.send(count=20)

    assert world.bodies() == world.sent_bodies()
    world.close()
    assert world.open().is_clean
    assert len(world.bodies()) == stored + 20
    world.close()
