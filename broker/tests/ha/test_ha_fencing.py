"""One master at a time: grants expire before another member becomes master. Elections are in operator/tests."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ha.acknowledgement import MARGIN_SHARE, GivenGrants, Grants
from gantry_broker.ha.server import HEARTBEAT_INTERVAL_S, heartbeat_interval_s


def test_master_acknowledges_with_grants_or_lease() -> None:
    """All grants, or the Lease, suffice; with neither it stops."""
    grants = Grants(["a", "b"])
    assert not grants.may_acknowledge(0)
    grants.record_grant("a", 0, 1_000)
    assert not grants.may_acknowledge(0)
    grants.record_grant("b", 100, 1_000)
    assert grants.may_acknowledge(899)
    assert not grants.may_acknowledge(900)
    assert grants.slaves_without_grant(900) == ["a"]
    grants.record_lease(500, 10_000)
    assert grants.may_acknowledge(9_000)
    grants.record_lease(0, 0)
    assert not grants.may_acknowledge(1_100)
    assert Grants([]).may_acknowledge(1 << 40)


def test_slave_that_promised_another_master_revokes_its_grant() -> None:
    """Its ack has a grant of 0, and its earlier grant ends at once."""
    grants = Grants(["a"])
    grants.record_grant("a", 0, 10_000)
    grants.record_grant("a", 100, 0)

    assert not grants.may_acknowledge(200)


@settings(max_examples=300)
@given(st.integers(0, 1 << 30))
def test_grant_expires_at_master_before_slave(seed: int) -> None:
    """This holds for any delays of heartbeats and acks, lost or late, with clocks that differ by up to a twentieth."""
    chance = random.Random(seed)
    drift = 1 + chance.uniform(-0.05, 0.05)
    grants, grant_ms, now, bound_until = Grants(["a"]), 1_000, 0.0, 0.0
    acks: list[tuple[float, int]] = []
    for _ in range(30):
        now += chance.uniform(1, 600)
        if chance.random() < 0.8:
            arrives = now + chance.uniform(0, 2_000)
            # On the slave's clock the grant lasts for its whole duration, from the receipt of the heartbeat on.
            bound_until = max(bound_until, arrives + grant_ms * drift)
            acks.append((arrives + chance.uniform(0, 2_000), int(now)))
        for ack in [ack for ack in acks if ack[0] <= now]:
            acks.remove(ack)
            grants.record_grant("a", ack[1], grant_ms)
        assert grants.until_ms <= bound_until


def test_restarted_slave_assumes_a_recent_grant() -> None:
    """A promotion that does not wait could make a second master that acknowledges."""
    given = GivenGrants()
    assert given.remaining_ms(1_000) == 0
    given.set_grant_ms(3_000)
    given.record_grant(1_000)
    assert (given.remaining_ms(1_500), given.remaining_ms(5_000)) == (2_500, 0)

    again = GivenGrants()
    again.restore(3_000, 1_500)
    assert again.remaining_ms(2_000) == 2_500

    never = GivenGrants()
    never.restore(0, 1_500)
    assert never.remaining_ms(1_500) == 0


def test_shorter_grant_does_not_end_an_earlier_longer_one() -> None:
    """Another master may want shorter grants; the first one still relies on the longer one."""
    given = GivenGrants()
    given.set_grant_ms(60_000)
    given.record_grant(0)
    given.set_grant_ms(1_000)
    given.record_grant(10)

    assert given.remaining_ms(1_010) == 58_990


@pytest.mark.parametrize("grant_ms", [1_000, 3_000, 60_000])
def test_grant_outlives_the_next_two_heartbeats(grant_ms: int) -> None:
    """Otherwise a healthy master without other traffic would stop for moments."""
    assert 2_000 * heartbeat_interval_s(grant_ms) < grant_ms * (1 - MARGIN_SHARE)
    assert heartbeat_interval_s(grant_ms) <= heartbeat_interval_s(0) == HEARTBEAT_INTERVAL_S
