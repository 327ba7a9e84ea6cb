"""What was found out about the pulls of a group holds until a topic, a group, a client or a setting changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.pull import pull_plans
from gantry_broker.server.pull.pull_plans import PLAN_TEXT_MAX, PlanKey, PullPlan
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, properties_text, pull_ext
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.commands.nameserver import PERMISSION_WRITE
from gantry_wire.commands.pull import PullMessage


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Dialogue]:
    """A client that has sent two messages with different tags."""
    async with dialogue(broker) as one:
        for number in range(2):
            await one.send_ok(b"x", properties=properties_text(TAGS="ab"[number]))
        yield one


class KeptPlans(dict[PlanKey, PullPlan]):
    """Plans that nothing drops: the guard is off."""

    def clear(self) -> None:
        """Keep all plans, unlike a dictionary."""


Change = Callable[[Broker, Dialogue], Awaitable[object]]


async def forbid_reading(broker: Broker, client: Dialogue) -> None:
    broker.core.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4, perm=PERMISSION_WRITE))


async def take_queues_away(broker: Broker, client: Dialogue) -> None:
    broker.core.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=0, write_queue_nums=4))


async def delete_topic(broker: Broker, client: Dialogue) -> None:
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})


async def stop_the_group(broker: Broker, client: Dialogue) -> None:
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, consume_enable=False))


async def forbid_the_group(broker: Broker, client: Dialogue) -> None:
    broker.core.groups.set_forbidden(GROUP, TOPIC, is_forbidden=True)


async def load_other_groups(broker: Broker, client: Dialogue) -> None:
    document = broker.core.groups.document()
    document.subscription_group_table[GROUP] = SubscriptionGroupConfig(group_name=GROUP, consume_enable=False)
    broker.core.groups.replace_from_master(document)


async def load_other_topics(broker: Broker, client: Dialogue) -> None:
    document = broker.core.topics.document()
    document.topic_config_table[TOPIC] = TopicConfig(topic_name=TOPIC, perm=PERMISSION_WRITE)
    broker.core.topics.replace_from_master(document)


CHANGES: dict[Change, ResponseCode] = {
    forbid_reading: ResponseCode.NO_PERMISSION,
    take_queues_away: ResponseCode.INVALID_PARAMETER,
    delete_topic: ResponseCode.TOPIC_NOT_EXIST,
    stop_the_group: ResponseCode.NO_PERMISSION,
    forbid_the_group: ResponseCode.NO_PERMISSION,
    load_other_groups: ResponseCode.NO_PERMISSION,
    load_other_topics: ResponseCode.NO_PERMISSION,
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "kept, the twin"])
async def test_change_is_effective_for_the_next_pull(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch, change: Change, is_dropped: bool
) -> None:
    """A pull that was permitted is refused after a change that forbids it."""
    if not is_dropped:
        monkeypatch.setattr(broker.pulls._plans, "_plans", KeptPlans())
    assert (await client.pull(0)).code == 0

    await change(broker, client)

    refused = (await client.pull(0)).code == CHANGES[change]
    assert refused == is_dropped


BEATS: dict[str, tuple[dict[str, Any], int]] = {
    "another expression": ({"expression": "b", "version": 2}, ResponseCode.SUCCESS),
    "broadcasting": ({"model": "BROADCASTING"}, ResponseCode.NO_PERMISSION),
}


@pytest.mark.parametrize("beat", BEATS)
@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "kept, the twin"])
async def test_heartbeat_is_effective_for_the_next_pull(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch, beat: str, is_dropped: bool
) -> None:
    """A pull without an expression gets the filter of the last heartbeat, and is checked against its model."""
    if not is_dropped:
        monkeypatch.setattr(broker.pulls._plans, "_plans", KeptPlans())
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, consume_broadcast_enable=False))
    await client.heartbeat("one", expression="a")
    first = await client.pull(0, sysFlag="0")
    assert (first.code, first.ext["nextBeginOffset"]) == (0, "2")
    fields, code = BEATS[beat]

    await client.heartbeat("one", **{"expression": "a", **fields})

    second = await client.pull(0, sysFlag="0")
    is_changed = second.code == code and second.body != first.body
    assert is_changed == is_dropped


async def test_group_that_has_left_is_unknown_again(broker: Broker, client: Dialogue) -> None:
    """The subscription of a group's members ends with its last member."""
    async with dialogue(broker) as member:
        await member.heartbeat("one")
        assert (await client.pull(0, sysFlag="0")).code == 0
        await member.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": GROUP})
    reply = await client.pull(0, sysFlag="0")
    assert (reply.code, reply.remark) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")


async def test_setting_is_effective_for_the_next_pull(broker: Broker, client: Dialogue) -> None:
    """A filter by properties is refused as soon as they are switched off."""
    await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true\n")
    assert (await client.pull(0, subscription="TAGS = 'a'", expressionType="SQL92")).code == 0
    await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=false\n")
    refused = await client.pull(0, subscription="TAGS = 'a'", expressionType="SQL92")
    assert refused.code == ResponseCode.SYSTEM_ERROR


async def test_refused_pull_is_checked_again(broker: Broker, client: Dialogue) -> None:
    """A pull that was refused is permitted as soon as its reason has gone."""
    await forbid_reading(broker, client)
    assert (await client.pull(0)).code == ResponseCode.NO_PERMISSION
    broker.core.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4))
    assert (await client.pull(0)).code == 0


async def test_plans_are_bounded(broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and expressions come from clients, so plans have a limit, and those with long texts are not kept."""
    monkeypatch.setattr(pull_plans, "PLANS_MAX", 3)
    plans = broker.pulls._plans
    for number in range(20):
        plans.find(PullMessage.read(pull_ext(0, subVersion=str(number))))
        assert len(plans._plans) <= 3
    before = len(plans._plans)
    plans.find(PullMessage.read(pull_ext(0, subscription="a" * (PLAN_TEXT_MAX + 1))))
    assert len(plans._plans) <= before


async def test_pulls_of_one_group_share_a_plan(broker: Broker, client: Dialogue) -> None:
    """The plan of a queue is made once for all offsets and numbers of messages."""
    plans = broker.pulls._plans
    assert (await client.pull(0)).code == 0  # creates the group, which is a change
    first = plans.find(PullMessage.read(pull_ext(0)))
    assert plans.find(PullMessage.read(pull_ext(1, maxMsgNums="1"))) is first
    assert plans.find(PullMessage.read(pull_ext(0, queueId="1"))) is not first
    assert plans.find(PullMessage.read(pull_ext(0, subscription="a"))) is not first
