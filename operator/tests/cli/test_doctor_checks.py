"""The decisions of `gantry doctor`, from facts: each fault and its neighbour that is none."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from click.testing import CliRunner

from gantry_cli.doctor.checks import CHECK_IDS, CHECKS, decide_all
from gantry_cli.doctor.dialogue import Answer, classify
from gantry_cli.doctor.facts import (
    BrokerFacts,
    ClockOffset,
    Connection,
    ConnectionFault,
    ConsumerGroupFacts,
    Facts,
    HugePagesFacts,
    LocalFacts,
    LocalMemberFacts,
    MemberFacts,
    NameServerFacts,
    ReplicationFacts,
)
from gantry_cli.doctor.gathering import clock_offset
from gantry_cli.doctor.results import Finding, Outcome, fault, ok, result_of, skipped, warning
from gantry_cli.doctor.server_checks import disk_percent
from gantry_cli.main import cli
from gantry_testing.tree import ROOT
from gantry_wire import Command
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.nameserver import KeyValueTable

GOLDEN: Final = max(path for path in (ROOT / "broker/tests/golden").iterdir() if path.is_dir())
"""The recorded frames of the newest release of RocketMQ; the folder is named for it."""
RELEASE: Final = f"V{GOLDEN.name.replace('.', '_')}"
"""How brokers of that release name their version."""
MASTER: Final = BrokerFacts(
    name="a",
    broker_id=0,
    address="10.0.0.1:10911",
    connection=Connection(),
    runtime={"brokerVersionDesc": RELEASE, "commitLogDiskRatio": "0.3", "commitLogMaxOffset": "1000"},
    config={"brokerName": "a", "gantryVersion": "1.0", "brokerIP2": "10.0.0.1", "haListenPort": "10912"},
    replication=ReplicationFacts(is_master=True, is_streaming=False, master=""),
    clock=ClockOffset(-5, 999),
)
SLAVE: Final = replace(
    MASTER,
    broker_id=1,
    address="10.0.0.2:10911",
    replication=ReplicationFacts(is_master=False, is_streaming=True, master="10.0.0.1:10912"),
)
SERVER: Final = NameServerFacts(
    address="10.0.0.9:9876",
    connection=Connection(),
    brokers=frozenset({MASTER.address, SLAVE.address}),
    gantry_version="1.0",
)
HEALTHY: Final = Facts(
    version="1.0", has_account=True, uses_tls=True, name_servers=(SERVER,), brokers=(MASTER, SLAVE), now_ms=1_000_000
)


def with_master(**changes: Any) -> Facts:
    """Return the healthy facts with a changed master."""
    return replace(HEALTHY, brokers=(replace(MASTER, **changes), SLAVE))


def with_slave(**changes: Any) -> Facts:
    """Return the healthy facts with a changed slave."""
    return replace(HEALTHY, brokers=(MASTER, replace(SLAVE, **changes)))


def failed(cause: ConnectionFault) -> Connection:
    return Connection(fault=cause)


def faulty(facts: Facts) -> set[str]:
    """Return the ids of the checks that find a fault."""
    return {one.id for one in decide_all(facts) if one.outcome is Outcome.FAULT}


def test_healthy_cluster_is_ok() -> None:
    """Every check is ok, and none is skipped."""
    assert {one.id: one.outcome for one in decide_all(HEALTHY)} == dict.fromkeys(CHECK_IDS, Outcome.OK)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (replace(HEALTHY, name_servers=(replace(SERVER, brokers=frozenset()),), brokers=()), "name-server"),
        (replace(HEALTHY, name_servers=(replace(SERVER, error="code 3: not supported"),)), "name-server"),
        (
            replace(HEALTHY, name_servers=(SERVER, replace(SERVER, address="b:9876", brokers=frozenset({"x:1"})))),
            "name-server",
        ),
        (with_master(address="0.0.0.0:10911"), "broker-address"),
        (with_master(address="127.0.0.1:10911"), "broker-address"),
        (with_master(config={"brokerName": "other", "gantryVersion": "1.0"}), "broker-address"),
        (with_master(runtime=None, connection=failed(ConnectionFault.SILENT)), "broker-address"),
        (with_master(runtime=None, connection=failed(ConnectionFault.CERTIFICATE_NAME)), "tls"),
        (with_master(runtime={**(MASTER.runtime or {}), "tlsCertificateEndsTimestamp": "999999"}), "tls"),
        (with_master(runtime=None, refusal="No default permission for topic:x"), "acl"),
        (with_slave(config={"brokerName": "a", "gantryVersion": "0.9"}), "version"),
        (replace(HEALTHY, name_servers=(replace(SERVER, gantry_version="0.9"),)), "version"),
        (with_master(clock=ClockOffset(2_001, 3_000)), "clock-skew"),
        (with_master(clock=ClockOffset(-3_000, -2_001)), "clock-skew"),
        (with_master(runtime={"brokerVersionDesc": RELEASE, "commitLogDiskRatio": "0.85"}), "disk"),
        (with_master(runtime={"brokerVersionDesc": RELEASE, "commitLogDiskRatio_/b": "0.9"}), "disk"),
        (replace(HEALTHY, brokers=(SLAVE,)), "slave-following"),
        (with_slave(runtime=None, connection=failed(ConnectionFault.SILENT)), "slave-following"),
        (with_master(runtime={"commitLogDiskRatio": "0", "commitLogMaxOffset": "268436457"}), "slave-following"),
    ],
)  # fmt: skip
def test_fault_is_found_by_its_check_only(facts: Facts, expected: str) -> None:
    """One changed fact is found by one check; no other check reports a fault."""
    assert faulty(facts) == {expected}


@pytest.mark.parametrize(
    ("facts", "check", "outcome"),
    [
        (with_master(clock=ClockOffset(-1, 2_001)), "clock-skew", Outcome.SKIPPED),
        (with_master(clock=None), "clock-skew", Outcome.SKIPPED),
        (with_master(runtime={"commitLogDiskRatio": "-1"}), "disk", Outcome.SKIPPED),
        (with_master(runtime={"commitLogDiskRatio": "0.75"}), "disk", Outcome.WARNING),
        (replace(HEALTHY, version="1.1"), "version", Outcome.WARNING),
        (with_master(config={"brokerName": "a"}), "version", Outcome.WARNING),
        (with_master(runtime={"tlsCertificateEndsTimestamp": "2000000"}), "tls", Outcome.WARNING),
        (replace(HEALTHY, groups_problem="a broker refuses"), "subscriptions", Outcome.SKIPPED),
        (with_slave(replication=None, runtime={"commitLogMaxOffset": "900"}), "slave-following", Outcome.SKIPPED),
        (with_slave(replication=None), "slave-following", Outcome.OK),
        (with_slave(runtime=None, replication=None, refusal="no"), "slave-following", Outcome.SKIPPED),
        (replace(HEALTHY, uses_tls=False), "tls", Outcome.SKIPPED),
    ],
)
def test_undecided_facts_are_never_ok(facts: Facts, check: str, outcome: Outcome) -> None:
    """A missing or imprecise observation skips a check, and a lesser problem is a warning."""
    assert {one.id: one.outcome for one in decide_all(facts, [check])} == {check: outcome}


def test_clock_of_this_machine_is_reported_once() -> None:
    """If all brokers differ in one direction, this machine is wrong, and not each of them."""
    brokers = tuple(replace(one, clock=ClockOffset(60_000, 61_000)) for one in (MASTER, SLAVE))
    (check,) = decide_all(replace(HEALTHY, brokers=brokers), ["clock-skew"])

    assert [(one.subject, one.outcome) for one in check.findings] == [("this machine", Outcome.FAULT)]
    assert "behind" in check.findings[0].found


def test_loopback_is_a_fault_for_remote_clients_only() -> None:
    """On the machine of the name server itself, a loopback address is right."""
    here = replace(SERVER, connection=Connection(is_on_this_machine=True))
    facts = with_master(address="127.0.0.1:10911")

    assert faulty(facts) == {"broker-address"}
    assert faulty(replace(facts, name_servers=(here,))) == set()


def test_clock_offset_is_bounded_by_the_round_trip() -> None:
    """The server's time in whole seconds lies between the request and the answer."""
    runtime = {"bootTimestamp": "1000000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
    server_ms = 1_000_000 + 93_784_000
    answer = Answer(Command(code=0), server_ms + 100, 250)

    assert clock_offset(runtime, answer) == ClockOffset(-350, 899)
    assert clock_offset({**runtime, "runtime": "3 minutes"}, answer) is None
    assert clock_offset({"runtime": runtime["runtime"]}, answer) is None


def apache_reply(name: str) -> bytes:
    """Return the body of a reply that Apache RocketMQ sent, from the golden frames."""
    frame = (GOLDEN / f"{name}.reply-0.tools-{GOLDEN.name}.json.bin").read_bytes()
    return frame[8 + int.from_bytes(frame[5:8], "big") :]


def test_answers_of_apache_are_understood() -> None:
    """The clock, the disk and the version are read from a real runtime table of RocketMQ."""
    table = read_document(apache_reply("0028-get-broker-runtime-info"), KeyValueTable).table
    booted_ms = int(table["bootTimestamp"])
    offset = clock_offset(table, Answer(Command(code=0), booted_ms + 259_000, 5))

    assert offset == ClockOffset(-5, 999)
    assert disk_percent(table) == 73
    broker = replace(MASTER, runtime=table, config={"brokerName": "a"}, clock=offset)
    facts = replace(HEALTHY, brokers=(broker,), name_servers=(replace(SERVER, gantry_version=None),))
    assert faulty(facts) == set()


def test_unsupported_version_of_rocketmq_is_a_fault() -> None:
    """4.8 is too old, 4.9 is not; an unknown text is skipped."""

    def outcome(described: str) -> Outcome:
        broker = replace(MASTER, runtime={"brokerVersionDesc": described}, config={"brokerName": "a"})
        return decide_all(replace(HEALTHY, brokers=(broker,), name_servers=()), ["version"])[0].outcome

    assert [outcome(text) for text in ("V4_8_0", "V4_9_0", "HIGHER_VERSION")] == [
        Outcome.FAULT,
        Outcome.OK,
        Outcome.SKIPPED,
    ]


def member(client_id: str, subscriptions: Mapping[str, str] | None) -> MemberFacts:
    return MemberFacts(client_id=client_id, subscriptions=subscriptions, problem="" if subscriptions else "no answer")


def test_members_are_compared_by_topics_and_filters() -> None:
    """A different filter or topic is a fault; a silent member makes equal ones undecided."""

    def outcome(*members: MemberFacts) -> Outcome:
        facts = replace(HEALTHY, groups=(ConsumerGroupFacts(name="g", members=members),))
        return decide_all(facts, ["subscriptions"])[0].outcome

    one, same = member("1", {"t": "*"}), member("2", {"t": "*"})
    assert outcome(one, same) is Outcome.OK
    assert outcome(one, member("2", {"t": "paid"})) is Outcome.FAULT
    assert outcome(one, member("2", {"t": "*", "u": "*"})) is Outcome.FAULT
    assert outcome(one, same, member("3", None)) is Outcome.SKIPPED
    assert outcome(one, member("2", {"t": "paid"}), member("3", None)) is Outcome.FAULT


def test_local_member_that_does_not_run_is_found() -> None:
    """A stopped process is a fault of its shard, and its closed port not one of its address."""
    local = LocalFacts(
        folder="here", members=(LocalMemberFacts(name="slave-0-1", address=SLAVE.address, process="stopped"),)
    )
    facts = replace(with_slave(connection=failed(ConnectionFault.REFUSED), runtime=None, replication=None), local=local)

    assert faulty(facts) == {"slave-following"}
    assert faulty(replace(facts, local=None)) == {"broker-address"}


@pytest.mark.parametrize(
    ("pages", "outcome"),
    [
        (HugePagesFacts(needed_bytes=16 << 20, mounts=(), is_used=False), Outcome.FAULT),
        (HugePagesFacts(needed_bytes=16 << 20, mounts=(("/huge", 1 << 30),), is_used=True), Outcome.OK),
    ],
    ids=["missing", "used"],
)
def test_huge_pages_of_a_local_group(pages: HugePagesFacts, outcome: Outcome) -> None:
    """Requested pages that the group does not use are a fault, with the number of pages to reserve."""
    local = LocalFacts(folder="here", members=(), huge_pages=pages)
    (check,) = decide_all(replace(HEALTHY, local=local), ["huge-pages"])

    assert check.outcome is outcome
    assert (outcome is Outcome.OK) or "nr_hugepages) + 8))" in check.findings[0].remedy


@pytest.mark.parametrize(
    ("path", "mounts", "is_here", "outcome"),
    [
        ("/dev/hugepages/b", {"/dev/hugepages": 0}, True, Outcome.OK),
        ("/dev/hugepages/b", {}, True, Outcome.FAULT),
        ("/dev/hugepages/b", {}, False, Outcome.SKIPPED),
        ("/dev/shm/b", {}, True, Outcome.OK),
    ],
)
def test_huge_pages_of_a_broker(path: str, mounts: dict[str, int], is_here: bool, outcome: Outcome) -> None:
    """A path for huge pages without a mount is a fault on this machine, and unknown on another one."""
    config = {"transientStorePoolEnable": "true", "transientStorePoolPath": path}
    broker = replace(MASTER, config=config, connection=Connection(is_on_this_machine=is_here))
    facts = replace(HEALTHY, brokers=(broker,), huge_mounts=mounts)

    assert decide_all(facts, ["huge-pages"])[0].outcome is outcome


# -- connections -------------------------------------------------------------------------------------------------------


def verification_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("error", "uses_tls", "cause"),
    [
        (verification_error(62), True, ConnectionFault.CERTIFICATE_NAME),
        (verification_error(64), True, ConnectionFault.CERTIFICATE_NAME),
        (verification_error(10), True, ConnectionFault.CERTIFICATE_EXPIRED),
        (verification_error(19), True, ConnectionFault.CERTIFICATE_AUTHORITY),
        (ssl.SSLError(1, "TLSV13_ALERT_CERTIFICATE_REQUIRED"), True, ConnectionFault.CERTIFICATE_REQUIRED),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), True, ConnectionFault.NO_TLS),
        (ConnectionResetError(), True, ConnectionFault.NO_TLS),
        (ConnectionResetError(), False, ConnectionFault.UNREACHABLE),
        (socket.gaierror(-2, "Name or service not known"), False, ConnectionFault.UNKNOWN_HOST),
        (ConnectionRefusedError(), False, ConnectionFault.REFUSED),
        (TimeoutError(), False, ConnectionFault.TIMED_OUT),
        (OSError(113, "No route to host"), False, ConnectionFault.UNREACHABLE),
    ],
)
def test_cause_follows_from_the_error(error: OSError, uses_tls: bool, cause: ConnectionFault) -> None:
    """The errors of the operating system and of OpenSSL are distinguished."""
    assert classify(error, uses_tls=uses_tls) is cause


