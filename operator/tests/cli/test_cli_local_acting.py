"""Executing decisions about a local group: the checks before an order, and the waits between orders.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from spec_world.observations import NOW_MS, healthy_shard, observed_group, spec_with

from gantry_broker.control.server import ControlServer
from gantry_cli.errors import CliError
from gantry_cli.local import commands, group_run, topics
from gantry_cli.local.access import Access
from gantry_cli.local.commands import _down_ms, kill
from gantry_cli.local.group_run import UpOptions
from gantry_cli.local.group_status import Event, LocalGroupStatus, LocalMemberStatus, status_screen
from gantry_cli.local.lease import LeaseFile
from gantry_cli.local.member import local_restart_policy
from gantry_cli.local.plan import LaunchOptions
from gantry_cli.local.promote import write_order
from gantry_cli.local.running import ForegroundOutput
from gantry_cli.local.state import GroupState
from gantry_cli.main import cli as gantry
from gantry_cli.output import console
from gantry_cli.stack import StackDirectory
from gantry_client import QueueOffsets
from gantry_spec.decide import Condition, decide
from gantry_spec.executor import Expected, check_promotion
from gantry_spec.explain import Outlook
from gantry_spec.lease import Term
from gantry_spec.ledger import Fault, Ledger, Risk
from gantry_spec.manifest import BrokerGroup
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE
from gantry_spec.observed import CHECK_TOPIC, EMPTY_FOR_MS
from gantry_status.order_client import OrderClient
from gantry_status.orders import BrokerUnreachable, HaRole, HaStatus, OrderRefused, OrderUnanswered, StatusRequest
from gantry_testing.fake_group import FakeGroup, FakeMember
from gantry_wire.names import SCHEDULE_TOPIC

NAMED = Expected(last_epoch=1000, end=500)
EPOCH = 2000


def member_status(**other: object) -> HaStatus:
    """Return the status of a slave, with changes."""
    values: dict[str, object] = {"role": HaRole.SLAVE, "epoch": 1000, "last_epoch": 1000, "wrote": 500}
    return msgspec.convert(values | other, HaStatus)


@pytest.mark.parametrize(
    "changes",
    [{}, {"wrote": 501}, {"last_epoch": 1001, "wrote": 3}, {"epoch": 2000, "wrote": 0}],
    ids=["as-named", "longer", "newer-epoch", "promoted-already"],
)
def test_member_with_the_expected_log_is_promoted(changes: dict[str, object]) -> None:
    """A log of the expected length or longer is accepted, and a repeated order is harmless."""
    check_promotion(EPOCH, NAMED, member_status(**changes))


@pytest.mark.parametrize(
    "changes", [{"wrote": 499}, {"wrote": -1}, {"last_epoch": 999, "wrote": 9999}], ids=["shorter", "unknown", "older"]
)
def test_member_that_lost_data_after_the_decision_is_not_promoted(changes: dict[str, object]) -> None:
    """After a power cut between decision and order, the expected log is gone, and no order is sent."""
    with pytest.raises(OrderRefused, match="expected a log that ends at 500 of epoch 1000"):
        check_promotion(EPOCH, NAMED, member_status(**changes))


def test_master_is_only_confirmed_in_the_same_process() -> None:
    """A new epoch of the same master is for the observed process, and not for a later one."""
    order = msgspec.structs.replace(NAMED, continues=1000)

    check_promotion(EPOCH, order, member_status(role=HaRole.MASTER))
    with pytest.raises(OrderRefused, match="expected the master of epoch"):
        check_promotion(EPOCH, order, member_status(role=HaRole.UNASSIGNED))


# ------- one connection, one process


@pytest.fixture
def member() -> FakeMember:
    group = FakeGroup([1, 2], acks_needed=1)
    group.begin(1)
    return group.members[2]


@pytest.fixture
async def serve(tmp_path: Path, member: FakeMember) -> AsyncIterator[Callable[[], ControlServer]]:
    """Yield a function that starts the member's control socket again, as a later process does."""
    made: list[ControlServer] = []

    def make() -> ControlServer:
        made.append(ControlServer(str(tmp_path / "control.sock"), member))
        return made[-1]

    yield make
    for server in made:
        await server.close()


@pytest.mark.parametrize("is_one", [True, False], ids=["one-connection", "twin"])
async def test_checked_order_never_reaches_another_process(serve: Callable[[], ControlServer], is_one: bool) -> None:
    """The order goes to the process that reported its status; the twin reaches a later process."""
    server = serve()
    await server.start()
    async with OrderClient(server.path, is_one_connection=is_one) as client:
        await client.call(StatusRequest())
        await server.close()
        after = serve()
        await after.start()

        if is_one:
            with pytest.raises((OrderUnanswered, BrokerUnreachable)):
                await client.call(StatusRequest())
            with pytest.raises((OrderUnanswered, BrokerUnreachable)):
                await client.call(StatusRequest())
        else:
            assert (await client.call(StatusRequest())).broker_id == 2


