"""The checks of `gantry migrate` before it changes anything, and its requests to RocketMQ brokers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gantry_broker.setting_keys import broker_settings
from gantry_cli.main import cli
from gantry_cli.migrate.checks import MigrationFacts, Severity, check_migration
from gantry_cli.migrate.migrator import (
    copy_late_commits,
    copy_offsets,
    only_broker_name,
    registered_master,
    unused_broker_id,
)
from gantry_cli.migrate.procedure import Progress
from gantry_cli.migrate.record import COPIED, MigrationDirectory, MigrationRecord, Phase, master_conf, slave_conf
from gantry_cli.migrate.source import (
    STOP_WRITES_SETTINGS,
    ApacheBroker,
    BrokerRegistration,
    MigrationError,
    RemotingNameServers,
    RemotingPeer,
    SourceLog,
    parse_source_log,
)
from gantry_cli.migrate.target import log_files
from gantry_cli.migrate.text import progress_text
from gantry_testing.java_broker import SETTINGS, JavaBroker
from gantry_wire import RequestCode, fastjson

OLD = "192.0.2.7:10911"
CONFIG = SETTINGS
FACTS = MigrationFacts(
    version="V5_3_3",
    config=CONFIG,
    log=SourceLog(1 << 30, 4 << 30),
    replication_address="192.0.2.8:10912",
    registrations=[BrokerRegistration("ns:9876", 479, "c", {0: OLD, 1: "ours"})],
    old_address=OLD,
    free_bytes=100 << 30,
)


OWN_ACCESS = {"aclEnable": "true", "aclFile": "plain_acl.yml", "aclCredentialsPath": "broker.yml"}


def findings_of(severity: Severity = Severity.BLOCKED, config: dict[str, str] | None = None, **facts: Any) -> list[str]:
    """Return the texts of the findings with this severity."""
    changed = dataclasses.replace(FACTS, config=CONFIG | (config or {}), **facts)
    return [one.what for one in check_migration(changed) if one.kind is severity]


def test_suitable_broker_has_no_warnings() -> None:
    """A suitable broker has neither blocking findings nor warnings."""
    assert {one.kind for one in check_migration(FACTS)} == {Severity.FINE}


def test_access_control_requires_accounts() -> None:
    """With access control, the command and the new broker need accounts; a new broker without it is a warning."""
    ready: dict[str, Any] = {"has_credentials": True, "target_conf": OWN_ACCESS}
    open_to_all: dict[str, Any] = {"has_credentials": True, "target_conf": OWN_ACCESS | {"aclEnable": "false"}}

    for key in ("aclEnable", "authenticationEnabled"):
        assert findings_of(config={key: "true"}, **ready) == findings_of(Severity.WARNING, {key: "true"}, **ready) == []
        assert findings_of(config={key: "true"}, **open_to_all) == []
        assert (
            "the new broker will have no access control"
            in findings_of(Severity.WARNING, {key: "true"}, **open_to_all)[0]
        )


@pytest.mark.parametrize(("config", "facts", "text"), [
    ({}, {"version": "V4_3_0"}, "supported are RocketMQ 4.9 and 5"),
    ({}, {"version": ""}, "reports version unknown"),
    ({}, {"registrations": [BrokerRegistration("old-ns:9876", 399, "c", {0: OLD})]}, "is older than RocketMQ 5"),
    ({}, {"registrations": [BrokerRegistration("ns:9876", 479, "c", {0: "192.0.2.99:1"})]},
     "has 192.0.2.99:1 as the master"),
    ({}, {"registrations": [BrokerRegistration("ns:9876", 479, "", {})]}, "has none as the master"),
    ({"brokerRole": "SLAVE"}, {}, "not a master: brokerRole=SLAVE"),
    ({"enableControllerMode": "true"}, {}, "enableControllerMode=true"),
    ({"enableDLegerCommitLog": "true"}, {}, "enableDLegerCommitLog=true"),
    ({"duplicationEnable": "true"}, {}, "its writes cannot be stopped"),
    ({"transRocksDBEnable": "true", "transWriteOriginTransHalfEnable": "false"}, {}, "open transactions are only in"),
    ({"aclEnable": "true"}, {"target_conf": OWN_ACCESS}, "`gantry migrate` has no account"),
    ({"authenticationEnabled": "true"}, {"target_conf": OWN_ACCESS}, "`gantry migrate` has no account"),
    ({"aclEnable": "true"}, {"has_credentials": True, "target_conf": {"aclEnable": "true"}},
     "no account for replication"),
    ({"aclEnable": "true"}, {"has_credentials": True, "target_conf": {"aclCredentialsPath": "x"}}, "no access control"),
    ({"mappedFileSizeCommitLog": ""}, {}, "does not report its mappedFileSizeCommitLog"),
    ({}, {"copied_file_bytes": 1 << 20}, "has files of 1048576 bytes, the old broker's have 1073741824"),
    ({}, {"log": SourceLog(5, 100)}, "the old log begins at 5"),
    ({}, {"free_bytes": 3 << 30}, "not enough disk space"),
    ({}, {"replication_failure": "connection refused"}, "192.0.2.8:10912 cannot be reached: connection refused"),
    ({}, {"ports_taken": [10909]}, "port 10909 is in use"),
])  # fmt: skip
def test_blocking_conditions_are_found(config: dict[str, str], facts: dict[str, Any], text: str) -> None:
    """Each blocking condition is found, and named with its setting or value."""
    found = findings_of(config=config, **facts)

    assert any(text in what for what in found), found


@pytest.mark.parametrize(("config", "facts", "text"), [
    ({}, {"half_messages_open_max": 2}, "up to 2 transactional messages are neither"),
    ({}, {"pop_groups": ["g1", "g2"]}, "affected groups: g1, g2"),
    ({}, {"batch_topics": ["t1", "t2"]}, "one record each (queue.type=BatchCQ): t1, t2"),
    ({}, {"registrations": [BrokerRegistration("ns", 479, "c", {0: OLD, 2: "192.0.2.9:1"})]},
     "slaves of the old broker: 192.0.2.9:1"),
    ({"messageStorePlugIn": "tiered"}, {}, "messageStorePlugIn=tiered"),
    ({"timerRocksDBEnable": "true"}, {}, "timers in RocksDB are not migrated"),
])  # fmt: skip
def test_data_that_is_not_migrated_is_a_warning(config: dict[str, str], facts: dict[str, Any], text: str) -> None:
    """Data that is not migrated is a warning, which does not block the migration."""
    assert any(text in what for what in findings_of(Severity.WARNING, config, **facts))
    assert findings_of(Severity.BLOCKED, config, **facts) == []


def test_timers_are_migrated() -> None:
    """Messages in the timer wheel are in the log, and the new broker continues from the old one's progress."""
    found = findings_of(Severity.FINE, timer_messages=3)

    assert any("3 messages wait in the timer wheel; they are migrated" in what for what in found)


