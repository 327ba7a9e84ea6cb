"""The parts of the replication benchmark: the relay, the proxy for acks, control groups, pulls, the command.

The tests do not check speeds, only that a delay is not too short. The runs of real brokers are small ones: every part
with a pair of ours, the producer's only beside Apache's brokers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ha
import msgspec
import pytest
from click.testing import CliRunner, Result
from gantry_bench import (
    errors,
    ha_acks,
    ha_cells,
    ha_groups,
    ha_pair,
    ha_parts,
    ha_pulls,
    ha_scale,
    loadgen,
    machine,
    processes,
)

RunCommand = Callable[..., Result]
TIMING = loadgen.Timing(warm_up_ms=20, duration_ms=100)
HELD_MS = 60


@pytest.fixture(autouse=True)
def skip_memory_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip touching a gibibyte of memory, because a test sends little."""
    monkeypatch.setattr(machine, "WARM_BYTES_MAX", machine.WARM_STEP_BYTES)


# -- the relay ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs_go
@pytest.mark.parametrize("level", [1, 64])
def test_relay_returns_every_frame_unchanged(tmp_path: Path, level: int) -> None:
    """The load generator compares each answer with its request."""
    load = loadgen.LoadGenerator(loadgen.build(), core=None)

    with processes.start_relay(tmp_path, core=None) as relay:
        report = load.run(ha_pair.load_of(level), 1024, target=relay, timing=TIMING).report

    assert report.errors == 0
    assert report.messages > 0
    assert report.load.connections * report.load.outstanding == level


def test_relayed_data_passes_the_second_server(tmp_path: Path) -> None:
    """Without a second server a relay closes the connection instead of answering by itself."""
    command = [sys.executable, str(processes.ECHO_SERVER), "--relay", "1"]

    with processes.run_server(command, log=tmp_path / "relay.log", core=None) as server:
        port = int(processes.wait_for_line(server, what="relay"))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            assert connection.recv(1) == b""


# -- late acks ---------------------------------------------------------------------------------------------------------


