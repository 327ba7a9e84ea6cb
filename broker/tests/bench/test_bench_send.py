"""The send benchmark with the real load generator, the real echo server, and a stub in place of the broker.

The stub is a process that reads frames and answers them, with code 0 or with another, so that the whole path is
exercised without a broker: start, load, CPU time of another process, medians, goals, exit code.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import send
from click.testing import CliRunner, Result
from gantry_bench import errors, loadgen, machine, measurement, memory, processes, speedups
from rich.console import Console

RunCommand = Callable[..., Result]
TIMING = loadgen.Timing(warm_up_ms=20, duration_ms=100)

STUB_BROKER = """
import asyncio, json, sys

CODE = int(sys.argv[1])

class Stub(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""

    def data_received(self, data):
        self.data += data
        replies = []
        while len(self.data) >= 8:
            total = int.from_bytes(self.data[:4], "big")
            header_bytes = int.from_bytes(self.data[5:8], "big")
            if len(self.data) < 4 + total:
                break
            request = json.loads(self.data[8:8 + header_bytes])
            java = request["code"] == 310 and len(request["extFields"]["i"].split("\\x02")[0]) == 41
            assert java or request["code"] == 320 or request["language"] == "GO", request
            self.data = self.data[4 + total:]
            header = {"code": CODE, "flag": 1, "opaque": request["opaque"], "remark": "said the stub"}
            reply = json.dumps(header, separators=(",", ":")).encode()
            replies.append((4 + len(reply)).to_bytes(4, "big") + len(reply).to_bytes(4, "big") + reply)
        self.transport.write(b"".join(replies))

async def main():
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def skip_memory_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip touching a gibibyte of memory, because a test sends little."""
    monkeypatch.setattr(machine, "WARM_BYTES_MAX", machine.WARM_STEP_BYTES)


@contextmanager
def stub_broker(folder: Path, *, code: int = 0, core: int | None = None) -> Iterator[processes.Broker]:
    """Run a process that answers every send with one code."""
    script = folder / "stub.py"
    script.write_text(STUB_BROKER)
    with processes.run_server([sys.executable, str(script), str(code)], log=folder / "stub.log", core=core) as server:
        port = processes.wait_for_line(server, what="stub")
        target = loadgen.Target(address=f"127.0.0.1:{port}", process_id=server.process_id, is_echo=False)
        idle = memory.read_resident_memory(server.process_id, store=folder)
        yield processes.Broker(target=target, idle_memory=idle, server=server)


@pytest.fixture
def stubbed_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """The command with a stub in place of broker and name server; returns a runner for it."""
    code = 0

    @contextmanager
    def start_broker(
        folder: Path, *, name_server: str, core: int | None, extra: dict[str, str], prefix: tuple[str, ...]
    ) -> Iterator[processes.Broker]:
        assert name_server == "127.0.0.1:9"
        assert prefix[0] == "env"
        folder.mkdir()
        with stub_broker(folder, code=code, core=core) as broker:
            yield broker

    @contextmanager
    def start_name_server(folder: Path) -> Iterator[str]:
        yield "127.0.0.1:9"

    monkeypatch.setattr(send, "start_broker", start_broker)
    monkeypatch.setattr(send, "start_name_server", start_name_server)
    monkeypatch.setattr(send, "missing_reason", lambda: "not in this test")
    monkeypatch.setattr(speedups, "probe", lambda setting: speedups.CodePath(setting, False, "not in this test"))
    monkeypatch.setattr(send, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(send, "ROOT", tmp_path)
    monkeypatch.setattr(send, "ROOM_BYTES", 0)

    def run(*arguments: str, answer: int = 0) -> Result:
        nonlocal code
        code = answer
        quick = ["--repetitions", "2", "--warm-up-ms", "20", "--duration-ms", "100"]
        return CliRunner().invoke(send.main, [*quick, *arguments])

    return run


@pytest.mark.verify(quick=3)
@pytest.mark.needs_go
@pytest.mark.parametrize("name", ["a", "a1", "b"])
@pytest.mark.parametrize("sender", ["java", "binary"])
def test_echo_server_answers_every_mode(tmp_path: Path, name: measurement.ModeName, sender: str) -> None:
    """The baseline runs in all three modes without an error, and its CPU time is measured."""
    mode = measurement.MODES[name]
    load = loadgen.LoadGenerator(loadgen.build(), core=None)

    with processes.start_echo_server(tmp_path, core=None) as echo:
        run = load.run(mode, 256, sender=measurement.SENDERS[sender], target=echo, timing=TIMING)

    assert run.report.errors == 0
    assert run.report.messages > 0
    assert run.report.frames_per_write_mean == mode.frames_per_write
    assert run.report.server.cpu_us_per_message > 0
    assert run.other_cores >= 0


@pytest.mark.verify
@pytest.mark.needs_go
def test_complete_run_prints_goals_and_writes_its_figures(stubbed_send: RunCommand, tmp_path: Path) -> None:
    """Every mode and body is measured together with the echo server, and the file has the figures of the table."""
    result = stubbed_send("--only", "servers", "--body-bytes", "64", "--body-bytes", "128")

    assert result.exit_code == 0, result.output
    assert result.output.count("broker CPU per message") == 4  # two modes with a goal, two bodies
    assert "Not measured: Gantry, compiled (not in this test)." in result.output
    assert "Not measured: C server (not in this test)." in result.output
    assert "idle resident memory" in result.output
    [kept] = (tmp_path / "results").iterdir()
    assert f"written to {kept.relative_to(tmp_path)}" in result.output
    results = json.loads(kept.read_text())
    assert [(cell["mode"]["name"], cell["body_bytes"]) for cell in results["cells"]] == [
        (name, size) for name in ("a", "a1", "b") for size in (64, 128)
    ]
    assert len(results["runs"]) == 3 * 2 * 2 * 2
    assert all(run["report"]["errors"] == 0 for run in results["runs"])
    assert all(set(cell["servers"]) == {"echo", "python"} for cell in results["cells"])


@pytest.mark.verify(quick=1)
@pytest.mark.needs_go
def test_each_sender_is_compared_with_the_usual_one(stubbed_send: RunCommand, tmp_path: Path) -> None:
    """The usual sender runs in turn with every other one, and the results are at the requested path."""
    path = tmp_path / "own.json"
    senders = ("--sender", "go", "--sender", "batch", "--sender", "signed")

    result = stubbed_send("--only", "senders", *senders, "--body-bytes", "64", "--json", str(path))

    assert result.exit_code == 0, result.output
    cells = json.loads(path.read_text())["sender_cells"]
    assert [cell["sender"]["name"] for cell in cells] == ["go", "batch", "signed"]
    assert all(cell["servers"]["python"]["usual"]["repetitions"] == 2 for cell in cells)
    assert "x Java's" in result.output


@pytest.mark.verify
@pytest.mark.needs_go
def test_refused_sends_fail_the_command(stubbed_send: RunCommand) -> None:
    """A broker that refuses gives no result: the command ends with 1 and shows the broker's remark."""
    result = stubbed_send("--only", "servers", "--mode", "a", "--body-bytes", "64", answer=14)

    assert result.exit_code == 1
    assert "said the stub" in result.output


def test_refusals_are_the_last_line(tmp_path: Path) -> None:
    """`make bench` shows the last line of a failed part as the reason."""
    plan = send.Plan(
        parts=("servers",), modes=(), bodies_bytes=(1024,), senders=(), repetitions=1, timing=TIMING, has_apache=False
    )  # fmt: skip
    results = send.Results(
        started_at="2026-11-27T12:00:00Z", machine=machine.describe_machine(), cores=machine.Cores(None, None),
        plan=plan, paths=[], missing={}, cells=[], sender_cells=[], goals=[], idle_memory=[], runs=[], errors=3,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=100)

    send.report(console, results, tmp_path / "send.json")

    output: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert output.splitlines()[-1].startswith("3 answers were wrong or refusals; the first refusal: ")
    assert "written to" in output


@pytest.mark.verify(quick=1)
@pytest.mark.needs_go
@pytest.mark.parametrize(("extra", "code"), [((), 0), (("--assert-goals",), 1)], ids=["reported", "asserted"])
def test_missed_goal_fails_only_when_requested(
    stubbed_send: RunCommand, monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...], code: int
) -> None:
    """Goals are printed; with `--assert-goals` a missed one gives exit code 1."""
    strict = measurement.Mode(name="b", connections=64, outstanding=1, frames_per_write=1, cpu_ratio_max=0.001)
    monkeypatch.setitem(measurement.MODES, "b", strict)

    result = stubbed_send("--only", "servers", "--mode", "b", "--body-bytes", "64", *extra)

    assert result.exit_code == code, result.output
    assert "not met" in result.output


