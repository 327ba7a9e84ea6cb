"""`gantry pipeline ...`, and the program of a pipeline's pods: read the configuration, run one job, exit with its code.

A failure is one line with a remedy on standard error; an invalid configuration is one line for each problem, and an
unexpected error also has its traceback. The first Ctrl-C or SIGTERM lets the job finish its current step, the second
one exits at once.
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

from gantry_client import SignatureKind
from gantry_pipelines.config import PipelineConfig, S_co, read_config
from gantry_pipelines.engine import executor_command
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import JOBS, Job, load_job
from gantry_pipelines.outcome import EXIT_CONFIG, EXIT_DATA_LOSS, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Output, OutputFormat, Reporter
from gantry_pipelines.status_page import STATUS_PORT, serve_status_page
from gantry_pipelines.stop_request import StopRequest
from gantry_remoting.addresses import ANYWHERE, join_address, split_address
from gantry_spec.pipelines.parts import TableFormat
from pyspark_rocketmq.errors import DataLost, InvalidOption, LogForked, NoReplica, RocketMQSourceError

SOURCE_EXIT_CODES: Final[dict[type[RocketMQSourceError], int]] = {
    InvalidOption: EXIT_CONFIG,
    NoReplica: EXIT_UNKNOWN,
    DataLost: EXIT_DATA_LOSS,
    LogForked: EXIT_DATA_LOSS,
}
"""The exit codes of errors of the Spark source; others are failures."""
TERMINATION_LOG: Final = Path("/dev/termination-log")
"""The file from which Kubernetes takes a container's termination message."""
IDLE_SECONDS_MAX: Final = 900.0
"""The time without activity after which /livez fails, so that kubelet restarts a continuous run that hangs."""
EPILOG: Final = """\
The configuration is a TopicArchive, LogAudit or TopicAnalytics manifest, or only its spec.

examples:
  gantry pipeline archive --set runtime.destination=/data/archive      all topics of `gantry up`
  gantry pipeline archive --conf orders.yaml --once                 archive the present messages and exit
  gantry pipeline audit --conf audit.yaml                           exit with 1 if replicas differ
  gantry pipeline archive --table iceberg --set runtime.destination=/data/archive
  gantry pipeline verify --set runtime.destination=/data/archive       prove that nothing is missing

exit codes: 0 done, 1 failed or found differences, 2 invalid configuration, 3 topic, archive or group not found,
4 unknown (required servers unavailable), 5 messages lost, 130 interrupted.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    argument_parser = argparse.ArgumentParser(
        prog="gantry pipeline",
        description="Run a pipeline job: archive, audit, analytics, migrate-check, or a maintenance job of an archive.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = "\n".join(f"  {name:<14} {entry.summary}" for name, entry in JOBS.items())
    argument_parser.add_argument("job", choices=list(JOBS), metavar="JOB", help="One of " + ", ".join(JOBS) + ".")
    argument_parser.description = f"{argument_parser.description}\n\njobs:\n{jobs}"
    argument_parser.add_argument(
        "-c", "--conf", metavar="FILE", help="Read the configuration from FILE, YAML or JSON; - is standard input."
    )
    argument_parser.add_argument(
        "-s",
        "--set",
        metavar="a.b=VALUE",
        action="append",
        default=[],
        help="Override a field of the configuration; repeatable.",
    )
    argument_parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT", default=os.environ.get("GANTRY_NAMESRV"),
        help="Use these name servers, joined by ';', if the configuration has none.  [GANTRY_NAMESRV]",
    )  # fmt: skip
    argument_parser.add_argument(
        "--credentials", metavar="FILE", default=os.environ.get("GANTRY_CREDENTIALS"),
        help="Read accessKey and secretKey from FILE if the configuration has none.  [GANTRY_CREDENTIALS]",
    )  # fmt: skip
    argument_parser.add_argument(
        "--signature", metavar="SCHEME", type=SignatureKind, default=os.environ.get("GANTRY_SIGNATURE") or None,
        help="Sign with this scheme, v1 or strict, if the configuration has none.  [GANTRY_SIGNATURE, else v1]",
    )  # fmt: skip
    argument_parser.add_argument(
        "--once", action="store_true", help="Process the present messages and exit, regardless of `schedule`."
    )
    argument_parser.add_argument(
        "--table", choices=[one.value for one in TableFormat], action="append", default=[],
        help="Publish the archive as tables of this format; repeatable. The same as `--set tables.formats=[FORMAT]`.",
    )  # fmt: skip
    argument_parser.add_argument(
        "-O", "--output", choices=["text", "json"], default="text", help="Print text, or JSON lines.  [text]"
    )
    argument_parser.add_argument("--check", action="store_true", help="Validate the configuration and exit.")
    argument_parser.add_argument(
        "--pod",
        action="store_true",
        help=f"Run as in a pod: JSON lines, status on port {STATUS_PORT}, a termination message.",
    )
    argument_parser.add_argument(
        "--page",
        metavar="HOST:PORT",
        help="Serve /v1/pipeline, /livez, /readyz and /metrics of the run at this address.",
    )
    return argument_parser


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one job and exit with its code; with the argument `executor`, become a Spark executor."""
    if (sys.argv[1:] if arguments is None else list(arguments)) == ["executor"]:
        exec_spark_executor()
    options = build_parser().parse_args(arguments)
    output = Output(output_format=OutputFormat(options.output))
    if options.pod:
        output.output_format, output.termination_message, output.lines = OutputFormat.JSON, TERMINATION_LOG, sys.stdout
    elif output.output_format is OutputFormat.JSON:
        output.lines = sys.stdout
    stop = StopRequest()
    with stop.handle_signals():
        sys.exit(run(options, Reporter(options.job, stop, output)))


