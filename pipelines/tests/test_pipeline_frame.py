"""The frame of a job: its reports, its stop request, and its exit codes."""

import io
import json
import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gantry_pipelines import job as jobs
from gantry_pipelines.__main__ import main
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import JobError
from gantry_pipelines.job import Job, JobEntry
from gantry_pipelines.outcome import Outcome, QueueProgress
from gantry_pipelines.reporting import (
    TERMINATION_MESSAGE_BYTES_MAX,
    Output,
    OutputFormat,
    Reporter,
    termination_message,
)
from gantry_pipelines.status_page import CONNECTIONS_MAX, serve_status_page
from gantry_pipelines.stop_request import StopRequest
from gantry_spec.pipelines.kinds import ARCHIVE, ArchiveSpec
from pyspark_rocketmq.errors import LogForked

DEADLINE_SECONDS = 60
run_now: Any = None


class ScriptedJob(Job[ArchiveSpec, PipelineConfig[ArchiveSpec]]):
    """A job whose run is the function `run_now` of the test."""

    name = "archive"
    spec_type = ArchiveSpec

    def parse(self, config: PipelineConfig[ArchiveSpec]) -> PipelineConfig[ArchiveSpec]:
        return config

    def run(self, settings: PipelineConfig[ArchiveSpec], reporter: Reporter) -> Outcome:
        outcome = run_now(settings, reporter)
        assert isinstance(outcome, Outcome)
        return outcome


