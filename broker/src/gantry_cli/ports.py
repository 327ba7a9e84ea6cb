"""Are the ports free? Asked before anything starts, so that the answer can name the port and the option."""

import contextlib
import errno
import random
import socket
from typing import Final

from gantry_cli.errors import CliError

FAST_PORT_BELOW: Final = 2
"""Clients and slaves expect a broker's fast port two below its port."""
TRIES_MAX: Final = 200
EPHEMERAL: Final = range(20_000, 60_000)


def require_free(host: str, port: int, what: str, option: str) -> None:
    """Raise CliError when nobody can listen on `port`, naming `what` wanted it and the `option` that moves it."""
    try:
        _try(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CliError(
                f"port {port} ({what}) is in use by another program", f"choose another with {option}"
            ) from error
        if error.errno == errno.EACCES:
            raise CliError(f"port {port} ({what}) needs root", f"choose one above 1023 with {option}") from error
        raise CliError(
            f"cannot listen on {host}:{port} ({what}): {error.strerror}", "choose another with --host"
        ) from error


def free_port(host: str) -> int:
    """Any free port."""
    return free_broker_port(host, needs_fast_port=False)


def free_broker_port(host: str, *, needs_fast_port: bool = True) -> int:
    """A free port, with the one for fast requests free as well."""
    for _ in range(TRIES_MAX):
        port = random.choice(EPHEMERAL)
        with contextlib.suppress(OSError):
            _try(host, port)
            if needs_fast_port:
                _try(host, port - FAST_PORT_BELOW)
            return port
    raise CliError(f"found no free port on {host}", "name one with --broker-port")


def _try(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)
