"""Records that an older version has stored for a client cancel no messages of other clients; real copies still do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.broker_properties import BROKER_PROPERTIES
from gantry_broker.store.draft import Draft
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_testing.timer_client import QUEUE, TIMERS, delivered, queue_end, recall, send_timer, wait_for_rounds
from gantry_wire import RequestCode, names
from gantry_wire import properties as keys
from gantry_wire.unique_id import UniqueIds

DELAY_MS = 60_000
UNIQUE = "B" * 32

pytestmark = pytest.mark.usefixtures("clock")


def store(broker: Broker, topic: str, body: bytes, **pairs: str) -> None:
    """Append a record to a system topic, with any properties."""
    draft = Draft(
        queue=broker.store.queues.get_or_create(topic, 0), body=body, properties=keys.encode_properties(pairs),
        sys_flag=0, flag=0, born_timestamp_ms=broker.core.clock.wall_ms(), born_host=bytes(8), reconsume_times=0,
        prepared_offset=0, tags_code=0, delay_ms=0, keys=keys.message_keys(pairs),
    )  # fmt: skip
    broker.store.append([draft])


def store_timer(broker: Broker, body: bytes, due_ms: int, topic: str = TOPIC, **pairs: str) -> None:
    """Append a timer record, as Gantry stores it."""
    own = {"REAL_TOPIC": topic, "REAL_QID": str(QUEUE), "TIMER_OUT_MS": str(due_ms - 1), "TIMER_DELAY_MS": "60000"}
    store(broker, TIMERS, body, **own, **pairs)


async def bodies(broker: Broker, client: Dialogue) -> list[bytes]:
    """Return the delivered messages when all that are due are delivered."""
    await wait_for_rounds(broker)
    return [one.body for one in await delivered(client, queue_end(broker))]


@pytest.mark.parametrize("early_ms", [1_000, 1, 0], ids="due {} ms before".format)
@pytest.mark.parametrize("unique", [UNIQUE, ""], ids=["with key", "without key"])
async def test_stored_reference_to_another_message_cancels_nothing(
    broker: Broker, clock: FakeClock, client: Dialogue, early_ms: int, unique: str
) -> None:
    """A record that claims to be a copy, but has another topic, key or time, does not keep a message from delivery."""
    due_ms = clock.wall_ms() + DELAY_MS
    store_timer(broker, b"victim", due_ms, UNIQ_KEY=unique)
    store_timer(broker, b"other", due_ms - early_ms, "Other", UNIQ_KEY=unique, TIMER_COPY_OF="0,0")
    await wait_for_rounds(broker)

    clock.advance(DELAY_MS)

    assert await bodies(broker, client) == [b"victim"]
    assert queue_end(broker, "Other") == 1


@pytest.mark.parametrize("early_ms", [1, 0], ids="due {} ms before".format)
async def test_stored_reference_does_not_hide_the_real_copy(
    broker: Broker, clock: FakeClock, client: Dialogue, early_ms: int
) -> None:
    """A message that was stored again is delivered once, also if a record before its copy names the same first copy."""
    due_ms = clock.wall_ms() + DELAY_MS
    store_timer(broker, b"victim", due_ms, UNIQ_KEY=UNIQUE)
    store_timer(broker, b"other", due_ms - early_ms, "Other", UNIQ_KEY=UNIQUE, TIMER_COPY_OF="0,0")
    store_timer(broker, b"victim", due_ms, UNIQ_KEY=UNIQUE, TIMER_ROLL_TIMES="1", TIMER_COPY_OF="0,0")
    await wait_for_rounds(broker)

    clock.advance(DELAY_MS)

    assert await bodies(broker, client) == [b"victim"]
    assert queue_end(broker, "Other") == 1


async def test_message_of_a_stored_reference_can_be_recalled(
    broker: Broker, clock: FakeClock, client: Dialogue
) -> None:
    """A recall finds a pending message, although a record with its key in another topic claims to be its copy."""
    reply = await send_timer(client, b"victim", UNIQ_KEY=UNIQUE, TIMER_DELAY_MS=str(DELAY_MS))
    store_timer(broker, b"other", clock.wall_ms() + DELAY_MS, "Other", UNIQ_KEY=UNIQUE, TIMER_COPY_OF="0,0")
    await wait_for_rounds(broker)

    assert (await recall(client, reply["recallHandle"])).code == 0

    clock.advance(DELAY_MS)
    assert await bodies(broker, client) == []


@pytest.mark.parametrize("is_recalled", [False, True])
async def test_copy_of_an_older_version_still_counts(tmp_path: Path, clock: FakeClock, is_recalled: bool) -> None:
    """After an upgrade a message that was stored again twice is delivered once, or never if a copy was recalled."""
    due_ms = clock.wall_ms() + DELAY_MS
    async with running_broker(tmp_path, clock=clock) as broker:
        store_timer(broker, b"rolled", due_ms, UNIQ_KEY=UNIQUE)
        store_timer(broker, b"rolled", due_ms, UNIQ_KEY=UNIQUE, TIMER_ROLL_TIMES="1", TIMER_COPY_OF="0,0")
        store_timer(broker, b"rolled", due_ms, UNIQ_KEY=UNIQUE, TIMER_ROLL_TIMES="2", TIMER_COPY_OF="0,1")
        if is_recalled:
            store_timer(broker, b"0", due_ms, UNIQ_KEY=UNIQUE, TIMER_DEL_UNIQKEY=UNIQUE)
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await wait_for_rounds(broker)
        clock.advance(DELAY_MS)

        assert await bodies(broker, client) == ([] if is_recalled else [b"rolled"])


async def test_copy_of_a_message_of_rocketmq_still_counts(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A copy of RocketMQ's record with a delay is due up to a second later than the record, which it replaces."""
    out_ms = (clock.wall_ms() + DELAY_MS) // 1_000 * 1_000
    own = {"REAL_TOPIC": TOPIC, "REAL_QID": str(QUEUE), "TIMER_OUT_MS": str(out_ms), "TIMER_DELAY_MS": str(DELAY_MS)}
    store(broker, TIMERS, b"rolled", **own, UNIQ_KEY=UNIQUE)
    store(broker, TIMERS, b"rolled", **own, UNIQ_KEY=UNIQUE, TIMER_ROLL_TIMES="1", TIMER_COPY_OF="0,0")
    await wait_for_rounds(broker)

    clock.advance(DELAY_MS + 1_000)

    assert await bodies(broker, client) == [b"rolled"]


