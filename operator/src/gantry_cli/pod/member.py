"""The member of a broker's pod, derived from the pod's name alone; its Services' addresses; its broker's watchdog.

    orders-0-master-0   member 1 of the shard with the Service orders-0
    orders-0-slave-1    member 3; a member's own Service has the name of its pod

The name does not determine the role: the master got its role by an order, and has recorded it on its disk.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_remoting.durable_files import replace_file
from gantry_spec.cluster_objects import place_of_pod, shard_name
from gantry_status import PageReader, StatusPageError
from gantry_wire.properties_text import read_valid_entries


@final
class PodMember(NamedTuple):
    """The member of a broker's pod."""

    number: int
    """The member's number, from 1, which it keeps in every role."""

    own_service: str
    """The Service of this member, in every role."""

    role_service: str
    """The Service of the shard's master."""


def parse_pod_name(pod: str) -> PodMember | None:
    """Return the member of a broker's pod; None for the name of any other pod."""
    found = place_of_pod(pod)
    if found is None:
        return None
    group, place = found
    return PodMember(place.member, pod, shard_name(group, place.shard))


def merge_conf(conf: str, own: dict[str, str]) -> str:
    """Return the settings of ``conf`` with those of ``own`` over them, each key once."""
    return "".join(f"{key}={value}\n" for key, value in (read_valid_entries(conf) | own).items())


# -- addresses ---------------------------------------------------------------------------------------------------------
# The addresses of a member's Services are resolved once in the life of its pod.
#
# A Service keeps its address while it exists, so the address is stored beside the status page: a broker or a container
# that restarts needs no DNS server. A new pod resolves its addresses again.


FILE: Final = "addresses.json"
"""The file with the resolved addresses."""

Resolve = Callable[[str], str]


class NotReadyError(Exception):
    """Something that a start needs is not ready yet, as the message explains. The caller should retry."""


def resolve_address(host: str) -> str:
    """Return the first address of a host name. Raises ``NotReadyError``."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotReadyError(f"cannot resolve {host}: {error.strerror or error}") from error
    return str(found[0][4][0])


@final
class Addresses:
    """The resolved addresses of Services, kept in a file."""

    def __init__(self, folder: Path, namespace: str, resolve: Resolve = resolve_address) -> None:
        self._path = folder / FILE
        self._namespace = namespace
        self._resolve = resolve
        self._addresses = self._read()

    def address_of(self, service: str) -> str:
        """Return the address of a Service, resolved at its first use. Raises ``NotReadyError``."""
        if service not in self._addresses:
            self._addresses[service] = self._resolve(f"{service}.{self._namespace}.svc")
            self._write()
        return self._addresses[service]

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(name): str(address) for name, address in found.items()} if isinstance(found, dict) else {}

    def _write(self) -> None:
        replace_file(self._path, json.dumps(self._addresses).encode(), is_durable=False)


# -- watchdog ----------------------------------------------------------------------------------------------------------
# Detects a broker that has stopped publishing its status page, by a number of checks and not by time.
#
# A broker that is stalled for a minute (suspended, or deadlocked) does not recover by itself, and no restart policy
# notices it, since its process lives. The watchdog counts its own checks, a second apart: if the whole machine or
# container was suspended, so was the watchdog, and the broker is not killed for that.


CHECK_INTERVAL_S: Final = 1.0
"""The least time between two checks, in seconds."""


@final
class BrokerWatchdog:
    """Watches the broker that publishes one status page."""

    def __init__(self, page: Path, checks_max: int, now: Callable[[], float] = time.monotonic) -> None:
        """The broker is stalled after ``checks_max`` checks with the same publication; 0 disables the watchdog."""
        self._page = page
        self._checks_max = checks_max
        self._now = now
        self._last_check_s = now()
        self._last_published: int | None = None
        self._unchanged_checks = 0

    def is_stalled(self) -> bool:
        """Return whether the broker is stalled. After True the count starts again."""
        if not self._checks_max or self._now() - self._last_check_s < CHECK_INTERVAL_S:
            return False
        self._last_check_s = self._now()
        published = self._published()
        if published is None or published != self._last_published:
            self._last_published, self._unchanged_checks = published, 0
            return False
        self._unchanged_checks += 1
        if self._unchanged_checks < self._checks_max:
            return False
        self._last_published, self._unchanged_checks = None, 0
        return True

    def _published(self) -> int | None:
        """Return the time of the page's publication; None without a page, or after the broker's final one."""
        with contextlib.suppress(StatusPageError), PageReader(str(self._page)) as reader:
            status = reader.read().status
            return None if status.phase.is_final else status.published_boottime_ns
        return None
