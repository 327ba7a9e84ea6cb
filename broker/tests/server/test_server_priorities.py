"""Priority topics: a message goes into the queue of its priority, and pops read by priority."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.priorities import parse_priority, place_by_priority, priority_factor
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_testing.popping import ack, pop
from gantry_wire import RequestCode
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.properties import PRIORITY

QUEUES = 4


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("+7", 7), ("2147483647", 2147483647), ("2147483648", None), ("-1", None), ("", None),
     (None, None), (" 1", None), ("1.5", None), ("x", None), ("٣", None), ("9" * 10_000, None)],
)  # fmt: skip
def test_priority_is_a_number_from_zero_on(text: str | None, number: int | None) -> None:
    """Another text is no priority; RocketMQ ignores it, too."""
    assert parse_priority(text) == number


@pytest.mark.parametrize(
    ("others", "queue_id"),
    [
        ({}, 2),
        ({PRIORITY: "9"}, 3),
        ({PRIORITY: "-1"}, 1),
        ({"TRAN_MSG": "false"}, 2),
        ({"TRAN_MSG": "true"}, 1),
        ({"DELAY": "3"}, 1),
        ({"TIMER_DELAY_SEC": "3"}, 1),
        ({"TIMER_DELAY_MS": "3"}, 1),
        ({"TIMER_DELIVER_MS": "3"}, 1),
        ({"__SHARDINGKEY": "k"}, 1),
    ],
)
def test_priority_chooses_the_queue_of_a_plain_message(others: dict[str, str], queue_id: int) -> None:
    """The last queue is for all greater priorities; for other kinds of messages the property is removed."""
    properties = {PRIORITY: "2", **others}
    is_counted = queue_id != 1

    assert place_by_priority(properties, 1, QUEUES) == queue_id
    assert (PRIORITY in properties) is (is_counted or others.get(PRIORITY) == "-1")
    assert place_by_priority({PRIORITY: "2"}, 1, 0) == 0, "a topic without queues to write"


def test_factor_of_a_group_is_its_attribute() -> None:
    """Without the attribute, all pops of a group read by priority."""
    chosen = SubscriptionGroupConfig(group_name=GROUP, attributes={"priority.factor": "30"})

    assert [priority_factor(one) for one in (None, SubscriptionGroupConfig(group_name=GROUP), chosen)] == [100, 100, 30]


def make_topic(broker: Broker, kind: str = "PRIORITY") -> None:
    broker.core.topics.put(
        TopicConfig(
            topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES, attributes={"message.type": kind}
        )
    )


async def send_each(peer: Dialogue, *priorities: int) -> None:
    """Send messages to queue 0, each with a priority that is its body."""
    for priority in priorities:
        text = properties_text(**{PRIORITY: str(priority)})
        reply = await peer.send_ok(str(priority).encode(), queueId="0", properties=text)
        assert int(reply["queueId"]) == min(priority, QUEUES - 1)


@pytest.mark.parametrize(
    ("is_ascending", "order"), [("true", [b"9", b"3", b"2", b"1", b"0"]), ("false", [b"0", b"1", b"2", b"9", b"3"])]
)
async def test_pops_read_by_priority(tmp_path: Path, is_ascending: str, order: list[bytes]) -> None:
    """The messages of the highest priority come first, in any order of their sends; one pop reads all queues."""
    async with running_broker(tmp_path, priorityOrderAsc=is_ascending) as broker, dialogue(broker) as peer:
        make_topic(broker)
        await send_each(peer, 0, 2, 9, 1, 3)
        assert (await pop(peer)).bodies == order
        await send_each(peer, 1, 0, 2)
        singles = [(await pop(peer, maxMsgNums=1)).bodies[0] for _ in range(3)]
        assert singles == sorted((b"0", b"1", b"2"), reverse=is_ascending == "true")


@pytest.mark.parametrize(("kind", "factor"), [("NORMAL", "100"), ("PRIORITY", "0")])
async def test_pops_that_do_not_read_by_priority_rotate(tmp_path: Path, kind: str, factor: str) -> None:
    """In a topic of another type, or with the factor 0, the queues are read in turn."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        make_topic(broker, kind)
        group = {"groupName": GROUP, "attributes": {"+priority.factor": factor}}
        await peer.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
        await send_each(peer, 0, 1, 2, 3)
        order = [(await pop(peer, maxMsgNums=1)).bodies[0] for _ in range(QUEUES)]
        assert sorted(order) == [b"0", b"1", b"2", b"3"]
        assert order != [b"3", b"2", b"1", b"0"]


async def test_factor_decides_for_each_pop(tmp_path: Path) -> None:
    """With a factor of 50 about a half of the pops read by priority: the others serve low priorities."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        make_topic(broker)
        group = {"groupName": GROUP, "attributes": {"+priority.factor": "50"}}
        await peer.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
        broker.pops.popper.random.seed(1)
        await send_each(peer, *([0] * 20), *([3] * 40))
        first = [(await pop(peer, maxMsgNums=1)).bodies[0] for _ in range(40)]
        assert 1 <= first.count(b"0") <= 16, first


async def test_redelivered_messages_wait_for_new_ones(tmp_path: Path) -> None:
    """A pop by priority reads the retry topic last, unless `popFromRetryProbabilityForPriority` is set."""
    async with running_broker(tmp_path, popFromRetryProbabilityForPriority="100") as broker, dialogue(broker) as peer:
        make_topic(broker)
        await send_each(peer, 3)
        await pop(peer, invisibleTime=1)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        await send_each(peer, 2)
        assert (await pop(peer)).bodies == [b"3", b"2"]
    async with running_broker(tmp_path / "default") as broker, dialogue(broker) as peer:
        make_topic(broker)
        await send_each(peer, 3)
        await pop(peer, invisibleTime=1)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        await send_each(peer, 2)
        popped = await pop(peer)
        assert popped.bodies == [b"2", b"3"]
        for receipt in popped.receipts:
            assert (await ack(peer, receipt)).code == 0


async def test_retry_topic_is_read_first_by_its_share(tmp_path: Path) -> None:
    """Of 100 pops, `popFromRetryProbability` read the retry topic before the topic."""
    async with running_broker(tmp_path, popFromRetryProbability="50") as broker, dialogue(broker) as peer:
        for body in (b"old 1", b"old 2", b"old 3"):
            await peer.send_ok(body, queueId="0")
        await pop(peer, invisibleTime=1)
        await wait_until(lambda: broker.pops.reviver.revived_count == 3)
        for body in (b"new 1", b"new 2", b"new 3"):
            await peer.send_ok(body, queueId="0")
        found = [(await pop(peer, maxMsgNums=1)).bodies[0][:3] for _ in range(6)]
        assert sorted(found[0:2]) == sorted(found[2:4]) == [b"new", b"old"]
