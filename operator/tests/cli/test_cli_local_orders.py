"""Orders of people to a local group: two processes edit them, and people mistype them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gantry_cli.errors import CliError
from gantry_cli.local.promote import leave_order
from gantry_cli.local.state import GroupState, StandingOrders
from gantry_cli.orders import Master, promotion_outcome
from gantry_spec.manifest.annotations import (
    ACCEPT_LOSS,
    FENCE,
    HIBERNATE,
    PAUSED,
    PROMOTE,
    REPLACE_DISK,
    RESTORE,
    RESTORING,
    Wanted,
)


def test_an_order_that_is_left_while_another_is_cleared_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleared by who has read the file before the new one came: `gantry promote` would take it for obeyed."""
    state = GroupState(tmp_path)
    leave_order(state, 0, "0@1", "0")
    read, has_read, go_on = GroupState.read_annotations, threading.Event(), threading.Event()

    def slowly(self: GroupState) -> dict[str, str]:
        found = read(self)
        if not has_read.is_set():
            has_read.set()
            go_on.wait(30)
        return found

    monkeypatch.setattr(GroupState, "read_annotations", slowly)
    clearing = threading.Thread(target=StandingOrders(state, lambda _: None).clear, args=("0@1",))
    clearing.start()
    has_read.wait(30)
    leaving = threading.Thread(target=leave_order, args=(GroupState(tmp_path), 1, "1@2", "0"))
    leaving.start()
    leaving.join(0.3)  # as far as it gets
    go_on.set()
    for thread in (clearing, leaving):
        thread.join(30)

    assert state.read_annotations()[PROMOTE] == "1@2"


def test_an_order_that_is_not_there_takes_nothing_else_off(tmp_path: Path) -> None:
    """An accepted loss that is written before its promotion stays; with the last promotion it goes."""
    state = GroupState(tmp_path)
    orders = StandingOrders(state, lambda _: None)
    state.write_annotations({ACCEPT_LOSS: "any", RESTORE: "0,1"})

    orders.clear("single")
    kept = state.read_annotations()
    orders.clear(f"{RESTORING}0")
    restored = state.read_annotations()
    state.write_annotations({ACCEPT_LOSS: "any", PROMOTE: "0=2@1"})
    orders.clear("0=2@1")

    assert kept == {ACCEPT_LOSS: "any", RESTORE: "0,1"}
    assert restored == {ACCEPT_LOSS: "any", RESTORE: "1"}
    assert state.read_annotations() == {}


@pytest.mark.parametrize(
    "beside",
    [{PROMOTE: "zero"}, {PAUSED: "yes"}, {REPLACE_DISK: "2"}, {HIBERNATE: "yes"}, {FENCE: "0,x"}],
    ids=["promote", "paused", "disk", "hibernate", "fence"],
)
def test_a_fence_is_not_lost_by_what_is_misspelled_beside_it(tmp_path: Path, beside: dict[str, str]) -> None:
    """It stands, the rest is told once, and orders are obeyed again when everything can be read."""
    state, told = GroupState(tmp_path), list[str]()
    orders = StandingOrders(state, told.append)
    state.write_annotations({FENCE: "0"} | beside)

    asked = [orders.read() for _ in range(2)]

    assert {(one.fenced, one.orders) for one in asked} == {((0,), ())}
    assert len(told) == 1 and next(iter(beside)) in told[0]
    state.write_annotations({FENCE: "0", PROMOTE: "1=2"})
    assert [order.id for order in orders.read().orders] == ["1=2"]


def test_without_what_stands_a_misspelled_word_would_lift_the_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: where nothing is asked for that cannot be read as a whole, shard 0 takes sends again."""
    monkeypatch.setattr("gantry_spec.manifest.annotations.standing", lambda _: Wanted())
    state = GroupState(tmp_path)
    state.write_annotations({FENCE: "0", PROMOTE: "zero"})

    assert StandingOrders(state, lambda _: None).read().fenced == ()


def test_a_damaged_file_lifts_no_fence(tmp_path: Path) -> None:
    """What stood last stands; a supervisor that begins with it does nothing to its group until it is mended."""
    state = GroupState(tmp_path)
    state.write_annotations({FENCE: "1"})
    orders = StandingOrders(state, lambda _: None)
    orders.read()

    state.annotations_file.write_text('{"gantry.dev/fence": ')

    assert (orders.read().fenced, orders.read().is_paused) == ((1,), False)
    assert StandingOrders(state, lambda _: None).read() == Wanted(is_paused=True)
    state.annotations_file.unlink()
    assert orders.read() == Wanted()


@pytest.mark.parametrize(
    ("before", "wanted", "text"),
    [
        (Master("a", 1000), "b", "shard 0: b is the master in epoch 2000; it was a in epoch 1000"),
        (Master(), "", "shard 0: b is the master in epoch 2000; it was nobody"),
        (Master("b", 2000), "b", "shard 0: b is the master already, in epoch 2000"),
    ],
    ids=["moved", "first", "already"],
)
def test_a_promotion_has_one_outcome_here_and_in_a_cluster(before: Master, wanted: str, text: str) -> None:
    """The master of the newest epoch is named, and the one before it."""
    assert promotion_outcome(0, before, Master("b", 2000), wanted) == text


def test_a_promotion_has_failed_when_another_member_is_the_master() -> None:
    """A member was ordered and another one was elected: that is no success."""
    with pytest.raises(CliError, match="the order was taken off, and c is the master in epoch 3000"):
        promotion_outcome(0, Master("a", 1000), Master("c", 3000), "b")
