"""What a person asks of a running group is read exactly, or refused with what it should look like."""

from __future__ import annotations

import pytest

from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import (
    ACCEPT_LOSS,
    FENCE,
    HIBERNATE,
    PAUSED,
    PROMOTE,
    REPLACE_DISK,
    RESTORE,
    Order,
    Wanted,
    standing,
    wanted,
    without,
)


def test_nothing_is_wanted_unless_somebody_says_so() -> None:
    """Other annotations are not ours."""
    assert wanted({"example.org/paused": "true"}) == Wanted()


def test_every_wish_is_read() -> None:
    """Shard, member, and what may be lost by it."""
    asked = wanted({PAUSED: "true", PROMOTE: "0=2, 3@tuesday", ACCEPT_LOSS: "64Mi", REPLACE_DISK: "0/2,1/3"})

    assert asked.is_paused
    assert asked.orders == (Order("0=2", 0, 2, 64 << 20), Order("3@tuesday", 3, 0, 64 << 20))
    assert asked.given_up == ((0, 2), (1, 3))


def test_states_are_read_beside_orders() -> None:
    """Each shard once, in order."""
    asked = wanted({FENCE: "2, 0,2", HIBERNATE: "true", RESTORE: "1"})

    assert (asked.fenced, asked.is_hibernated, asked.restored) == ((0, 2), True, (1,))


def test_a_typing_error_lifts_no_fence_and_wakes_nobody() -> None:
    """What can be read of a state holds, whatever else is written there; a misspelled sleep puts nobody to sleep."""
    asked = standing({FENCE: "0,x", HIBERNATE: "true", PROMOTE: "zero"})
    assert (asked.fenced, asked.is_hibernated, asked.orders) == ((0,), True, ())

    assert standing({HIBERNATE: "yes", PAUSED: "yes"}) == Wanted(is_paused=True)


def test_only_a_person_accepts_whatever_it_is() -> None:
    """By one word."""
    assert wanted({PROMOTE: "0", ACCEPT_LOSS: "any"}).orders[0].loss_accepted is None
    assert wanted({PROMOTE: "0"}).orders[0].loss_accepted == 0


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({PAUSED: "yes"}, "neither"),
        ({PROMOTE: "orders-0-slave-1"}, 'write "0=2" for member 2 of shard 0'),
        ({PROMOTE: "0=1,0=2"}, "one order for each shard"),
        ({ACCEPT_LOSS: "everything"}, '64Mi, 10Gi or 4096, or "any"'),
        ({REPLACE_DISK: "2"}, 'write "0/2"'),
        ({FENCE: "0/2"}, 'write "0,2" for the shards 0 and 2'),
        ({RESTORE: "all"}, "is no shard"),
        ({HIBERNATE: "yes"}, "neither"),
    ],
    ids=["paused", "promote", "twice", "loss", "disk", "fence", "restore", "hibernate"],
)
def test_what_is_not_understood_is_not_done(annotations: dict[str, str], text: str) -> None:
    """It names the annotation, and what it should be."""
    with pytest.raises(ManifestError) as caught:
        wanted(annotations)

    assert text in str(caught.value)
    assert str(caught.value).startswith("metadata.annotations[gantry.dev/")


def test_an_order_that_was_obeyed_is_taken_off_and_others_stay() -> None:
    """By its whole text."""
    assert without("0=2, 1@again", "0=2") == "1@again"
    assert without("0=2", "0=2") == ""
