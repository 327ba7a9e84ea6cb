"""A replicated pair with a sidecar each, under load: the answers while a broker is stalled, and after a crash."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import pytest
from admin_scene import (
    BrokerChild,
    Load,
    SidecarChild,
    broker_process,
    read_page_without_checksum,
    sidecar_process,
    wait_for,
)

from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.ledger import Fault, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Member, ObservedLease, ObservedShard, report_of
from gantry_status import PageReader
from gantry_status.order_client import order_once
from gantry_status.orders import StatusRequest
from gantry_testing.ports import free_ports

ANSWER_S: Final = 0.1
"""The promised limit. The fastest of several tries is compared, because a busy machine delays any answer."""
TRIES: Final = 15
TRIES_MAX: Final = 150
"""The most tries, if none is fast. If an answer waits for the broker, none of them is."""
KILLS: Final = 4
SIDECAR_CONNECTIONS: Final = 2
"""The pair's own sidecar may have opened its connections, to the port and to the control socket, only meanwhile."""
CUT_AFTER_WROTE: Final = 48
"""The position in a copy of the page after its field `wrote`: up to there it is written before the kill."""
OFFSETS: Final = ("wrote", "committed", "flushed", "confirmed")


class Pair(NamedTuple):
    """A master and a slave, with a sidecar each."""

    master: BrokerChild
    slave: BrokerChild
    master_sidecar: SidecarChild
    slave_sidecar: SidecarChild


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Synchronous: the master answers 0 when the slave has it. Each sidecar knows the other."""
    folder = tmp_path_factory.mktemp("pair")
    one, other = free_ports(2)
    about = ["--open-reads", "--log-listen", "127.0.0.1:0", "--peer"]
    with (
        broker_process(folder / "master", brokerRole="SYNC_MASTER", mappedFileSizeCommitLog=str(64 << 20)) as master,
        broker_process(
            folder / "slave", brokerRole="SLAVE", brokerId="1", haMasterAddress=master.replication_address,
            mappedFileSizeCommitLog=str(64 << 20),
        ) as slave,
        sidecar_process(folder / "master", *about, f"http://127.0.0.1:{other}", listen=f"127.0.0.1:{one}") as beside,
        sidecar_process(folder / "slave", *about, f"http://127.0.0.1:{one}", listen=f"127.0.0.1:{other}") as opposite,
    ):  # fmt: skip
        for sidecar in (beside, opposite):
            sidecar.wait_ready()
        wait_for(lambda: slave_ids(beside) == [1], "the slave follows")
        yield Pair(master, slave, beside, opposite)


def slave_ids(sidecar: SidecarChild) -> list[int]:
    """Return the numbers of the slaves that the sidecar reports."""
    return [slave["slave_id"] for slave in sidecar.get("/v1/status").json()["slaves"]]


def peer_of(pair: Pair) -> dict[str, object]:
    """Return the master as the slave's sidecar shows it."""
    members = pair.slave_sidecar.get("/v1/group").json()["members"]
    return next(member for member in members if member["url"] == pair.master_sidecar.url)


