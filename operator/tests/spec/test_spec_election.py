"""Elections keep what was acknowledged, and nobody is promoted without enough promises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_spec.election import Candidate, elect, promises_needed


@pytest.mark.parametrize(
    ("slaves", "acks", "needed"),
    [(1, 1, 1), (2, 1, 2), (2, 2, 1), (3, 1, 3), (3, 2, 2), (4, 2, 3), (1, 0, 1), (3, 0, 1)],
)
def test_promises_are_needed_from_so_many(slaves: int, acks: int, needed: int) -> None:
    """S - k + 1, so that any k slaves include one that has promised."""
    assert promises_needed(slaves, acks) == needed


def is_election_safe(seed: int, *, promises_less: int = 0) -> bool:
    """A master and some slaves that copy and acknowledge, then an election among those who can be reached.

    Whether the winner has every acknowledged message, also those of senders that the old master answers afterwards.
    """
    chance = random.Random(seed)
    count = chance.randrange(1, 6)
    acks_needed = chance.randrange(1, count + 1)
    needed = max(1, promises_needed(count, acks_needed) - promises_less)
    names = [f"s{number}" for number in range(count)]
    ends = dict.fromkeys(names, 0)
    wrote = acknowledged = 0
    reachable = chance.sample(names, needed)
    rounds_before = chance.randrange(40)
    candidates: list[Candidate] = []
    for number in range(80):
        if number == rounds_before:
            # From here on they follow the old master no more; it does not know, and goes on with the others.
            candidates = [Candidate(name, 1, ends[name], 2) for name in reachable]
        wrote += chance.randrange(3)
        name = chance.choice(names)
        if number < rounds_before or name not in reachable:
            ends[name] = chance.randint(ends[name], wrote)
        acknowledged = max(acknowledged, sorted(ends.values(), reverse=True)[acks_needed - 1])
    if promises_less:
        winner = max(candidates, key=lambda one: one.end)
    else:
        elected = elect(names, acks_needed, 2, candidates).winner
        assert elected is not None
        winner = elected
    return winner.end >= acknowledged


@settings(max_examples=500)
@given(st.integers(0, 1 << 30))
def test_an_election_never_loses_what_was_acknowledged(seed: int) -> None:
    """With any number of slaves and of needed acks, whoever can be reached, and a master that does not know of it."""
    assert is_election_safe(seed)


def test_an_election_with_one_promise_too_few_is_found() -> None:
    """Or the test above would prove nothing."""
    assert not all(is_election_safe(seed, promises_less=1) for seed in range(200))


def test_the_newest_epoch_wins_over_the_longest_log() -> None:
    """What is longer in an older epoch was never confirmed."""
    old = Candidate("a", 3, 9_000, 5)
    new = Candidate("b", 4, 100, 5)

    assert elect(["a", "b"], 1, 5, [old, new]).winner == new


@pytest.mark.parametrize(
    ("promised", "is_leased", "acks", "reason"),
    [
        ([Candidate("a", 3, 10, 5)], True, 1, "1 of 2 slaves have promised, and 2 must"),
        ([Candidate("a", 3, 10, 5), Candidate("stranger", 3, 10, 5)], True, 1, "1 of 2"),
        ([Candidate("a", 3, 10, 5), Candidate("a", 3, 10, 5)], True, 1, "1 of 2"),
        ([Candidate("a", 3, 10, 4), Candidate("b", 3, 10, 5)], True, 1, "1 of 2"),
        ([Candidate("a", 3, 10, 6), Candidate("b", 3, 10, 5)], True, 1, "a knows epoch 6"),
        ([Candidate("a", 5, 10, 5), Candidate("b", 3, 10, 5)], True, 1, "a knows epoch 5"),
        ([Candidate("a", 3, 10, 5)], False, 0, "Lease"),
        ([], True, 0, "0 of 2"),
    ],
    ids=["too-few", "stranger", "one-voice", "old-promise", "newer-promise", "newer-log", "leased", "nobody"],
)
def test_nobody_is_promoted_without_enough_promises(
    promised: list[Candidate], is_leased: bool, acks: int, reason: str
) -> None:
    """And the decision says why."""
    result = elect(["a", "b"], acks, 5, promised, is_leased=is_leased)

    assert result.winner is None
    assert reason in result.reason
