"""Consumers that filter by properties: matching messages, refused filters, and the limits of one turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.pull.pull_hold import RECORD_TOKENS, TURN_TOKENS_MAX, UNITS_MAX, UNITS_MIN, FilterBudget
from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
    wait_until,
)
from gantry_wire import Command, RequestCode
from gantry_wire.fastjson import dumps
from gantry_wire.message import decode_records
from gantry_wire.sql92 import SqlFilter

LONG_MS = 60_000
COSTLY_FILTER = " AND ".join(["price > 5"] * 500)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker that accepts SQL92 expressions."""
    async with running_broker(tmp_path, enablePropertyFilter="true") as one:
        yield one


async def send(client: Dialogue, body: bytes, **pairs: str) -> None:
    await client.send_ok(body, properties=properties_text(UNIQ_KEY=UNIQUE_ID, **pairs))


def bodies(reply: Command) -> list[bytes]:
    return [record.body for record in decode_records(reply.body)]


# ------- which messages


async def test_pull_returns_messages_that_match_the_filter(client: Dialogue) -> None:
    """The next offset is after all checked messages, including those at the end that do not match."""
    for number in range(10):
        await send(client, b"%d" % number, price=str(number), region="eu" if number % 2 else "us")

    reply = await client.pull(0, expressionType="SQL92", subscription="price BETWEEN 3 AND 7 AND region = 'eu'")

    assert (reply.code, bodies(reply)) == (0, [b"3", b"5", b"7"])
    assert reply.ext["nextBeginOffset"] == "10"


async def test_filter_may_use_system_properties(client: Dialogue) -> None:
    """Tag and keys are properties like others; what a message does not have is NULL."""
    await send(client, b"0", TAGS="red", KEYS="k1")
    await send(client, b"1")

    assert bodies(await client.pull(0, expressionType="SQL92", subscription="TAGS = 'red' AND KEYS = 'k1'")) == [b"0"]
    assert bodies(await client.pull(0, expressionType="SQL92", subscription="TAGS IS NULL")) == [b"1"]


async def test_pull_without_a_match_continues_later(client: Dialogue) -> None:
    """Code 20 and the offset after the checked messages, so that the client continues at once."""
    await send(client, b"0", price="1")
    await send(client, b"1", price="x")

    reply = await client.pull(0, expressionType="SQL92", subscription="price > 5")

    assert (reply.code, reply.ext["nextBeginOffset"], reply.body) == (20, "2", b"")


async def test_pull_of_a_member_filters_by_its_heartbeat(client: Dialogue) -> None:
    """A push consumer sends its filter in its heartbeat; its pulls carry none."""
    await send(client, b"0", price="1")
    await send(client, b"1", price="9")
    await client.heartbeat("c1", expression="price > 5", expression_type="SQL92")

    assert bodies(await client.pull(0, sysFlag="0")) == [b"1"]


async def test_newer_filter_replaces_the_older_one(client: Dialogue) -> None:
    """A heartbeat with a newer version and another filter changes the subscription, and pulls follow it."""
    await send(client, b"0", price="1")
    await send(client, b"1", price="9")
    await client.heartbeat("c1", expression="price > 5", expression_type="SQL92", version=1)
    reply = await client.heartbeat("c1", expression="price < 5", expression_type="SQL92", version=2)

    assert reply.ext["IS_SUB_CHANGE"] == "true"
    assert bodies(await client.pull(0, sysFlag="0")) == [b"0"]


# ------- pulls that wait


async def test_held_pull_is_woken_only_by_a_match(broker: Broker, client: Dialogue) -> None:
    """Messages that do not match advance the offset of the pull, which stays held."""
    await send(client, b"0", price="9")
    waiting = client.start_pull(1, wait_ms=LONG_MS, expressionType="SQL92", subscription="price > 5")
    await wait_until(lambda: broker.pulls.hold.count == 1)

    await send(client, b"1", price="1")
    await send(client, b"2")
    assert not waiting.done()
    await send(client, b"3", price="7")

    assert bodies(await waiting) == [b"3"]


async def test_held_pull_continues_over_many_messages(broker: Broker, client: Dialogue) -> None:
    """More messages arrive at once than one turn may check: the pull reaches the last of them without a new one."""
    await send(client, b"first", price="9")
    waiting = client.start_pull(1, wait_ms=LONG_MS, expressionType="SQL92", subscription="price > 5")
    by_tag = client.start_pull(1, wait_ms=LONG_MS, subscription="wanted")
    await wait_until(lambda: broker.pulls.hold.count == 2)

    broker.core.store.dispatcher.hold()
    for number in range(2 * UNITS_MAX + 10):
        await send(client, b"%d" % number, price="1")
    await send(client, b"last", price="7", TAGS="wanted")
    assert not waiting.done()
    broker.core.store.dispatcher.release(broker.core.store.log.wrote)
    broker.pulls.hold.mark_queues([(TOPIC, 0)])

    assert bodies(await asyncio.wait_for(waiting, 60)) == [b"last"]
    assert bodies(await asyncio.wait_for(by_tag, 60)) == [b"last"]


