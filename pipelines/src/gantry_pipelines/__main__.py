"""`gantry pipeline ...`, and the program of a pipeline's pods: read the configuration, run one job, end with its code.

Every failure is one line with a remedy on standard error. The first Ctrl-C or SIGTERM lets the job finish what it has
begun, the second ends at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from gantry_pipelines.config import PipelineConfig, S_co, read_config
from gantry_pipelines.engine import executor_command
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import JOBS, Job, job_named
from gantry_pipelines.outcome import EXIT_CONFIG, EXIT_DATA_LOSS, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Form, Output, Reporter
from gantry_pipelines.status_page import PORT, serving
from gantry_pipelines.stopping import Stop
from pyspark_rocketmq.errors import DataLost, InvalidOption, LogForked, NoReplica, RocketMQSourceError

SOURCE_CODES: Final[dict[type[RocketMQSourceError], int]] = {
    InvalidOption: EXIT_CONFIG,
    NoReplica: EXIT_UNKNOWN,
    DataLost: EXIT_DATA_LOSS,
    LogForked: EXIT_DATA_LOSS,
}
TERMINATION_LOG: Final = Path("/dev/termination-log")
SILENCE_SECONDS_MAX: Final = 900.0
EPILOG: Final = """\
The configuration is a TopicArchive, LogAudit or TopicAnalytics as Kubernetes gets it, whole or only its spec.

examples:
  gantry pipeline archive --set here.destination=/data/archive      all topics of `gantry up`
  gantry pipeline archive --conf orders.yaml --once                 what is there now, then end
  gantry pipeline audit --conf audit.yaml                           1 if replicas differ
  gantry pipeline verify --set here.destination=/data/archive       prove that nothing is missing

exit codes: 0 done, 1 not done or something was found, 2 the configuration cannot be used, 3 what was asked for is not
there, 4 nothing can be said, 5 messages are gone, 130 interrupted.
"""


def parser() -> argparse.ArgumentParser:
    """What is typed."""
    made = argparse.ArgumentParser(
        prog="gantry pipeline",
        description="Run a job on Spark: archive, audit, analytics, and what belongs to an archive.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = "\n".join(f"  {name:<14} {entry.summary}" for name, entry in JOBS.items())
    made.add_argument("job", choices=list(JOBS), metavar="JOB", help="One of " + ", ".join(JOBS) + ".")
    made.description = f"{made.description}\n\njobs:\n{jobs}"
    made.add_argument("-c", "--conf", metavar="FILE", help="The configuration, YAML or JSON; - is standard input.")
    made.add_argument(
        "-s", "--set", metavar="a.b=VALUE", action="append", default=[], help="Put a value over it; may come often."
    )
    made.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT", default=os.environ.get("GANTRY_NAMESRV"),
        help="Name servers, joined by ';', where the configuration has none.  [GANTRY_NAMESRV]",
    )  # fmt: skip
    made.add_argument(
        "--credentials", metavar="FILE", default=os.environ.get("GANTRY_CREDENTIALS"),
        help="accessKey and secretKey, where the configuration has none.  [GANTRY_CREDENTIALS]",
    )  # fmt: skip
    made.add_argument("--once", action="store_true", help="Do what is there now and end, whatever `schedule` says.")
    made.add_argument(
        "-O", "--output", choices=["text", "json"], default="text", help="Lines for people, or JSON lines.  [text]"
    )
    made.add_argument("--check", action="store_true", help="Only say whether the configuration can be used.")
    made.add_argument(
        "--pod", action="store_true", help=f"As in a pod: JSON lines, a page on port {PORT}, last words for Kubernetes."
    )
    made.add_argument("--page", metavar="HOST:PORT", help="Answer how far it is: /v1/pipeline, /livez, /metrics.")
    return made


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one job and exit with its code; in an executor's pod, become the executor."""
    if (sys.argv[1:] if arguments is None else list(arguments)) == ["executor"]:
        become_executor()
    given = parser().parse_args(arguments)
    output = Output(form=Form(given.output))
    if given.pod:
        output.form, output.last_words, output.lines = Form.JSON, TERMINATION_LOG, sys.stdout
    elif output.form is Form.JSON:
        output.lines = sys.stdout
    stop = Stop()
    with stop.armed():
        sys.exit(run(given, Reporter(given.job, stop, output)))


