"""One master at a time: grants end before anybody else begins. The elections are in operator/tests."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ha.acknowledgement import MARGIN_SHARE, GivenGrants, Grants
from gantry_broker.ha.server import BEAT_INTERVAL_S, beat_interval_s


def test_a_master_acknowledges_while_it_holds_one_of_its_keys() -> None:
    """All grants, or the Lease; both gone stop it."""
    grants = Grants(["a", "b"])
    assert not grants.may_acknowledge(0)
    grants.granted("a", 0, 1_000)
    assert not grants.may_acknowledge(0)
    grants.granted("b", 100, 1_000)
    assert grants.may_acknowledge(899)
    assert not grants.may_acknowledge(900)
    assert grants.missing(900) == ["a"]
    grants.leased(500, 10_000)
    assert grants.may_acknowledge(9_000)
    grants.leased(0, 0)
    assert not grants.may_acknowledge(1_100)
    assert Grants([]).may_acknowledge(1 << 40)


def test_a_slave_that_has_promised_somebody_else_grants_nothing() -> None:
    """Its ack says 0, and what it gave before is over at once."""
    grants = Grants(["a"])
    grants.granted("a", 0, 10_000)
    grants.granted("a", 100, 0)

    assert not grants.may_acknowledge(200)


@settings(max_examples=300)
@given(st.integers(0, 1 << 30))
def test_the_master_always_stops_before_its_slave_is_free(seed: int) -> None:
    """Whatever the delays of beats and acks, lost or late, and with clocks that differ by up to a twentieth."""
    chance = random.Random(seed)
    drift = 1 + chance.uniform(-0.05, 0.05)
    grants, grant_ms, now, bound_until = Grants(["a"]), 1_000, 0.0, 0.0
    acks: list[tuple[float, int]] = []
    for _ in range(30):
        now += chance.uniform(1, 600)
        if chance.random() < 0.8:
            arrives = now + chance.uniform(0, 2_000)
            # On the slave's clock the grant lasts as long as it says, from the receipt of the beat on.
            bound_until = max(bound_until, arrives + grant_ms * drift)
            acks.append((arrives + chance.uniform(0, 2_000), int(now)))
        for ack in [ack for ack in acks if ack[0] <= now]:
            acks.remove(ack)
            grants.granted("a", ack[1], grant_ms)
        assert grants.until_ms <= bound_until


def test_a_slave_that_was_started_again_has_granted_a_moment_ago() -> None:
    """It cannot know better, and a promotion that does not wait would make a second master that acknowledges."""
    given = GivenGrants()
    assert given.rest_ms(1_000) == 0
    given.welcomed(3_000)
    given.given(1_000)
    assert (given.rest_ms(1_500), given.rest_ms(5_000)) == (2_500, 0)

    again = GivenGrants()
    again.started(3_000, 1_500)
    assert again.rest_ms(2_000) == 2_500

    never = GivenGrants()
    never.started(0, 1_500)
    assert never.rest_ms(1_500) == 0


def test_a_shorter_grant_does_not_end_a_longer_one_that_was_given() -> None:
    """Another master may want less; the first one has what it has."""
    given = GivenGrants()
    given.welcomed(60_000)
    given.given(0)
    given.welcomed(1_000)
    given.given(10)

    assert given.rest_ms(1_010) == 58_990


@pytest.mark.parametrize("grant_ms", [1_000, 3_000, 60_000])
def test_a_grant_outlives_the_next_two_beats(grant_ms: int) -> None:
    """Whether or not anything else is said meanwhile: else a master that is well would stop for moments."""
    assert 2_000 * beat_interval_s(grant_ms) < grant_ms * (1 - MARGIN_SHARE)
    assert beat_interval_s(grant_ms) <= beat_interval_s(0) == BEAT_INTERVAL_S
