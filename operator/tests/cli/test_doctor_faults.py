"""`gantry doctor`: each fault is planted in a cluster of real processes, and exactly this fault is found."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import trustme
from doctor_scene import Scene, check, examine, faults, guarded, tls_words, write_account
from local_group_kit import FREE_PORTS, Group

from gantry_testing.accounts import write_accounts
from gantry_testing.certificates import Party
from gantry_testing.ports import free_port
from gantry_testing.shifted_broker import ShiftFile

SLAVE: Final = {"brokerRole": "SLAVE", "brokerId": "1"}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as one:
        yield one


# -- healthy clusters --------------------------------------------------------------------------------------------------


def test_plain_cluster_has_no_fault(scene: Scene) -> None:
    """A name server and a broker without slaves, TLS and accounts have no fault and no warning."""
    scene.start_name_server()
    scene.start_broker("master")

    found = scene.wait_for_brokers(1)

    assert (faults(found), found.warnings) == ({}, 0)
    skipped = {one.id for one in found.checks if one.outcome == "skipped"}
    assert skipped == {"tls"}, found


def test_guarded_cluster_with_slave_and_tls_has_no_fault(scene: Scene) -> None:
    """Accounts, certificates and a slave that follows: no fault, no warning, and nothing skipped."""
    accounts, own = write_accounts(scene.folder / "plain_acl.yml"), scene.folder / "own.yml"
    own.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    party = Party(scene.folder / "party", trustme.CA())
    conf = scene.folder / "namesrv.conf"
    conf.write_text(f"aclEnable=true\naclFile={accounts}\n")
    scene.start_name_server("-c", str(conf), *tls_words(party))
    access = {"aclEnable": "true", "aclFile": str(accounts), "aclCredentialsPath": str(own), **tls_conf(party)}
    scene.start_broker("master", brokerRole="SYNC_MASTER", **access)
    scene.start_broker("slave", **SLAVE, **access)
    options, before = ("--tls-ca", str(party.authority)), ("--credentials", str(own))
    scene.wait_for_brokers(2, *options, before=before)
    deadline = time.monotonic() + 60
    while faults(found := scene.examine(*options, before=before)) and time.monotonic() < deadline:
        time.sleep(0.1)  # the slave connects after it has registered

    assert (faults(found), found.warnings) == ({}, 0)
    assert {one.outcome for one in found.checks} == {"ok"}, found


def require_pid(pid: int | None) -> int:
    """Return the id of a process that must run: 0 would be this process group."""
    assert pid is not None and pid > 1
    return pid


@pytest.mark.verify
def test_local_group_is_examined_with_its_own_account(tmp_path: Path) -> None:
    """Without -n and --credentials: the name server, account and certificates of `gantry up`, and its sidecars."""
    secrets = tmp_path / "group" / "secrets"
    party = Party(tmp_path / "party", trustme.CA())
    for name in ("accounts", "certificates"):
        (secrets / name).mkdir(parents=True)
    write_accounts(secrets / "accounts" / "plain_acl.yml")
    (secrets / "accounts" / "credentials").write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    for file, source in (("tls.crt", party.chain), ("tls.key", party.key), ("ca.crt", party.authority)):
        shutil.copy(source, secrets / "certificates" / file)
    access = "{aclSecret: accounts, tlsSecret: certificates}"
    group = Group(tmp_path / "group", shards="1", slaves="1", access=access)
    group.up(*FREE_PORTS)
    try:
        group.wait_until(group.is_healthy)
        found = examine("doctor", "--data", str(group.folder), "--json")
        assert (faults(found), found.warnings) == ({}, 0)
        assert {one.id for one in found.checks if one.outcome != "ok"} == set(), found
        server, slave = (
            require_pid(group.record.name_servers[0].pid),
            require_pid(next(one.pid for one in group.record.members if one.name == "slave-0-1")),
        )
        os.kill(server, signal.SIGSTOP)
        found = examine("doctor", "--data", str(group.folder), "--json", "--timeout", "0.5")
        os.kill(server, signal.SIGCONT)
        assert set(faults(found)) == {"name-server"}  # the brokers are known from the files
        assert check(found, "broker-address").outcome == check(found, "version").outcome == "ok"
        os.kill(slave, signal.SIGSTOP)
        found = examine("doctor", "--data", str(group.folder), "--json", "--timeout", "0.5")
        assert set(faults(found)) == {"slave-following"}
    finally:
        group.down()


# -- the ten faults ----------------------------------------------------------------------------------------------------


def test_name_server_unreachable_is_found(scene: Scene) -> None:
    """A closed port is the only fault; checks that need it are skipped, and never ok."""
    scene.name_server = f"127.0.0.1:{free_port()}"

    found = scene.examine()

    assert set(faults(found)) == {"name-server"}
    assert {one.outcome for one in found.checks if one.id != "name-server"} == {"skipped"}


def test_suspended_name_server_does_not_hang_the_command(scene: Scene) -> None:
    """It accepts connections and answers nothing; the command ends after its timeout."""
    server = scene.start_name_server()
    server.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()

    found = scene.examine("--timeout", "0.5")

    assert time.monotonic() - started < 10
    assert set(faults(found)) == {"name-server"} and "does not answer" in faults(found)["name-server"][0]


def test_wrong_advertised_address_is_found(scene: Scene) -> None:
    """A broker that registers an address on which it does not listen."""
    scene.start_name_server()
    scene.start_broker("master", brokerIP1="127.0.0.99")

    found = scene.wait_for_brokers(1)

    assert set(faults(found)) == {"broker-address"}
    assert "brokerIP1" in faults(found)["broker-address"][0]


@pytest.fixture
def other_machine(tmp_path: Path) -> Iterator[Scene]:
    """Servers in a network namespace of their own, which this one reaches at 10.213.7.2 only."""
    name = f"gantry{os.getpid()}"
    commands = [
        f"netns add {name}",
        f"link add {name} type veth peer name eth0 netns {name}",
        f"addr add 10.213.7.1/24 dev {name}",
        f"link set {name} up",
        f"-n {name} addr add 10.213.7.2/24 dev eth0",
        f"-n {name} link set eth0 up",
        f"-n {name} link set lo up",
    ]
    try:
        for words in commands:
            done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"root may make network namespaces: {done.stderr.strip()}"
        with Scene(tmp_path, host="10.213.7.2", prefix=("ip", "netns", "exec", name)) as one:
            yield one
    finally:
        for words in (f"netns del {name}", f"link del {name}"):
            with contextlib.suppress(FileNotFoundError):
                subprocess.run(["ip", *words.split()], capture_output=True, check=False)


@pytest.mark.needs_root
def test_loopback_address_on_another_machine_is_found(other_machine: Scene) -> None:
    """A broker on another machine that registers 127.0.0.1, where each client would find itself."""
    other_machine.start_name_server()
    other_machine.start_broker("master", bindAddress="0.0.0.0")

    found = other_machine.wait_for_brokers(1)

    assert set(faults(found)) == {"broker-address"}
    (finding,) = check(found, "broker-address").findings
    assert "registered as 127.0.0.1:" in finding.found and "its own machine" in finding.meaning


def test_loopback_addresses_of_this_machine_are_right(scene: Scene) -> None:
    """A name server at another loopback address, as a host name of Debian has it, is on this machine, too."""
    scene.start_name_server("--listen", "127.0.1.1:0")
    port = scene.name_server.rpartition(":")[2]
    scene.name_server = f"127.0.1.1:{port}"
    scene.start_broker("master")

    assert not faults(scene.wait_for_brokers(1))


@pytest.mark.parametrize("shift_ms", [-90_000, 90_000], ids=["behind", "ahead"])
def test_clock_skew_is_found(scene: Scene, shift_ms: int) -> None:
    """A broker whose wall clock is wrong, beside one whose clock is right."""
    scene.start_name_server()
    file = scene.folder / "shift"
    ShiftFile(file).set(shift_ms)
    scene.start_broker("right", brokerName="right")
    program = ("-m", "gantry_testing.shifted_broker", "--shift-file", str(file), "--")
    scene.start_broker("wrong", program=program, brokerName="wrong")

    found = scene.wait_for_brokers(2)

    assert set(faults(found)) == {"clock-skew"}
    (text,) = faults(found)["clock-skew"]
    assert text.startswith("wrong master") and ("behind" if shift_ms < 0 else "ahead") in text
    assert re.search(r"by (89|90)\.\d s to (89|90|91)\.\d s", text), text


def fill_disk(folder: Path, percent: int) -> None:
    """Mount a small tmpfs, and fill it; the test needs root."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200M", "none", str(folder)], capture_output=True, text=True, check=False
    )
    assert mounted.returncode == 0, f"root may mount a tmpfs: {mounted.stderr.strip()}"
    usage = shutil.disk_usage(folder)
    with (folder / "other-data").open("wb") as file:
        for _ in range(usage.total * percent // 100 >> 20):
            file.write(bytes(1 << 20))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own that other data has filled, all but some space for a small store."""
    folder = tmp_path / "disk"
    folder.mkdir()
    fill_disk(folder, 88)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.mark.needs_root
def test_disk_nearly_full_is_found(scene: Scene, small_disk: Path) -> None:
    """A broker whose store is on a disk that is filled above its limits; the one on a large disk is not reported."""
    scene.start_name_server()
    limits = {
        "diskMaxUsedSpaceRatio": "75",
        "diskSpaceCleanForciblyRatio": "85",
        "diskSpaceWarningLevelRatio": "90",
    }
    scene.start_broker("roomy", brokerName="roomy")
    scene.start_broker("full", brokerName="full", storePathRootDir=str(small_disk / "store"), **limits)

    found = scene.wait_for_brokers(2)

    assert set(faults(found)) == {"disk"}
    (text,) = faults(found)["disk"]
    assert text.startswith("full master") and "fileReservedTime" in text


def test_missing_huge_pages_are_found(tmp_path: Path) -> None:
    """A group of `gantry up` whose manifest requests more huge pages than are free on this machine."""
    (free,) = re.findall(r"^HugePages_Free: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE) or ["0"]
    buffers = 2 + int(free) // 4  # of four pages each
    group = Group(tmp_path / "group", shards="1", slaves="0", replication="{mode: Async}",
                  writeBuffer=f"{{medium: HugePages-2Mi, buffers: {buffers}, segmentSize: 8Mi}}")  # fmt: skip
    group.up(*FREE_PORTS)
    try:
        group.wait_until(group.is_healthy)
        found = examine("doctor", "--data", str(group.folder), "--json")
        assert set(faults(found)) == {"huge-pages"}
        assert f"nr_hugepages) + {buffers * 4}))" in faults(found)["huge-pages"][0]
    finally:
        group.down()


def test_version_mismatch_is_found(scene: Scene) -> None:
    """Two brokers, of which one runs another version of Gantry."""
    scene.start_name_server()
    scene.start_broker("new", brokerName="new")
    older = (
        "import runpy, sys, gantry_wire.version as version; version.VERSION = '0.0.1'; "
        "sys.argv[0] = 'gantry_broker'; runpy.run_module('gantry_broker', run_name='__main__', alter_sys=True)"
    )
    scene.start_broker("old", program=("-c", older), brokerName="old")

    found = scene.wait_for_brokers(2)

    assert set(faults(found)) == {"version"}
    (text,) = faults(found)["version"]
    assert "0.0.1: old master" in text and "new master" in text


# -- accounts and certificates -----------------------------------------------------------------------------------------


def test_refused_account_is_found(scene: Scene) -> None:
    """No account, an unknown one, a wrong secret, and one that lacks rights; the administrator's has no fault."""
    scene.start_broker("master", **guarded(scene))
    scene.wait_for_brokers(1, before=write_account(scene, "admin", "admin-key", "admin-secret"))
    refused = {
        "none was given": (),
        "does not have this account": write_account(scene, "unknown", "other-key", "other-secret"),
        "the secret is another one": write_account(scene, "wrong", "admin-key", "wrong-secret"),
        "lacks a permission": write_account(scene, "orders", "orders-key", "orders-secret"),
    }

    for meaning, options in refused.items():
        found = scene.examine(before=options)
        assert set(faults(found)) == {"acl"}, meaning
        assert any(meaning in finding.meaning for finding in check(found, "acl").findings), found
    assert not faults(scene.examine(before=write_account(scene, "admin", "admin-key", "admin-secret")))


def tls_conf(party: Party) -> dict[str, str]:
    """Return the settings of a broker that uses TLS only."""
    return {
        "tlsMode": "enforcing",
        "tlsServerCertPath": str(party.chain),
        "tlsServerKeyPath": str(party.key),
        "tlsEnable": "true",
        "tlsClientTrustCertPath": str(party.authority),
        "tlsClientCheckHostName": "false",
        **party.replication(),
    }


def test_certificate_for_other_names_is_found(scene: Scene) -> None:
    """Certificates of a trusted authority for another host, which are found on every server, and named."""
    party = Party(scene.folder / "party", trustme.CA(), "broker.example")
    scene.start_name_server(*tls_words(party))
    scene.start_broker("master", **tls_conf(party))
    trusted = ("--tls-ca", str(party.authority))
    scene.wait_for_brokers(1, *trusted, "--tls-verify", "authority")

    found = scene.examine(*trusted)

    assert set(faults(found)) == {"tls"}
    assert "broker.example" in faults(found)["tls"][0]
    assert not faults(scene.examine(*trusted, "--tls-verify", "authority"))


def test_other_faults_of_tls_are_found(scene: Scene) -> None:
    """Expired, of an unknown authority, no client certificate, plain text to a TLS port, and TLS to a plain port."""
    authority = trustme.CA()
    party, stranger = Party(scene.folder / "party", authority), Party(scene.folder / "stranger", trustme.CA())
    scene.start_name_server(*tls_words(party))
    remedies = {
        "--tls-ca FILE, or --tls": scene.examine(),
        "name the authority of the servers": scene.examine("--tls-ca", str(stranger.authority)),
    }
    scene.start_name_server(*tls_words(party), "--tls-ca", str(party.authority))
    remedies["--tls-cert FILE and --tls-key FILE"] = scene.examine("--tls-ca", str(party.authority))
    scene.start_name_server()
    remedies["leave out the --tls options"] = scene.examine("--tls-ca", str(party.authority))
    past = datetime.now(UTC) - timedelta(days=2)
    party.replace(authority, not_before=past, not_after=past + timedelta(days=1))
    scene.start_name_server(*tls_words(party))
    remedies["renew the certificate"] = scene.examine("--tls-ca", str(party.authority))

    for remedy, found in remedies.items():
        assert set(faults(found)) == {"tls"}, remedy
        assert remedy in faults(found)["tls"][0]


# -- slaves and consumers ----------------------------------------------------------------------------------------------


def test_slave_with_wrong_master_address_is_found(scene: Scene) -> None:
    """The slave is registered and reachable, and copies nothing."""
    scene.start_name_server()
    scene.start_broker("master")
    scene.start_broker("slave", haMasterAddress=f"127.0.0.1:{free_port()}", **SLAVE)

    found = scene.wait_for_brokers(2)

    assert set(faults(found)) == {"slave-following"}
    assert "haMasterAddress=127.0.0.1:" in faults(found)["slave-following"][0]


def test_suspended_slave_is_found(scene: Scene) -> None:
    """Its ports accept connections, since the kernel does that; it answers nothing, and the command does not hang."""
    scene.start_name_server()
    scene.start_broker("master")
    slave = scene.start_broker("slave", **SLAVE)
    scene.wait_for_brokers(2)
    slave.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()

    found = scene.examine("--timeout", "0.5")

    assert time.monotonic() - started < 10
    assert set(faults(found)) == {"slave-following"}
    assert "does not answer" in faults(found)["slave-following"][0]


def test_group_with_two_subscriptions_is_found(scene: Scene) -> None:
    """Two members of one group with different tags; members of another group with equal ones are not reported."""
    scene.start_name_server()
    scene.start_broker("master", autoCreateTopicEnable="true")
    scene.wait_for_brokers(1)
    subprocess.run(
        [sys.executable, "-m", "gantry_cli", "topic", "create", "orders", "-n", scene.name_server],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    members = [("billing", "paid"), ("billing", "sent"), ("audit", "a || b"), ("audit", "b||a")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "gantry_cli", "consume", "orders", "-n", scene.name_server, "--follow",
             "--group", group, "--tag", tag],
            stdout=subprocess.DEVNULL,
        )
        for group, tag in members
    ]  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while True:
            found = scene.examine()
            reported = " ".join(finding.subject + finding.found for finding in check(found, "subscriptions").findings)
            if "2 members" in reported and "billing" in faults(found).get("subscriptions", [""])[0]:
                break
            assert time.monotonic() < deadline, found
        assert set(faults(found)) == {"subscriptions"}
        (text,) = faults(found)["subscriptions"]
        assert "orders [paid]" in text and "orders [sent]" in text
    finally:
        for process in processes:
            process.kill()
            process.wait(60)