def become_executor() -> NoReturn:
    """Become the JVM of an executor."""
    import pyspark

    home = os.environ.get("JAVA_HOME", "")
    java = f"{home}/bin/java" if home else "java"
    try:
        command = executor_command(os.environ, java, str(Path(pyspark.__file__).parent))
    except KeyError as error:
        print(f"gantry: Spark gives an executor's pod {error.args[0]}, and this is none", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.stdout.flush()
    os.execvp(command[0], command)


def run(given: argparse.Namespace, reporter: Reporter) -> int:
    """The exit code of one run, with everything that can go wrong said and none of it raised."""
    entry = JOBS[given.job]
    try:
        job = job_named(given.job)
        config = read_config(_text(given.conf), job.spec_type, entry.kind, _settings(given))
        settings = job.parse(_reachable(config, given))
        if given.check:
            return reporter.finish(Outcome(text="the configuration can be used")).exit_code
        page = _page(f"0.0.0.0:{PORT}" if given.pod and not given.page else given.page, reporter)
    except ConfigError as error:
        return _failed(
            reporter, Outcome(EXIT_CONFIG, "InvalidConfiguration", "; ".join(error.problems)), error.problems
        )
    except JobError as error:
        return _failed(reporter, Outcome(error.exit_code, error.reason, str(error)))
    with page:
        return _ended(job, settings, reporter)


def _ended(job: Job[Any, Any], settings: object, reporter: Reporter) -> int:
    try:
        outcome = job.run(settings, reporter)
    except JobError as error:
        return _failed(reporter, Outcome(error.exit_code, error.reason, str(error)))
    except KeyboardInterrupt:  # Spark's own handler was faster than ours
        outcome = Outcome(EXIT_INTERRUPTED, "Interrupted", "interrupted")
    except SystemExit as error:  # a session that cannot begin says so in one line: there is no Java
        if not isinstance(error.code, str):
            raise
        return _failed(reporter, Outcome(EXIT_FAILED, type(error).__name__, error.code))
    except RocketMQSourceError as error:
        return _failed(reporter, Outcome(SOURCE_CODES.get(type(error), EXIT_FAILED), type(error).__name__, str(error)))
    except Exception as error:
        # Whatever it is ends this process; Kubernetes and people get a line, and the log the rest.
        _failed(reporter, Outcome(EXIT_FAILED, type(error).__name__, _first_line(error)))
        raise
    if outcome.exit_code:
        return _failed(reporter, outcome)
    return reporter.finish(outcome).exit_code


def _failed(reporter: Reporter, outcome: Outcome, lines: Sequence[str] = ()) -> int:
    for line in lines or (outcome.text,):
        print(f"gantry: {line}", file=sys.stderr, flush=True)
    return reporter.finish(outcome).exit_code


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:1000]


def _text(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror or error}"]) from error


def _settings(given: argparse.Namespace) -> list[str]:
    settings = list(given.set)
    if given.once:
        settings.append("here.once=true")
    return settings


def _reachable(config: PipelineConfig[S_co], given: argparse.Namespace) -> PipelineConfig[S_co]:
    """The same, with what was typed where it says nothing: name servers, and the file of an account."""
    here = config.here
    if not config.name_servers and given.namesrv:
        here = msgspec.structs.replace(here, name_servers=given.namesrv.split(";"))
    if not here.access_file and given.credentials:
        here = msgspec.structs.replace(here, access_file=given.credentials)
    return replace(config, here=here)


def _page(address: str | None, reporter: Reporter) -> contextlib.AbstractContextManager[Any]:
    """The page, already open, so that whatever fails later is not taken for it."""
    stack = contextlib.ExitStack()
    if address:
        host, _, port = address.rpartition(":")
        try:
            stack.enter_context(serving(reporter, host or "127.0.0.1", int(port), SILENCE_SECONDS_MAX))
        except (OSError, ValueError) as error:
            raise JobError(f"no page can be served at {address}: {error}", remedy="name another --page") from error
    return stack


if __name__ == "__main__":
    main()