# ------- orders of users


def test_new_order_replaces_only_the_order_of_its_shard(tmp_path: Path) -> None:
    """Each shard has at most one order; the text after @ makes orders distinct."""
    state = GroupState(tmp_path)
    write_order(state, 0, "0=2@1", "0")
    write_order(state, 1, "1@2", "0")
    write_order(state, 0, "0@3", "0")

    assert state.read_annotations() == {PROMOTE: "1@2,0@3", ACCEPT_LOSS: "0"}


def test_accepted_loss_does_not_apply_to_another_order(tmp_path: Path) -> None:
    """The annotation applies to all pending orders, so a second order must accept the same loss or wait."""
    state = GroupState(tmp_path)
    write_order(state, 0, "0@1", "0")

    with pytest.raises(CliError, match="a pending order for shard 0 accepts a loss of 0"):
        write_order(state, 1, "1@2", "any")
    with pytest.raises(CliError, match="is not a size"):
        write_order(state, 0, "0@3", "much")

    assert state.read_annotations() == {PROMOTE: "0@1", ACCEPT_LOSS: "0"}


@pytest.mark.parametrize(
    ("after", "down_ms"), [("1s", 10_000), ("5s", 15_000), ("60s", 125_000)], ids=["least", "default", "patient"]
)
def test_killed_broker_stays_down_longer_than_a_failover_takes(tmp_path: Path, after: str, down_ms: int) -> None:
    """The default time depends on the manifest; a given time is used unchanged."""
    head = "apiVersion: gantry.dev/v1alpha1\nkind: BrokerGroup\nmetadata: {name: crew}\n"
    state = GroupState(tmp_path)
    state.write_manifest(f"{head}spec: {{failover: {{after: {after}}}}}".encode())

    assert _down_ms(state, None) == down_ms and _down_ms(state, 7) == 7


