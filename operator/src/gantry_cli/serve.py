"""The commands `gantry nameserver`, `broker`, `sidecar` and `proxy`: run a server with its own options.

The server replaces this process, so that it receives the signals and its exit code is the exit code of the command.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable

import click

from gantry_cli.errors import CliError
from gantry_cli.examples import examples


def passthrough_command(*lines: tuple[str, str]) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for a command that passes all ARGUMENTS, --help included, to another program.

    ``lines`` are the examples of its help.
    """
    settings = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}
    command = click.command(
        context_settings=settings, add_help_option=False, options_metavar="", epilog=examples(*lines)
    )
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    return lambda function: command(arguments(function))


@passthrough_command(
    ("gantry nameserver", "listen on port 9876 of all addresses"),
    ("gantry nameserver --listen 127.0.0.1:9886 --data DIR", "listen on another address and port"),
    ("gantry nameserver -c namesrv.conf", "use a settings file of RocketMQ"),
    ("gantry nameserver --help", "show all options"),
)
def nameserver(arguments: tuple[str, ...]) -> None:
    """Run a name server in the foreground.

    It prints `name server listening on ...` when it is ready, logs to standard error, and stops on SIGTERM or Ctrl-C.
    ARGUMENTS are passed to the server.
    """
    _exec_module("gantry_nameserver", arguments)


@passthrough_command(
    ("gantry broker -c broker.conf", "use a settings file of RocketMQ"),
    ("gantry broker -c broker.conf -n 'ns1:9876;ns2:9876'", "register with two name servers"),
    ("gantry broker -o listenPort=10921 -o storePathRootDir=DIR", "override single settings"),
    ("gantry broker --settings", "list every setting with its default and meaning"),
    ("gantry broker --help", "show all options"),
)
def broker(arguments: tuple[str, ...]) -> None:
    """Run a broker in the foreground.

    It prints `broker listening on ...` when its store is recovered and its ports are open, logs to standard error, and
    shuts down cleanly on SIGTERM or Ctrl-C. ARGUMENTS are passed to the server.
    """
    _exec_module("gantry_broker", arguments)


@passthrough_command(
    ("gantry sidecar --page S/status --control S/control.sock --store S", "for the broker with the store S"),
    ("gantry sidecar ... --token-file FILE --listen 0.0.0.0:8080", "serve other machines, with a token"),
    ("gantry sidecar --help", "show all options"),
)
def sidecar(arguments: tuple[str, ...]) -> None:
    """Run a broker's admin sidecar in the foreground.

    It serves probes, status, metrics, ranges of the log and orders over HTTP. It prints `sidecar listening on ...` when
    it is ready, logs to standard error, and stops on SIGTERM or Ctrl-C. It needs the packages of the extra `admin`.
    ARGUMENTS are passed to the server.
    """
    if importlib.util.find_spec("fastapi") is None:
        raise CliError("the packages of the sidecar are not installed", "pip install 'gantry-mq[admin]'")
    _exec_module("gantry_admin", arguments)


@passthrough_command(
    ("gantry proxy -n ns.example:9876", "in front of a cluster, on port 8081"),
    ("gantry proxy --config proxy.yaml", "with TLS, accounts and limits"),
    ("gantry proxy --help", "show all options"),
)
def proxy(arguments: tuple[str, ...]) -> None:
    """Run a gRPC proxy for RocketMQ 5 SDKs in the foreground.

    It prints `proxy listening on ...` when it is ready, logs to standard error, and moves its clients to other replicas
    on SIGTERM or Ctrl-C. It needs the packages of the extra `proxy`. ARGUMENTS are passed to the server.
    """
    if any(importlib.util.find_spec(name) is None for name in ("google", "google.protobuf")):
        raise CliError("the packages of the proxy are not installed", "pip install 'gantry-mq[proxy]'")
    try:
        importlib.import_module("gantry_speedups.modules")
    except ImportError as error:
        what, _, remedy = str(error).partition(" -- ")
        raise CliError(what, remedy) from error
    _exec_module("gantry_proxy", arguments)


def _exec_module(module: str, arguments: tuple[str, ...]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
