"""Settings changed at run time: only those of a list, all of a request or none, and kept over a restart."""

import json
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.core import live_settings
from gantry_broker.server.core.live_settings import CHANGEABLE
from gantry_broker.setting_keys import broker_settings, effective_settings
from gantry_broker.settings import BrokerSettings
from gantry_testing.local import Dialogue, dialogue, local_conf, names_below, running_broker
from gantry_wire import Command, RequestCode, ResponseCode

SAMPLES = {
    "enablePropertyFilter": "true",
    "useServerSideResetOffset": "false",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "maxMessageSize": "1000",
    "maxBatchMessages": "7",
    "sendThreadPoolQueueCapacity": "8",
    "waitTimeMillsInSendQueue": "9000",
    "osPageCacheBusyTimeOutMills": "10",
    "pullThreadPoolQueueCapacity": "11",
    "maxHeldPullsPerConnection": "12",
    "maxPullBatchSize": "13",
    "maxTransferBytesOnMessageInMemory": "14000",
    "maxTransferBytesOnRequest": "15000",
    "flushConsumerOffsetInterval": "1600",
    "fileReservedTime": "17",
    "deleteWhen": "01;18",
    "diskMaxUsedSpaceRatio": "19",
    "diskSpaceCleanForciblyRatio": "98",
    "diskSpaceWarningLevelRatio": "98",
    "cleanResourceInterval": "21000",
    "slaveReadEnable": "false",
    "accessMessageInMemoryMaxRatio": "23",
    "shutdownTimeout": "24000",
    "transactionTimeOut": "2500",
    "transactionCheckMax": "26",
    "transactionCheckInterval": "2700",
}
"""Values that differ from the default, and from the tests' own, for each key that may change."""


async def change_settings(client: Dialogue, **pairs: str) -> Command:
    body = "".join(f"{key}={value}\n" for key, value in pairs.items()).encode()
    return await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)


async def read_settings(client: Dialogue) -> dict[str, str]:
    reply = await client.ask(RequestCode.GET_BROKER_CONFIG)
    return dict(line.split("=", 1) for line in reply.body.decode().splitlines())


async def read_version(client: Dialogue) -> int:
    reply = await client.ask(RequestCode.GET_BROKER_CONFIG)
    return int(json.loads(reply.ext["version"])["counter"])


# ------- what changes


async def test_every_changeable_key_changes_and_is_shown(client: Dialogue) -> None:
    """Code 26 shows a changed key from then on; the version increases, and the change is listed."""
    assert SAMPLES.keys() == CHANGEABLE
    before = await read_version(client)

    reply = await change_settings(client, **SAMPLES)
    assert reply.code == 0, reply.remark

    now = await read_settings(client)
    assert {key: now[key] for key in SAMPLES} == SAMPLES
    assert await read_version(client) == before + 1
    settings_reply = await client.ask(RequestCode.GET_BROKER_CONFIG)
    assert settings_reply.ext["changedAtRunTime"].split(";") == sorted(SAMPLES)


async def test_copies_of_settings_are_updated(broker: Broker, client: Dialogue) -> None:
    """Parts that have copied a value when the broker was built get the new one at once."""
    assert (await change_settings(client, **SAMPLES)).code == 0

    assert broker.settings is broker.core.settings
    assert not broker.core.groups.is_auto_creating
    assert not broker.core.topics.is_auto_creating
    assert broker.send_path.ack_gate.sends_max == 8
    assert broker.send_path.body_bytes_max == 1000
    assert broker.settings.store.retention.delete_hours == (1, 18)
    assert broker.settings.store.mapped_file_size_commit_log == 8 * 1024 * 1024, "expected the file size of the start"