def test_copied_data_needs_no_disk_space() -> None:
    """The space check of a second run does not count data that the first run has copied."""
    assert findings_of(free_bytes=3 << 30, copied_bytes=2 << 30) == []


# -- files -------------------------------------------------------------------------------------------------------------


def test_settings_of_old_broker_are_copied(tmp_path: Path) -> None:
    """The settings are valid for a slave and later for a master; options override them."""
    home = MigrationDirectory(tmp_path)
    own = {"brokerIP1": "192.0.2.20", "listenPort": "10911", "namesrvAddr": "192.0.2.1:9876", "brokerId": "1"}
    conf = slave_conf(CONFIG, OLD, home, own, {"flushDiskType": "SYNC_FLUSH"})

    slave = broker_settings(conf)
    home.write_conf(conf, "a test")
    master = broker_settings(master_conf(home.read_conf()))

    assert set(COPIED) <= set(conf)
    assert (slave.ha.master_address, slave.ha.classic_broker_address) == ("192.0.2.8:10912", OLD)
    assert slave.ha.is_master_classic and slave.broker_id == 1 and slave.store.flush.is_sync
    assert (master.broker_id, master.ha.role.value, master.ha.is_master_classic) == (0, "ASYNC_MASTER", False)
    assert master.store.mapped_file_size_commit_log == 1 << 30
    assert master.ha.master_address == ""