@pytest.mark.needs_go
def test_missing_server_is_the_reported_reason(tmp_path: Path) -> None:
    """A load that cannot connect ends with that error and without figures."""
    load = loadgen.LoadGenerator(loadgen.build(), core=None)
    with stub_broker(tmp_path) as broker:
        gone = loadgen.Target(address="127.0.0.1:1", process_id=broker.target.process_id, is_echo=False)

        with pytest.raises(errors.BenchmarkFailed, match=r"connect to 127\.0\.0\.1:1"):
            load.run(measurement.MODES["a"], 64, target=gone, timing=TIMING)


def test_missing_go_gives_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    (tmp_path / "main.go").write_text("package main\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(errors.BenchmarkFailed, match="apt-get install golang-go"):
        loadgen.build(tmp_path)


def test_changed_sources_change_the_digest(tmp_path: Path) -> None:
    """The digest depends on names and contents of the sources, and ignores tests."""
    source = tmp_path / "main.go"
    source.write_text("package main\n")
    first = loadgen.source_digest(tmp_path)
    (tmp_path / "main_test.go").write_text("package main\n")
    assert loadgen.source_digest(tmp_path) == first

    source.write_text("package main // changed\n")

    assert loadgen.source_digest(tmp_path) != first


def test_server_that_ends_at_once_is_shown_with_its_output(tmp_path: Path) -> None:
    """A broker that refuses its settings must not look like a slow start."""
    command = [sys.executable, "-c", "import sys; sys.exit('flushDiskType: unknown value')"]

    with processes.run_server(command, log=tmp_path / "log", core=None) as server:
        server.process.wait(120)
        with pytest.raises(errors.BenchmarkFailed, match="ended with code 1: flushDiskType: unknown value"):
            processes.wait_for_port(server, 1, what="broker")


@pytest.mark.parametrize(
    "arguments",
    [("--mode", "c"), ("--body-bytes", "0"), ("--body-bytes", "9000000"), ("--repetitions", "0"), ("--sender", "java")],
    ids=" ".join,
)
def test_wrong_command_lines_are_refused(arguments: tuple[str, ...]) -> None:
    """No process is started for an invalid load."""
    result = CliRunner().invoke(send.main, list(arguments))

    assert result.exit_code == 2
    assert "Invalid value" in result.output


def test_senders_become_options_of_the_load_generator() -> None:
    """Every property of a sender is an option; nothing is signed without an account."""
    target = loadgen.Target(address="127.0.0.1:1", process_id=1, is_echo=False)
    mode = measurement.MODES["a"]

    words = loadgen.arguments(mode, 64, sender=measurement.SENDERS["batch"], target=target, timing=TIMING)

    assert {"-code=320", "-header=json", "-order=java", "-keys=0", "-batch-messages=16"} <= set(words)
    with pytest.raises(errors.BenchmarkFailed, match="cannot be signed without an account"):
        loadgen.arguments(mode, 64, sender=measurement.SENDERS["signed"], target=target, timing=TIMING)


def test_brokers_settings_use_rocketmqs_names(tmp_path: Path) -> None:
    """The configuration is a plain broker.conf, with a store below the run's own folder."""
    text = processes.broker_settings(tmp_path / "store", listen_port=23456, name_server="127.0.0.1:9876")

    settings = dict(line.split("=", 1) for line in text.splitlines())
    assert settings["listenPort"] == "23456"
    assert settings["namesrvAddr"] == "127.0.0.1:9876"
    assert settings["storePathRootDir"] == str(tmp_path / "store")
    assert settings["mappedFileSizeCommitLog"] == str(1024**3)
