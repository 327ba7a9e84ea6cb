"""Renewals and returns at several brokers: one that does not answer delays none of the others."""

from __future__ import annotations

import pytest
from proxy_world import ADDRESS, BROKER, FakeBrokers, World, receipt_of

from gantry_client.errors import BrokerRefused
from gantry_proxy.renewal import CONCURRENT_MAX, RENEWED_MS, RETURN_MS
from gantry_testing.local import wait_until
from gantry_wire.codes import ResponseCode

OTHER_NAME, OTHER = "broker-b", "10.0.0.2:10911"
MANY = 3 * CONCURRENT_MAX


async def world(count: int = MANY) -> World:
    """Return a proxy with as many messages in flight at each of two brokers, the first ones at the first broker."""
    one = World(FakeBrokers(masters={BROKER: ADDRESS, OTHER_NAME: OTHER}))
    await one.topics.get("orders")
    for broker in (BROKER, OTHER_NAME):
        received = [(receipt_of(number, broker=broker), 0) for number in range(count)]
        one.renewals.add("client-1", "orders", "billing", received)
    return one


def changed_at(one: World, broker: str, invisible_ms: int = RENEWED_MS) -> int:
    """Return how many messages of a broker have got this invisible time."""
    return sum(f" {broker} " in receipt and changed == invisible_ms for receipt, changed in one.brokers.changed)


async def test_silent_broker_delays_no_renewal_of_another_one() -> None:
    """Neither in the same round nor in the next one, which begins while the requests to it still wait."""
    one = await world()
    one.brokers.silent.add(ADDRESS)
    one.now_ms += RENEWED_MS - 5_000
    one.renewals.renew_due()
    await wait_until(lambda: changed_at(one, OTHER_NAME) == MANY)

    one.now_ms += RENEWED_MS - 5_000
    one.renewals.renew_due()
    await wait_until(lambda: changed_at(one, OTHER_NAME, 180_000) == MANY)

    assert one.brokers.reached.count(ADDRESS) == one.renewals.worker_count == CONCURRENT_MAX
    await one.tasks.close()


async def test_round_ends_when_a_broker_is_out_of_reach() -> None:
    """Each further request would take seconds. The twin: a refusal says nothing about other messages."""
    down, refusing = await world(), await world()
    down.brokers.down.add(ADDRESS)
    refusing.brokers.failure = BrokerRefused(ResponseCode.SYSTEM_ERROR, "no", ADDRESS)
    for one in (down, refusing):
        one.now_ms += RENEWED_MS - 5_000
        await one.renew()

    assert down.brokers.reached.count(ADDRESS) <= CONCURRENT_MAX
    assert down.renewals.message_count == 2 * MANY
    assert (refusing.brokers.reached.count(ADDRESS), refusing.renewals.message_count) == (MANY, 0)


async def test_messages_are_renewed_when_their_broker_is_back() -> None:
    """No message is given up before its time ends."""
    one = await world()
    one.brokers.down.add(ADDRESS)
    one.now_ms += RENEWED_MS - 9_000
    for _ in range(4):
        await one.renew()
        one.now_ms += 2_000
    one.brokers.down.clear()
    await one.renew()

    assert (changed_at(one, BROKER), changed_at(one, OTHER_NAME)) == (MANY, MANY)


async def test_silent_broker_delays_no_return_to_another_one() -> None:
    """Nor does the call of the client, or the clean-up, wait for it."""
    one = await world()
    one.brokers.silent.add(ADDRESS)

    one.renewals.return_of_unknown(lambda _: False)

    await wait_until(lambda: changed_at(one, OTHER_NAME, RETURN_MS) == MANY)
    assert one.brokers.reached.count(ADDRESS) == one.renewals.worker_count == CONCURRENT_MAX
    await one.tasks.close()


@pytest.mark.parametrize(("is_back_in_time", "returned"), [(True, MANY), (False, 0)])
async def test_messages_return_when_their_broker_is_back(is_back_in_time: bool, returned: int) -> None:
    """The next clean-up tries again, until the message is visible anyway."""
    one = await world()
    one.brokers.down.add(ADDRESS)
    one.renewals.return_messages("client-1")
    await one.wait_for_workers()
    assert one.brokers.reached.count(ADDRESS) <= CONCURRENT_MAX
    one.brokers.down.clear()
    one.now_ms += 5_000 if is_back_in_time else RENEWED_MS

    one.renewals.return_of_unknown(lambda _: True)
    await one.wait_for_workers()

    assert (changed_at(one, BROKER, RETURN_MS), changed_at(one, OTHER_NAME, RETURN_MS)) == (returned, MANY)
