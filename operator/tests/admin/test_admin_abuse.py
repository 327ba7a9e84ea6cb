"""Abuse of the sidecar's ports: probes and status are answered 200 beside it, and what it costs is bounded.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for, write_token_files
from http_abuse import ATTACKS, HttpAbuseReport, count_descriptors, run_http_abuse

from gantry_remoting.http_admission import HttpLimitSettings

LIMITS = HttpLimitSettings()
RSS_GROWTH_KIB_MAX = 96 * 1024
"""The sidecar itself has about 65 MiB, and a pod gives it 256."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    """A broker that is ready, and its sidecar."""
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker, sidecar_process(store, "--open-reads") as sidecar:
        sidecar.wait_ready()
        yield broker, sidecar


def run_attack(
    sidecar: SidecarChild, attack: str, *, connections: int = 600, addresses: int = 1, rounds: int = 8
) -> HttpAbuseReport:
    """Run an attack on the sidecar's main port, and return its report."""
    host, _, port = sidecar.address.rpartition(":")
    return asyncio.run(
        run_http_abuse(
            (host, int(port)), sidecar.child.process.pid, attack,
            connections=connections, addresses=addresses, rounds=rounds,
        )
    )  # fmt: skip


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("attack", ATTACKS)
def test_probes_are_answered_during_an_attack_from_one_address(
    pair: tuple[BrokerChild, SidecarChild], attack: str
) -> None:
    """Under 600 connections every probe and status is 200, descriptors and memory stay bounded."""
    report = run_attack(pair[1], attack)

    assert report.failures == {}
    assert sum(report.answers.values()) == 8 * 3
    assert report.descriptors_most <= report.descriptors_before + LIMITS.connections_per_address_max + 64
    assert report.rss_most_kib <= report.rss_before_kib + RSS_GROWTH_KIB_MAX


def test_probes_are_answered_during_incomplete_requests_from_many_addresses(
    pair: tuple[BrokerChild, SidecarChild],
) -> None:
    """No address reaches its own limit, so the total limit applies."""
    report = run_attack(pair[1], "half requests", connections=900, addresses=9, rounds=12)

    assert report.failures == {}
    assert report.descriptors_most <= report.descriptors_before + LIMITS.connections_max + 80


@pytest.mark.verify
def test_without_deadlines_incomplete_requests_block_probes(tmp_path: Path) -> None:
    """The twin: without deadlines and eviction the same incomplete requests make the probes fail."""
    with (
        broker_process(tmp_path) as broker,
        sidecar_process(tmp_path, "--http-connections-per-address", "512", program="unguarded_sidecar") as sidecar,
    ):
        sidecar.wait_ready()
        report = run_attack(sidecar, "half requests")

        assert broker.child.process.poll() is None
    assert report.failures.get("/livez error", 0) > 0


@pytest.mark.verify
@pytest.mark.parametrize(
    ("first", "option", "reason"),
    [
        (b"GET /livez HTTP/1.1\r\nHo", "--http-head-timeout", "head_timeout"),
        (b"", "--http-head-timeout", "head_timeout"),
        (b"POST /v1/role/fence HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", "--http-body-timeout",
         "body_timeout"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", "--http-idle-timeout", "idle_timeout"),
    ],
    ids=["half head", "nothing", "half body", "idle"],
)  # fmt: skip
def test_connection_past_its_deadline_is_closed_and_counted(
    tmp_path: Path, first: bytes, option: str, reason: str
) -> None:
    """Each phase has its own deadline, and its reason is in `/metrics`."""
    with sidecar_process(tmp_path, option, "200") as sidecar:
        host, _, port = sidecar.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as half:
            half.sendall(first)
            while half.recv(4096):
                pass
        line = f'gantry_sidecar_http_closed_total{{listener="main",reason="{reason}"}}'
        wait_for(lambda: value_of(sidecar, line) >= 1, "it is counted")


def test_incomplete_requests_do_not_block_ranges_of_the_log(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """The second port has its own limits: during 200 incomplete requests a range is answered."""
    broker, sidecar = pair
    broker.send(5)
    wait_for(lambda: sidecar.get("/v1/status").json()["confirmed"] == broker.log_end, "all of it is published")
    host, _, port = sidecar.log_address.rpartition(":")
    before = count_descriptors(sidecar.child.process.pid)
    with ExitStack() as stack:
        for _ in range(200):
            half = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            half.sendall(b"GET /v1/log/bytes HTTP/1.1\r\nHost: 127.0.0.1\r\n")

        answer = sidecar.get("/v1/log/bytes", at_log_port=True, Range="bytes=0-99")

        assert answer.status_code == 206
        assert count_descriptors(sidecar.child.process.pid) <= before + 64
    line = 'gantry_sidecar_http_closed_total{listener="log",reason="address_limit"}'
    assert value_of(sidecar, line) > 100


@pytest.mark.verify
def test_probes_are_answered_while_all_connections_are_in_use(tmp_path: Path) -> None:
    """Event streams may use all connections; the reserve answers probes, and refuses all other requests with 503."""
    limits = ("--http-connections", "3", "--http-connections-per-address", "3", "--http-probe-connections", "2")
    with sidecar_process(tmp_path, *limits) as sidecar, ExitStack() as stack:
        host, _, port = sidecar.address.rpartition(":")
        streams = []  # an iterator that is garbage-collected closes its connection
        for number in range(2, 5):
            transport = httpx.HTTPTransport(local_address=f"127.0.0.{number}")
            client = stack.enter_context(httpx.Client(transport=transport, timeout=60))
            stream = stack.enter_context(client.stream("GET", f"http://{host}:{port}/v1/events"))
            streams.append(stream.iter_lines())
            next(streams[-1])

        assert sidecar.get("/livez").status_code == 200
        refused = sidecar.get("/v1/status")
        assert refused.status_code == 503
        assert "probes" in refused.json()["reason"]


def test_contradictory_limits_stop_the_start(tmp_path: Path) -> None:
    """The error message names both options."""
    with pytest.raises(AssertionError, match="--http-connections-per-address 9 is more than --http-connections 4"):
        SidecarChild(tmp_path, "--http-connections", "4", "--http-connections-per-address", "9")


@pytest.mark.verify
def test_attack_causes_few_log_lines(tmp_path: Path) -> None:
    """600 connections with invalid requests cause at most two warnings."""
    with sidecar_process(tmp_path / "store", *write_token_files(tmp_path / "tokens")) as sidecar:
        run_attack(sidecar, "no HTTP")
        assert sidecar.child.log.count("WARNING") <= 2


def value_of(sidecar: SidecarChild, series: str) -> float:
    """Return one sample of `/metrics`; 0 if there is none."""
    lines = sidecar.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)), 0.0)
