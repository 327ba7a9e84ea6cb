"""The ports of a local group: the same at every start, RocketMQ's well-known ones for the first process of each kind.

    name servers   9876   9877 ...
    brokers        10911  10921 ...    each with its fast port two below, and its replication port one above
    sidecars       8080   8082 ...     each with its log range port 1000 above
    proxies        8081   8083 ...     each with its port of probes and metrics 1000 above

A process keeps its port between starts. The first of each kind gets the well-known port, since clients expect it there;
if that is busy the start is refused, and no other port is taken silently. The others take free ports above.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_cli.errors import CliError
from gantry_remoting.addresses import join_address
from gantry_status.broker_ports import PORT_END, fast_port_of, replication_port_of

ANY_PORT_RANGE: Final = range(20_000, 31_000)
"""Where the search for a free port begins, at random, if port 0 is chosen: below the ports that the kernel assigns to
connections while the servers start."""


SECOND_PORT_OFFSET: Final = 1_000
"""The distance of the second port of sidecars and proxies, so that RocketMQ's port of the proxy, 8081, stays free."""


class Kind(NamedTuple):
    """One kind of process, and the ports that it needs."""

    what: str
    """The name of the kind, for people."""

    option: str
    """The option of `gantry up` that sets the first port."""

    step: int
    """The distance between the main ports of two processes."""

    port_offsets: tuple[int, ...]
    """The offsets of all its ports from its main one, 0 included."""


NAME_SERVER: Final = Kind("name server", "--namesrv-port", 1, (0,))
BROKER: Final = Kind("broker", "--broker-port", 10, (fast_port_of(0), 0, replication_port_of(0)))
SIDECAR: Final = Kind("sidecar", "--console-port", 2, (0, SECOND_PORT_OFFSET))
PROXY: Final = Kind("proxy", "--proxy-port", 2, (0, SECOND_PORT_OFFSET))


@final
@dataclass(slots=True)
class PortPlan:
    """Allocates the ports of a group. ``is_free`` tests a port of this machine.

    Without ``has_slaves`` the replication port of a broker may be in use by another program.
    """

    is_free: Callable[[int], bool]
    has_slaves: bool = True
    allocated: set[int] = field(default_factory=set)
    """All ports that were allocated so far."""

    def allocate(self, kind: Kind, port: int, name: str) -> int:
        """Allocate the given port. Raises CliError when another program has it."""
        needed = self._needed(kind, port)
        above = needed[-1] - port
        if needed[-1] >= PORT_END:
            text = f"port {port} ({kind.what} of {name}) is too high: the {_part(kind, above)} would be {needed[-1]}"
            raise CliError(text, f"choose at most {PORT_END - 1 - above} with {kind.option}")
        for one in needed:
            part = f"{_part(kind, one - port)} of {name}"
            if not self._is_free(kind, one, part):
                remedy = f"stop that program, or choose another port with {kind.option}"
                raise CliError(f"port {one} ({part}) is in use by another program", remedy)
        self.allocated.update(needed)
        return port

    def allocate_first(self, kind: Kind, port: int, name: str) -> int:
        """Allocate the well-known or chosen port, or the next free one if this group has allocated it already.

        Raises CliError when another program has it.
        """
        if not self.allocated.isdisjoint(self._needed(kind, port)):
            return self.allocate_next(kind, port)
        return self.allocate(kind, port, name)

    def allocate_next(self, kind: Kind, base: int) -> int:
        """Allocate the next free port from ``base`` on. Raises CliError when there is none."""
        port = base
        while port + max(kind.port_offsets) < PORT_END:
            ports = self._ports_of(kind, port)
            parts = ((one, _part(kind, one - port)) for one in ports)
            if self.allocated.isdisjoint(ports) and all(self._is_free(kind, one, part) for one, part in parts):
                self.allocated.update(ports)
                return port
            port += kind.step
        raise CliError(f"no free port for a {kind.what} above {base}", f"choose another port with {kind.option}")

    def _is_free(self, kind: Kind, port: int, part: str) -> bool:
        """Return whether no process listens on a port. Raises CliError if this process may not listen on it."""
        try:
            return self.is_free(port)
        except PermissionError as error:
            raise CliError(f"port {port} ({part}) needs root", f"choose one above 1023 with {kind.option}") from error
        except OSError as error:
            text = f"cannot listen on {error.filename} ({part}): {error.strerror}"
            raise CliError(text, "choose another address with --host") from error

    @staticmethod
    def _ports_of(kind: Kind, port: int) -> list[int]:
        return [port + offset for offset in kind.port_offsets]

    def _needed(self, kind: Kind, port: int) -> list[int]:
        """Return the ports that a process cannot start without."""
        return [one for one in self._ports_of(kind, port) if self.has_slaves or kind is not BROKER or one <= port]


def _part(kind: Kind, offset: int) -> str:
    if kind is BROKER and offset:
        return "fast port" if offset < 0 else "replication port"
    if offset and kind is PROXY:
        return "port of probes and metrics"
    return "log range port" if offset else kind.what


def port_probe(host: str) -> Callable[[int], bool]:
    """Return a test of whether a port of ``host`` is free. The test raises OSError if listening is not permitted."""

    def is_port_free(port: int) -> bool:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                probe.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return False
                raise OSError(error.errno, error.strerror, join_address(host, port)) from error
        return True

    return is_port_free