def test_every_connection_fault_has_a_remedy() -> None:
    """No cause is left without advice, whichever server it is about."""
    for cause in ConnectionFault:
        server = NameServerFacts(address="h:1", connection=failed(cause))
        facts = replace(
            HEALTHY, name_servers=(server,), brokers=(replace(SLAVE, connection=failed(cause), runtime=None),)
        )
        found = [one for check in decide_all(facts) for one in check.findings if one.outcome is Outcome.FAULT]
        assert found and all(one.remedy and one.meaning for one in found), cause


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([ok("a", ""), skipped("b", ""), warning("c", "", "", ""), fault("d", "", "", "")], Outcome.FAULT),
        ([ok("a", ""), skipped("b", ""), warning("c", "", "", "")], Outcome.WARNING),
        ([ok("a", ""), skipped("b", "")], Outcome.SKIPPED),
        ([ok("a", "")], Outcome.OK),
        ([], Outcome.SKIPPED),
    ],
)
def test_outcome_of_a_check_is_its_most_severe_one(findings: list[Finding], outcome: Outcome) -> None:
    """A skipped part keeps a check from being ok; no findings are not ok, either."""
    assert result_of("id", "title", findings).outcome is outcome


def test_every_check_is_documented_and_listed() -> None:
    """docs/doctor.md has a section for each check, and --list shows it."""
    page = (ROOT / "docs/doctor.md").read_text()
    listed = CliRunner().invoke(cli, ["doctor", "--list"]).output

    assert [line[4:-1] for line in page.splitlines() if line.startswith("## `")] == list(CHECK_IDS)
    assert [line.split()[0] for line in listed.splitlines()] == list(CHECK_IDS)
    assert len(CHECKS) == 10
