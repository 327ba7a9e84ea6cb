"""No stored message has a seal that is not its own: a property of that name is removed on every path into the log."""

from __future__ import annotations

import pytest

from gantry_broker.app import Broker
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    properties_text,
    wait_until,
)
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.message import StoredMessage, check_record
from gantry_wire.seal import SEAL_BYTES, SEAL_MARK, seal

RETRY = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"
WRONG_SEAL = "0123456789"
LEVEL_1_MS = 1_000

pytestmark = pytest.mark.usefixtures("clock")


def stale_text(**pairs: str) -> str:
    """Return properties of a message that was read from a broker and is sent again."""
    return properties_text(UNIQ_KEY=UNIQUE_ID, **{"__CRC32#": WRONG_SEAL}, **pairs)


def assert_sealed(broker: Broker, message: StoredMessage) -> None:
    """The record in the log has exactly one seal, at its end, and it is right."""
    record = broker.core.store.guard.message_at(message.physical_offset)
    assert record is not None
    assert check_record(record, 0, physical_offset=message.physical_offset, is_sealed=True).is_good
    assert record.endswith(seal(record[:-SEAL_BYTES])) and record.count(SEAL_MARK) == 1
    assert WRONG_SEAL.encode() not in record


async def newest(broker: Broker, client: Dialogue, topic: str, count: int = 1) -> StoredMessage:
    """Wait for ``count`` messages in the first queue of a topic, and return the last."""

    def is_there() -> bool:
        queue = broker.core.store.queues.get(topic, 0)
        return queue is not None and queue.readable_end == count

    await wait_until(is_there)
    [message] = await client.read(count - 1, topic=topic)
    return message


async def send_back(client: Dialogue, message: StoredMessage, level: int) -> None:
    ext = {
        "offset": str(message.physical_offset),
        "group": GROUP,
        "delayLevel": str(level),
        "originTopic": TOPIC,
    }
    assert (await client.ask(36, ext)).code == 0


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize(
    "text",
    [
        stale_text(),
        stale_text(TAGS="a"),
        f"UNIQ_KEY\x01{UNIQUE_ID}\x02TAGS\x01a\x02__CRC32#\x01{WRONG_SEAL}",
        f"__CRC32#\x01{WRONG_SEAL}\x02UNIQ_KEY\x01{UNIQUE_ID}\x02",
        f"UNIQ_KEY\x01{UNIQUE_ID}\x02__CRC32#\x01{WRONG_SEAL}\x02__CRC32#\x01{WRONG_SEAL}\x02",
        f"UNIQ_KEY\x01{UNIQUE_ID[:12]}\x02__CRC32#\x01{WRONG_SEAL}\x02TAGS\x01a\x02",
        properties_text(UNIQ_KEY=UNIQUE_ID, TAGS="a"),
        "",
    ],
    ids=["alone", "before tags", "not ended", "in front", "twice", "where the id continues", "none", "no properties"],
)
async def test_send_is_stored_with_only_its_own_seal(broker: Broker, client: Dialogue, code: int, text: str) -> None:
    """The fast path and the slow one; the second send of a shape takes the fast path if any does."""
    for _ in range(3):
        assert (await client.send(code=code, properties=text)).code == 0

    messages = await client.read()
    assert len(messages) == 3
    for message in messages:
        assert_sealed(broker, message)
    assert {message.properties.get("TAGS") for message in messages} == {"a" if "TAGS" in text else None}


async def test_each_message_of_a_batch_has_its_own_seal(broker: Broker, client: Dialogue) -> None:
    """A stale one may be in the batch's own properties or in a message's."""
    entries = [
        BatchEntry(0, b"one", stale_text(TAGS="a").encode()),
        BatchEntry(0, b"two", b""),
        BatchEntry(0, b"three", f"__CRC32#\x01{WRONG_SEAL}".encode()),
    ]
    reply = await client.send(encode_batch(entries), code=320, properties=f"__CRC32#\x01{WRONG_SEAL}\x02")

    assert reply.code == 0
    messages = await client.read()
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    for message in messages:
        assert_sealed(broker, message)


async def test_delayed_message_is_sealed_in_both_topics(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Delivery stores the message again, with other offsets and times: the seal of the first record is not copied."""
    await client.send_ok(properties=stale_text(DELAY="1"))
    waiting = await newest(broker, client, "SCHEDULE_TOPIC_XXXX")
    clock.advance(LEVEL_1_MS)
    arrived = await newest(broker, client, TOPIC)

    for message in (waiting, arrived):
        assert_sealed(broker, message)
    assert waiting.properties["__CRC32#"] != arrived.properties["__CRC32#"]


async def test_failed_message_is_sealed_in_every_topic(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Original, schedule, retry topic, dead letters: four records of one message, four seals."""
    await client.send_ok(properties=stale_text(TAGS="a"))
    original = await newest(broker, client, TOPIC)
    await send_back(client, original, 1)
    waiting = await newest(broker, client, "SCHEDULE_TOPIC_XXXX")
    clock.advance(LEVEL_1_MS)
    retried = await newest(broker, client, RETRY)
    await send_back(client, retried, -1)
    dead = await newest(broker, client, DEAD)

    stops = (original, waiting, retried, dead)
    for message in stops:
        assert_sealed(broker, message)
    assert len({message.properties["__CRC32#"] for message in stops}) == 4


async def test_message_resent_by_a_consumer_has_its_own_seal(broker: Broker, client: Dialogue) -> None:
    """An ordinary send to the retry topic, with all properties that the consumer was given, the seal among them."""
    broker.core.topics.put(TopicConfig(topic_name=RETRY, read_queue_nums=1, write_queue_nums=1))
    text = stale_text(RETRY_TOPIC=TOPIC)

    reply = await client.send(b"again", code=310, topic=RETRY, properties=text, reconsumeTimes="1")

    assert reply.code == 0
    assert_sealed(broker, await newest(broker, client, RETRY))
