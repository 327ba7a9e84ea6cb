"""Tests of the harness itself: it must detect faults, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
from gantry_interop import benchmark, drivers, failover, flows, frames, java, processes, proxy, record, versions
from gantry_interop.errors import DeadlineExceeded, InteropError
from gantry_interop.failover_plans import Plan
from gantry_interop.migration_report import MigrationReport
from gantry_interop.migration_report import Plan as MigrationPlan

ENDLESS = [sys.executable, "-c", "import signal; signal.pause()"]
FRAME = record.GOLDEN / f"0310-send-message-v2.request.client-{versions.PEER}.json.bin"


def test_leaving_the_nursery_ends_every_child(tmp_path: Path) -> None:
    """No process outlives a run that ends with an error."""
    with pytest.raises(InteropError), processes.Nursery(tmp_path) as nursery:
        child = nursery.start("endless", ENDLESS, os.environ)
        raise InteropError("something else went wrong")

    assert not child.is_running()
    assert child.process.returncode == -signal.SIGTERM


def test_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """Every program has a deadline, and its error names the log."""
    with processes.Nursery(tmp_path) as nursery, pytest.raises(DeadlineExceeded, match=r"endless\.log"):
        nursery.run("endless", ENDLESS, os.environ, 0.2)


def test_waiting_for_a_dead_process_fails_at_once(tmp_path: Path) -> None:
    """A peer that died while starting is reported with the end of its output, without waiting for the deadline."""
    with processes.Nursery(tmp_path) as nursery:
        child = nursery.start("brief", [sys.executable, "-c", "print('no such setting'); exit(3)"], os.environ)

        with pytest.raises(InteropError, match=r"(?s)ended with 3 before readiness.*no such setting"):
            processes.wait_until("readiness", lambda: False, 20, child)


def test_driver_that_dies_breaks_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario is never left out: without a verdict of the driver it counts as broken, and the next one is run."""
    script = (
        "import sys\n"
        "for name in sys.argv[1].split(','):\n"
        "    if name == 'async': sys.exit(7)\n"
        '    print(\'{"scenario":"%s","client":"x","kept":true,"sent":1}\' % name)\n'
    )
    monkeypatch.setattr(
        java.Program, "command", lambda self, home, arguments: [sys.executable, "-c", script, *arguments]
    )
    options = drivers.DriverOptions("127.0.0.1:1", 1, 1, 1, "1s", "run", scenario_seconds_max=120)

    with processes.Nursery(tmp_path) as nursery:
        verdicts = drivers.run_scenarios(nursery, versions.PEER, ("sync", "async", "batch"), options, tmp_path)

    assert [(verdict.scenario, verdict.kept) for verdict in verdicts] == [
        ("sync", True),
        ("async", False),
        ("batch", True),
    ]


def test_hanging_driver_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that exceeds its time limit is broken, and its process is killed."""
    monkeypatch.setattr(java.Program, "command", lambda self, home, arguments: ENDLESS)
    options = drivers.DriverOptions("127.0.0.1:1", 1, 1, 1, "1s", "run", scenario_seconds_max=0.3)

    with processes.Nursery(tmp_path) as nursery:
        (verdict,) = drivers.run_scenarios(nursery, versions.OLDEST, ("sync",), options, tmp_path)
        assert not any(child.is_running() for child in nursery._children)

    assert not verdict.kept


PRODUCER_LINE = (
    "Current Time: 2026-01-01 00:00:00,000 | Send TPS: {rate} | Max RT(ms): 12 | Average RT(ms):   0.913 "
    "| Send Failed: {failed} | Response Failed: 0\n"
)
CONSUMER_LINE = (
    "Current Time: 2026-01-01 00:00:00,000 | Consume TPS: 9 | AVG(B2C) RT(ms):   2.250 | AVG(S2C) RT(ms):   1.100 "
    "| MAX(B2C) RT(ms): 20 | MAX(S2C) RT(ms): 10 | Consume Fail: 0\n"
)


@pytest.mark.parametrize(
    ("producer", "broken"),
    [
        pytest.param(PRODUCER_LINE.format(rate=1000, failed=0), [], id="rate and no failure"),
        pytest.param(PRODUCER_LINE.format(rate=1000, failed=2), ["no send fails"], id="failed sends"),
        pytest.param("java.net.ConnectException\n", ["the producer reports a rate"], id="no rate at all"),
    ],
)
def test_benchmark_is_checked_for_failures(producer: str, broken: list[str]) -> None:
    """A benchmark passes when both programs report a rate and neither a failure."""
    found = benchmark.judge(30, producer, CONSUMER_LINE)

    assert found.broken == broken
    assert found.kept == (not broken)


def test_run_that_ends_early_is_reported_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as broken, and the text is the fault and not what was expected."""

    def fail(*arguments: object) -> None:
        raise InteropError("the master did not start")

    monkeypatch.setattr(failover, "_FailoverRun", fail)
    monkeypatch.setattr(flows, "_FlowRun", fail)
    with processes.Nursery(tmp_path) as nursery:
        broken = [
            *failover.run_or_report(Plan(is_sync=True), nursery, tmp_path).broken,
            *flows.run_flow(flows.PLANS[0], nursery, tmp_path).broken,
        ]

    assert broken == ["the run ended early: the master did not start"] * 2


def test_unknown_results_of_a_migration_are_not_called_refused() -> None:
    """An attempt without a known result may be stored."""
    report = MigrationReport(MigrationPlan(), answered=9, unknown={"timeout": 2, "closed": 1})

    assert "9 acknowledged under load, lost 0, unknown result 3, redelivered 0" in report.lines()[-1]
    assert report.as_json()["unknown"] == {"timeout": 2, "closed": 1}


def test_proxy_shows_every_frame_and_changes_none() -> None:
    """Data of one end arrives at the other, and the observer sees each frame once, in both directions."""
    raw = FRAME.read_bytes()
    seen: list[tuple[bool, bytes]] = []
    answered = threading.Event()

    def observe(link: proxy.Link, to_server: bool, frame: frames.WireFrame) -> None:
        seen.append((to_server, frame.raw))
        if not to_server:
            answered.set()

    with socket.create_server(("127.0.0.1", 0)) as server, proxy.Proxy(observe) as between:
        port = server.getsockname()[1]
        between.serve("echo", (record.PROXY_HOST, port), ("127.0.0.1", port))
        with socket.create_connection((record.PROXY_HOST, port), 60) as client:
            client.settimeout(60)
            client.sendall(raw)
            behind, _ = server.accept()
            with behind:
                behind.settimeout(60)
                arrived = behind.recv(len(raw), socket.MSG_WAITALL)
                behind.sendall(arrived)
                returned = client.recv(len(raw), socket.MSG_WAITALL)
        assert answered.wait(60)

    assert arrived == raw == returned
    assert seen == [(True, raw), (False, raw)]
