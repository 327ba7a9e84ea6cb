"""What `gantry migrate` finds before it changes anything, and what it asks RocketMQ's brokers for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gantry_broker.setting_keys import broker_settings
from gantry_cli.main import cli
from gantry_cli.migrate.checks import Kind, Seen, findings
from gantry_cli.migrate.plan import bring, follow_up, free_number, master_of, only_name
from gantry_cli.migrate.record import COPIED, Home, Phase, Record, master_conf, slave_conf
from gantry_cli.migrate.run import Progress
from gantry_cli.migrate.source import (
    GET_TIMER_METRICS,
    STOPPED,
    ApacheBroker,
    CannotMigrate,
    Listing,
    Names,
    RemotingPeer,
    SourceLog,
    read_log,
)
from gantry_cli.migrate.target import log_files
from gantry_cli.migrate.text import progress_text
from gantry_testing.java_broker import SETTINGS, JavaBroker
from gantry_wire import fastjson

OLD = "192.0.2.7:10911"
CONFIG = SETTINGS
SEEN = Seen(
    version="V5_3_3",
    config=CONFIG,
    log=SourceLog(1 << 30, 4 << 30),
    stream="192.0.2.8:10912",
    listings=[Listing("ns:9876", 479, "c", {0: OLD, 1: "ours"})],
    old_address=OLD,
    free_bytes=100 << 30,
)


OWN_ACCESS = {"aclEnable": "true", "aclFile": "plain_acl.yml", "aclCredentialsPath": "broker.yml"}


def bad(kind: Kind = Kind.BLOCKED, config: dict[str, str] | None = None, **seen: Any) -> list[str]:
    """What is found of that kind."""
    changed = dataclasses.replace(SEEN, config=CONFIG | (config or {}), **seen)
    return [one.what for one in findings(changed) if one.kind is kind]


def test_a_broker_as_it_should_be_is_fine() -> None:
    """Nothing is in the way, and nothing stays behind."""
    assert {one.kind for one in findings(SEEN)} == {Kind.FINE}


def test_a_broker_with_accounts_is_fine_for_whoever_has_one() -> None:
    """The command signs, ours signs and asks, too; that ours shall ask nobody has to be said, and is warned of."""
    ready: dict[str, Any] = {"is_signing": True, "own_conf": OWN_ACCESS}
    open_to_all: dict[str, Any] = {"is_signing": True, "own_conf": OWN_ACCESS | {"aclEnable": "false"}}

    for key in ("aclEnable", "authenticationEnabled"):
        assert bad(config={key: "true"}, **ready) == bad(Kind.WARNING, {key: "true"}, **ready) == []
        assert bad(config={key: "true"}, **open_to_all) == []
        assert "ours will serve everybody" in bad(Kind.WARNING, {key: "true"}, **open_to_all)[0]


@pytest.mark.parametrize(("config", "seen", "says"), [
    ({}, {"version": "V4_3_0"}, "known are RocketMQ 4.9 and 5"),
    ({}, {"version": ""}, "says that it is nothing"),
    ({}, {"listings": [Listing("old-ns:9876", 399, "c", {0: OLD})]}, "old-ns:9876 is older than RocketMQ 5"),
    ({}, {"listings": [Listing("ns:9876", 479, "c", {0: "192.0.2.99:1"})]}, "knows 192.0.2.99:1 as the master"),
    ({}, {"listings": [Listing("ns:9876", 479, "", {})]}, "knows nobody as the master"),
    ({"brokerRole": "SLAVE"}, {}, "no master: brokerRole=SLAVE"),
    ({"enableControllerMode": "true"}, {}, "enableControllerMode=true"),
    ({"enableDLegerCommitLog": "true"}, {}, "enableDLegerCommitLog=true"),
    ({"duplicationEnable": "true"}, {}, "it cannot be stopped"),
    ({"aclEnable": "true"}, {"own_conf": OWN_ACCESS}, "`gantry migrate` has no account"),
    ({"authenticationEnabled": "true"}, {"own_conf": OWN_ACCESS}, "`gantry migrate` has no account"),
    ({"aclEnable": "true"}, {"is_signing": True, "own_conf": {"aclEnable": "true"}}, "no account to follow it with"),
    ({"aclEnable": "true"}, {"is_signing": True, "own_conf": {"aclCredentialsPath": "x"}}, "would serve everybody"),
    ({"mappedFileSizeCommitLog": ""}, {}, "does not say its mappedFileSizeCommitLog"),
    ({}, {"own_file_bytes": 1 << 20}, "has files of 1048576 bytes, the old broker's have 1073741824"),
    ({}, {"log": SourceLog(5, 100)}, "its log begins at 5"),
    ({}, {"free_bytes": 3 << 30}, "too little room"),
    ({}, {"stream_failure": "connection refused"}, "192.0.2.8:10912 cannot be reached: connection refused"),
    ({}, {"ports_taken": [10909]}, "port 10909 is taken"),
])  # fmt: skip
def test_what_would_fail_is_found_before(config: dict[str, str], seen: dict[str, Any], says: str) -> None:
    """Each by its name, with what it was seen by."""
    found = bad(config=config, **seen)

    assert any(says in what for what in found), found


@pytest.mark.parametrize(("config", "seen", "says"), [
    ({}, {"timers": 3}, "3 messages wait in its timer wheel"),
    ({}, {"halves": 9, "halves_open": 2}, "up to 2 transactional messages are neither"),
    ({}, {"popping": ["g1", "g2"]}, "by pop are not served here: g1, g2"),
    ({}, {"listings": [Listing("ns", 479, "c", {0: OLD, 2: "192.0.2.9:1"})]}, "slaves of the old broker: 192.0.2.9:1"),
    ({"messageStorePlugIn": "tiered"}, {}, "messageStorePlugIn=tiered"),
])  # fmt: skip
def test_what_does_not_come_along_is_said(config: dict[str, str], seen: dict[str, Any], says: str) -> None:
    """It does not stop a migration: whoever goes on has been asked."""
    assert any(says in what for what in bad(Kind.WARNING, config, **seen))
    assert bad(Kind.BLOCKED, config, **seen) == []


def test_what_was_copied_already_needs_no_room() -> None:
    """A second run is not stopped by what the first has written."""
    assert bad(free_bytes=3 << 30, copied_bytes=2 << 30) == []


# -- files -------------------------------------------------------------------------------------------------------------


def test_our_broker_is_told_what_the_old_one_is(tmp_path: Path) -> None:
    """Its settings are good for a slave, and afterwards for a master; what was typed wins."""
    home = Home(tmp_path)
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


def test_a_record_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    """Or is refused: half of one must not be taken for none."""
    home = Home(tmp_path)
    assert home.record() is None
    record = Record(old_address=OLD, broker_name="b", phase=Phase.STOPPING, original={"brokerRole": "ASYNC_MASTER"})
    home.keep(record)
    assert home.record() == record

    home.record_file.write_bytes(home.record_file.read_bytes()[:40])
    with pytest.raises(CannotMigrate, match="cannot be read"):
        home.record()


def test_progress_has_bytes_rate_and_time_left() -> None:
    """And survives an empty log, and a copy that stands still."""
    gib = 1 << 30
    mid = "copied 1.0 GiB of 3.0 GiB (33%), 256.0 MiB/s"
    assert progress_text(Progress(gib, 3 * gib, 1 << 28, 1 << 27)) == f"{mid}, 16s left"
    assert progress_text(Progress(gib, 3 * gib, 1 << 28, -1.0)) == f"{mid}, and the old log grows as fast"
    assert progress_text(Progress(0, 0, 0.0, 0.0)) == "copied 0 B of 0 B (100%), 0 B/s"


# -- the wire ----------------------------------------------------------------------------------------------------------


async def test_settings_that_are_not_taken_are_noticed() -> None:
    """RocketMQ ignores in silence what it does not know; then nothing has stopped."""
    async with JavaBroker() as broker:
        old = ApacheBroker(broker.address)
        await old.set(STOPPED)
        assert {key: broker.settings[key] for key in STOPPED} == STOPPED
        broker.is_deaf = True
        with pytest.raises(CannotMigrate, match="has not taken its settings"):
            await old.set({"brokerRole": "ASYNC_MASTER"})
        await old.close()


async def test_what_an_old_broker_has_not_counts_for_nothing() -> None:
    """RocketMQ 4 knows neither timers nor pop; half messages are those beyond what was settled."""
    async with JavaBroker() as broker:
        broker.offsets["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] = {0: 10}
        old = ApacheBroker(broker.address)
        assert (await old.timers(), await old.popping(), await old.transactions()) == (0, [], (12, 2))
        await old.close()


async def test_what_stays_behind_is_counted_in_javas_own_words() -> None:
    """Its tables of timers and of consumption by pop, with keys as it writes them."""
    modes = b'{"messageRequestModeMap":{"t":{"g1":{"mode":"POP","popShareQueueNum":0},"g2":{"mode":"PULL"}}}}'
    async with JavaBroker(GET_ALL_MESSAGE_REQUEST_MODE=modes) as broker:
        timing = b'{"dataVersion":{"counter":1},"timingCount":{"a":{"count":3,"timeStamp":1},"b":{"count":4}}}'
        broker.bodies[GET_TIMER_METRICS] = timing
        old = ApacheBroker(broker.address)
        assert (await old.timers(), await old.popping()) == (7, ["g1"])
        await old.close()


async def test_late_commits_are_brought_and_none_is_set_back() -> None:
    """What is further at ours stays; what only the old broker knows comes along."""
    async with JavaBroker() as old, JavaBroker() as ours:
        old.offsets = {"t@g": {0: 9, 1: 3}, "t@late": {0: 1}}
        peer = RemotingPeer(ours.address)
        theirs = await ApacheBroker(old.address).offsets()
        assert await bring(theirs, peer) == 2
        assert ours.offsets == {"t@g": {0: 9, 1: 7}, "t@late": {0: 1}}
        assert await follow_up(ApacheBroker(old.address), ours.address, 0.1) == 0
        await peer.close()


@pytest.mark.parametrize(("table", "is_still"), [
    ({"remainHowManyDataToCommit": "0 B", "pageCacheLockTimeMills": "0"}, True),
    ({}, True),
    ({"remainHowManyDataToCommit": "16.0 KiB"}, False),
    ({"pageCacheLockTimeMills": "3"}, False),
])  # fmt: skip
def test_a_log_stands_still_only_without_anything_under_way(table: dict[str, str], is_still: bool) -> None:
    """A write buffer's bytes are beyond the end that RocketMQ says."""
    ends = {"commitLogMinOffset": "-1", "commitLogMaxOffset": "77"}
    assert read_log(ends | table, "b") == SourceLog(0, 77, is_still)


