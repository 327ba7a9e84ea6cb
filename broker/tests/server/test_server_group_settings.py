"""The configuration of a consumer group is stored completely, and unknown attributes are refused."""

from __future__ import annotations

from pathlib import Path

from gantry_testing.local import dialogue, running_broker
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.fastjson import dumps

CREATE, CREATE_LIST = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 225
CONFIG = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
EXPONENTIAL = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2},
}
CUSTOMIZED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}


async def test_retry_policy_of_a_group_survives_a_restart(tmp_path: Path) -> None:
    """It is stored unchanged, for clients that schedule retries by it."""
    policies = {"Patient": EXPONENTIAL, "Chosen": CUSTOMIZED}
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        for group, policy in policies.items():
            body = dumps({"groupName": group, "groupRetryPolicy": policy})
            assert (await client.ask(CREATE, body=body)).code == 0

    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        for group, policy in policies.items():
            assert (await client.ask_json(CONFIG, {"group": group}))["groupRetryPolicy"] == policy


async def test_attribute_of_a_group_is_refused(tmp_path: Path) -> None:
    """1, as in RocketMQ 5.3, which knows none; of a list none is made then."""
    odd = {"groupName": "Odd", "attributes": {"+lite.bind.topic": "orders"}}
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        reply = await client.ask(CREATE, body=dumps(odd))
        assert (reply.code, reply.remark) == (1, "unsupported key: lite.bind.topic")

        both = dumps({"groupConfigList": [{"groupName": "Good"}, odd]})
        assert (await client.ask(CREATE_LIST, body=both)).code == 1
        assert not {"Good", "Odd"} & broker.core.groups.all.keys()


async def test_priority_factor_of_a_group_is_stored(tmp_path: Path) -> None:
    """It is a number from 0 to 100, can be changed and removed, and survives a restart."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        for factor in ("30", "40"):
            body = dumps({"groupName": "Fair", "attributes": {"+priority.factor": factor}})
            assert (await client.ask(CREATE, body=body)).code == 0
        wrong = await client.ask(CREATE, body=dumps({"groupName": "Fair", "attributes": {"+priority.factor": "101"}}))
        assert (wrong.code, wrong.remark) == (1, "value is not in range(0, 100)")

    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert (await client.ask_json(CONFIG, {"group": "Fair"}))["attributes"] == {"priority.factor": "40"}
        body = dumps({"groupName": "Fair", "attributes": {"-priority.factor": ""}})
        assert (await client.ask(CREATE, body=body)).code == 0
        assert (await client.ask_json(CONFIG, {"group": "Fair"}))["attributes"] == {}


async def test_query_of_an_unknown_group_creates_it(tmp_path: Path) -> None:
    """Proxies of RocketMQ ask for the configuration before the first heartbeat; an invalid name is not found."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert (await client.ask_json(CONFIG, {"group": "Newcomers"}))["retryMaxTimes"] == 16
        assert "Newcomers" in broker.core.groups.all
        assert (await client.ask(CONFIG, {"group": "no good!"})).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_query_creates_no_group_without_auto_creation(tmp_path: Path) -> None:
    """The twin of the test above, with autoCreateSubscriptionGroup=false."""
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as broker, dialogue(broker) as client:
        assert (await client.ask(CONFIG, {"group": "Newcomers"})).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "Newcomers" not in broker.core.groups.all


async def test_slave_creates_no_group(tmp_path: Path) -> None:
    """A slave has the groups of its master; the query finds those."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        broker.core.groups.find_or_create("Known")
        broker.core.gate.refuse_changes("this broker is a slave")
        codes = [(await client.ask(CONFIG, {"group": group})).code for group in ("Known", "Newcomers")]
        assert codes == [0, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
        assert "Newcomers" not in broker.core.groups.all
        broker.core.gate.accept_all()
