"""Transactions that a proxy ends for a client: those of the client's topic, and no others with the same group."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from test_server_transactions import COMMIT, ROLL_BACK, end_ext

from gantry_broker.app import Broker
from gantry_testing.local import TOPIC, Dialogue, dialogue, properties_text
from gantry_wire import RequestCode, ResponseCode, names

OWN = "payments"
"""A topic of a client of the proxy, and the producer group of a producer over remoting."""


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Dialogue]:
    broker.core.topics.ensure(OWN, 1)
    async with dialogue(broker) as one:
        yield one


async def prepare(peer: Dialogue, topic: str) -> dict[str, str]:
    """Return the answer to a half message of the group `OWN`."""
    text = properties_text(UNIQ_KEY="id", TRAN_MSG="true", PGROUP=OWN)
    born = str(int(time.time() * 1000))
    reply = await peer.send_ok(b"x", topic=topic, properties=text, bornTimestamp=born, sysFlag="4", queueId="0")
    return {**reply, "unique": "id"}


async def end(peer: Dialogue, half: dict[str, str], how: str, **fields: str) -> ResponseCode:
    reply = await peer.ask(RequestCode.END_TRANSACTION, end_ext(half, how, producerGroup=OWN, **fields))
    return ResponseCode(reply.code)


@pytest.mark.parametrize("how", [COMMIT, ROLL_BACK])
async def test_transaction_of_another_topic_is_not_ended(broker: Broker, peer: Dialogue, how: str) -> None:
    """Permission for a topic that has the name of a producer group is none for the transactions of the group."""
    half = await prepare(peer, TOPIC)

    assert await end(peer, half, how, topic=OWN) == ResponseCode.SYSTEM_ERROR
    assert len(broker.transactions.journal.halves) == 1
    assert await peer.read(0) == []


@pytest.mark.parametrize(
    ("topic", "named"),
    [(OWN, OWN), (TOPIC, TOPIC), (TOPIC, names.HALF_TOPIC), (TOPIC, None)],
    ids=["of a proxy", "of a producer", "answer to a check", "of an old producer"],
)
async def test_producers_end_their_transactions(peer: Dialogue, topic: str, named: str | None) -> None:
    """RocketMQ's producers name the topic, that of half messages, or none."""
    half = await prepare(peer, topic)

    assert await end(peer, half, COMMIT, **({} if named is None else {"topic": named})) == ResponseCode.SUCCESS
    assert [message.body for message in await peer.read(0, topic=topic)] == [b"x"]
