"""A deleted topic takes its retry topics with it, so that no message of it returns when it is created again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.admin import topic_handlers
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_testing.popping import pop, send
from gantry_wire import RequestCode, names


async def revive(
    broker: Broker,
    peer: Dialogue,
    body: bytes,
    *,
    topic: str = TOPIC,
    group: str = GROUP,
    expected: list[bytes] | None = None,
) -> None:
    """Let a group pop a message and not ack it in time, so that its retry topic has a copy."""
    before = broker.pops.reviver.revived_count
    await send(peer, body, topic=topic)
    popped = await pop(peer, topic=topic, consumerGroup=group, invisibleTime=1)
    assert popped.bodies == (expected or [body])
    await wait_until(lambda: broker.pops.reviver.revived_count == before + len(popped.bodies))


async def delete(peer: Dialogue, topic: str = TOPIC) -> None:
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == 0


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
@pytest.mark.parametrize("is_v2", ["false", "true"])
async def test_messages_of_a_deleted_topic_do_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_v2: str, is_guarded: bool
) -> None:
    """Copies in the retry topics are deleted with the topic, and their open checkpoints are void."""
    if not is_guarded:
        monkeypatch.setattr(topic_handlers, "_pop_retry_topics", lambda *_: [])
    async with running_broker(tmp_path, enableRetryTopicV2=is_v2) as broker, dialogue(broker) as peer:
        await revive(broker, peer, b"old")
        await revive(broker, peer, b"older", group="others", expected=[b"old", b"older"])
        await pop(peer, consumerGroup="others", maxMsgNums=1, invisibleTime=600_000)
        await delete(peer)
        retries = [name for name in broker.core.topics.all if name.startswith(names.RETRY_PREFIX)]
        assert retries == [] or not is_guarded
        assert broker.pops.journal.state.open_count == (0 if is_guarded else 1)
        await send(peer, b"new")
        assert (await pop(peer)).bodies == ([b"new"] if is_guarded else [b"new", b"old"])


async def test_retry_topic_that_may_belong_to_another_topic_or_group_is_kept(tmp_path: Path) -> None:
    """%RETRY%a_b_c is that of group a with topic b_c, and of group a_b with topic c: no message of either is lost."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await revive(broker, peer, b"kept", topic="b_c", group="a")
        await send(peer, b"1", topic="c")
        await pop(peer, topic="c", consumerGroup="a_b")
        await revive(broker, peer, b"sent back, too", topic="orders", group="billing")
        await pop(peer, topic="orders", consumerGroup="billing_orders")
        await delete(peer, "c")
        await delete(peer, "orders")
        assert {"%RETRY%a_b_c", "%RETRY%billing_orders"} <= broker.core.topics.all.keys()
        assert (await pop(peer, topic="b_c", consumerGroup="a")).bodies == [b"kept"]
        await delete(peer, "b_c")
        assert "%RETRY%a_b_c" not in broker.core.topics
