"""Are the ports free? Asked before anything starts, so that the answer can name the port and the option."""

import contextlib
import errno
import random
import socket
from typing import Final

from gantry_cli.errors import CliError
from gantry_remoting.addresses import join_address

FAST_PORT_BELOW: Final = 2
"""Clients and slaves expect a broker's fast port two below its port."""
TRIES_MAX: Final = 200
REPLICATION_PORT_ABOVE: Final = 1
"""Slaves follow there, unless a setting says otherwise; a broker listens on it without any, too."""
ANY: Final = range(20_000, 31_000)
"""Where any port is looked for: below those that the kernel gives to connections, while the servers start, say."""


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
            f"cannot listen on {join_address(host, port)} ({what}): {error.strerror}", "choose another with --host"
        ) from error


def free_port(host: str) -> int:
    """Any free port."""
    return free_broker_port(host, is_alone=True)


def free_broker_port(host: str, *, is_alone: bool = False) -> int:
    """A free port, with those for fast requests and for slaves free as well."""
    for _ in range(TRIES_MAX):
        port = random.choice(ANY)
        with contextlib.suppress(OSError):
            _try(host, port)
            for offset in () if is_alone else (-FAST_PORT_BELOW, REPLICATION_PORT_ABOVE):
                _try(host, port + offset)
            return port
    raise CliError(f"found no free port on {host}", "name one with --broker-port")


def _try(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)