async def test_topics_are_auto_created_while_that_is_enabled(client: Dialogue) -> None:
    """Disabled, the first message to an unknown topic is answered 17; enabled again it creates the topic."""
    assert (await client.send(b"a", code=RequestCode.SEND_MESSAGE_V2, topic="First")).code == 0

    assert (await change_settings(client, autoCreateTopicEnable="false")).code == 0
    refused = await client.send(b"a", code=RequestCode.SEND_MESSAGE_V2, topic="Second")
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert (await client.send(b"b", code=RequestCode.SEND_MESSAGE_V2, topic="First")).code == 0

    assert (await change_settings(client, autoCreateTopicEnable="true")).code == 0
    assert (await client.send(b"a", code=RequestCode.SEND_MESSAGE_V2, topic="Second")).code == 0


async def test_auto_creation_can_be_enabled_at_run_time(tmp_path: Path) -> None:
    """A broker that was started without auto-creation has no template, and gets one."""
    async with running_broker(tmp_path, autoCreateTopicEnable="false") as broker, dialogue(broker) as client:
        refused = await client.send(b"a", code=RequestCode.SEND_MESSAGE_V2)
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST

        assert (await change_settings(client, autoCreateTopicEnable="true")).code == 0
        assert (await client.send(b"a", code=RequestCode.SEND_MESSAGE_V2)).code == 0


async def test_smaller_message_limit_is_effective_at_once(client: Dialogue) -> None:
    """The limit applies to both paths of a send: the fast one leaves a longer message to the other."""
    assert (await client.send(bytes(2000), code=RequestCode.SEND_MESSAGE_V2)).code == 0

    assert (await change_settings(client, maxMessageSize="1000")).code == 0

    for _ in range(2):
        refused = await client.send(bytes(2000), code=RequestCode.SEND_MESSAGE_V2)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await client.send(bytes(1000), code=RequestCode.SEND_MESSAGE_V2)).code == 0


