"""Messages that a broker pops for a client that leaves meanwhile: they return to the group at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from proxy_world import FakeBrokers, World, consumer_settings, popped, receipt_of
from test_proxy_receiving import receive, refusal, world

from gantry_proxy.clients import DISCONNECTED_MS
from gantry_proxy.handlers.sessions import notify_client_termination
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.renewal import RETURN_MS
from gantry_testing.local import wait_until


def waiting_world(leave: Callable[[World], object]) -> World:
    """Return a proxy whose client leaves while its receive waits at the broker."""
    one = world()
    one.brokers.popped = [popped(1), popped(2)]

    async def before_pop() -> None:
        found = leave(one)
        if asyncio.iscoroutine(found):
            await found

    one.brokers.before_pop = before_pop
    return one


def terminate(one: World) -> object:
    return notify_client_termination(one.core, one.context(), pb.NotifyClientTerminationRequest())


def revoke(one: World) -> object:
    one.clients.remove("client-1")
    one.renewals.return_messages("client-1")
    return None


def revoke_and_join(one: World) -> object:
    one.clients.remove("client-1")
    return one.join_consumer()


@pytest.mark.parametrize("leave", [terminate, revoke, revoke_and_join], ids=["terminated", "revoked", "joined again"])
async def test_messages_for_a_client_that_left_return_to_the_group(leave: Callable[[World], object]) -> None:
    """Otherwise they would be renewed for hours, since only a client that is known leaves."""
    one = waiting_world(leave)

    assert await refusal(one) == pb.UNRECOGNIZED_CLIENT_TYPE

    await wait_until(lambda: len(one.brokers.changed) == 2)
    assert one.brokers.changed == [(receipt_of(1), RETURN_MS), (receipt_of(2), RETURN_MS)]
    assert one.renewals.message_count == 0


async def test_client_that_only_sent_its_settings_again_gets_its_messages() -> None:
    """The twin: it is the same client as before."""
    one = waiting_world(lambda one: one.join_consumer())

    assert len(await receive(one)) == 2
    assert (one.renewals.message_count, one.brokers.changed) == (2, [])


async def test_client_whose_receive_waits_longer_than_it_may_be_silent_gets_its_messages() -> None:
    """`pollMsMax` may be longer than the time after which a client without a stream is gone."""

    def wait_long(one: World) -> None:
        one.now_ms += DISCONNECTED_MS + 1
        one.clients.remove_silent()

    one = waiting_world(wait_long)
    client = one.clients.find("client-1")
    assert client is not None
    client.stream = None

    assert len(await receive(one)) == 2
    one.now_ms += DISCONNECTED_MS + 1
    assert one.clients.remove_silent() == [client]


async def test_messages_of_clients_that_are_not_known_return() -> None:
    """Messages of a client do not stay invisible, in no way in which it can have left."""
    one = World(FakeBrokers())
    one.clients.register("known", consumer_settings(), one.join_consumer())
    one.renewals.add("known", "orders", "billing", [(receipt_of(1), 0)])
    one.renewals.add("left", "orders", "billing", [(receipt_of(2), 0)])

    one.renewals.return_of_unknown(lambda client_id: one.clients.find(client_id) is not None)
    await one.wait_for_workers()

    assert one.brokers.changed == [(receipt_of(2), RETURN_MS)]
    assert one.renewals.message_count == 1
