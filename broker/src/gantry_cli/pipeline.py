"""`gantry pipeline`: jobs on Spark, with their own options. The process becomes the job's, so that signals are its own.

What this command line knows and the job does not is handed on: the name server of `gantry up` here, and whose account
is used. A configuration that says something of its own is right about itself.
"""

import importlib.util
import os
import sys
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.options import default_name_server
from gantry_cli.serve import PASS_ON

REMEDY: Final = "pip install 'gantry-mq[spark]', and a Java 17 or 21"


@click.command(
    context_settings=PASS_ON,
    add_help_option=False,
    options_metavar="",
    epilog=examples(
        ("gantry pipeline archive --set here.destination=archive --once", "all topics here, as Parquet, each once"),
        ("gantry pipeline verify --set here.destination=archive", "prove that nothing is missing"),
        ("gantry pipeline audit --conf audit.yaml", "compare slaves with their master; 1 if they differ"),
        ("gantry pipeline archive --conf orders.yaml --check", "only look whether the manifest can be used"),
        ("gantry pipeline --help", "all of its options and jobs"),
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def pipeline(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a job on Spark: archive, audit, analytics, restore, verify, compact, migrate-check.

    Its configuration is the TopicArchive, LogAudit or TopicAnalytics that Kubernetes takes (docs/pipelines.md), and it
    runs without a cluster. Name servers come from it, else from GANTRY_NAMESRV, else from a `gantry up` in this directory.
    Ctrl-C ends a job in order; what it has begun is finished when it runs again. ARGUMENTS are its own.
    """
    for package in ("gantry_pipelines", "pyspark"):
        if importlib.util.find_spec(package) is None:
            raise CliError("the packages of pipelines are not installed", REMEDY)
    os.environ.setdefault("GANTRY_NAMESRV", default_name_server())
    given = context.meta.get("gantry.credentials")
    if given:
        os.environ["GANTRY_CREDENTIALS"] = str(given)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "gantry_pipelines", *arguments])
