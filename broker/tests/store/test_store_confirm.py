"""The table of modes: what each promises to senders and shows to consumers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.store.positions import Positions, confirmed_offset, promised_offset
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld

LOCAL = {"wrote": 900, "committed": 700, "flushed": 500}


@pytest.mark.parametrize(
    ("is_sync_flush", "is_crash_safe", "acked", "promised", "confirmed"),
    [
        (False, True, None, 900, 900),
        (False, False, None, 900, 700),
        (True, True, None, 500, 500),
        (True, False, None, 500, 500),
        (False, True, 800, 800, 800),
        (False, False, 800, 800, 700),
        (False, False, 600, 600, 600),
        (True, True, 800, 500, 500),
        (True, True, 400, 400, 400),
        (False, True, -1, 0, 0),
        (True, False, 950, 500, 500),
    ],
    ids=[
        "async", "async-anonymous", "sync-flush", "sync-flush-anonymous", "sync-master", "sync-master-anonymous",
        "sync-master-slow", "both-disk-behind", "both-slave-behind", "no-slave", "slave-beyond",
    ],
)  # fmt: skip
def test_each_mode_has_its_own_promised_and_confirmed_offsets(
    is_sync_flush: bool, is_crash_safe: bool, acked: int | None, promised: int, confirmed: int
) -> None:
    """Code 0 and visibility wait exactly for the condition of the mode."""
    positions = Positions(**LOCAL, acked=acked)

    assert promised_offset(positions, is_sync_flush=is_sync_flush) == promised
    assert confirmed_offset(positions, is_sync_flush=is_sync_flush, is_crash_safe=is_crash_safe) == confirmed


@given(
    st.lists(st.integers(0, 1000), min_size=3, max_size=3),
    st.none() | st.integers(-1, 1000),
    st.booleans(),
    st.booleans(),
)
def test_visible_messages_are_promised(
    offsets: list[int], acked: int | None, is_sync_flush: bool, is_crash_safe: bool
) -> None:
    """A visible message is promised to its sender, and only written messages are promised or visible."""
    flushed, committed, wrote = sorted(offsets)
    positions = Positions(wrote, committed, flushed, acked)

    promised = promised_offset(positions, is_sync_flush=is_sync_flush)
    confirmed = confirmed_offset(positions, is_sync_flush=is_sync_flush, is_crash_safe=is_crash_safe)

    assert 0 <= confirmed <= promised <= wrote


def test_visibility_follows_slaves_only_while_they_are_required() -> None:
    """Messages are held while slaves are required, become visible with acks, or all at once without."""
    world = StoreWorld(FaultyDisk(), "/store")
    world.open()
    world.send(count=3)
    ends = [message.end for message in world.sent]
    world.store.positions.set_acked(-1)
    world.send(count=3)
    ends = [message.end for message in world.sent]

    world.store.advance()
    assert (len(world.bodies()), world.store.positions.promised, world.store.positions.confirmed) == (3, 0, 0)
    world.store.positions.set_acked(ends[4])
    world.store.advance()
    assert (len(world.bodies()), world.store.positions.promised) == (5, ends[4])
    world.store.positions.set_acked(-1)
    world.store.advance()
    assert len(world.bodies()) == 5, "expected visible messages to stay visible"
    world.store.positions.clear_acked()
    world.send()
    assert (len(world.bodies()), world.store.positions.promised) == (7, world.store.log.wrote)
