"""A network namespace for each member of a group, on one machine, and cuts between them in either direction.

    clients 10.77.0.2 ---.
    member 1 10.77.1.2 --- hub (forwards) --- member 3 10.77.3.2        each in a network namespace of its own
    member 2 10.77.2.2 --'

All packets pass the hub, which silently drops those from one address to another on request, as a broken switch does:
connections stay open on both ends and receive nothing. The namespaces have no names: they exist as long as this process
holds them open, so a killed run leaves nothing behind. Without root all members share 127.0.0.1, and nothing can be
cut.

The thread that opens the network is in the clients' namespace until it is closed; threads that were started before are
not.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from types import TracebackType
from typing import Final, final

from gantry_testing.slowness import patience

CLIENTS: Final = 0
"""The place of the clients, used like the number of a member."""

_CLONE_NEWNET: Final = 0x40000000
_TIMEOUT_S: Final = 20
_RULE_PRIORITY: Final = "100"


def namespaces_missing() -> str | None:
    """Return why this machine cannot have network namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root -- run again with sudo"
    try:
        with Network(1) as network:
            network.drop_packets(CLIENTS, 1)
    except OSError as error:
        return f"no network namespaces here: {error}"
    return None


def _run(*words: str) -> None:
    result = subprocess.run(words, capture_output=True, text=True, timeout=patience(_TIMEOUT_S), check=False)
    if result.returncode:
        raise OSError(f"`{' '.join(words)}` exits {result.returncode}: {result.stderr.strip()}")


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@final
class Network:
    """The namespaces of one run. Belongs to one thread, which must be the one that runs the clients.

    A *place* is the number of a member, from 1 on, or ``CLIENTS``. Without ``is_isolated`` all places share one host.
    """

    def __init__(self, members: int, *, is_isolated: bool = True) -> None:
        self.is_isolated: Final = is_isolated
        self._members: Final = members
        self._home = -1
        self._hub = -1
        self._namespaces: list[int] = []
        self._cuts: set[tuple[int, int]] = set()

    def __repr__(self) -> str:
        return f"<Network members={self._members} cuts={sorted(self._cuts)}>"

    def __enter__(self) -> Network:
        if not self.is_isolated:
            return self
        self._home = _own_namespace()
        try:
            self._hub = self._new_namespace()
            _run("sysctl", "-qw", "net.ipv4.ip_forward=1")
            for place in range(self._members + 1):
                self._add(place)
            self._enter(self._namespaces[CLIENTS])
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._home >= 0:
            self._enter(self._home)
        for descriptor in (self._hub, self._home, *self._namespaces):
            if descriptor >= 0:
                os.close(descriptor)
        self._hub = self._home = -1
        self._namespaces = []

    def _enter(self, descriptor: int) -> None:
        _call("setns", descriptor, _CLONE_NEWNET)

    def _new_namespace(self) -> int:
        _call("unshare", _CLONE_NEWNET)
        _run("ip", "link", "set", "lo", "up")
        return _own_namespace()

    def _add(self, place: int) -> None:
        """Add a namespace with one cable to the hub."""
        namespace = self._new_namespace()
        self._namespaces.append(namespace)
        self._enter(self._hub)
        cable, subnet = f"place{place}", f"10.77.{place}"
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", self._path(namespace))
        _run("ip", "addr", "add", f"{subnet}.1/24", "dev", cable)
        _run("ip", "link", "set", cable, "up")
        self._enter(namespace)
        _run("ip", "addr", "add", f"{subnet}.2/24", "dev", "eth0")
        _run("ip", "link", "set", "eth0", "up")
        _run("ip", "route", "add", "default", "via", f"{subnet}.1")

    def _path(self, descriptor: int) -> str:
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def host(self, place: int) -> str:
        """Return the address at which a member is reached by all others."""
        return f"10.77.{place}.2" if self.is_isolated else "127.0.0.1"

    def command(self, place: int) -> tuple[str, ...]:
        """Return the prefix of a command that runs in a member's namespace."""
        return ("nsenter", f"--net={self._path(self._namespaces[place])}") if self.is_isolated else ()

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def drop_packets(self, source: int, target: int) -> None:
        """Drop all packets from ``source`` to ``target`` from now on, and none in the other direction."""
        assert self.is_isolated, "nothing can be cut on one host"
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            self._rule("add", source, target)

    def partition(self, one: int, other: int) -> None:
        """Drop all packets between two places, in both directions."""
        self.drop_packets(one, other)
        self.drop_packets(other, one)

    def heal(self) -> None:
        """Drop no more packets between any two places."""
        for source, target in sorted(self._cuts):
            self._rule("del", source, target)
        self._cuts.clear()

    def _rule(self, verb: str, source: int, target: int) -> None:
        _run(
            "nsenter", f"--net={self._path(self._hub)}",
            "ip", "rule", verb, "from", self.host(source), "to", self.host(target), "prio", _RULE_PRIORITY, "blackhole",
        )  # fmt: skip
