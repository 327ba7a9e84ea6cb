"""Role recovery with a master and a slave as processes, a sidecar each, and a silent API server, after kill -9."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for
from fake_api_server import NAME, TOKEN, FakeApiServer, api_server, record_with

from gantry_admin.__main__ import parse_arguments, settings_of
from gantry_admin.errors import Problem, SettingsError
from gantry_admin.lease_client import LeaseSnapshot, LeaseUnavailable
from gantry_admin.peers import PeerRoles, Peers
from gantry_admin.role_recovery import RoleRecovery
from gantry_admin.settings import PeerSettings
from gantry_remoting import RemotingError
from gantry_spec.observed import Report, Role
from gantry_status.order_client import Check, order_once
from gantry_status.orders import (
    AnyOrder,
    Fence,
    Follow,
    HaRole,
    HaStatus,
    Promised,
    PromiseRequest,
    Promote,
    Regain,
    StatusRequest,
)
from gantry_testing.local import Dialogue
from gantry_testing.ports import free_ports

EPOCH: Final = 3_000
MASTER: Final = 1
SLAVE: Final = 2


class Shard:
    """Two brokers and their sidecars. Brokers can be killed and restarted."""

    def __init__(self, folder: Path, server: FakeApiServer, role: str, stack: ExitStack) -> None:
        self._stack: Final = stack
        ports = free_ports(8)
        self._confs = {
            number: {
                "roleAtStart": "UNASSIGNED", "brokerRole": role, "brokerId": str(number),
                "listenPort": str(ports[number]), "fastListenPort": str(ports[number + 2]),
                "haListenPort": str(ports[number + 4]),
            }
            for number in (MASTER, SLAVE)
        }  # fmt: skip
        self._stores = {number: folder / str(number) for number in (MASTER, SLAVE)}
        self.brokers: dict[int, BrokerChild] = {}
        for number in (MASTER, SLAVE):
            self.start(number)
        self.order(MASTER, Promote(epoch=EPOCH, electable=[SLAVE]))
        self.order(SLAVE, Follow(epoch=EPOCH, master=self.brokers[MASTER].replication_address))
        token = folder / "token"
        token.write_text(TOKEN)
        lease = ["--lease", NAME, "--lease-server", server.url, "--lease-token-file", str(token), "--regain"]
        addresses = {MASTER: f"127.0.0.1:{ports[0]}", SLAVE: f"127.0.0.1:{ports[7]}"}
        self.sidecars: dict[int, SidecarChild] = {}
        for number, other in ((MASTER, SLAVE), (SLAVE, MASTER)):
            about = ["--open-reads", "--log-listen", "127.0.0.1:0", "--peer", f"http://{addresses[other]}", *lease]
            self.sidecars[number] = stack.enter_context(
                sidecar_process(self._stores[number], *about, listen=addresses[number])
            )

    def start(self, number: int) -> None:
        self.brokers[number] = self._stack.enter_context(broker_process(self._stores[number], **self._confs[number]))

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.brokers[number].child.send(signal.SIGKILL)
            self.brokers[number].child.process.wait(30)

    def order(self, number: int, order: AnyOrder) -> None:
        order_once(str(self.brokers[number].control_socket), order)

    def report(self, number: int) -> HaStatus:
        answer = order_once(str(self.brokers[number].control_socket), StatusRequest())
        assert isinstance(answer, HaStatus), "expected a status"
        return answer

    def reason(self, number: int) -> str:
        return str(self.sidecars[number].get("/v1/status").json()["regaining"])

    def acknowledges(self) -> bool:
        """Whether a send to the master is answered 0."""

        async def send() -> int:
            dialogue = await Dialogue.open(self.brokers[MASTER].address)
            try:
                return (await dialogue.send(b"x")).code
            finally:
                await dialogue.close()

        try:
            return asyncio.run(send()) == 0
        except (OSError, RemotingError):
            return False


@contextmanager
def running_shard(
    folder: Path, role: str = "SYNC_MASTER", *, is_silent: bool = True
) -> Iterator[tuple[Shard, FakeApiServer]]:
    """Run a shard with an API server. While ``is_silent`` is set, the API server answers no request."""
    with api_server() as server, ExitStack() as stack:
        server.is_silent = is_silent
        one = Shard(folder, server, role, stack)
        wait_for(one.acknowledges, "sends are acknowledged")
        yield one, server


@pytest.mark.verify
@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"], ids=["sync", "async"])
def test_killed_master_regains_its_role_without_an_operator(tmp_path: Path, role: str) -> None:
    """kill -9 of its process, without a Lease: it is the master of the same epoch, and acknowledges again."""
    with running_shard(tmp_path, role) as (group, _):
        end = group.report(MASTER).wrote

        group.kill(MASTER)
        group.start(MASTER)

        wait_for(group.acknowledges, "sends are acknowledged again")
        report = group.report(MASTER)
        assert (report.role, report.epoch, report.last_epoch, report.is_regained) == (HaRole.MASTER, EPOCH, EPOCH, True)
        assert report.wrote is not None and end is not None and report.wrote > end
        assert group.report(SLAVE).epoch == EPOCH


@pytest.mark.verify
def test_master_and_slave_regain_their_roles(tmp_path: Path) -> None:
    """A slave without a role is still in the epoch; then it follows again."""
    with running_shard(tmp_path) as (group, _):
        group.kill(MASTER, SLAVE)
        group.start(SLAVE)
        group.start(MASTER)

        wait_for(group.acknowledges, "sends are acknowledged again")
        assert (group.report(MASTER).epoch, group.report(SLAVE).role) == (EPOCH, HaRole.SLAVE)


@pytest.mark.verify
def test_promise_of_a_newer_epoch_prevents_role_recovery(tmp_path: Path) -> None:
    """The slave may be about to be promoted, so the master stays without a role."""
    with running_shard(tmp_path) as (group, _):
        group.kill(MASTER)
        group.order(SLAVE, PromiseRequest(epoch=EPOCH + 1_000, to="another"))
        group.start(MASTER)

        wait_for(lambda: "know a newer epoch" in group.reason(MASTER), "its sidecar reports the reason")
        assert group.report(MASTER).role is HaRole.UNASSIGNED
        assert not group.acknowledges()


@pytest.mark.verify
def test_role_recovery_waits_for_a_peer_or_the_lease(tmp_path: Path) -> None:
    """Without either no other broker can object; when the slave is back, the master continues."""
    with running_shard(tmp_path) as (group, _):
        group.kill(MASTER, SLAVE)
        group.start(MASTER)

        wait_for(lambda: "must answer" in group.reason(MASTER), "its sidecar reports the reason")
        assert group.report(MASTER).role is HaRole.UNASSIGNED
        group.start(SLAVE)
        wait_for(group.acknowledges, "sends are acknowledged again")


@pytest.mark.verify
def test_fenced_broker_stays_fenced(tmp_path: Path) -> None:
    """A role that was taken by an order is not regained by a restart."""
    with running_shard(tmp_path) as (group, _):
        group.order(MASTER, Fence(epoch=EPOCH))
        group.kill(MASTER)
        group.start(MASTER)
        wait_for(lambda: reported_role(group)["role"] == "unassigned", "its sidecar reports it")

        report = group.report(MASTER)
        assert (report.role, report.may_regain) == (HaRole.UNASSIGNED, False)
        assert group.reason(MASTER) == "None"


def reported_role(group: Shard) -> dict[str, object]:
    found: dict[str, object] = group.sidecars[MASTER].get("/v1/status").json()["reported_role"]
    return found


@pytest.mark.verify
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "another"])
def test_readable_lease_decides_about_the_master(tmp_path: Path, is_named: bool) -> None:
    """The record in the Lease is sufficient, and necessary."""
    with running_shard(tmp_path, is_silent=False) as (group, server):
        report = group.report(MASTER)
        named = record_with(EPOCH, MASTER if is_named else SLAVE, report.identity, electable=SLAVE, acks_needed=1)
        server.put(named)
        group.kill(MASTER)
        group.start(MASTER)

        if is_named:
            wait_for(group.acknowledges, "sends are acknowledged again")
            assert group.report(MASTER).epoch == EPOCH
        else:
            wait_for(lambda: "the Lease names member 2" in group.reason(MASTER), "its sidecar reports the reason")
            assert group.report(MASTER).role is HaRole.UNASSIGNED


# -- the recovery of one sidecar, without processes --------------------------------------------------------------------

OWN: Final = HaStatus(
    role=HaRole.UNASSIGNED, epoch=EPOCH, promised_epoch=EPOCH, broker_id=MASTER, identity="store-1",
    cluster="shop", broker_name="orders-0", wrote=5_000, last_epoch=EPOCH, electable=(SLAVE,), acks_needed=1,
    master_id=MASTER, may_regain=True,
)  # fmt: skip
PEER: Final = Report(
    asked_ms=0, answered_ms=0, role=Role.SLAVE, epoch=EPOCH, promised_epoch=EPOCH, last_epoch=EPOCH, wrote=5_000,
    identity="store-2", master_id=MASTER,
)  # fmt: skip


class FakeLeaseClient:
    """A client that reads this snapshot of the Lease; without one the Lease is unavailable."""

    def __init__(self, snapshot: LeaseSnapshot | None) -> None:
        self.snapshot = snapshot
        self.reads = 0

    async def read(self, *, timeout_s: float) -> LeaseSnapshot:
        self.reads += 1
        if self.snapshot is None:
            raise LeaseUnavailable("it is away")
        return self.snapshot

    async def renew(self, snapshot: LeaseSnapshot, holder: str, *, timeout_s: float) -> LeaseSnapshot:
        raise AssertionError("nothing is renewed here")


class RecoveryScene:
    """The role recovery of a sidecar, with a broker whose reports are scripted."""

    def __init__(self, snapshot: LeaseSnapshot | None, *, election_wait_s: float = 0.0, report: HaStatus = OWN) -> None:
        self.report: HaStatus = report
        self.then: HaStatus | None = None
        """The report at the time of the order, if it differs."""
        self.ordered: list[AnyOrder] = []
        """The orders that the broker got."""

        self.asked_count = 0
        """How often the peers were asked."""
        self.lease_client = FakeLeaseClient(snapshot)
        self.part = RoleRecovery(
            self.lease_client, self, lambda: self.report, self.order, election_wait_s=election_wait_s
        )
        """The tested part of the sidecar."""

    async def ask_all(self, own: HaStatus) -> dict[int, Report]:
        self.asked_count += 1
        return {SLAVE: PEER}

    async def order(self, order: AnyOrder, *, timeout_s: float, check: Check | None = None) -> HaStatus | Promised:
        if check is not None:
            check(self.then or self.report)
        if not isinstance(order, StatusRequest):
            self.ordered.append(order)
        return self.report


def named_lease() -> LeaseSnapshot:
    """Return the Lease that names the first member as master."""
    return LeaseSnapshot(record=record_with(EPOCH, MASTER, "store-1", electable=SLAVE, acks_needed=1), revision="1")


async def test_election_comes_first_if_the_lease_is_readable() -> None:
    """With patience nothing is ordered yet; without the Lease there is no election to wait for."""
    patient, alone = RecoveryScene(named_lease(), election_wait_s=60.0), RecoveryScene(None, election_wait_s=60.0)

    await patient.part.step()
    await alone.part.step()

    assert patient.ordered == [] and patient.part.reason == "waiting for an election first"
    assert alone.ordered == [Regain(epoch=EPOCH)]


async def test_no_peer_is_asked_for_a_broker_that_cannot_regain_a_role() -> None:
    """For a broker with a role, or without one to regain, neither the Lease nor a peer is asked."""
    for report in (HaStatus(role=HaRole.MASTER, may_regain=True), HaStatus(role=HaRole.UNASSIGNED)):
        beside = RecoveryScene(None, report=report)
        await beside.part.step()
        assert (beside.ordered, beside.lease_client.reads, beside.asked_count) == ([], 0, 0)


async def test_order_is_only_for_the_report_that_was_checked() -> None:
    """A broker that has made a promise since gets no order; one that has not gets it."""
    beside = RecoveryScene(None)
    beside.then = HaStatus(role=HaRole.UNASSIGNED, epoch=EPOCH, promised_epoch=EPOCH + 1_000, identity="store-1")

    await beside.part.step()

    assert beside.ordered == [] and "has changed since" in beside.part.reason
    beside.then = None
    await beside.part.step()
    assert beside.ordered == [Regain(epoch=EPOCH)]


async def test_unreachable_peer_has_no_report() -> None:
    """A peer to which no connection is possible is left out of the reports."""
    [port] = free_ports(1)
    peers = Peers(PeerSettings(urls=(f"http://127.0.0.1:{port}",)), lambda: "")

    assert await PeerRoles(peers).ask_all(OWN) == {}


def test_role_recovery_requires_the_lease_option() -> None:
    """By default no role is regained, so a supervisor's sidecars regain none; without --lease the option is refused."""
    about = ["--page", "p", "--control", "c", "--store", "s"]
    options, _ = parse_arguments([*about, "--lease", NAME])
    found = settings_of(options).lease
    assert found is not None and not found.regains
    options, _ = parse_arguments([*about, "--lease", NAME, "--regain"])
    found = settings_of(options).lease
    assert found is not None and found.regains
    options, _ = parse_arguments([*about, "--regain"])
    with pytest.raises(SettingsError, match="--regain needs --lease"):
        settings_of(options)


def test_refusal_of_an_order_is_reported(tmp_path: Path) -> None:
    """The reason has the text with which the broker refused."""
    beside = RecoveryScene(None)

    async def refuse(order: AnyOrder, *, timeout_s: float, check: Check | None = None) -> HaStatus | Promised:
        if isinstance(order, StatusRequest):
            return OWN
        raise Problem(409, "no")

    part = RoleRecovery(beside.lease_client, beside, lambda: OWN, refuse, election_wait_s=0)
    asyncio.run(part.step())

    assert part.reason == "the order to the broker failed: no"