def test_record_is_read_as_written(tmp_path: Path) -> None:
    """A truncated record is an error, not a missing one."""
    home = MigrationDirectory(tmp_path)
    assert home.load_record() is None
    record = MigrationRecord(
        old_address=OLD, broker_name="b", phase=Phase.STOPPING, original={"brokerRole": "ASYNC_MASTER"}
    )
    home.save_record(record)
    assert home.load_record() == record

    home.record_file.write_bytes(home.record_file.read_bytes()[:40])
    with pytest.raises(MigrationError, match="cannot be read"):
        home.load_record()


def test_progress_has_bytes_rate_and_time_left() -> None:
    """Progress is formatted for a normal copy, for one without progress, and for an empty log."""
    gib = 1 << 30
    mid = "copied 1.0 GiB of 3.0 GiB (33%), 256.0 MiB/s"
    assert progress_text(Progress(gib, 3 * gib, 1 << 28, 1 << 27)) == f"{mid}, 16s left"
    assert progress_text(Progress(gib, 3 * gib, 1 << 28, -1.0)) == f"{mid}, the old log grows at least as fast"
    assert progress_text(Progress(0, 0, 0.0, 0.0)) == "copied 0 B of 0 B (100%), 0 B/s"


# -- the wire ----------------------------------------------------------------------------------------------------------


async def test_ignored_settings_are_detected() -> None:
    """RocketMQ silently ignores unknown settings, so writes would not have stopped."""
    async with JavaBroker() as broker:
        old = ApacheBroker(broker.address)
        await old.update_config(STOP_WRITES_SETTINGS)
        assert {key: broker.settings[key] for key in STOP_WRITES_SETTINGS} == STOP_WRITES_SETTINGS
        broker.ignores_updates = True
        with pytest.raises(MigrationError, match="did not apply settings"):
            await old.update_config({"brokerRole": "ASYNC_MASTER"})
        await old.close()


async def test_features_missing_in_rocketmq_4_count_as_zero() -> None:
    """RocketMQ 4 has neither timers nor pop."""
    async with JavaBroker() as broker:
        old = ApacheBroker(broker.address)
        assert (await old.timer_messages(), await old.pop_groups()) == (0, [])
        await old.close()