# ------- refusals


async def check(client: Dialogue, **data: str) -> Command:
    body = {"clientId": "c1", "group": GROUP, "subscriptionData": {"topic": TOPIC, **data}}
    return await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=dumps(body))


async def test_invalid_filter_is_refused_at_subscription(client: Dialogue) -> None:
    """Code 46 answers 23 with the place of the fault, 0 for a good one."""
    wrong = await check(client, subString="price >", expressionType="SQL92")
    right = await check(client, subString="price > 5", expressionType="SQL92")
    unknown = await check(client, subString="price > 5", expressionType="JSON")

    assert (wrong.code, right.code, unknown.code) == (23, 0, 23)
    assert "unexpected end of the filter at character 8" in (wrong.remark or "")


async def test_pull_with_an_invalid_filter_is_refused(client: Dialogue) -> None:
    """Code 23 when it carries the filter; RocketMQ would give it every message. 27 when its heartbeat does."""
    await send(client, b"0")
    assert (await client.pull(0, expressionType="SQL92", subscription="price >")).code == 23
    assert (await client.pull(0, expressionType="SQL92", subscription="")).code == 23
    assert (await client.pull(0, expressionType="JSON", subscription="price > 5")).code == 23

    await client.heartbeat("c1", expression="price >", expression_type="SQL92")
    reply = await client.pull(0, sysFlag="0")

    assert reply.code == 27
    assert "Your expression may be wrong" in (reply.remark or "")


async def test_filters_are_refused_without_the_setting(tmp_path: Path) -> None:
    """Each of the three ways is refused with code 1 and RocketMQ's text; tag filters still work."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await send(client, b"0", price="9")
        refused = [
            await check(client, subString="price > 5", expressionType="SQL92"),
            await client.pull(0, expressionType="SQL92", subscription="price > 5"),
        ]
        await client.heartbeat("c1", expression="price > 5", expression_type="SQL92")
        refused.append(await client.pull(0, sysFlag="0"))

        assert {reply.code for reply in refused} == {1}
        assert {reply.remark for reply in refused} == {
            "The broker does not support consumer to filter message by SQL92"
        }
        assert (await client.pull(0)).code == 0


async def test_filter_setting_changes_at_run_time(broker: Broker, client: Dialogue) -> None:
    """Pulls that wait learn it with the next message."""
    await send(client, b"0", price="9")
    waiting = client.start_pull(1, wait_ms=LONG_MS, expressionType="SQL92", subscription="price > 5")
    await wait_until(lambda: broker.pulls.hold.count == 1)

    assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=false\n")).code == 0
    await send(client, b"1", price="9")

    assert (await waiting).code == 1


# ------- how much at once


async def test_pull_checks_a_limited_number_of_messages(client: Dialogue) -> None:
    """A filter that matches nothing gives the loop back after a part of the queue, and the client pulls on."""
    for number in range(UNITS_MAX + 50):
        await send(client, b"%d" % number, price="1")

    reply = await client.pull(0, expressionType="SQL92", subscription="price > 5")

    assert (reply.code, int(reply.ext["nextBeginOffset"]) <= UNITS_MAX) == (20, True)
    assert int(reply.ext["nextBeginOffset"]) >= UNITS_MIN


async def test_pulls_of_one_turn_share_its_filter_budget() -> None:
    """Each read reduces the budget of the turn, but every read gets a minimum; the next turn has a full budget."""
    budget = FilterBudget(asyncio.get_running_loop())
    small, large = SqlFilter("a > 5"), SqlFilter(COSTLY_FILTER)
    assert budget.count_units(small) == UNITS_MAX
    assert budget.count_units(large) == TURN_TOKENS_MAX // (RECORD_TOKENS + large.weight)

    budget.spend(small, UNITS_MAX)
    assert UNITS_MIN < budget.count_units(small) < UNITS_MAX
    budget.spend(large, 50)
    assert budget.is_spent
    assert budget.count_units(small) == UNITS_MIN

    await asyncio.sleep(0)
    assert budget.count_units(small) == UNITS_MAX


async def test_held_pulls_beyond_the_budget_wait_for_the_next_turn(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message wakes many pulls: all are retried, over several turns, with other work in between."""
    await send(client, b"0", price="9")
    waiting = [
        client.start_pull(1, wait_ms=LONG_MS, expressionType="SQL92", subscription=COSTLY_FILTER) for _ in range(200)
    ]
    await wait_until(lambda: broker.pulls.hold.count == 200)
    turns: list[int] = []
    wake = broker.pulls.hold._wake

    def counted() -> None:
        turns.append(broker.pulls.hold.count)
        wake()

    monkeypatch.setattr(broker.pulls.hold, "_wake", counted)

    await send(client, b"1", price="9")

    assert {tuple(bodies(reply)) for reply in await asyncio.gather(*waiting)} == {(b"1",)}
    assert len(turns) > 1
    assert turns[0] == 200
