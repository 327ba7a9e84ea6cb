"""`gantry pipeline`: jobs on Spark, with their own options. A job is a process of its own, which gets our signals.

What this command line knows and the job does not is handed on: the name server of `gantry up` here, and whose account
is used. A configuration that says something of its own is right about itself.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.options import default_name_server
from gantry_cli.serve import pass_on
from gantry_remoting.file_access import inherited_umask

REMEDY: Final = "pip install 'gantry-mq[spark]', and a Java 17 or 21"


@pass_on(
    ("gantry pipeline archive --set here.destination=archive --once", "all topics here, as Parquet, each once"),
    ("gantry pipeline verify --set here.destination=archive", "prove that nothing is missing"),
    ("gantry pipeline audit --conf audit.yaml", "compare slaves with their master; 1 if they differ"),
    ("gantry pipeline archive --conf orders.yaml --check", "only look whether the manifest can be used"),
    ("gantry pipeline --help", "all of its options and jobs"),
)
@click.pass_context
def pipeline(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Archive, audit and measure topics with Spark.

    Its configuration is the TopicArchive, LogAudit or TopicAnalytics that Kubernetes takes (docs/pipelines.md), and it
    runs without a cluster. Name servers come from it, else from GANTRY_NAMESRV, else from a `gantry up` in this
    directory. Ctrl-C ends a job in order; what it has begun is finished when it runs again. ARGUMENTS are its own.
    """
    for package in ("gantry_pipelines", "pyspark"):
        if importlib.util.find_spec(package) is None:
            raise CliError("the packages of pipelines are not installed", REMEDY)
    os.environ.setdefault("GANTRY_NAMESRV", default_name_server())
    given = context.meta.get("gantry.credentials")
    if given:
        os.environ["GANTRY_CREDENTIALS"] = str(given)
    sys.stdout.flush()
    context.exit(_run([sys.executable, "-m", "gantry_pipelines", *arguments]))


def _run(words: list[str]) -> int:
    """Until the job ends; its exit code. It gets Ctrl-C from the terminal, as we do, and SIGTERM from us."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(words, restore_signals=True, preexec_fn=_hears_ctrl_c, umask=inherited_umask()) as job:
            asked = signal.signal(signal.SIGTERM, lambda *_: job.terminate())
            try:
                code = job.wait()
            finally:
                signal.signal(signal.SIGTERM, asked)
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