def test_kill_documents_the_option_of_the_shell_command(tmp_path: Path) -> None:
    """`kill -9` is a habit of administrators; the help explains that it is the default."""
    run = CliRunner().invoke
    accepted = run(kill, ["-9", "master-0", "--data", str(tmp_path)])
    assert accepted.exit_code != 2 and "no group runs in" in accepted.stderr
    refused = run(kill, ["-9", "--stop", "master-0", "--data", str(tmp_path)])
    assert refused.exit_code == 2 and "-9, --stop and --cont contradict each other" in refused.stderr
    assert "SIGKILL, the default" in run(kill, ["--help"]).stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("slave-0-1", "--stop"), "--down has no effect with --stop, which ends no process"),
        (("slave-0-1", "--cont"), "--down has no effect with --cont"),
        (("sidecar-master-0",), "--down has no effect for sidecar-master-0: only a broker can be kept down"),
        (("nameserver-0",), "--down has no effect for nameserver-0"),
    ],
)
def test_kill_refuses_down_time_without_effect(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    """A suspended process, and one that restarts at once, does not stay down."""
    refused = CliRunner().invoke(kill, [*words, "--down", "5s", "--data", str(tmp_path)])
    assert refused.exit_code == 2 and reason in refused.stderr
    assert "no group runs in" in CliRunner().invoke(kill, [*words, "--data", str(tmp_path)]).stderr


def test_kill_promises_no_immediate_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the second death within a minute on, the supervisor restarts a process after a delay."""
    policy = local_restart_policy()
    delays = [policy.delay_after_death(0.0, now) for now in (10.0, 20.0)]
    monkeypatch.setattr(commands, "require_group", lambda _: None)
    monkeypatch.setattr(commands, "_processes_by_name", lambda _: {"nameserver-0": (7, "boot")})
    monkeypatch.setattr(commands, "boot_id_of", lambda _: "boot")
    monkeypatch.setattr(commands, "_signal", lambda *_: None)

    killed = CliRunner().invoke(kill, ["nameserver-0", "--data", str(tmp_path)])

    assert delays == [0.0, 1.0]
    assert "restarts at once, or after a delay if it has died before within a minute" in killed.output


# ------- what is shown


def group_status(**other: object) -> LocalGroupStatus:
    view = LocalMemberStatus(
        name="master-0", shard=0, number=1, process="running", pid=7, starts=2, address="127.0.0.1:1", sidecar_url="",
        role="MASTER", epoch=1000, report_age_ms=9_000, wrote=2048, is_draining=True,
    )  # fmt: skip
    ledger = Ledger(shard=0, observed_ms=0, is_fresh=True, master=1, risks={Fault.MACHINE: Risk(bytes=0)})
    values: dict[str, object] = {
        "at_ms": 0, "group": "crew", "pid": 7, "started_at_ms": 0, "name_servers": ["ns:1"], "members": [view],
        "conditions": (), "ledgers": (ledger,), "decision": ("shard 0: waiting: for rain",), "outlook": (),
        "events": [Event(0, "it began")],
    }  # fmt: skip
    return LocalGroupStatus(**(values | other))  # type: ignore[arg-type]


def status_text(one: LocalGroupStatus, *, with_events: bool = False) -> str:
    """Return the status as the terminal shows it."""
    out = console()
    with out.capture() as capture:
        for part in status_screen(one, with_events=with_events):
            out.print(part)
    return capture.get()


def test_status_shows_an_unknown_loss_of_an_election() -> None:
    """It is shown until the next election, since a person may have missed the event."""
    term = Term(epoch=3000, master=1, identity="a", is_loss_unknown=True)
    status = group_status(outlook=(Outlook(shard=0, election_loss=term.election_loss), Outlook(shard=1)))

    shown = "shard 0: the election of epoch 3000 may have lost acknowledged messages; how many is unknown"
    assert shown in " ".join(status_text(status).split())
    assert "shard 1" not in status_text(status)


def test_status_shows_lost_and_damaged_log_data() -> None:
    """Both are remarks of the member, in any role."""
    healthy = group_status()
    [member] = healthy.members
    hurt = msgspec.structs.replace(
        healthy, members=[msgspec.structs.replace(member, missing_bytes=4096, damaged_bytes=300)]
    )
    text = " ".join(status_text(hurt).split())

    assert "4.0 KiB of its log are missing" in text and "300 B of its log are damaged" in text
    assert "missing" not in status_text(healthy) and "damaged" not in status_text(healthy)


def test_status_shows_faults_and_unknown_values() -> None:
    """Outdated reports, drains and restarts are shown; an unknown risk is not shown as zero."""
    text = status_text(group_status())

    assert "the supervisor has not updated its status for" in text and "last report 9s ago" in text
    assert "drained" in text and "started 2 times" in text and "2.0 KiB" in text
    assert "machine 0 B" in text and "disk unknown" in text
    assert "shard 0: waiting: for rain" in text and "it began" not in text
    assert "it began" in status_text(group_status(), with_events=True)


def test_screen_shows_no_condition_of_a_healthy_group() -> None:
    """Conditions are shown when they differ from those of a healthy group, by the same rule as in a cluster."""
    usual = decide(spec_with(), observed_group(healthy_shard()), NOW_MS).conditions
    fenced = Condition(type="Fenced", is_true=True, reason="ByAnnotation", message="shards [0]")
    unready = Condition(type="Ready", is_true=False, reason="NotInSync", message="")

    def lines(*conditions: Condition) -> list[str]:
        kinds = tuple(f"{one.type}: " for one in usual)
        return [
            line for line in status_text(group_status(conditions=conditions)).splitlines() if line.startswith(kinds)
        ]

    assert len(usual) > 8 and lines(*usual) == []
    assert lines(fenced, unready) == ["Fenced: ByAnnotation (shards [0])", "Ready: NotInSync"]


def test_status_shows_a_shard_without_a_master() -> None:
    """A shard without a fresh ledger has no master that answers."""
    assert "shard 0: no master answers" in status_text(group_status(ledgers=(Ledger(shard=0, observed_ms=0),)))


def test_status_survives_encoding_and_decoding() -> None:
    """Another process reads the same status from decision.json."""
    assert msgspec.json.decode(msgspec.json.encode(group_status()), type=LocalGroupStatus) == group_status()


@pytest.fixture
def claimed(tmp_path: Path) -> Iterator[GroupState]:
    """The folder of a group whose supervisor, this process, has written no status yet."""
    directory = StackDirectory(tmp_path).claim()
    try:
        yield GroupState(tmp_path)
    finally:
        directory.release()


@pytest.mark.parametrize(
    ("age_s", "code", "text"), [(0, 0, "waiting: for rain"), (60, 1, "has not updated its status for 60 s")]
)
def test_explain_refuses_an_outdated_forecast(claimed: GroupState, age_s: int, code: int, text: str) -> None:
    """While the supervisor is suspended nothing of the forecast would happen."""
    at_ms = time.time_ns() // 1_000_000 - age_s * 1000
    claimed.decision_file.write_bytes(msgspec.json.encode(group_status(at_ms=at_ms), enc_hook=int))

    explained = CliRunner().invoke(gantry, ["explain", "--data", str(claimed.path)])

    assert (explained.exit_code, text in explained.output) == (code, True), explained.output


def test_status_of_a_killed_supervisor_is_deleted_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its first round, commands report that it is starting. They took the old status for its own."""
    state, found = GroupState(tmp_path), list[str]()
    state.decision_file.write_bytes(msgspec.json.encode(group_status(), enc_hook=int))

    def choose(_: UpOptions) -> BrokerGroup:
        explained = CliRunner().invoke(gantry, ["explain", "--data", str(tmp_path)])
        found.append(f"{explained.exit_code} {explained.output}")
        raise CliError("the test ends here")

    monkeypatch.setattr(group_run, "choose_group", choose)
    with pytest.raises(CliError, match="the test ends here"):
        asyncio.run(
            group_run.run_group(UpOptions(data=tmp_path, manifest=None, launch=LaunchOptions()), ForegroundOutput())
        )

    [line] = found
    assert line.startswith("1 ") and "is starting" in line


async def test_taken_lease_is_not_renewed_before_a_master_is_recorded(tmp_path: Path) -> None:
    """Between taking an epoch and recording its master no master gets a renewal."""
    from gantry_cli.local.lease import renew
    from gantry_spec.lease import LeaseRecord, Term

    asked: list[tuple[int, int]] = []
    lease = LeaseFile(tmp_path / "lease", lambda: 0)
    term = Term(epoch=1000, master=1, identity="a")

    lease.write(None, LeaseRecord(epoch=1000, terms=(term,)))
    await renew([(0, lease)], lambda shard, number: asked.append((shard, number)))
    lease.write("1", LeaseRecord(epoch=2000, terms=(term,)))
    await renew([(0, lease)], lambda shard, number: asked.append((shard, number)))
    await asyncio.sleep(0)

    assert asked == [(0, 1)], "expected a renewal only for the epoch that has a master"


# ------- shards that are removed


class FakeBrokers:
    """The queues of a shard, as its master reports them."""

    def __init__(self) -> None:
        self.messages = 1
        self.delayed_messages = 0
        self.forbidden: list[str] = []
        self.allowed: list[str] = []

    async def forbid_writes(self, name: str) -> None:
        self.forbidden.append(name)

    async def allow_writes(self, name: str) -> None:
        self.allowed.append(name)

    async def topic_table(self, address: str) -> dict[str, object]:
        return dict.fromkeys(("orders", CHECK_TOPIC, SCHEDULE_TOPIC))

    async def queue_table(self, address: str, topic: str) -> dict[int, QueueOffsets]:
        messages = {"orders": self.messages, SCHEDULE_TOPIC: self.delayed_messages, CHECK_TOPIC: 3}[topic]
        return {0: QueueOffsets(min_offset=5, max_offset=5 + messages), 1: QueueOffsets()}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> FakeBrokers:
    found = FakeBrokers()

    class FakeAdmin:
        brokers = found

        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def __aenter__(self) -> FakeAdmin:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(topics, "Admin", FakeAdmin)
    return found


async def test_surplus_shard_is_removed_when_empty_and_old_routes_expired(brokers: FakeBrokers) -> None:
    """Producers are withdrawn first; the shard stays while it has a message or old routes are valid."""
    now_s = [0.0]
    shards = topics.ShardDecommissioner("crew", "ns:1", Access(), lambda _: None, lambda: now_s[0])

    async def reconcile_and_check(wrote: int) -> bool:
        now_s[0] += topics.CHECK_INTERVAL_S
        await shards.reconcile(1, {0: ("a:1", 10), 1: ("b:1", wrote)})
        return shards.is_empty(1, wrote)

    brokers.messages = 0
    early = await reconcile_and_check(100)
    now_s[0] += EMPTY_FOR_MS / 1000
    brokers.messages = 1
    full = await reconcile_and_check(100)
    brokers.messages, brokers.delayed_messages = 0, 1
    delayed = await reconcile_and_check(100)
    brokers.delayed_messages = 0
    empty = await reconcile_and_check(100)

    assert (early, full, delayed, empty) == (False, False, False, True)
    assert set(brokers.forbidden) == {"crew-1"}, "expected only the surplus shard to be withdrawn"
    assert not shards.is_empty(1, 101), "the shard counts as empty, although a message has come since"
    assert not shards.is_empty(1, None), "the shard counts as empty, although it is unknown whether a message has come"
    assert not shards.is_empty(0, 10)


async def test_restored_shard_returns_to_the_routes(brokers: FakeBrokers) -> None:
    """After the manifest change is reverted, producers may send again, and earlier checks do not count."""
    now_s = [0.0]
    shards = topics.ShardDecommissioner("crew", "ns:1", Access(), lambda _: None, lambda: now_s[0])
    brokers.messages = 0
    for _ in range(10):
        now_s[0] += topics.CHECK_INTERVAL_S
        await shards.reconcile(1, {1: ("b:1", 7)})
    was_empty = shards.is_empty(1, 7)

    now_s[0] += topics.CHECK_INTERVAL_S
    await shards.reconcile(2, {1: ("b:1", 7)})

    assert was_empty and not shards.is_empty(1, 7) and brokers.allowed == ["crew-1"]
