"""Queries return exactly the visible messages with a key, from existing topics."""

from pathlib import Path

import pytest

from gantry_broker.server.pull import queries, tag_query
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, UNIQUE_ID, Dialogue, dialogue, properties_text, running_broker
from gantry_wire import Command
from gantry_wire.message import decode_records, parse_offset_message_id

NOT_FOUND = 22

pytestmark = pytest.mark.usefixtures("clock")


async def send_with_key(client: Dialogue, body: bytes, key: str, **more: str) -> dict[str, str]:
    return await client.send_ok(body, properties=properties_text(UNIQ_KEY=UNIQUE_ID, KEYS=key), **more)


async def query(client: Dialogue, key: str, **more: str) -> Command:
    ext = {"topic": TOPIC, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    return await client.ask(12, {**ext, **more})


async def bodies_found(client: Dialogue, key: str, **more: str) -> list[bytes]:
    """The bodies of an answer in its order."""
    reply = await query(client, key, **more)
    assert reply.code in (0, NOT_FOUND)
    return [message.body for message in decode_records(reply.body)] if reply.code == 0 else []


async def test_another_key_with_the_same_hash_is_not_found(client: Dialogue) -> None:
    """Java's hash of "Aa" and "BB" is the same; each finds only its own messages, up to the maximum."""
    for number in range(10):
        await send_with_key(client, b"Aa%d" % number, "Aa")
        await send_with_key(client, b"BB%d" % number, "BB")

    assert await bodies_found(client, "Aa") == [b"Aa%d" % number for number in range(10)]
    assert await bodies_found(client, "BB", maxNum="3") == [b"BB7", b"BB8", b"BB9"]
    assert await bodies_found(client, "AaAa") == []


async def send_tagged(client: Dialogue, body: bytes, tag: str, queue: int = 0) -> None:
    properties = properties_text(TAGS=tag)
    await client.send_ok(body, properties=properties, queueId=str(queue))


async def test_query_by_tag_finds_messages_of_all_queues(client: Dialogue) -> None:
    """In the order of the log, the newest if not all fit; a key that is equal to the tag is not found."""
    for number in range(12):
        await send_tagged(client, b"%02d" % number, "red" if number % 3 == 0 else "blue", number % 4)
    await send_with_key(client, b"keyed", "red")

    assert await bodies_found(client, "red", indexType="T") == [b"00", b"03", b"06", b"09"]
    assert await bodies_found(client, "red", indexType="T", maxNum="2") == [b"06", b"09"]
    assert await bodies_found(client, "green", indexType="T") == []
    for kind in ("K", "U"):
        assert await bodies_found(client, "red", indexType=kind, lastKey="") == [b"keyed"]


async def test_query_by_tag_compares_the_tag_and_the_time(clock: FakeClock, client: Dialogue) -> None:
    """Java's hash of "Aa" and "BB" is the same; times are compared to the millisecond."""
    stored_at = []
    for number in range(3):
        clock.advance(10)
        stored_at.append(clock.wall_ms())
        await send_tagged(client, b"Aa%d" % number, "Aa")
        await send_tagged(client, b"BB%d" % number, "BB")

    assert await bodies_found(client, "Aa", indexType="T") == [b"Aa0", b"Aa1", b"Aa2"]
    times = {"beginTimestamp": str(stored_at[1]), "endTimestamp": str(stored_at[1])}
    assert await bodies_found(client, "BB", indexType="T", **times) == [b"BB1"]
    assert await bodies_found(client, "BB", indexType="T", endTimestamp=str(stored_at[0] - 1)) == []


async def test_query_by_tag_searches_across_files_up_to_a_limit(
    client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a search is within one file of a queue; beyond the limit the answer says so."""
    monkeypatch.setattr(tag_query, "PART_UNITS", 7)
    await send_tagged(client, b"first", "red")
    for number in range(250):
        await send_tagged(client, b"%d" % number, "blue")

    assert await bodies_found(client, "red", indexType="T") == [b"first"]
    assert len(await bodies_found(client, "blue", indexType="T", maxNum="64")) == 64
    monkeypatch.setattr(tag_query, "UNITS_MAX", 100)
    reply = await query(client, "red", indexType="T")
    assert (reply.code, "ask for a time range" in (reply.remark or "")) == (1, True)


async def test_hash_collision_of_the_test_is_real(client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the comparison the other key's messages come along."""
    monkeypatch.setattr(queries, "matches_query", lambda message, query: True)
    await send_with_key(client, b"1", "Aa")
    await send_with_key(client, b"2", "BB")

    assert await bodies_found(client, "Aa") == [b"1", b"2"]


async def test_answers_come_in_the_order_of_the_log(client: Dialogue) -> None:
    """As in Java's broker; if not all fit, the newest ones are returned."""
    for number in range(70):
        await send_with_key(client, b"%02d" % number, "k")

    assert await bodies_found(client, "k", maxNum="3") == [b"67", b"68", b"69"]
    assert await bodies_found(client, "k", maxNum="1000") == [b"%02d" % number for number in range(6, 70)]
    assert len(await bodies_found(client, UNIQUE_ID, maxNum="1", _UNIQUE_KEY_QUERY="true")) == 32


async def test_times_are_compared_to_the_millisecond(clock: FakeClock, client: Dialogue) -> None:
    """Both ends of the range belong to it; an empty or reversed range finds nothing."""
    stored_at = []
    for number in range(3):
        clock.advance(10)
        stored_at.append(clock.wall_ms())
        await send_with_key(client, b"%d" % number, "k")

    async def between(begin: int, end: int) -> list[bytes]:
        return await bodies_found(client, "k", beginTimestamp=str(begin), endTimestamp=str(end))

    assert await between(stored_at[0], stored_at[1]) == [b"0", b"1"]
    assert await between(stored_at[0] + 1, stored_at[2] - 1) == [b"1"]
    assert await between(stored_at[2], stored_at[0]) == []
    assert await between(0, stored_at[0] - 1) == []
    assert await between(-(1 << 63), (1 << 63) - 1) == [b"0", b"1", b"2"]


async def test_query_of_a_missing_topic_is_not_found(client: Dialogue) -> None:
    """22 for an unknown topic and for a deleted one, whose records still lie in the log."""
    await send_with_key(client, b"1", "k")
    assert await bodies_found(client, "k") == [b"1"]

    assert (await client.ask(215, {"topic": TOPIC})).code == 0
    for topic in (TOPIC, "NeverSeen"):
        reply = await query(client, "k", topic=topic)
        assert (reply.code, f"topic[{topic}] does not exist" in (reply.remark or "")) == (NOT_FOUND, True)
        assert {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"} == set(reply.ext)


async def test_query_without_an_index_names_the_setting(tmp_path: Path) -> None:
    """With messageIndexEnable=false nothing can be found by key, and the answer names the setting."""
    async with running_broker(tmp_path, messageIndexEnable="false") as broker, dialogue(broker) as client:
        await send_with_key(client, b"1", "k")
        reply = await query(client, "k")
    assert (reply.code, "messageIndexEnable" in (reply.remark or "")) == (NOT_FOUND, True)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
async def test_unconfirmed_message_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A message that no slave has is not confirmed: no pull returns it, and no query by key or by position.

    It is not in the index yet."""
    if not is_guarded:
        monkeypatch.setattr(queries, "read_visible_record", lambda store, at: store.guard.message_at(at))
    async with running_broker(tmp_path, brokerRole="SYNC_MASTER") as broker, dialogue(broker) as client:
        sent = await client.send(b"1", properties=properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="k"))
        assert sent.code == 11
        place = str(parse_offset_message_id(sent.ext["msgId"])[2])

        assert await client.read() == []
        by_key, by_place = await bodies_found(client, "k"), (await client.ask(33, {"offset": place})).code
        assert (by_key, by_place) == ([], 1 if is_guarded else 0)


@pytest.mark.parametrize("offset", ["-1", "5", "100000000", str(1 << 62)])
async def test_offset_without_a_message_is_refused(client: Dialogue, offset: str) -> None:
    """33 before the first record, in the middle of one, after the end: code 1 with the offset."""
    await client.send_ok()
    reply = await client.ask(33, {"offset": offset})
    assert (reply.code, offset in (reply.remark or "")) == (1, True)


async def test_delayed_message_is_found_in_its_system_topic(client: Dialogue) -> None:
    """Until it is due it lies in the schedule topic; its offset id leads there, as in RocketMQ."""
    text = properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="later", DELAY="18")
    sent = await client.send_ok(b"1", properties=text)

    assert await bodies_found(client, "later") == []
    assert await bodies_found(client, "later", topic="SCHEDULE_TOPIC_XXXX") == [b"1"]
    place = str(parse_offset_message_id(sent["msgId"])[2])
    (message,) = decode_records((await client.ask(33, {"offset": place})).body)
    assert message.topic == "SCHEDULE_TOPIC_XXXX"
