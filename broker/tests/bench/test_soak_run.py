"""Short soaks of real processes: the load is judged, faults are survived, and planted leaks are found."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from gantry_bench.processes import ROOT
from gantry_soak.bounds import Judged, judge
from gantry_soak.names import QUEUES
from gantry_soak.records import RecordFile, Run, read_run
from gantry_soak.run import make_plan, run_soak
from gantry_soak.trends import Verdict

from gantry_testing.leaks import LEAKS, leak_environment

DURATION_S = 30.0
LEAK_PERIOD_S = 0.2
UNTIL_A_LEAK_PER_HOUR = 3_600.0
"""A planted leak of the tests adds 18,000 an hour. What a flat process does in half a minute stays below this."""


def soak(
    folder: Path, *, features: Sequence[str], faults: Sequence[str], leak: str = "", duration_s: float = DURATION_S
) -> Run:
    """Run a soak; return its file."""
    plan = make_plan(1, duration_s, features=features, faults=faults, leak=leak, interval_s=1.0)
    file = RecordFile(folder / "soak.jsonl")
    environment = leak_environment(leak or None, LEAK_PERIOD_S)
    asyncio.run(run_soak(plan, folder / "group", file, lambda text: None, environment))
    return read_run(file.path)


def find(judged: Sequence[Judged], group: str, name: str) -> Judged:
    return next(one for one in judged if (one.measure.group, one.measure.name) == (group, name))


@pytest.mark.verify
def test_a_short_soak_with_faults_loses_nothing(tmp_path: Path) -> None:
    """Features run while a slave is killed and the role moves; every process and every kind of file is measured."""
    features = ("normal", "pop", "timers", "transactions", "churn", "grpc", "accounts", "http")
    run = soak(tmp_path, features=features, faults=("kill-slave", "promote"), duration_s=45.0)
    assert run.end is not None and run.end.findings == [], run.end
    assert run.end.acknowledged > 100
    assert [fault.name for fault in run.faults] == ["kill-slave", "promote"] and not any(f.note for f in run.faults)
    names = {process.name for sample in run.samples for process in sample.processes}
    assert names == {
        "master-0", "slave-0-1", "sidecar-master-0", "sidecar-slave-0-1", "nameserver-0", "proxy-0", "supervisor",
        "client",
    }  # fmt: skip
    disk = {kind.partition("/")[2] for sample in run.samples for kind in sample.disk}
    assert {"commit log", "consume queues", "key index", "tables", "timers", "logs"} <= disk
    for group in ("descriptors", "threads"):
        for one in (one for one in judge(run) if one.measure.group == group):
            assert one.trend.per_hour < UNTIL_A_LEAK_PER_HOUR, one


@pytest.mark.verify
def test_retention_need_not_wait_for_broadcast_consumers(tmp_path: Path) -> None:
    """They keep their offsets themselves; the broker learns from another group what they have consumed.

    Without it no file of the log would be deleted, and the soak would find that the disk use grows.
    """
    soak(tmp_path, features=("broadcast",), faults=())
    [path] = (tmp_path / "group").glob("**/master-0/config/consumerOffset.json")
    committed = json.loads(path.read_text())["offsetTable"]["soak-broadcast@soak-broadcast-offsets-readers"]
    assert len(committed) == QUEUES and all(int(offset) > 0 for offset in committed.values())


@pytest.mark.verify
def test_terminated_soak_leaves_no_process_behind(tmp_path: Path) -> None:
    """Its group would keep running, and disturb the next measurement."""
    group, samples = tmp_path / "group", tmp_path / "samples.jsonl"
    group.mkdir()
    words = [
        "--minutes",
        "3",
        "--feature",
        "normal",
        "--fault",
        "none",
        "--data",
        str(group),
        "--samples",
        str(samples),
    ]
    process = subprocess.Popen([sys.executable, str(ROOT / "bench" / "soak.py"), *words], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not samples.exists() or samples.read_bytes().count(b"\n") < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)
        process.terminate()
        assert process.wait(120) == 130
    finally:
        process.kill()
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [one for one in commands if str(group).encode() in one]


@pytest.mark.verify
@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found(tmp_path: Path, leak: str) -> None:
    """A leak of a broker is found in the measure that it belongs to."""
    group = {"descriptor": "descriptors", "memory": "own memory", "table": "tables", "thread": "threads"}[leak]
    name = "master-0/offset tables" if leak == "table" else "master-0"
    run = soak(tmp_path, features=("normal", "churn"), faults=(), leak=leak, duration_s=60.0 if leak == "table" else 30)
    assert find(judge(run), group, name).trend.verdict is Verdict.GROWS
