"""The command `gantry pipeline`: run a Spark job with its own options, as a child that gets Ctrl-C and SIGTERM.

The environment of the job has a name server, by default that of a local `gantry up`, else 127.0.0.1:9876, and the
credentials and the signature scheme of this command. The configuration of a job overrides them.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from typing import Final

import click

from gantry_cli.account import signature
from gantry_cli.errors import CliError
from gantry_cli.options import default_name_server
from gantry_cli.serve import passthrough_command
from gantry_remoting.file_access import inherited_umask

REMEDY: Final = "pip install 'gantry-mq[spark]', and install Java 17 or 21"


@passthrough_command(
    ("gantry pipeline archive --set runtime.destination=archive --once", "archive all local topics as Parquet, once"),
    ("gantry pipeline verify --set runtime.destination=archive", "verify that nothing is missing"),
    ("gantry pipeline audit --conf audit.yaml", "compare slaves with their master; exits with 1 if they differ"),
    ("gantry pipeline archive --conf orders.yaml --check", "only validate the manifest"),
    ("gantry pipeline --help", "show all jobs and options"),
)
@click.pass_context
def pipeline(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Archive, audit and analyze topics with Spark.

    The configuration is a TopicArchive, LogAudit or TopicAnalytics manifest, as in Kubernetes (docs/pipelines.md); no
    cluster is needed. Name servers are taken from it, else from GANTRY_NAMESRV, else from a `gantry up` in this
    directory, else 127.0.0.1:9876. Ctrl-C stops a job gracefully; it continues when it runs again. ARGUMENTS are passed
    to the job.
    """
    for package in ("gantry_pipelines", "pyspark"):
        if importlib.util.find_spec(package) is None:
            raise CliError("the packages of the pipelines are not installed", REMEDY)
    os.environ.setdefault("GANTRY_NAMESRV", default_name_server())
    given = context.meta.get("gantry.credentials")
    if given:
        os.environ["GANTRY_CREDENTIALS"] = str(given)
    os.environ["GANTRY_SIGNATURE"] = signature().value
    sys.stdout.flush()
    context.exit(_run([sys.executable, "-m", "gantry_pipelines", *arguments]))


def _run(words: list[str]) -> int:
    """Run the job and return its exit code. It receives Ctrl-C from the terminal, and SIGTERM from this process."""
    previous_sigint = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(words, restore_signals=True, preexec_fn=_restore_sigint, umask=inherited_umask()) as job:
            previous_sigterm = signal.signal(signal.SIGTERM, lambda *_: job.terminate())
            try:
                code = job.wait()
            finally:
                signal.signal(signal.SIGTERM, previous_sigterm)
    finally:
        signal.signal(signal.SIGINT, previous_sigint)
    return code if code >= 0 else 128 - code


def _restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