@contextmanager
def stopped(broker: BrokerChild) -> Iterator[None]:
    """Stop a process with SIGSTOP until the end of the block."""
    broker.child.send(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.child.send(signal.SIGCONT)


@contextmanager
def ranges_are_read(sidecar: SidecarChild) -> Iterator[None]:
    """Read the log at full speed from the `sendfile` port."""
    stop = threading.Event()

    def read() -> None:
        with (
            suppress(httpx.TransportError),
            httpx.Client(base_url=f"http://{sidecar.log_address}", timeout=30) as client,
        ):
            while not stop.is_set():
                client.get("/v1/log/bytes", headers={"Range": "bytes=0-8388607"})

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def tries(sidecar: SidecarChild, path: str) -> list[float]:
    """How long each of some answers took, the first of them first."""
    took: list[float] = []
    with httpx.Client(base_url=sidecar.url, timeout=60) as client:
        while len(took) < TRIES or (min(took) >= ANSWER_S and len(took) < TRIES_MAX):
            began = time.perf_counter()
            assert client.get(path).status_code == 200
            took.append(time.perf_counter() - began)
    return took


@pytest.mark.verify
def test_stopped_master_delays_no_sidecar_under_load(pair: Pair) -> None:
    """SIGSTOP during sends and reads of ranges: both sidecars answer within a tenth of a second."""
    with Load(pair.master, b"x" * 100_000) as load, ranges_are_read(pair.master_sidecar):
        load.wait_for_progress()
        wait_for(lambda: load.acknowledged > 100, "there is something to read")
        with stopped(pair.master):
            took = {
                (path, name): tries(sidecar, path)
                for name, sidecar in (("master", pair.master_sidecar), ("slave", pair.slave_sidecar))
                for path in ("/livez", "/v1/status", "/v1/group")
            }
            wait_for(lambda: broker_state(pair.master_sidecar) == "stalled", "it is noticed")
            since_ms = pair.master_sidecar.get("/livez").json()["broker"]["since_ms"]
        load.wait_for_progress()

        assert load.fault == ""
    assert max(min(times) for times in took.values()) < ANSWER_S, took
    assert since_ms >= 2_000
    wait_for(lambda: pair.master_sidecar.get("/readyz").status_code == 200, "it is ready again")


def broker_state(sidecar: SidecarChild) -> object:
    """Return the state of the broker's event loop, as its sidecar reports it."""
    return sidecar.get("/livez").json()["broker"]["state"]


@pytest.mark.verify
def test_slaves_sidecar_reports_since_when_the_master_is_stalled(pair: Pair) -> None:
    """`/v1/group` has the time at which the master stopped; the slave keeps running as a slave."""
    with Load(pair.master) as load:
        load.wait_for_progress()
        began_ms = time.time() * 1000
        with stopped(pair.master):
            wait_for(lambda: loop_state_of(peer_of(pair))["state"] == "stalled", "the peer reports it")
            member = peer_of(pair)
            group = pair.slave_sidecar.get("/v1/group").json()
            own = pair.slave_sidecar.get("/v1/status").json()
        load.wait_for_progress()

    loop_state = loop_state_of(member)
    assert member["is_reachable"] is True, "expected its sidecar to answer all the time"
    assert loop_state["since_ms"] >= 2_000
    assert abs(loop_state["last_heartbeat_wall_ms"] - began_ms) < 60_000
    assert own["loop_state"]["state"] == "running" and own["role"] == "slave"
    [shard] = group["shards"]
    assert shard["masters"] == [pair.master_sidecar.url]
    wait_for(lambda: pair.master_sidecar.get("/readyz").status_code == 200, "it is ready again")


def loop_state_of(member: dict[str, object]) -> dict[str, Any]:
    """Return the state of a member's event loop in the document of the group."""
    status = member["status"]
    assert isinstance(status, dict), "the peer was never reached"
    found: dict[str, Any] = status["loop_state"]
    return found


@pytest.mark.verify
def test_ledger_is_the_one_of_gantry_spec(pair: Pair) -> None:
    """Both sidecars show the ledger of `gantry_spec` for the master's report; a stopped master's is not fresh."""
    wait_for(lambda: is_settled(pair), "everything is everywhere")
    status = order_once(str(pair.master.control_socket), StatusRequest())
    report = report_of(msgspec.to_builtins(status), asked_ms=0, answered_ms=0)
    term = Term(epoch=report.epoch, master=0, identity=report.identity, electable=(Voter(1),), acks_needed=1)
    lease = ObservedLease(record=LeaseRecord(epoch=report.epoch, terms=(term,)))
    expected = ledger_of(Spec(), ObservedShard(number=0, lease=lease, members=(Member(number=0, report=report),)), 0)

    for sidecar in (pair.master_sidecar, pair.slave_sidecar):
        shown = ledger_at(sidecar)
        assert {name: shown[name] for name in NUMBERS} == {name: getattr(expected, name) for name in NUMBERS}
        assert {risk["fault"]: risk["bytes"] for risk in shown["risks"]} == {
            fault.value: expected.risk(fault).bytes for fault in Fault
        }
        assert shown["in_sync"] == [1] and shown["flush_mode"] == "async" and shown["is_fresh"]

    with stopped(pair.master):
        wait_for(lambda: ledger_at(pair.slave_sidecar)["is_fresh"] is False, "it is not fresh any more")


NUMBERS: Final = ("epoch", "acknowledged", "wrote", "committed", "flushed", "replicated", "acks_needed", "master")


def ledger_at(sidecar: SidecarChild) -> dict[str, Any]:
    [shard] = sidecar.get("/v1/group").json()["shards"]
    found: dict[str, Any] = shard["ledger"] or {}
    return found


def is_settled(pair: Pair) -> bool:
    """Whether both sidecars know what there is, and it is flushed and copied."""
    end = pair.master.log_end
    ledgers = [ledger_at(sidecar) for sidecar in (pair.master_sidecar, pair.slave_sidecar)]
    return all(one.get("flushed") == one.get("replicated") == one.get("acknowledged") == end for one in ledgers)


@pytest.mark.verify
def test_killing_sidecars_repeatedly_does_not_affect_brokers(pair: Pair) -> None:
    """kill -9 during requests, streams and ranges: every send is acknowledged, no connection is left."""
    master = pair.master
    options = ["--open-reads", "--peer", pair.slave_sidecar.url]
    logged = {broker: len(broker.child.log) for broker in (pair.master, pair.slave)}
    with Load(master) as load:
        load.wait_for_progress()
        before = sockets(master)
        for _ in range(KILLS):
            with sidecar_process(master.store, *options) as sidecar, ranges_are_read(sidecar):
                wait_for(lambda: sidecar.get("/v1/topics").json().get("source") == "broker", "it has asked the broker")
                with httpx.stream("GET", f"{sidecar.url}/v1/events", timeout=60) as stream:
                    next(stream.iter_lines())
                    sidecar.child.send(signal.SIGKILL)
                    sidecar.child.process.wait(30)
                load.wait_for_progress()
        wait_for(lambda: sockets(master) <= before + SIDECAR_CONNECTIONS, "the broker has closed what was open")

        assert load.fault == ""
    for broker in (pair.master, pair.slave):
        assert broker.child.process.poll() is None
        logged_since = broker.child.log[logged[broker] :]
        assert " ERROR " not in logged_since and " WARNING " not in logged_since, logged_since


assert KILLS > SIDECAR_CONNECTIONS, "too few kills to detect one leaked connection per kill"


def sockets(broker: BrokerChild) -> int:
    """How many it has open. Files are not counted: the log grows meanwhile."""
    count = 0
    for link in Path(f"/proc/{broker.child.process.pid}/fd").iterdir():
        with suppress(OSError):
            count += os.readlink(link).startswith("socket:")
    return count


@pytest.mark.verify
def test_kill_during_a_page_write_leaves_the_previous_page(tmp_path: Path) -> None:
    """SIGKILL between two bytes of a publication: running and new sidecars show the publication before it."""
    program = ("torn_page_broker", "--cut", str(CUT_AFTER_WROTE), "--")
    with broker_process(tmp_path, *program) as broker, sidecar_process(tmp_path, "--open-reads") as watching:
        with Load(broker) as load:
            load.wait_for_progress()
            broker.child.send(signal.SIGUSR1)
            broker.child.process.wait(60)
        assert broker.child.process.returncode == -signal.SIGKILL
        torn = (tmp_path / "status").read_bytes()
        with PageReader(str(tmp_path / "status")) as reader:
            status = reader.read().status
        whole = {name: getattr(status, name) for name in OFFSETS}
        wait_for(lambda: broker_state(watching) == "crashed", "its death is noticed")
        with sidecar_process(tmp_path, "--open-reads") as later:
            answers = [sidecar.get("/v1/status").json() for sidecar in (watching, later)]

    assert [{name: one[name] for name in OFFSETS} for one in answers] == [whole, whole]
    fooled = read_page_without_checksum(torn)
    assert fooled["wrote"] > (whole["wrote"] or 0) > fooled["committed"], "without the checksum a mixture is read"