# ------- what does not


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("brokerRole", "gantry ha"),
        ("flushDiskType", "promised"),
        ("listenPort", "only at the start"),
        ("storePathRootDir", "only at the start"),
        ("tlsServerKeyPath", "only at the start"),
        ("haSecretPath", "only at the start"),
        ("deleteUnconsumed", "must be set in broker.conf"),
        ("configBlackList", "a fixed list"),
        ("rocketmqHome", "unknown setting"),
        ("", "no key"),
    ],
)
async def test_other_keys_are_refused_by_name(
    tmp_path: Path, broker: Broker, client: Dialogue, key: str, why: str
) -> None:
    """S7: code 16 has the key and the reason, and an empty key is 29; nothing is changed, and nothing is written."""
    reply = await change_settings(client, maxMessageSize="1000", **{key: "/tmp/x"})

    if key:
        assert reply.code == ResponseCode.NO_PERMISSION
        assert key in (reply.remark or "")
        assert why in (reply.remark or "")
    else:
        assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "/tmp/x" not in (reply.remark or "") or not key, "the answer has a value, which may be a secret"
    assert (await read_settings(client))["maxMessageSize"] != "1000"
    assert [name for name in names_below(tmp_path) if "liveSettings" in name] == []
    assert broker.core.live.changed == {}


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "twin with a longer list"])
async def test_list_of_changeable_keys_is_the_guard(
    client: Dialogue, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """S7: the twin has a longer list, with which the same request succeeds."""
    if not is_guarded:
        monkeypatch.setattr(live_settings, "CHANGEABLE", CHANGEABLE | {"regionId"})

    reply = await change_settings(client, regionId="elsewhere")

    assert reply.code == (ResponseCode.NO_PERMISSION if is_guarded else ResponseCode.SUCCESS)
    assert ((await read_settings(client))["regionId"] == "elsewhere") is not is_guarded


BAD_VALUES = {
    "no number": ({"maxBatchMessages": "9", "fileReservedTime": "soon"}, "fileReservedTime=soon"),
    "out of range": ({"maxBatchMessages": "9", "accessMessageInMemoryMaxRatio": "96"}, "ratio=96"),
    "contradiction": ({"maxBatchMessages": "9", "diskSpaceWarningLevelRatio": "94"}, "diskspacewarninglevelratio=94"),
    "larger than a file": ({"maxBatchMessages": "9", "maxMessageSize": "8388608"}, "mappedFileSizeCommitLog"),
}


@pytest.mark.parametrize(("pairs", "text"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
async def test_bad_value_is_named_and_nothing_changes(client: Dialogue, pairs: dict[str, str], text: str) -> None:
    """Key and value are in the answer; the valid keys of the same request are not changed either."""
    before = await read_settings(client)

    reply = await change_settings(client, **pairs)

    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert text.lower() in (reply.remark or "").lower()
    assert await read_settings(client) == before


async def test_change_that_cannot_be_saved_is_not_effective(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that a restart would lose must not be effective before it either."""

    def refuse(document: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(broker.core.live._file, "save", refuse, raising=True)

    reply = await change_settings(client, maxBatchMessages="9")

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (await read_settings(client))["maxBatchMessages"] == "10000"


# ------- what stays


async def test_change_survives_a_restart(tmp_path: Path) -> None:
    """It overrides broker.conf, and an empty value restores that of broker.conf."""
    conf = {"maxBatchMessages": "5"}
    async with running_broker(tmp_path, disk=None, clock=None, **conf) as broker, dialogue(broker) as client:
        assert (await change_settings(client, maxBatchMessages="6", maxPullBatchSize="7")).code == 0

    async with running_broker(tmp_path, disk=None, clock=None, **conf) as broker, dialogue(broker) as client:
        now = await read_settings(client)
        assert (now["maxBatchMessages"], now["maxPullBatchSize"]) == ("6", "7")
        runtime = (await client.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert runtime["settingsChangedAtRunTime"] == "maxBatchMessages=6;maxPullBatchSize=7"
        assert (await change_settings(client, maxBatchMessages="")).code == 0
        assert (await read_settings(client))["maxBatchMessages"] == "5"

    async with running_broker(tmp_path, disk=None, clock=None, **conf) as broker:
        assert broker.settings.batch_messages_max == 5
        assert broker.core.live.changed == {"maxPullBatchSize": "7"}


async def test_command_line_overrides_earlier_changes(tmp_path: Path) -> None:
    """A key of the command line is effective at the start; a later change overrides it again."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        assert (await change_settings(client, maxBatchMessages="6", maxPullBatchSize="7")).code == 0

    conf = local_conf(tmp_path, maxBatchMessages="8")
    broker = Broker(broker_settings(conf), disk=RealDisk(), clock=SystemClock(), command_line_keys=["maxBatchMessages"])
    await broker.start()
    try:
        assert (broker.settings.batch_messages_max, broker.settings.pull_messages_max) == (8, 7)
        async with dialogue(broker) as client:
            assert (await change_settings(client, maxBatchMessages="9")).code == 0
        assert broker.settings.batch_messages_max == 9
    finally:
        await broker.close()


@pytest.mark.parametrize(
    "text",
    ['{"settings":{"storePathRootDir":"/"}}', '{"settings":{"maxBatchMessages":"many"}}', '{"settings":[]}', "{"],
    ids=["foreign key", "bad value", "other shape", "no JSON"],
)
async def test_unusable_file_of_changes_stops_the_start(tmp_path: Path, text: str) -> None:
    """Earlier changes are not dropped silently; the file is named."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/liveSettings.json").write_text(text)

    with pytest.raises(ConfigCorrupt, match=r"liveSettings\.json"):
        async with running_broker(tmp_path):
            pass


async def test_unassigned_broker_accepts_settings(tmp_path: Path) -> None:
    """Settings belong to each broker: an unassigned one, or a slave, is configured like a master."""
    conf = {"roleAtStart": "UNASSIGNED", "brokerId": "1"}
    async with running_broker(tmp_path, disk=None, clock=None, **conf) as broker, dialogue(broker) as client:
        assert (await client.send(b"x", code=RequestCode.SEND_MESSAGE_V2)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await change_settings(client, maxBatchMessages="9")).code == 0
        assert broker.settings.batch_messages_max == 9


def test_samples_differ_from_defaults() -> None:
    """A key that did not change would show the default, and a test above would not notice."""
    defaults = effective_settings(BrokerSettings())
    assert {key for key in CHANGEABLE if SAMPLES[key] == defaults[key]} == set()
