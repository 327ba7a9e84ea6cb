"""The documents of a local group: its members and processes, and the members that are kept down.

``state`` reads and writes them. No document has a secret, and every process may read them.
"""

from __future__ import annotations

import os
import re
import time
from typing import Final, final

import msgspec

from gantry_cli.processes import ServerProcess


@final
class MemberRecord(msgspec.Struct, kw_only=True):
    """One broker and its sidecar: ports, folders and processes."""

    name: str
    shard: int
    number: int
    """The member's own number in its shard, counted from 1."""
    port: int
    ha_port: int
    """The replication port; -1 for none."""
    sidecar_port: int
    sidecar_url: str
    store: str
    log: str
    sidecar_log: str
    pid: int | None = None
    """The process id of the broker; None while it does not run."""
    boot_id: str = ""
    """The boot id of the broker's process, empty while it does not run."""
    sidecar_pid: int | None = None
    sidecar_boot_id: str = ""
    identity: str = ""
    """The uuid of its store; empty until the broker has reported it."""

    def note_processes(self, broker: ServerProcess, sidecar: ServerProcess | None) -> None:
        """Record which processes run now."""
        self.pid, self.boot_id = broker.pid, broker.boot_id
        if sidecar is not None:
            self.sidecar_pid, self.sidecar_boot_id = sidecar.pid, sidecar.boot_id


class _ServerRecord(msgspec.Struct, kw_only=True):
    """A server that is one process."""

    name: str
    address: str
    port: int
    log: str
    pid: int | None = None
    boot_id: str = ""

    def note_process(self, process: ServerProcess) -> None:
        """Record which process runs now."""
        self.pid, self.boot_id = process.pid, process.boot_id


@final
class NameServerRecord(_ServerRecord, kw_only=True):
    """One name server that belongs to the group."""

    data: str


@final
class ProxyRecord(_ServerRecord, kw_only=True):
    """One gRPC proxy of the group."""

    http_address: str
    """The address of its probes and metrics, on loopback as that of the sidecars."""


@final
class GroupRecord(msgspec.Struct, kw_only=True):
    """The members and processes of a group."""

    name: str
    host: str
    """The address on which brokers and name servers listen."""
    is_single: bool = False
    """Whether it is the single broker of `gantry up --single`."""
    name_servers: list[NameServerRecord] = []
    addresses: list[str] = []
    """The addresses of all name servers, also of external ones."""
    members: list[MemberRecord] = []
    proxies: list[ProxyRecord] = []
    """The gRPC proxies, in the order of their numbers."""
    console_url: str = ""
    """The address of the console; empty without sidecars."""
    pid: int | None = None
    """The process id of its supervisor, also of one that was killed; None after a stop."""
    started_at_ms: int = 0
    notes: list[str] = []
    """What a start prints: fields without effect on one machine, the place of write buffers, missing packages."""

    def begin(self, notes: list[str]) -> None:
        """Record that this process supervises the group from now on."""
        self.notes, self.pid, self.started_at_ms = notes, os.getpid(), time.time_ns() // 1_000_000

    def end(self) -> None:
        """Record that no process supervises the group any more."""
        self.pid = None

    def member(self, shard: int, number: int) -> MemberRecord | None:
        """Return the record of the member with this number, if there is one."""
        return next((one for one in self.members if (one.shard, one.number) == (shard, number)), None)


@final
class MemberHold(msgspec.Struct, kw_only=True):
    """A member that must not be started before a time."""

    name: str
    until_ms: int
    """By the machine's boot-time clock, which all processes share and which cannot be set."""

    machine_boot: str
    """The boot of the machine whose clock that is. After another boot no member is held."""


# -- names of members --------------------------------------------------------------------------------------------------
# The members of a local group are named for their shard and their first role.
#
#     member 1 of shard 0   master-0        (also ``0/1``)
#     member 2              slave-0-1       ``0/2``
#     member 3              slave-0-2       ``0/3``
#
# A broker keeps its name when the role moves, as a pod does.


_NAMES: Final = re.compile(
    r"master-(?P<m>\d{1,3})|slave-(?P<s>\d{1,3})-(?P<n>\d{1,2})|(?P<shard>\d{1,3})/(?P<own>\d{1,2})"
)


def member_name(shard: int, number: int) -> str:
    """Return the name of a member by its shard and number."""
    return f"master-{shard}" if number == 1 else f"slave-{shard}-{number - 1}"


def parse_member(text: str) -> tuple[int, int] | None:
    """Return shard and number of a member's name; None for any other text."""
    match = _NAMES.fullmatch(text)
    if match is None:
        return None
    if match["m"] is not None:
        return int(match["m"]), 1
    if match["s"] is not None:
        return int(match["s"]), int(match["n"]) + 1
    return int(match["shard"]), int(match["own"])