@pytest.mark.parametrize(
    ("ends", "checked", "count"),
    [
        pytest.param((0, 12), 10, 2, id="some"),
        pytest.param((0, 12), 12, 0, id="all ended"),
        pytest.param((0, 12), None, 12, id="never checked"),
        pytest.param((9, 12), None, 3, id="some expired"),
        pytest.param((12, 12), None, 0, id="all expired"),
        pytest.param((12, 12), 3, 0, id="expired since the check"),
        pytest.param((0, 0), None, 0, id="none ever"),
    ],
)
async def test_only_stored_half_messages_after_the_last_check_may_be_open(
    ends: tuple[int, int], checked: int | None, count: int
) -> None:
    """The broker's check commits an offset before which all are ended; half messages that have expired are not open."""
    async with JavaBroker() as broker:
        broker.queue_ends = ends
        if checked is not None:
            broker.offsets["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] = {0: checked}
        old = ApacheBroker(broker.address)
        assert await old.open_half_messages_max() == count
        await old.close()


async def test_timer_messages_and_pop_groups_of_java_are_parsed() -> None:
    """The tables of timers and of pop consumption are parsed with the keys that Java writes."""
    modes = b'{"messageRequestModeMap":{"t":{"g1":{"mode":"POP","popShareQueueNum":0},"g2":{"mode":"PULL"}}}}'
    async with JavaBroker(GET_ALL_MESSAGE_REQUEST_MODE=modes) as broker:
        timing = b'{"dataVersion":{"counter":1},"timingCount":{"a":{"count":3,"timeStamp":1},"b":{"count":4}}}'
        broker.bodies[RequestCode.GET_TIMER_METRICS] = timing
        old = ApacheBroker(broker.address)
        assert (await old.timer_messages(), await old.pop_groups()) == (7, ["g1"])
        await old.close()


async def test_topics_with_batch_queues_are_found() -> None:
    """Only their attribute matters; a broker of RocketMQ 4 lists no attributes."""
    topics = {"a": {}, "b": {"attributes": {"queue.type": "SimpleCQ"}}, "c": {"attributes": {"queue.type": "BatchCQ"}}}
    async with JavaBroker(GET_ALL_TOPIC_CONFIG=fastjson.dumps({"topicConfigTable": topics})) as broker:
        old = ApacheBroker(broker.address)
        assert await old.batch_topics() == ["c"]
        await old.close()


async def test_late_commits_are_copied_and_never_decreased() -> None:
    """Larger offsets of the new broker are kept; larger ones of the old broker are copied."""
    async with JavaBroker() as old, JavaBroker() as ours:
        old.offsets = {"t@g": {0: 9, 1: 3}, "t@late": {0: 1}}
        peer = RemotingPeer(ours.address)
        theirs = await ApacheBroker(old.address).offsets()
        assert await copy_offsets(theirs, peer) == 2
        assert ours.offsets == {"t@g": {0: 9, 1: 7}, "t@late": {0: 1}}
        assert await copy_late_commits(ApacheBroker(old.address), ours.address, 0.1) == 0
        await peer.close()


@pytest.mark.parametrize(("table", "is_stable"), [
    ({"remainHowManyDataToCommit": "0 B", "pageCacheLockTimeMills": "0"}, True),
    ({}, True),
    ({"remainHowManyDataToCommit": "16.0 KiB"}, False),
    ({"pageCacheLockTimeMills": "3"}, False),
])  # fmt: skip
def test_log_is_stable_only_without_pending_data(table: dict[str, str], is_stable: bool) -> None:
    """Bytes in a write buffer are beyond the end that RocketMQ reports."""
    ends = {"commitLogMinOffset": "-1", "commitLogMaxOffset": "77"}
    assert parse_source_log(ends | table, "b") == SourceLog(0, 77, is_stable)


def test_log_without_end_is_refused() -> None:
    """Without the end of the log, nothing can be compared."""
    with pytest.raises(MigrationError, match="does not report where its log"):
        parse_source_log({"commitLogMinOffset": "0"}, "b")


async def test_every_name_server_is_queried() -> None:
    """Name servers do not synchronize; one that does not answer stops the migration."""
    info = {"brokerAddrTable": {"a": {"cluster": "c", "brokerName": "a", "brokerAddrs": {0: OLD, 2: "x:1"}}}}
    body = fastjson.dumps(info)
    async with (
        JavaBroker(GET_BROKER_CLUSTER_INFO=body) as one,
        JavaBroker(GET_BROKER_CLUSTER_INFO=b'{"brokerAddrTable":{}}') as two,
    ):
        names = RemotingNameServers(f"{one.address};{two.address}")
        registrations = await names.registrations("a")
        assert [dict(listing.brokers) for listing in registrations] == [{0: OLD, 2: "x:1"}, {}]
        assert (
            await only_broker_name(names),
            registered_master(registrations, "a"),
            unused_broker_id(registrations),
        ) == ("a", OLD, 1)
        await names.close()
        gone = two.address
    with pytest.raises(MigrationError, match="cannot connect"):
        await RemotingNameServers(gone).broker_names()


def test_command_errors_are_reported(tmp_path: Path) -> None:
    """An unreachable name server, a missing migration, an invalid setting and an option without effect are reported."""
    run = CliRunner().invoke
    unreachable = run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--dry-run"])
    assert (unreachable.exit_code, "127.0.0.1:1: cannot connect" in unreachable.stderr) == (1, True)
    nothing = run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--abort"])
    assert (nothing.exit_code, "no migration found" in nothing.stderr) == (1, True)
    assert run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "-o", "nonsense"]).exit_code == 2
    both = run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--abort", "--dry-run"])
    assert (both.exit_code, "--dry-run has no effect with --abort" in both.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_deleted_log_file_is_omitted_from_size(tmp_path: Path) -> None:
    """A running slave may delete an expired file between the listing and the read of its size."""
    home = MigrationDirectory(tmp_path)
    log = home.store / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").symlink_to(log / "deleted")
    (log / f"{100:020d}").write_bytes(bytes(100))

    assert log_files(home) == (100, 100)
