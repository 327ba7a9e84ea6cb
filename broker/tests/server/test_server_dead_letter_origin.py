"""Requests for dead letters name the topic of their message, and a message of another topic is not copied."""

import pytest

from gantry_broker.app import Broker
from gantry_testing.local import GROUP, TOPIC, Dialogue
from gantry_wire import names
from gantry_wire.codes import RequestCode, ResponseCode

OTHER = "payments"
RETRY, DEAD = names.retry_topic(GROUP), names.dead_letter_topic(GROUP)


async def send_back(client: Dialogue, topic: str, level: int, **origin: str) -> ResponseCode:
    """Store a message in a topic, send it back, and return the code."""
    await client.send_ok(b"secret", topic=topic)
    [message] = await client.read(topic=topic)
    back = {"offset": str(message.physical_offset), "group": GROUP, "delayLevel": str(level), **origin}
    return ResponseCode((await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code)


def dead_letters(broker: Broker) -> int:
    queue = broker.core.store.queues.get(DEAD, 0)
    return 0 if queue is None else queue.readable_end


@pytest.mark.parametrize("topic", [OTHER, names.retry_topic("other"), names.pop_retry_topic(TOPIC, "other")])
async def test_message_of_another_topic_is_not_copied(broker: Broker, client: Dialogue, topic: str) -> None:
    """A proxy may read all topics, and has compared only the named one with the permissions of its client."""
    broker.core.topics.ensure(topic, 1)

    assert await send_back(client, topic, -1, originTopic=TOPIC) == ResponseCode.SYSTEM_ERROR
    assert dead_letters(broker) == 0


@pytest.mark.parametrize(
    ("topic", "origin"),
    [
        (TOPIC, {"originTopic": TOPIC}), (TOPIC, {}), (RETRY, {"originTopic": TOPIC}), (RETRY, {"originTopic": RETRY}),
        (names.pop_retry_topic(TOPIC, GROUP), {"originTopic": TOPIC}),
        (names.pop_retry_topic(TOPIC, GROUP), {"originTopic": names.pop_retry_topic(TOPIC, GROUP)}),
    ],
    ids=["its topic", "none", "first topic of a retry", "retry topic", "first topic of a pop retry", "pop retry"],
)  # fmt: skip
async def test_consumers_name_the_first_topic_or_that_of_the_queue(
    broker: Broker, client: Dialogue, topic: str, origin: dict[str, str]
) -> None:
    """RocketMQ's clients replace a retry topic by that to which the message was sent; its proxy does not."""
    broker.core.topics.ensure(topic, 1)

    assert await send_back(client, topic, -1, **origin) == ResponseCode.SUCCESS
    assert dead_letters(broker) == 1


async def test_origin_of_a_retry_is_not_compared(broker: Broker, client: Dialogue) -> None:
    """Only consumers send these, for which the guard compares the topic of the message; some omit a namespace."""
    broker.core.topics.ensure("INSTANCE%orders", 1)

    assert await send_back(client, "INSTANCE%orders", 0, originTopic="orders") == ResponseCode.SUCCESS
    assert dead_letters(broker) == 0