@pytest.fixture
def run_job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the job `archive` with an action, and returns its exit code."""
    module: Any = ModuleType("scripted_job")
    module.ScriptedJob = ScriptedJob
    monkeypatch.setitem(sys.modules, "scripted_job", module)
    monkeypatch.setitem(jobs.JOBS, "archive", JobEntry("scripted_job", "ScriptedJob", ARCHIVE.name, "scripted"))

    def run(action: Any, *arguments: str) -> int:
        monkeypatch.setattr(sys.modules[__name__], "run_now", action)
        with pytest.raises(SystemExit) as ended:
            main(["archive", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def output(output_format: OutputFormat = OutputFormat.TEXT, **others: Any) -> tuple[Output, io.StringIO, io.StringIO]:
    lines, result = io.StringIO(), io.StringIO()
    return Output(output_format=output_format, lines=lines, result=result, **others), lines, result


def raising(error: BaseException) -> Any:
    def run(*_: object) -> Outcome:
        raise error

    return run


def test_completed_run_prints_its_result_and_exits_with_0(run_job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The result of a completed run is on standard output, and its exit code is 0."""
    assert run_job(lambda *_: Outcome(text="10 messages archived")) == 0
    assert capsys.readouterr().out == "10 messages archived\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (JobError("no archive", remedy="name one", exit_code=3), 3, "gantry: no archive -- name one\n"),
        (LogForked("the log of a forked at 7"), 5, "gantry: the log of a forked at 7\n"),
        (SystemExit("Spark needs Java 17"), 1, "gantry: Spark needs Java 17\n"),
    ],
)
def test_failure_is_one_line_and_an_exit_code(
    run_job: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    """A failure is reported as one line, with the remedy if there is one, never as a traceback."""
    assert run_job(raising(error)) == code
    assert capsys.readouterr() == ("", words)


def test_invalid_configuration_exits_with_2(run_job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started with an invalid configuration, and each problem is a line."""
    assert run_job(raising(AssertionError("it ran")), "--set", "nope=1", "--set", "topics.of=2") == 2
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [" nope", " topics.of"]


def test_option_check_only_validates_the_configuration(run_job: Any) -> None:
    """With `--check` the job is not run."""
    assert run_job(raising(AssertionError("it ran")), "--check") == 0


def test_missing_job_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A job whose module is missing is reported by name, without a traceback of the import."""
    entry = JobEntry("gantry_pipelines.nowhere.job", "NoJob", ARCHIVE.name, "nothing")
    monkeypatch.setitem(jobs.JOBS, "archive", entry)
    with pytest.raises(SystemExit) as ended:
        main(["archive"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "gantry: the job archive is not part of this installation\n"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that needs a missing package reports the package and the command to install it."""
    monkeypatch.setitem(jobs.JOBS, "archive", JobEntry("scripted_job", "ScriptedJob", ARCHIVE.name, "scripted"))

    def missing(_: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(JobError, match=r"needs the package pyspark.*pip install 'gantry-mq\[spark\]'"):
        jobs.load_job("archive")


def test_typed_name_servers_are_used_if_the_file_has_none(run_job: Any, tmp_path: Path) -> None:
    """`-n` applies if the configuration has no name servers; those of the file have precedence."""
    seen: list[tuple[str, ...]] = []

    def run(config: PipelineConfig[ArchiveSpec], _: Reporter) -> Outcome:
        seen.append(config.name_servers)
        return Outcome()

    file = tmp_path / "archive.yaml"
    file.write_text("nameServers: [ns.example:9876]")
    run_job(run, "-n", "127.0.0.1:1;127.0.0.1:2")
    run_job(run, "-n", "127.0.0.1:1", "--conf", str(file))
    assert seen == [("127.0.0.1:1", "127.0.0.1:2"), ("ns.example:9876",)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_requests_a_stop(run_job: Any, number: signal.Signals) -> None:
    """The first Ctrl-C or SIGTERM calls the job's callbacks, in a thread that may call any function."""
    stopped = threading.Event()
    threads: list[str] = []

    def run(_: object, reporter: Reporter) -> Outcome:
        def stop() -> None:
            threads.append(threading.current_thread().name)
            stopped.set()

        reporter.stop.on_stop(stop)
        os.kill(os.getpid(), number)
        assert stopped.wait(DEADLINE_SECONDS)
        assert reporter.stop.is_requested
        assert reporter.stop.signal_number == number
        return Outcome(130, "Interrupted")

    before = signal.getsignal(number)
    assert run_job(run) == 130
    assert threads == ["pipeline-stopping"]
    assert signal.getsignal(number) is before


def test_callback_after_the_stop_request_is_called_at_once() -> None:
    """A query that starts while the run is stopping is stopped, too."""
    stop, calls = StopRequest(), []
    stop.request()
    stop.on_stop(lambda: calls.append(1))
    stop.request()
    assert calls == [1]


def test_progress_lines_are_limited_and_the_result_is_always_printed() -> None:
    """Many batches in a short time do not print as many lines, and the totals are always up to date."""
    now = [1000.0]
    out, lines, result = output(now=lambda: now[0])
    reporter = Reporter("archive", output=out)
    for rows in range(100):
        now[0] += 0.1
        reporter.report_progress(rows=rows, bytes=rows * 1024)
    reporter.finish(Outcome(rows=100, text=""))
    assert lines.getvalue().count("\n") == 2
    assert "100 KiB" not in lines.getvalue()
    assert reporter.document()["rows"] == 100
    assert "99" in result.getvalue() or "100" in result.getvalue()


def test_json_output_has_events_and_the_result_last() -> None:
    """With JSON output every line is a JSON object, and the last one has the outcome."""
    out, lines, result = output(OutputFormat.JSON)
    reporter = Reporter("archive", output=out)
    reporter.report_step("reading", topics=3)
    reporter.warn("DataLoss", "7 messages are gone", rows=7)
    reporter.finish(Outcome(0, "Done", rows=5))
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(one["event"], one.get("topics"), one.get("rows")) for one in events] == [
        ("step", 3, None),
        ("warning", None, 7),
    ]
    document = json.loads(result.getvalue())
    assert (document["event"], document["rows"], document["exitCode"]) == ("result", 5, 0)
    assert document["warning"] == {"reason": "DataLoss", "text": "7 messages are gone"}


def test_termination_message_fits_into_kubernetes_limit(tmp_path: Path) -> None:
    """A long document is shortened to valid JSON of at most 4096 bytes, with the queues that lag most."""
    path = tmp_path / "termination-log"
    out, _, _ = output(termination_message=path)
    reporter = Reporter("archive", output=out)
    queues = tuple(QueueProgress("t" * 100, "broker-a", number, 0, number) for number in range(5000))
    reporter.finish(Outcome(1, "Failed", "x" * 5000, rows=1, queues=queues, facts={"much": "y" * 5000}))
    text = path.read_text()
    assert len(text.encode()) <= TERMINATION_MESSAGE_BYTES_MAX
    document = json.loads(text)
    assert (document["queuesTotal"], document["rows"], document["exitCode"]) == (5000, 1, 1)
    assert termination_message(document) == text


def test_queues_with_the_largest_lag_come_first() -> None:
    """The document keeps the queues with the largest lag; those at the end may be left out."""
    reporter = Reporter("archive", output=output()[0])
    reporter.report_progress(queues=tuple(QueueProgress("t", "b", number, 0, number) for number in range(500)))
    document = reporter.document()
    assert [one[2] for one in document["queues"][:2]] == [499, 498]
    assert document["lagRows"] == sum(range(500))


@pytest.mark.verify
def test_incomplete_requests_do_not_block_the_status_page() -> None:
    """Connections are limited: the oldest incomplete request is closed for a new one, and a probe is answered."""
    reporter = Reporter("archive", output=output()[0])
    with serve_status_page(reporter, "127.0.0.1", 0, idle_seconds_max=60) as port, ExitStack() as stack:
        threads = threading.active_count()
        halves = []
        for _ in range(4 * CONNECTIONS_MAX):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS))
            half.sendall(b"GET /livez HTTP/1.1\r\n")
            halves.append(half)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=DEADLINE_SECONDS) as answer:
            assert answer.status == 200
        for half in halves[: 3 * CONNECTIONS_MAX]:
            with suppress(ConnectionResetError):
                assert half.recv(4096) == b"", "an incomplete request was answered"
        assert threading.active_count() <= threads + 2 * CONNECTIONS_MAX


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_status_page_in_a_pod_answers_on_both_families(family: socket.AddressFamily) -> None:
    """The host `::` accepts connections over IPv4 and over IPv6, so that pods of each family have a page."""
    reporter = Reporter("archive", output=output()[0])
    loopback = "127.0.0.1" if family == socket.AF_INET else "[::1]"
    with (
        serve_status_page(reporter, "::", 0, idle_seconds_max=60) as port,
        urllib.request.urlopen(f"http://{loopback}:{port}/livez", timeout=DEADLINE_SECONDS) as answer,
    ):
        assert answer.status == 200


def test_status_page_shows_progress_and_liveness() -> None:
    """The page has the totals of a run, and `/livez` fails when the run is idle for too long."""
    now = [0.0]
    reporter = Reporter("archive", output=output(now=lambda: now[0])[0])
    with serve_status_page(reporter, "127.0.0.1", 0, idle_seconds_max=60) as port:
        reporter.report_progress(rows=7)

        def get(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_SECONDS) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        assert json.loads(get("/v1/pipeline")[1])["rows"] == 7
        assert get("/livez")[0] == 200
        now[0] += 61
        assert get("/livez")[0] == 503
        reporter.mark_alive()
        assert get("/livez")[0] == 200
        assert "python_info" in get("/metrics")[1]
        assert get("/else")[0] == 404
