"""Settings: RocketMQ's names work, and unsupported or invalid ones are refused by name before anything changes."""

import logging
import re

import pytest

from gantry_broker.setting_keys import broker_settings, describe_settings, effective_settings, parse_properties_file
from gantry_broker.settings import BrokerSettings
from gantry_remoting import TlsMode
from gantry_remoting.logs import KeyValueFormatter
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.tree import ROOT

EXAMPLE = """
# Licensed to the ASF
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
    """The broker.conf that is shipped with RocketMQ starts this broker."""
    settings = broker_settings(parse_properties_file(EXAMPLE))

    assert (settings.cluster_name, settings.broker_name, settings.broker_id) == ("DefaultCluster", "broker-a", 0)


def test_defaults_are_rocketmqs() -> None:
    """Without settings the broker has the ports, sizes and times that RocketMQ users know."""
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


def test_settings_reach_their_parts() -> None:
    """A key of broker.conf arrives in the part to which it belongs."""
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
    """The settings that a broker reports configure an identical broker."""
    first = broker_settings(
        {"brokerName": "a", "messageDelayLevel": "1s 2m", "tlsMode": "disabled", "maxMessageSize": "9"}
    )
    given = {key: value for key, value in effective_settings(first).items() if value != ""}

    assert effective_settings(broker_settings(given)) == effective_settings(first)


UNSUPPORTED = [
    ("longPollingEnable", "false", "always held"),
    ("brokerFastFailureEnable", "false", "always on"),
]


@pytest.mark.parametrize(
    ("key", "value", "stake"), UNSUPPORTED, ids=[f"{key}={value}" for key, value, _ in UNSUPPORTED]
)
def test_unsupported_switch_stops_the_start(key: str, value: str, stake: str) -> None:
    """The error has the name of the switch, the reason, and the remedy."""
    with pytest.raises(SettingsError, match=rf"{key}={value}.*{stake}.*remove it"):
        broker_settings({key: value})


ROLES = [
    ({"brokerRole": "SLAVE"}, "brokerRole=SLAVE and brokerId=0"),
    ({"brokerRole": "SYNC_MASTER", "brokerId": "1"}, "brokerRole=SYNC_MASTER and brokerId=1"),
    ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}, "inSyncReplicas=1 contradict"),
    ({"inSyncReplicas": "2"}, "brokerRole=ASYNC_MASTER and inSyncReplicas=2"),
    ({"roleAtStart": "UNASSIGNED"}, "roleAtStart=UNASSIGNED and brokerId=0"),
    ({"roleAtStart": "UNASSIGNED", "brokerRole": "SLAVE", "brokerId": "1"}, "kind of master"),
    ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3", "haElectable": "1"}, "haElectable names 1 slaves"),
    ({"brokerRole": "SYNC_MASTER", "haListenPort": "-1"}, "no slave could follow"),
    ({"haTlsKeyPath": "key.pem"}, "haTlsCertPath and haTlsKeyPath"),
    ({"haElectable": "0;1"}, "brokerIds of slaves"),
    ({"brokerRole": "MASTER"}, "ASYNC_MASTER, SYNC_MASTER, SLAVE"),
]


@pytest.mark.parametrize(("pairs", "text"), ROLES, ids=[text for _, text in ROLES])
def test_contradictory_role_settings_stop_the_start(pairs: dict[str, str], text: str) -> None:
    """The keys are named: where two contradict each other only the author knows which was meant."""
    with pytest.raises(SettingsError, match=text):
        broker_settings(pairs)


def test_supported_position_of_a_switch_is_accepted() -> None:
    """A file that sets the value in effect starts, in upper or lower case."""
    broker_settings({"flushDiskType": "async_flush", "brokerRole": "async_master", "longPollingEnable": "TRUE"})


def test_unknown_key_is_refused() -> None:
    """An unknown key, perhaps misspelt, is refused by name."""
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
def test_invalid_value_is_refused(key: str, value: str, text: str) -> None:
    """The error has the key, the value, and the allowed values."""
    with pytest.raises(SettingsError, match=rf"{re.escape(f'{key}={value}')}: .*{re.escape(text)}"):
        broker_settings({key: value})


CONTRADICTIONS = [
    (
        {"archiveSocketPath": "/a", "archiveAddress": "b:1", "archiveSecretPath": "/c"},
        "archiveSocket",
        "archiveAddress",
    ),
    ({"archiveAddress": "b:1"}, "archiveAddress", "archiveSecretPath"),
    ({"archiveAddress": "b:1", "archiveTlsTrustCertPath": "/c"}, "archiveAddress", "archiveSecretPath"),
    ({"archiveSecretPath": "/a"}, "archiveSecretPath", "archiveAddress"),
    ({"archiveSocketPath": "/a", "archiveTlsTrustCertPath": "/b"}, "archiveTlsTrustCertPath", "archiveAddress"),
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
def test_contradictory_settings_are_refused_with_both_keys(pairs: dict[str, str], one: str, other: str) -> None:
    """Settings that exclude each other are refused with both names."""
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
def test_invalid_line_is_refused_with_its_number(text: str, message: str) -> None:
    """The error of an unreadable broker.conf has the line number."""
    with pytest.raises(SettingsError, match=message):
        parse_properties_file(text)


def test_error_does_not_show_the_line() -> None:
    """An invalid line may be a secret: the error, which the audit log shows, has only its number."""
    with pytest.raises(SettingsError) as refused:
        parse_properties_file("a=b\nsecretKey hunter2\n")
    assert "line 2" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_value_may_contain_an_equals_sign() -> None:
    """The first equals sign or colon separates key and value."""
    assert parse_properties_file("storePathRootDir = /a=b/c ") == {"storePathRootDir": "/a=b/c"}
    assert parse_properties_file("brokerName: broker-a") == {"brokerName": "broker-a"}, "a colon did not separate"


def test_tls_settings_reach_the_listener() -> None:
    """With a certificate a port speaks TLS in the configured mode; permissive is the default, disabled means none."""
    pair = {"tlsServerCertPath": "cert.pem", "tlsServerKeyPath": "key.pem"}

    for mode, wanted in (("permissive", TlsMode.PERMISSIVE), ("ENFORCING", TlsMode.ENFORCING)):
        tls = broker_settings(pair | {"tlsMode": mode}).listener(1).tls
        assert tls is not None and (tls.mode, tls.certificate_file) == (wanted, "cert.pem")
    assert broker_settings(pair | {"tlsMode": "disabled"}).listener(1).tls is None
    default = broker_settings(pair).listener(1).tls
    assert default is not None and default.mode is TlsMode.PERMISSIVE


def test_every_key_is_explained() -> None:
    """`--settings` lists each key once with its default and an explanation; so does the page of settings."""
    described = describe_settings()
    page = (ROOT / "docs/settings.md").read_text()

    assert [key for key, _, _ in described] == list(effective_settings(BrokerSettings()))
    assert [key for key, _, text in described if len(text.split()) < 3] == []
    assert [key for key, _, _ in described if key not in page] == []
    assert {key: default for key, default, _ in described}["listenPort"] == "10911"


def test_log_record_is_one_line() -> None:
    """An event and its fields are one line, with any content; the event comes first."""
    formatter = KeyValueFormatter("%(levelname)s %(name)s %(message)s")
    record = logging.makeLogRecord(
        {"levelname": "INFO", "name": "gantry", "msg": "peer came", "peer": "a\nb", "count": 3, "text": 'say "x"'}
    )

    assert formatter.format(record) == "INFO gantry peer came peer='a\\nb' count=3 text='say \"x\"'"
