"""Settings: RocketMQ's names work, and what cannot be kept is refused by name before anything is touched."""

import logging
import re

import pytest

from gantry_broker.setting_keys import broker_settings, describe_settings, effective_settings, parse_properties_file
from gantry_broker.settings import BrokerSettings, SettingsError
from gantry_remoting import TlsMode
from gantry_remoting.logs import FactFormatter
from gantry_testing.tree import ROOT

EXAMPLE = """
# Licensed to somebody
! another comment
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def test_rocketmqs_own_example_works() -> None:
    """The broker.conf that comes with RocketMQ starts this broker."""
    settings = broker_settings(parse_properties_file(EXAMPLE))

    assert (settings.cluster_name, settings.broker_name, settings.broker_id) == ("DefaultCluster", "broker-a", 0)


def test_defaults_are_rocketmqs() -> None:
    """Who sets nothing gets the ports, sizes and times that RocketMQ users know."""
    settings = broker_settings({})

    assert (settings.listen_port, settings.fast_listen_port) == (10911, 10909)
    assert settings.message_bytes_max == 4 * 1024 * 1024
    assert settings.store.mapped_file_size_commit_log == 1 << 30
    assert (settings.wait_in_send_queue_ms, settings.idle_timeout_ms, settings.register_period_ms) == (
        200,
        120_000,
        30_000,
    )
    assert settings.store.delay_levels_ms[:4] == (1_000, 5_000, 10_000, 30_000)
    assert len(settings.store.delay_levels_ms) == 18
    assert (settings.auto_create_topics, settings.auto_create_groups, settings.default_topic_queues) == (True, True, 8)


def test_settings_reach_what_they_are_about() -> None:
    """A key of broker.conf arrives in the part that it is for."""
    settings = broker_settings(
        {
            "listenPort": "20911", "fastListenPort": "-1", "namesrvAddr": "a:1;b:2, c:3", "maxMessageSize": "1000",
            "serverMaxConnections": "7", "serverMaxConnectionsPerAddress": "3", "serverChannelMaxIdleTimeMills": "5000",
            "frameMaxLength": "100000", "flushIntervalCommitLog": "50", "mappedFileSizeCommitLog": "1048576",
            "messageDelayLevel": "1s 2m 3h 1d", "messageIndexEnable": "false", "brokerIP1": "10.1.2.3",
        }
    )  # fmt: skip
    listener = settings.listener(1234)

    assert settings.fast_listen_port is None
    assert settings.name_servers == ("a:1", "b:2", "c:3")
    assert settings.address == "10.1.2.3:20911"
    assert (listener.port, listener.connections_max, listener.connections_per_address_max) == (1234, 7, 3)
    assert (listener.idle_timeout_ms, listener.wire.frame_bytes_max, listener.tls) == (5000, 100_000, None)
    assert (settings.store.flush.flush_interval_ms, settings.store.is_index_enabled) == (50, False)
    assert settings.store.delay_levels_ms == (1_000, 120_000, 10_800_000, 86_400_000)


def test_effective_settings_make_the_same_broker() -> None:
    """What a broker says it is set to, set again, is the same broker."""
    first = broker_settings(
        {"brokerName": "a", "messageDelayLevel": "1s 2m", "tlsMode": "disabled", "maxMessageSize": "9"}
    )
    given = {key: value for key, value in effective_settings(first).items() if value != ""}

    assert effective_settings(broker_settings(given)) == effective_settings(first)


UNSUPPORTED = [
    ("timerWheelEnable", "true", "delay levels work"),
    ("longPollingEnable", "false", "always held"),
    ("brokerFastFailureEnable", "false", "always on"),
]


@pytest.mark.parametrize(
    ("key", "value", "stake"), UNSUPPORTED, ids=[f"{key}={value}" for key, value, _ in UNSUPPORTED]
)
def test_a_promise_that_cannot_be_kept_refuses_to_start(key: str, value: str, stake: str) -> None:
    """A switch that this broker cannot turn is refused with its name, what is at stake, and what to do."""
    with pytest.raises(SettingsError, match=rf"{key}={value}.*{stake}.*remove it"):
        broker_settings({key: value})


ROLES = [
    ({"brokerRole": "SLAVE"}, "brokerRole=SLAVE and brokerId=0"),
    ({"brokerRole": "SYNC_MASTER", "brokerId": "1"}, "brokerRole=SYNC_MASTER and brokerId=1"),
    ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}, "inSyncReplicas=1 contradict"),
    ({"inSyncReplicas": "2"}, "brokerRole=ASYNC_MASTER and inSyncReplicas=2"),
    ({"roleAtStart": "UNASSIGNED"}, "needs a number"),
    ({"roleAtStart": "UNASSIGNED", "brokerRole": "SLAVE", "brokerId": "1"}, "kind of master"),
    ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3", "haElectable": "1"}, "haElectable names 1 slaves"),
    ({"brokerRole": "SYNC_MASTER", "haListenPort": "-1"}, "nobody could follow"),
    ({"haTlsKeyPath": "key.pem"}, "haTlsCertPath and haTlsKeyPath"),
    ({"haElectable": "0;1"}, "brokerIds of slaves"),
    ({"brokerRole": "MASTER"}, "ASYNC_MASTER, SYNC_MASTER, SLAVE"),
]


@pytest.mark.parametrize(("pairs", "text"), ROLES, ids=[text for _, text in ROLES])
def test_roles_that_contradict_each_other_refuse_to_start(pairs: dict[str, str], text: str) -> None:
    """Both keys are named: which of the two was meant only the writer knows."""
    with pytest.raises(SettingsError, match=text):
        broker_settings(pairs)


def test_the_one_position_of_a_switch_is_fine() -> None:
    """A file that says what is true anyway starts, in any spelling of the case."""
    broker_settings({"flushDiskType": "async_flush", "brokerRole": "async_master", "timerWheelEnable": "FALSE"})


def test_an_unknown_key_is_named() -> None:
    """A key that nobody knows, perhaps misspelt, is refused by name."""
    with pytest.raises(SettingsError, match=r"listenport is not a setting.*--settings"):
        broker_settings({"listenport": "1"})


BAD_VALUES = [
    ("listenPort", "0", "1 to 65535"),
    ("listenPort", "70000", "1 to 65535"),
    ("listenPort", "ten", "whole number"),
    ("fastListenPort", "-2", "-1 to 65535"),
    ("brokerIP1", "broker.example.org", "IP address"),
    ("namesrvAddr", "127.0.0.1", "host:port"),
    ("brokerName", "a b", "A-Z"),
    ("brokerClusterName", "", "A-Z"),
    ("autoCreateTopicEnable", "yes", "true or false"),
    ("maxMessageSize", "-1", "is allowed"),
    ("messageDelayLevel", "1s 2x", "2x"),
    ("tlsMode", "on", "disabled, permissive, enforcing"),
    ("registerNameServerPeriod", "1000", "10000 to 60000"),
    ("mappedFileSizeCommitLog", "12", "4096"),
]


@pytest.mark.parametrize(("key", "value", "text"), BAD_VALUES, ids=[f"{key}={value}" for key, value, _ in BAD_VALUES])
def test_a_value_that_cannot_be_is_said(key: str, value: str, text: str) -> None:
    """A value out of its range is refused with key, value, and what is allowed."""
    with pytest.raises(SettingsError, match=rf"{re.escape(f'{key}={value}')}: .*{re.escape(text)}"):
        broker_settings({key: value})


CONTRADICTIONS = [
    ({"listenPort": "1000", "fastListenPort": "1000"}, "listenPort", "fastListenPort"),
    ({"maxMessageSize": "1000000", "mappedFileSizeCommitLog": "1000000"}, "maxMessageSize", "mappedFileSizeCommitLog"),
    ({"maxMessageSize": "1000000", "frameMaxLength": "1000000"}, "maxMessageSize", "frameMaxLength"),
    ({"tlsServerCertPath": "a"}, "tlsServerCertPath", "tlsServerKeyPath"),
    ({"tlsServerKeyPath": "a"}, "tlsServerCertPath", "tlsServerKeyPath"),
    ({"tlsMode": "enforcing"}, "tlsMode", "tlsServerCertPath"),
    ({"tlsServerNeedClientAuth": "true"}, "tlsServerNeedClientAuth", "tlsServerTrustCertPath"),
    ({"brokerId": "1"}, "brokerId", "brokerRole"),
    ({"mappedFileSizeConsumeQueue": "30"}, "mappedFileSizeConsumeQueue", "multiple of 20"),
]


@pytest.mark.parametrize(("pairs", "one", "other"), CONTRADICTIONS, ids=[str(pairs) for pairs, _, _ in CONTRADICTIONS])
def test_a_contradiction_names_both_keys(pairs: dict[str, str], one: str, other: str) -> None:
    """Settings that cannot both be are refused with both names."""
    with pytest.raises(SettingsError) as caught:
        broker_settings(pairs)

    assert one in str(caught.value)
    assert other in str(caught.value)


BAD_FILES = {
    "no pair": ("brokerName\n", "line 1"),
    "no key": ("a=b\n\n=c", "line 3"),
    "twice": ("listenPort=1\nlistenPort=2", "line 2: listenPort is set twice"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_line_that_is_no_pair_is_named(text: str, message: str) -> None:
    """A broker.conf that cannot be read says in which line."""
    with pytest.raises(SettingsError, match=message):
        parse_properties_file(text)


def test_error_does_not_show_the_line() -> None:
    """A line that is no property may be a secret: the error, which the audit log shows, names only its number."""
    with pytest.raises(SettingsError) as refused:
        parse_properties_file("a=b\nsecretKey hunter2\n")
    assert "line 2" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_value_may_hold_an_equals_sign() -> None:
    """Only the first equals sign separates."""
    assert parse_properties_file("storePathRootDir = /a=b/c ") == {"storePathRootDir": "/a=b/c"}
    assert parse_properties_file("brokerName: broker-a") == {"brokerName": "broker-a"}, "as Java reads it"


def test_tls_settings_reach_the_listener() -> None:
    """With a certificate a port speaks TLS in the mode that was set; permissive is the default, off is off."""
    pair = {"tlsServerCertPath": "cert.pem", "tlsServerKeyPath": "key.pem"}

    for mode, wanted in (("permissive", TlsMode.PERMISSIVE), ("ENFORCING", TlsMode.ENFORCING)):
        tls = broker_settings(pair | {"tlsMode": mode}).listener(1).tls
        assert tls is not None and (tls.mode, tls.certificate_file) == (wanted, "cert.pem")
    assert broker_settings(pair | {"tlsMode": "disabled"}).listener(1).tls is None
    default = broker_settings(pair).listener(1).tls
    assert default is not None and default.mode is TlsMode.PERMISSIVE


def test_every_key_is_explained() -> None:
    """`--settings` lists each key once with its default and a reason in words; so does the page of settings."""
    described = describe_settings()
    page = (ROOT / "docs/settings.md").read_text()

    assert [key for key, _, _ in described] == list(effective_settings(BrokerSettings()))
    assert [key for key, _, text in described if len(text.split()) < 3] == []
    assert [key for key, _, _ in described if key not in page] == []
    assert {key: default for key, default, _ in described}["listenPort"] == "10911"


def test_a_log_line_is_one_line() -> None:
    """An event and its facts are one line, whatever the facts hold; the event comes first."""
    formatter = FactFormatter("%(levelname)s %(name)s %(message)s")
    record = logging.makeLogRecord(
        {"levelname": "INFO", "name": "gantry", "msg": "peer came", "peer": "a\nb", "count": 3, "text": 'say "x"'}
    )

    assert formatter.format(record) == "INFO gantry peer came peer='a\\nb' count=3 text='say \"x\"'"