@contextmanager
def proxied_sockets(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket, ha_acks.AckProxy]]:
    """The slave's end, the master's end, and the proxy between them."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ha_acks.start_ack_proxy(tmp_path, listener.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as slave,
    ):
        listener.settimeout(60)
        master, _ = listener.accept()
        master.settimeout(60)
        with master:
            yield slave, master, proxy


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        assert chunk, f"closed after {len(data)} of {size} bytes"
        data += chunk
    return data


def test_log_passes_the_proxy_unchanged(tmp_path: Path) -> None:
    """Eight megabytes that the kernel forwards arrive unchanged, independently of acks."""
    log = os.urandom(8 << 20)
    with proxied_sockets(tmp_path) as (slave, master, proxy):
        proxy.set_delay(HELD_MS)
        sender = threading.Thread(target=master.sendall, args=(log,))
        sender.start()
        slave.sendall(b"ack")

        assert read_exactly(slave, len(log)) == log
        assert read_exactly(master, 3) == b"ack"
        sender.join()


def test_first_ack_is_not_early_and_all_are_in_order(tmp_path: Path) -> None:
    """The first ack comes after the delay; those that arrive meanwhile follow it in their order."""
    acks = [b"%04d" % number for number in range(50)]
    with proxied_sockets(tmp_path) as (slave, master, proxy):
        slave.sendall(b"first")
        read_exactly(master, 5)
        proxy.set_delay(HELD_MS)
        before = time.monotonic()
        for ack in acks:
            slave.sendall(ack)

        first = read_exactly(master, 4)
        waited_ms = (time.monotonic() - before) * 1000
        rest = read_exactly(master, 4 * (len(acks) - 1))

    assert waited_ms >= HELD_MS
    assert first + rest == b"".join(acks)


def test_delay_can_be_removed(tmp_path: Path) -> None:
    """Runs with and without a delay alternate on one connection."""
    with proxied_sockets(tmp_path) as (slave, master, proxy):
        proxy.set_delay(60_000)
        proxy.set_delay(0)
        slave.sendall(b"ack")

        assert read_exactly(master, 3) == b"ack"


@pytest.mark.parametrize("milliseconds", [-1, 60_001], ids=["negative", "more than a minute"])
def test_delay_out_of_bounds_is_refused(tmp_path: Path, milliseconds: float) -> None:
    """The old delay stays in force."""
    with proxied_sockets(tmp_path) as (slave, master, proxy):
        with pytest.raises(errors.BenchmarkFailed, match="refused"):
            proxy.set_delay(milliseconds)
        slave.sendall(b"ack")

        assert read_exactly(master, 3) == b"ack"


@pytest.mark.parametrize("end", ["slave", "master"])
def test_closed_end_closes_the_other(tmp_path: Path, end: str) -> None:
    """As with a cable, neither side waits for a peer that is gone."""
    with proxied_sockets(tmp_path) as (slave, master, _):
        gone, left = (slave, master) if end == "slave" else (master, slave)
        gone.shutdown(socket.SHUT_RDWR)

        assert left.recv(1) == b""


# -- control groups ----------------------------------------------------------------------------------------------------


@pytest.mark.needs_memory_group
def test_broker_starts_inside_its_group_and_the_group_is_removed(tmp_path: Path) -> None:
    """Memory that a process has before it moves into a group is counted elsewhere, so it must start there."""
    with ha_groups.memory_group("test", 64 << 20) as group:
        grown = "import sys; data = bytearray(20 << 20); data[::4096] = b'x' * 5120; print('ready', flush=True)"
        command = [
            *group.prefix,
            sys.executable,
            "-c",
            f"{grown}; sys.stdin.read(); import time; time.sleep(60)",
        ]
        with processes.run_server(command, log=tmp_path / "log", core=None) as server:
            assert processes.wait_for_line(server, what="program") == "ready"
            members = (group.path / "cgroup.procs").read_text().split()
            assert members == [str(server.process_id)]
            assert 20 << 20 <= group.own_bytes() < 64 << 20
            assert group.limit_hits() == 0

    assert not group.path.exists()


# -- pulls -------------------------------------------------------------------------------------------------------------


def test_pulls_without_a_broker_fail_with_the_reason() -> None:
    """Figures without a pull would look like fast ones."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    loop = ha_pulls.PullLoop(f"127.0.0.1:{port}")

    with pytest.raises(errors.BenchmarkFailed, match="pulls failed"), loop.run_meanwhile():
        pass


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_ha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """The command with its results in a folder of the test; returns a runner for it."""
    monkeypatch.setattr(ha, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(ha, "ROOT", tmp_path)
    monkeypatch.setattr(ha, "QUIET_SECONDS", 0.01)
    # The level is low, because a busy machine may delay thousands of sends until they are refused.
    gentle = msgspec.structs.replace(
        ha_scale.QUICK, setups=(ha_cells.PLAIN, ha_cells.SYNC_BUFFERED), levels=(1, 16), memory_levels=(16,),
        slow_levels=(16,),
    )  # fmt: skip
    monkeypatch.setattr(ha, "QUICK", gentle)

    (tmp_path / "results").mkdir()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(ha.main, ["--quick", "--without-apache", *arguments])

    return run


@pytest.mark.parametrize(
    "arguments", [("--publish",), ("--publish", "--only", "table"), ("--only", "cells")], ids=" ".join
)
def test_only_a_complete_run_is_published(quick_ha: RunCommand, arguments: tuple[str, ...]) -> None:
    """A page with figures of several runs, or of none, would be misleading."""
    result = quick_ha(*arguments)

    assert result.exit_code == 2
    assert "complete run" in result.output or "Invalid value" in result.output


def test_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling the disk would harm other programs."""
    monkeypatch.setattr(ha, "RESULTS", tmp_path / "results")

    with pytest.raises(errors.BenchmarkFailed, match="are free on the disk"), ha.working_folder(1 << 60):
        pass

    assert list((tmp_path / "results").iterdir()) == []


def test_failed_part_keeps_the_results_of_earlier_parts(
    quick_ha: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour, results must be kept; the exit code and the last line show what is missing."""

    def measure(*_: object, outcomes: dict[str, ha_parts.HaOutcome], **__: object) -> None:
        outcomes["memory"] = ha_parts.HaOutcome([], [], list[ha_cells.HaRun]())
        raise errors.BenchmarkFailed("the broker ended with code 1")

    monkeypatch.setattr(ha, "measure", measure)

    result = quick_ha("--only", "memory", "--only", "slow")

    assert result.exit_code == 1
    assert "the broker ended with code 1" in result.output
    [kept] = (tmp_path / "results").iterdir()
    assert list(json.loads(kept.read_text())["outcomes"]) == ["memory"]


@pytest.mark.verify
@pytest.mark.needs_go
@pytest.mark.parametrize(
    "part", ["table", *(pytest.param(part, marks=pytest.mark.slow) for part in ("memory", "slow"))]
)
def test_part_runs_with_our_brokers_and_leaves_only_its_figures(
    quick_ha: RunCommand, tmp_path: Path, part: str
) -> None:
    """Every answer is code 0, goals are printed, and stores, buffers and groups are removed."""
    result = quick_ha("--only", part)

    assert result.exit_code == 0, result.output
    assert "Goals" in result.output
    [kept] = (tmp_path / "results").iterdir()
    outcome = json.loads(kept.read_text())["outcomes"][part]
    assert outcome["errors"] == 0
    assert outcome["runs"] or "Not measured" in result.output
    assert [path.name for path in (tmp_path / "results").iterdir()] == [kept.name]
    assert not list(Path("/sys/fs/cgroup/memory").glob(f"gantry-bench-{os.getpid()}-*"))


@pytest.mark.slow
@pytest.mark.needs_go
@pytest.mark.needs_java
@pytest.mark.usefixtures("quick_ha")
def test_apaches_brokers_are_measured_too(tmp_path: Path) -> None:
    """Both systems have a cell for each setup and level, and Apache's own producer reaches both."""
    result = CliRunner().invoke(ha.main, ["--quick", "--only", "table", "--only", "producer"])

    assert result.exit_code == 0, result.output
    [kept] = (tmp_path / "results").iterdir()
    outcomes = json.loads(kept.read_text())["outcomes"]
    keys = [(run["system"], run["level"]) for run in outcomes["table"]["runs"]]
    assert keys == [("Gantry", 1), ("Apache", 1), ("Gantry", 16), ("Apache", 16)] * 2
    assert all(run["run"]["report"]["messages"] > 0 for run in outcomes["table"]["runs"])
    assert [run["system"] for run in outcomes["producer"]["runs"]] == ["Gantry", "Apache"]
    assert all(run["messages_per_second"] > 0 for run in outcomes["producer"]["runs"])
