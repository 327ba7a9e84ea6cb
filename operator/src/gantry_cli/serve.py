"""`gantry nameserver`, `gantry broker` and `gantry sidecar`: the servers themselves, with their own options.

They replace this process, so that signals, exit codes and memory are theirs alone.
"""

import importlib.util
import os
import sys
from collections.abc import Callable

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples


def pass_on(*lines: tuple[str, str]) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command whose ARGUMENTS, help included, are another program's. ``lines`` are its examples."""
    settings = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}
    command = click.command(
        context_settings=settings, add_help_option=False, options_metavar="", epilog=examples(*lines)
    )
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    return lambda function: command(arguments(function))


@pass_on(
    ("gantry nameserver", "on port 9876 of all addresses"),
    ("gantry nameserver --listen 127.0.0.1:9886 --data DIR", "elsewhere"),
    ("gantry nameserver -c namesrv.conf", "with RocketMQ's settings file"),
    ("gantry nameserver --help", "all of its options"),
)
def nameserver(arguments: tuple[str, ...]) -> None:
    """Run a name server in the foreground.

    It says `name server listening on ...` when it is ready, logs to standard error, and stops on SIGTERM or Ctrl-C.
    ARGUMENTS are its own.
    """
    _become("gantry_nameserver", arguments)


@pass_on(
    ("gantry broker -c broker.conf", "with RocketMQ's settings file"),
    ("gantry broker -c broker.conf -n 'ns1:9876;ns2:9876'", "with two name servers"),
    ("gantry broker -o listenPort=10921 -o storePathRootDir=DIR", "with single settings"),
    ("gantry broker --settings", "every setting, its default and its reason"),
    ("gantry broker --help", "all of its options"),
)
def broker(arguments: tuple[str, ...]) -> None:
    """Run a broker in the foreground.

    It says `broker listening on ...` when its store is recovered and its ports are open, logs to standard error, and
    stops cleanly on SIGTERM or Ctrl-C. ARGUMENTS are its own.
    """
    _become("gantry_broker", arguments)


@pass_on(
    ("gantry sidecar --page S/status --control S/control.sock --store S", "beside a broker whose store is S"),
    ("gantry sidecar ... --token-file FILE --listen 0.0.0.0:8080", "for other machines, who must show a token"),
    ("gantry sidecar --help", "all of its options"),
)
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
