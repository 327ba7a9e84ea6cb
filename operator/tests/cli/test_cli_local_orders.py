"""Orders of people to a local group: concurrent edits and invalid texts.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gantry_cli.errors import CliError
from gantry_cli.local.promote import write_order
from gantry_cli.local.state import GroupAnnotations, GroupState
from gantry_cli.orders import Master, promotion_outcome
from gantry_spec.manifest.annotations import (
    ACCEPT_LOSS,
    FENCE,
    HIBERNATE,
    PAUSED,
    PROMOTE,
    REPLACE_DISK,
    RESTORE,
    RESTORE_ID_PREFIX,
    GroupRequests,
)


def test_order_given_while_another_is_cleared_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the clearing process would overwrite it, and `gantry promote` would take it for executed."""
    state = GroupState(tmp_path)
    write_order(state, 0, "0@1", "0")
    read, has_read, go_on = GroupState.read_annotations, threading.Event(), threading.Event()

    def slowly(self: GroupState) -> dict[str, str]:
        found = read(self)
        if not has_read.is_set():
            has_read.set()
            go_on.wait(30)
        return found

    monkeypatch.setattr(GroupState, "read_annotations", slowly)
    clearing = threading.Thread(target=GroupAnnotations(state, lambda _: None).clear, args=("0@1",))
    clearing.start()
    has_read.wait(30)
    leaving = threading.Thread(target=write_order, args=(GroupState(tmp_path), 1, "1@2", "0"))
    leaving.start()
    leaving.join(0.3)  # as far as it gets
    go_on.set()
    for thread in (clearing, leaving):
        thread.join(30)

    assert state.read_annotations()[PROMOTE] == "1@2"


def test_clearing_a_missing_order_removes_nothing_else(tmp_path: Path) -> None:
    """An accepted loss that is written before its promotion stays; it is removed with the last promotion."""
    state = GroupState(tmp_path)
    orders = GroupAnnotations(state, lambda _: None)
    state.write_annotations({ACCEPT_LOSS: "any", RESTORE: "0,1"})

    orders.clear("single")
    kept = state.read_annotations()
    orders.clear(f"{RESTORE_ID_PREFIX}0")
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
def test_fence_survives_an_invalid_order_beside_it(tmp_path: Path, beside: dict[str, str]) -> None:
    """The fence stays, the error is reported once, and orders are executed again when all are valid."""
    state, events = GroupState(tmp_path), list[str]()
    orders = GroupAnnotations(state, events.append)
    state.write_annotations({FENCE: "0"} | beside)

    asked = [orders.read() for _ in range(2)]

    assert {(one.fenced_shards, one.promotions) for one in asked} == {((0,), ())}
    assert len(events) == 1 and next(iter(beside)) in events[0]
    state.write_annotations({FENCE: "0", PROMOTE: "1=2"})
    assert [order.id for order in orders.read().promotions] == ["1=2"]


def test_fence_would_be_lifted_without_the_fallback_to_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: if invalid annotations are ignored as a whole, shard 0 takes sends again."""
    monkeypatch.setattr("gantry_spec.manifest.annotations.parse_states", lambda _: GroupRequests())
    state = GroupState(tmp_path)
    state.write_annotations({FENCE: "0", PROMOTE: "zero"})

    assert GroupAnnotations(state, lambda _: None).read().fenced_shards == ()


def test_damaged_annotations_lift_no_fence(tmp_path: Path) -> None:
    """The states read last stay in force; a supervisor that has read none pauses its group."""
    state = GroupState(tmp_path)
    state.write_annotations({FENCE: "1"})
    orders = GroupAnnotations(state, lambda _: None)
    orders.read()

    state.annotations_file.write_text('{"gantry.dev/fence": ')

    assert (orders.read().fenced_shards, orders.read().is_paused) == ((1,), False)
    assert GroupAnnotations(state, lambda _: None).read() == GroupRequests(is_paused=True)
    state.annotations_file.unlink()
    assert orders.read() == GroupRequests()


@pytest.mark.parametrize(
    ("before", "wanted", "text"),
    [
        (Master("a", 1000), "b", "shard 0: b is the master in epoch 2000; previous master: a in epoch 1000"),
        (Master(), "", "shard 0: b is the master in epoch 2000; previous master: none"),
        (Master("b", 2000), "b", "shard 0: b is the master already, in epoch 2000"),
    ],
    ids=["moved", "first", "already"],
)
def test_promotion_outcome_is_the_same_locally_and_in_a_cluster(before: Master, wanted: str, text: str) -> None:
    """The outcome names the master of the newest epoch, and the master before it."""
    assert promotion_outcome(0, before, Master("b", 2000), wanted) == text


def test_promotion_fails_when_another_member_is_the_master() -> None:
    """The election of a member that was not ordered is an error."""
    with pytest.raises(CliError, match="the order was removed, but c is the master in epoch 3000"):
        promotion_outcome(0, Master("a", 1000), Master("c", 3000), "b")
