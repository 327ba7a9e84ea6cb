"""No bad name that came over the wire becomes a path, whichever request it came in."""

import pytest

from gantry_testing.local import (
    GROUP,
    TOPIC,
    pull_ext,
    send_ext,
)
from gantry_testing.refusals import BrokerAndClient, expect_refusal
from gantry_wire import RequestCode
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.fastjson import dumps

BAD_NAMES = ["../x", "..", "a/b", "/etc/passwd", "a\x00b", "a b", "a.b", "ünicode", "a\\b", "~", "x" * 300]
BAD_NAME_IDS = ["up", "dots", "slash", "absolute", "nul", "space", "dot", "umlaut", "backslash", "tilde", "long"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=BAD_NAME_IDS)
async def test_send_with_a_bad_name_creates_no_path(place: BrokerAndClient, name: str) -> None:
    """S4: a send to a topic with a bad name is refused with 29, whichever way it is sent."""
    for code in (10, 310, 320):
        body = encode_batch([BatchEntry(0, b"x", b"")]) if code == 320 else b"x"

        reply = await expect_refusal(place, code, send_ext(code, topic=name), body)

        assert reply.code == 29
        assert "illegal" in (reply.remark or "")


@pytest.mark.parametrize("name", BAD_NAMES, ids=BAD_NAME_IDS)
async def test_retry_topic_with_a_bad_name_creates_no_path(place: BrokerAndClient, name: str) -> None:
    """S4: the name after the prefix of a retry or dead letter topic is checked, too."""
    for prefix in ("%RETRY%", "%DLQ%"):
        reply = await expect_refusal(place, 310, send_ext(310, topic=prefix + name), b"x")
        assert reply.code == 29


async def test_retry_topic_without_a_group_is_refused(place: BrokerAndClient) -> None:
    """A retry topic belongs to a group; without one it is not made."""
    reply = await expect_refusal(place, 310, send_ext(310, topic="%RETRY%"), b"x")

    assert reply.code == 26


@pytest.mark.parametrize("name", BAD_NAMES, ids=BAD_NAME_IDS)
async def test_administrator_cannot_create_a_bad_name(place: BrokerAndClient, name: str) -> None:
    """S4: topics and groups with bad names are refused with 29, alone and in lists; none of such a list is made."""
    topic = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    good_topic = topic | {"topicName": "GoodTopic"}
    topics = dumps({"topicConfigList": [good_topic, topic]})
    groups = dumps({"groupConfigList": [{"groupName": "GoodGroup"}, {"groupName": name}]})
    single = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }

    assert (await expect_refusal(place, 17, single)).code == 29
    assert (await expect_refusal(place, 18, {}, topics)).code == 29
    assert (await expect_refusal(place, 200, {}, dumps({"groupName": name}))).code == 29
    assert (await expect_refusal(place, 225, {}, groups)).code == 29
    assert (await expect_refusal(place, 215, {"topic": name})).code == 29


@pytest.mark.parametrize("name", BAD_NAMES, ids=BAD_NAME_IDS)
async def test_heartbeat_creates_no_group_with_a_bad_name(place: BrokerAndClient, name: str) -> None:
    """S4: as in RocketMQ, a heartbeat passes over groups that cannot be, and keeps the others."""
    before = place.state()
    consumers = [{"groupName": name, "subscriptionDataSet": [{"topic": TOPIC, "subString": "*"}]}]
    beat = dumps({"clientID": "c1", "consumerDataSet": consumers, "producerDataSet": []})

    reply = await place.client.ask(RequestCode.HEART_BEAT, body=beat)

    await place.broker.core.persistence.write_stale()
    assert reply.code == 0
    assert place.state() == before


@pytest.mark.parametrize("name", BAD_NAMES, ids=BAD_NAME_IDS)
async def test_pull_with_a_bad_name_is_refused(place: BrokerAndClient, name: str) -> None:
    """A pull with a bad group is refused with 26, one with a bad topic with 17."""
    assert (await expect_refusal(place, 11, pull_ext(0, consumerGroup=name))).code == 26
    assert (await expect_refusal(place, 11, pull_ext(0, topic=name))).code == 17


async def test_offsets_of_bad_names_are_not_stored(place: BrokerAndClient) -> None:
    """A commit for a group or topic that cannot be is refused with 26 or 17."""
    good = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}

    assert (await expect_refusal(place, 15, good | {"consumerGroup": "../x"})).code == 26
    assert (await expect_refusal(place, 15, good | {"topic": "../x"})).code == 17
    assert (await expect_refusal(place, 15, good | {"consumerGroup": "a@b"})).code == 26


@pytest.mark.parametrize("name", BAD_NAMES, ids=BAD_NAME_IDS)
async def test_send_back_with_a_bad_group_is_refused(place: BrokerAndClient, name: str) -> None:
    """S4: a failed message goes to no retry topic of a bad group."""
    assert (await expect_refusal(place, 36, {"offset": "0", "group": name, "delayLevel": "0"})).code == 26
