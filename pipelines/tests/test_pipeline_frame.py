"""The frame around a job: what it says, how it is asked to end, and with which code it ends."""

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
from gantry_pipelines.job import Entry, Job
from gantry_pipelines.outcome import Outcome, QueueProgress
from gantry_pipelines.reporting import LAST_WORDS_BYTES_MAX, Form, Output, Reporter, last_words
from gantry_pipelines.status_page import CONNECTIONS_MAX, serving
from gantry_pipelines.stopping import Stop
from gantry_spec.pipelines.kinds import ARCHIVE, ArchiveSpec
from pyspark_rocketmq.errors import LogForked

DEADLINE_SECONDS = 60
run_now: Any = None


class PlayedJob(Job[ArchiveSpec, PipelineConfig[ArchiveSpec]]):
    """Does what the test says."""

    name = "archive"
    spec_type = ArchiveSpec

    def parse(self, config: PipelineConfig[ArchiveSpec]) -> PipelineConfig[ArchiveSpec]:
        return config

    def run(self, settings: PipelineConfig[ArchiveSpec], reporter: Reporter) -> Outcome:
        outcome = run_now(settings, reporter)
        assert isinstance(outcome, Outcome)
        return outcome


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have `archive` do what is handed over, and give its exit code."""
    module: Any = ModuleType("played_job")
    module.PlayedJob = PlayedJob
    monkeypatch.setitem(sys.modules, "played_job", module)
    monkeypatch.setitem(jobs.JOBS, "archive", Entry("played_job", "PlayedJob", ARCHIVE.name, "played"))

    def play(action: Any, *arguments: str) -> int:
        monkeypatch.setattr(sys.modules[__name__], "run_now", action)
        with pytest.raises(SystemExit) as ended:
            main(["archive", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return play


def output(form: Form = Form.TEXT, **others: Any) -> tuple[Output, io.StringIO, io.StringIO]:
    lines, result = io.StringIO(), io.StringIO()
    return Output(form=form, lines=lines, result=result, **others), lines, result


def raising(error: BaseException) -> Any:
    def run(*_: object) -> Outcome:
        raise error

    return run


def test_run_that_is_done_ends_with_0_and_says_its_result(played: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The result of a run that is done is on standard output, and its code is 0."""
    assert played(lambda *_: Outcome(text="10 messages archived")) == 0
    assert capsys.readouterr().out == "10 messages archived\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (JobError("no archive", remedy="name one", exit_code=3), 3, "gantry: no archive -- name one\n"),
        (LogForked("the log of a forked at 7"), 5, "gantry: the log of a forked at 7\n"),
        (SystemExit("Spark needs Java 17"), 1, "gantry: Spark needs Java 17\n"),
    ],
)
def test_failure_is_one_line_and_a_code(
    played: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    """Whoever has to act reads one line, never a traceback."""
    assert played(raising(error)) == code
    assert capsys.readouterr() == ("", words)


def test_configuration_that_cannot_be_used_ends_with_2(played: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started with a configuration that is wrong, and each problem is a line."""
    assert played(raising(AssertionError("it ran")), "--set", "nope=1", "--set", "topics.of=2") == 2
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [" nope", " topics.of"]


def test_configuration_is_only_looked_at_with_check(played: Any) -> None:
    """`--check` runs nothing."""
    assert played(raising(AssertionError("it ran")), "--check") == 0


def test_job_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A job whose module is missing is named; it is no traceback of an import."""
    entry = Entry("gantry_pipelines.nowhere.job", "NoJob", ARCHIVE.name, "nothing")
    monkeypatch.setitem(jobs.JOBS, "archive", entry)
    with pytest.raises(SystemExit) as ended:
        main(["archive"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "gantry: the job archive is not part of this copy\n"


def test_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is there and misses a package names the package and what to install."""
    monkeypatch.setitem(jobs.JOBS, "archive", Entry("played_job", "PlayedJob", ARCHIVE.name, "played"))

    def missing(_: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(JobError, match=r"needs the package pyspark.*pip install 'gantry-mq\[spark\]'"):
        jobs.job_named("archive")


def test_name_servers_that_were_typed_are_used_where_the_file_has_none(played: Any, tmp_path: Path) -> None:
    """`-n` is what a machine has to say; a file that names servers is right about its own."""
    seen: list[tuple[str, ...]] = []

    def run(config: PipelineConfig[ArchiveSpec], _: Reporter) -> Outcome:
        seen.append(config.name_servers)
        return Outcome()

    file = tmp_path / "archive.yaml"
    file.write_text("nameServers: [ns.example:9876]")
    played(run, "-n", "127.0.0.1:1;127.0.0.1:2")
    played(run, "-n", "127.0.0.1:1", "--conf", str(file))
    assert seen == [("127.0.0.1:1", "127.0.0.1:2"), ("ns.example:9876",)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_the_job_end_by_itself(played: Any, number: signal.Signals) -> None:
    """The first Ctrl-C or SIGTERM is told to the job, in a thread in which it may call anything."""
    told = threading.Event()
    threads: list[str] = []

    def run(_: object, reporter: Reporter) -> Outcome:
        def stop() -> None:
            threads.append(threading.current_thread().name)
            told.set()

        reporter.stop.on_stop(stop)
        os.kill(os.getpid(), number)
        assert told.wait(DEADLINE_SECONDS)
        assert reporter.stop.is_asked
        assert reporter.stop.signal_number == number
        return Outcome(130, "Interrupted")

    before = signal.getsignal(number)
    assert played(run) == 130
    assert threads == ["pipeline-stopping"]
    assert signal.getsignal(number) is before


def test_who_asks_late_to_be_told_is_told_at_once() -> None:
    """A query that begins while the run is ending is stopped, too."""
    stop, told = Stop(), []
    stop.ask()
    stop.on_stop(lambda: told.append(1))
    stop.ask()
    assert told == [1]


def test_progress_is_said_now_and_then_and_the_end_always() -> None:
    """A thousand batches a second are no thousand lines, and the totals are right at any moment."""
    now = [1000.0]
    out, lines, result = output(now=lambda: now[0])
    reporter = Reporter("archive", output=out)
    for rows in range(100):
        now[0] += 0.1
        reporter.progress(rows=rows, bytes=rows * 1024)
    reporter.finish(Outcome(rows=100, text=""))
    assert lines.getvalue().count("\n") == 2
    assert "100 KiB" not in lines.getvalue()
    assert reporter.document()["rows"] == 100
    assert "99" in result.getvalue() or "100" in result.getvalue()


def test_program_gets_json_lines_and_the_result_last() -> None:
    """In a pod every line is JSON, and the last one has the outcome."""
    out, lines, result = output(Form.JSON)
    reporter = Reporter("archive", output=out)
    reporter.say("looking", topics=3)
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


def test_last_words_fit_what_kubernetes_keeps(tmp_path: Path) -> None:
    """However much there is to say, 4096 bytes are JSON that can be read, with those that lag most."""
    path = tmp_path / "termination-log"
    out, _, _ = output(last_words=path)
    reporter = Reporter("archive", output=out)
    queues = tuple(QueueProgress("t" * 100, "broker-a", number, 0, number) for number in range(5000))
    reporter.finish(Outcome(1, "Failed", "x" * 5000, rows=1, queues=queues, facts={"much": "y" * 5000}))
    text = path.read_text()
    assert len(text.encode()) <= LAST_WORDS_BYTES_MAX
    document = json.loads(text)
    assert (document["queuesTotal"], document["rows"], document["exitCode"]) == (5000, 1, 1)
    assert last_words(document) == text


def test_queues_that_lag_most_come_first() -> None:
    """What is cut off a document is what nobody needs to look at."""
    reporter = Reporter("archive", output=output()[0])
    reporter.progress(queues=tuple(QueueProgress("t", "b", number, 0, number) for number in range(500)))
    document = reporter.document()
    assert [one[2] for one in document["queues"][:2]] == [499, 498]
    assert document["lagRows"] == sum(range(500))


@pytest.mark.verify
def test_half_requests_do_not_take_a_runs_page_away() -> None:
    """Connections are bounded: the oldest half request is closed for a younger connection, and a probe is answered."""
    reporter = Reporter("archive", output=output()[0])
    with serving(reporter, "127.0.0.1", 0, silence_seconds_max=60) as port, ExitStack() as stack:
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
                assert half.recv(4096) == b"", "it was closed without an answer"
        assert threading.active_count() <= threads + 2 * CONNECTIONS_MAX


def test_state_can_be_asked_for_while_it_works() -> None:
    """The page says how far a run is, and whether anything moves; it gives no order and shows no message."""
    now = [0.0]
    reporter = Reporter("archive", output=output(now=lambda: now[0])[0])
    with serving(reporter, "127.0.0.1", 0, silence_seconds_max=60) as port:
        reporter.progress(rows=7)

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
        reporter.alive()
        assert get("/livez")[0] == 200
        assert "python_info" in get("/metrics")[1]
        assert get("/else")[0] == 404
