"""Reading of all queues of a topic: every message is read once, also one that arrives meanwhile."""

import contextlib

from gantry_cli.messages.reading import TopicReader
from gantry_cli.text import StartPosition
from gantry_client import PullConsumer
from gantry_testing.client import FakeCluster
from gantry_wire.message import StoredMessage


def put(cluster: FakeCluster, *bodies: bytes) -> None:
    """Store bodies in the only queue of the topic."""
    for body in bodies:
        cluster.broker().state.log.append(StoredMessage(topic="orders", queue_id=0, body=body))


async def test_message_that_arrives_while_existing_ones_are_read_is_read_as_new() -> None:
    """It is not an existing message, although a fetch of existing ones returns it; so it is the first new one."""
    async with FakeCluster() as cluster, PullConsumer(cluster.name_server, "group") as consumer:
        cluster.add_topic("orders", queues=1)
        put(cluster, b"existing")
        reader = TopicReader(consumer, "orders", tags="*", warn=print)
        cursors = await reader.open(StartPosition())
        put(cluster, b"between")

        existing = [delivery.message.body async for delivery in reader.read_existing(cursors)]
        put(cluster, b"after")
        async with contextlib.aclosing(reader.read_new(cursors)) as deliveries:
            first = await anext(deliveries)

    assert existing == [b"existing"]
    assert first.message.body == b"between"
