"""What tests of timer messages share: sends, recalls, and waiting until a broker's timers have done their work."""

from __future__ import annotations

from gantry_broker.app import Broker
from gantry_testing.local import TOPIC, Dialogue, properties_text, wait_until
from gantry_wire import Command, RequestCode
from gantry_wire.message import StoredMessage

TIMERS = "rmq_sys_wheel_timer"
DAY_MS = 86_400_000
QUEUE = 3
"""The queue to which the messages are sent."""


def unique_id(number: int) -> str:
    """Return a unique id of the usual length."""
    return f"{number:032X}"


async def send_timer(client: Dialogue, body: bytes, **more: str) -> dict[str, str]:
    """Send a message with these properties; return the fields of the reply, which must be a success."""
    properties = {"UNIQ_KEY": unique_id(0), **more}
    return await client.send_ok(body, properties=properties_text(**properties), queueId=str(QUEUE))


async def recall(client: Dialogue, handle: str, topic: str = TOPIC) -> Command:
    """Recall a message, and return the reply."""
    return await client.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "p"})


def queue_end(broker: Broker, topic: str = TOPIC, queue_id: int = QUEUE) -> int:
    """Return the number of messages that a queue has had."""
    queue = broker.core.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.end


async def wait_for_rounds(broker: Broker) -> None:
    """Wait until the timers have checked everything with the present time."""
    rounds = broker.timers.rounds
    await wait_until(lambda: broker.timers.rounds >= rounds + 2 and not broker.timers.is_load_needed)
    rounds = broker.timers.rounds
    await wait_until(lambda: broker.timers.rounds >= rounds + 2)


async def delivered(client: Dialogue, count: int) -> list[StoredMessage]:
    """Return the first messages of the queue, which must be so many."""
    stored: list[StoredMessage] = []
    while len(stored) < count:
        stored += await client.read(len(stored), queueId=str(QUEUE), maxMsgNums="100")
    return stored
