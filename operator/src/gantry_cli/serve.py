"""`gantry nameserver`, `gantry broker` and `gantry sidecar`: the servers themselves, with their own options.

They replace this process, so that signals, exit codes and memory are theirs alone.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from typing import Final

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.options import default_name_server
from gantry_remoting.file_access import inherited_umask

PASS_ON = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}


@click.command(
    context_settings=PASS_ON,
    add_help_option=False,
    options_metavar="",
    epilog=examples(
        ("gantry nameserver", "on port 9876 of all addresses"),
        ("gantry nameserver --listen 127.0.0.1:9886 --data DIR", "elsewhere"),
        ("gantry nameserver -c namesrv.conf", "with RocketMQ's settings file"),
        ("gantry nameserver --help", "all of its options"),
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nameserver(arguments: tuple[str, ...]) -> None:
    """Run a name server in the foreground.

    It says `name server listening on ...` when it is ready, logs to standard error, and stops on SIGTERM or Ctrl-C.
    ARGUMENTS are its own.
    """
    _become("gantry_nameserver", arguments)


@click.command(
    context_settings=PASS_ON,
    add_help_option=False,
    options_metavar="",
    epilog=examples(
        ("gantry broker -c broker.conf", "with RocketMQ's settings file"),
        ("gantry broker -c broker.conf -n 'ns1:9876;ns2:9876'", "with two name servers"),
        ("gantry broker -o listenPort=10921 -o storePathRootDir=DIR", "with single settings"),
        ("gantry broker --settings", "every setting, its default and its reason"),
        ("gantry broker --help", "all of its options"),
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker(arguments: tuple[str, ...]) -> None:
    """Run a broker in the foreground.

    It says `broker listening on ...` when its store is recovered and its ports are open, logs to standard error, and
    stops cleanly on SIGTERM or Ctrl-C. ARGUMENTS are its own.
    """
    _become("gantry_broker", arguments)


@click.command(
    context_settings=PASS_ON,
    add_help_option=False,
    options_metavar="",
    epilog=examples(
        ("gantry sidecar --page S/status --control S/control.sock --store S", "beside a broker whose store is S"),
        ("gantry sidecar ... --token-file FILE --listen 0.0.0.0:8080", "for other machines, who must show a token"),
        ("gantry sidecar --help", "all of its options"),
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sidecar(arguments: tuple[str, ...]) -> None:
    """Run a broker's admin sidecar in the foreground.

    It answers over HTTP: probes, status, metrics, ranges of the log, orders. It says `sidecar listening on ...` when it
    is ready, logs to standard error, and stops on SIGTERM or Ctrl-C. It needs the packages of the extra `admin`.
    ARGUMENTS are its own.
    """
    if importlib.util.find_spec("fastapi") is None:
        raise CliError("the sidecar's packages are not installed", "pip install 'gantry-mq[admin]'")
    _become("gantry_admin", arguments)


def _become(module: str, arguments: tuple[str, ...]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


# -- jobs on Spark -----------------------------------------------------------------------------------------------------
# `gantry pipeline`: jobs on Spark, with their own options. A job is a process of its own, which gets our signals.
#
# What this command line knows and the job does not is handed on: the name server of `gantry up` here, and whose account
# is used. A configuration that says something of its own is right about itself.


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
