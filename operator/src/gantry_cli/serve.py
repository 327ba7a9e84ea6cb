"""`gantry nameserver`, `gantry broker` and `gantry sidecar`: the servers themselves, with their own options.

They replace this process, so that signals, exit codes and memory are theirs alone.
"""

import importlib.util
import os
import sys

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples

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