def test_a_log_of_unknown_length_is_none() -> None:
    """Nothing can be compared with it."""
    with pytest.raises(CannotMigrate, match="does not say where its log"):
        read_log({"commitLogMinOffset": "0"}, "b")


async def test_every_name_server_is_asked_for_itself() -> None:
    """They do not speak to each other; one that does not answer stops the migration."""
    info = {"brokerAddrTable": {"a": {"cluster": "c", "brokerName": "a", "brokerAddrs": {0: OLD, 2: "x:1"}}}}
    body = fastjson.dumps(info)
    async with (
        JavaBroker(GET_BROKER_CLUSTER_INFO=body) as one,
        JavaBroker(GET_BROKER_CLUSTER_INFO=b'{"brokerAddrTable":{}}') as two,
    ):
        names = Names(f"{one.address};{two.address}")
        listings = await names.listings("a")
        assert [dict(listing.brokers) for listing in listings] == [{0: OLD, 2: "x:1"}, {}]
        assert (await only_name(names), master_of(listings, "a"), free_number(listings)) == ("a", OLD, 1)
        await names.close()
        gone = two.address
    with pytest.raises(CannotMigrate, match="cannot connect"):
        await Names(gone).names()


def test_the_command_says_what_is_wrong_in_a_line(tmp_path: Path) -> None:
    """Nobody at the name server, nothing to take back, nonsense for a setting."""
    run = CliRunner().invoke
    nobody = run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--dry-run"])
    assert (nobody.exit_code, "127.0.0.1:1: cannot connect" in nobody.stderr) == (1, True)
    nothing = run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--abort"])
    assert (nothing.exit_code, "no migration was begun" in nothing.stderr) == (1, True)
    assert run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "-o", "nonsense"]).exit_code == 2
    both = run(cli, ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--abort", "--dry-run"])
    assert (both.exit_code, "--dry-run has no effect with --abort" in both.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_log_file_that_vanishes_while_sizes_are_summed_is_left_out(tmp_path: Path) -> None:
    """Retention of a slave that runs may delete a file between the listing and its size: the others count."""
    home = Home(tmp_path)
    log = home.store / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").symlink_to(log / "deleted")
    (log / f"{100:020d}").write_bytes(bytes(100))

    assert log_files(home) == (100, 100)