def exec_spark_executor() -> NoReturn:
    """Replace this process with the JVM of a Spark executor."""
    import pyspark

    home = os.environ.get("JAVA_HOME", "")
    java = f"{home}/bin/java" if home else "java"
    try:
        command = executor_command(os.environ, java, str(Path(pyspark.__file__).parent))
    except KeyError as error:
        print(
            f"gantry: {error.args[0]} is not set; `executor` only runs in a pod that a Spark driver created",
            file=sys.stderr,
        )
        sys.exit(2)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.stdout.flush()
    os.execvp(command[0], command)


def run(options: argparse.Namespace, reporter: Reporter) -> int:
    """Run one job and return its exit code; errors are reported, not raised, except unexpected ones."""
    entry = JOBS[options.job]
    try:
        job = load_job(options.job)
        config = read_config(_read_text(options.conf), job.spec_type, entry.kind, _settings(options))
        settings = job.parse(_with_command_line_connection(config, options))
        if options.check:
            return reporter.finish(Outcome(text="configuration is valid")).exit_code
        page = _open_status_page(
            join_address(ANYWHERE, STATUS_PORT) if options.pod and not options.page else options.page, reporter
        )
    except ConfigError as error:
        return _report_failure(
            reporter, Outcome(EXIT_CONFIG, "InvalidConfiguration", "; ".join(error.problems)), error.problems
        )
    except JobError as error:
        return _report_failure(reporter, Outcome(error.exit_code, error.reason, str(error)))
    with page:
        return _run_job(job, settings, reporter)


def _run_job(job: Job[Any, Any], settings: object, reporter: Reporter) -> int:
    try:
        outcome = job.run(settings, reporter)
    except JobError as error:
        return _report_failure(reporter, Outcome(error.exit_code, error.reason, str(error)))
    except KeyboardInterrupt:  # Spark's own signal handler ran before ours
        outcome = Outcome(EXIT_INTERRUPTED, "Interrupted", "interrupted")
    except SystemExit as error:  # a session that cannot start exits with one line, for example without Java
        if not isinstance(error.code, str):
            raise
        return _report_failure(reporter, Outcome(EXIT_FAILED, type(error).__name__, error.code))
    except RocketMQSourceError as error:
        return _report_failure(
            reporter, Outcome(SOURCE_EXIT_CODES.get(type(error), EXIT_FAILED), type(error).__name__, str(error))
        )
    except Exception as error:
        # An unexpected error ends the process: the outcome has its first line, the log its traceback.
        _report_failure(reporter, Outcome(EXIT_FAILED, type(error).__name__, _first_line(error)))
        raise
    if outcome.exit_code:
        return _report_failure(reporter, outcome)
    return reporter.finish(outcome).exit_code


def _report_failure(reporter: Reporter, outcome: Outcome, lines: Sequence[str] = ()) -> int:
    for line in lines or (outcome.text,):
        print(f"gantry: {line}", file=sys.stderr, flush=True)
    return reporter.finish(outcome).exit_code


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:1000]


def _read_text(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror or error}"]) from error


def _settings(options: argparse.Namespace) -> list[str]:
    settings = list(options.set)
    if options.once:
        settings.append("runtime.once=true")
    if options.table:
        settings.append(f"tables.formats=[{', '.join(options.table)}]")
    return settings


def _with_command_line_connection(config: PipelineConfig[S_co], options: argparse.Namespace) -> PipelineConfig[S_co]:
    """Return the configuration with name servers, credentials and signature of the command line where it has none."""
    runtime = config.runtime
    if not config.name_servers and options.namesrv:
        runtime = msgspec.structs.replace(runtime, name_servers=options.namesrv.split(";"))
    if not runtime.access_file and options.credentials:
        runtime = msgspec.structs.replace(runtime, access_file=options.credentials)
    if runtime.signature is None and options.signature:
        runtime = msgspec.structs.replace(runtime, signature=options.signature)
    return replace(config, runtime=runtime)


def _open_status_page(address: str | None, reporter: Reporter) -> contextlib.AbstractContextManager[Any]:
    """Open the status page, before the job starts, so that a port in use is reported as such."""
    stack = contextlib.ExitStack()
    if address:
        try:
            host, port = split_address(address, port_min=0)
            stack.enter_context(serve_status_page(reporter, host or "127.0.0.1", port, IDLE_SECONDS_MAX))
        except (OSError, ValueError) as error:
            raise JobError(
                f"cannot serve the status page at {address}: {error}", remedy="choose another address with --page"
            ) from error
    return stack


if __name__ == "__main__":
    main()