async def test_stored_half_message_does_not_replace_another(broker: Broker, client: Dialogue) -> None:
    """A half message that names the first offset of another client's is a transaction of its own."""
    unique = UniqueIds(b"\x7f\x00\x00\x01", salt=1).next(broker.core.clock.wall_ms())
    text = keys.format_properties({"UNIQ_KEY": unique, "TRAN_MSG": "true", "PGROUP": "producers"})
    half = await client.send_ok(b"victim", properties=text)
    own = {"REAL_TOPIC": "Other", "REAL_QID": "0", "UNIQ_KEY": unique, "TRAN_MSG": "true", "PGROUP": "producers"}
    store(broker, names.HALF_TOPIC, b"other", **own, TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="1")
    await wait_until(lambda: len(broker.transactions.journal.halves) == 2)

    reply = await client.ask(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "producers",
            "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": str(int(half["msgId"][-16:], 16)),
            "commitOrRollback": "8",
        },
    )

    assert (reply.code, [one.body for one in await client.read()]) == (0, [b"victim"])


async def test_commit_of_a_stored_half_message_loses_its_reference(
    broker: Broker, clock: FakeClock, client: Dialogue
) -> None:
    """A half message with a delay, stored by an older version, becomes a timer without the properties of a copy."""
    store_timer(broker, b"victim", clock.wall_ms() + DELAY_MS)
    own = {"REAL_TOPIC": TOPIC, "REAL_QID": "0", "PGROUP": "producers", "TIMER_DELAY_MS": "10"}
    store(broker, names.HALF_TOPIC, b"other", **own, TRAN_MSG="true", TIMER_COPY_OF="0,0", TIMER_ROLL_TIMES="1")
    await wait_until(lambda: len(broker.transactions.journal.halves) == 1)
    found = broker.transactions.journal.halves.find(0)
    assert found is not None
    ext = {"producerGroup": "producers", "tranStateTableOffset": "0", "commitLogOffset": str(found.physical)}
    assert (await client.ask(RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": "8"})).code == 0

    [_, committed] = await client.read(topic=TIMERS)

    assert not {"TIMER_COPY_OF", "TIMER_ROLL_TIMES"} & committed.properties.keys()


async def test_stored_message_that_is_sent_back_loses_its_forged_properties(broker: Broker, client: Dialogue) -> None:
    """A message that an older version has stored is stored again without the properties that only a broker may set."""
    await client.send_ok(b"first")  # the topic exists
    await client.make_group()
    forged = dict.fromkeys(BROKER_PROPERTIES - {keys.RECORD_CRC}, "0")
    store(broker, TOPIC, b"old", UNIQ_KEY=UNIQUE, own="mine", **forged)
    stored = (await client.read())[-1]
    assert forged.keys() <= stored.properties.keys()

    ext = {"offset": str(stored.physical_offset), "group": GROUP, "delayLevel": "1", "originTopic": TOPIC}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0

    [waiting] = await client.read(topic=names.SCHEDULE_TOPIC)
    assert waiting.properties["own"] == "mine"
    assert not forged.keys() & waiting.properties.keys()
