"""Which member of which shard a pod is, by its name alone.

    orders-0-master-0   member 1 of the shard that is reached at the Service orders-0
    orders-0-slave-1    member 3; a member's own Service has the name of its pod

Neither says anything about roles: whoever is the master was told so, and remembers it on its disk.
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
from gantry_wire.properties_text import entries_of


@final
class PodMember(NamedTuple):
    """A broker's pod."""

    number: int
    """Its own, from 1, which it keeps in every role."""

    own_service: str
    role_service: str


def member_of_pod(pod: str) -> PodMember | None:
    """What the pod is; None for a name that no broker's pod has."""
    found = place_of_pod(pod)
    if found is None:
        return None
    group, place = found
    return PodMember(place.member, pod, shard_name(group, place.shard))


def with_own(conf: str, own: dict[str, str]) -> str:
    """What the pod was made with, and what only it knows, which wins: a key stands there once."""
    return "".join(f"{key}={value}\n" for key, value in (entries_of(conf) | own).items())


# -- addresses ---------------------------------------------------------------------------------------------------------
# The addresses of a member's Services, asked once in the life of its pod.
#
# A Service keeps its address as long as it is there, so what was found is written down beside the status page: a broker
# that crashed, and a container that was started again, need no name server to come back. A pod that is made anew asks.


FILE: Final = "addresses.json"

Resolve = Callable[[str], str]


class NotYet(Exception):
    """Something that a start needs is not there yet; says what. Try again in a moment."""


def resolved(host: str) -> str:
    """The first address of a name. Raises ``NotYet``."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotYet(f"the address of {host} is not known: {error.strerror or error}") from error
    return str(found[0][4][0])


@final
class Addresses:
    """What is known of them."""

    def __init__(self, folder: Path, namespace: str, resolve: Resolve = resolved) -> None:
        self._path = folder / FILE
        self._namespace = namespace
        self._resolve = resolve
        self._known = self._read()

    def of(self, service: str) -> str:
        """The address of a Service. Raises ``NotYet``."""
        if service not in self._known:
            self._known[service] = self._resolve(f"{service}.{self._namespace}.svc")
            self._write()
        return self._known[service]

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(name): str(address) for name, address in found.items()} if isinstance(found, dict) else {}

    def _write(self) -> None:
        replace_file(self._path, json.dumps(self._known).encode(), is_durable=False)


# -- pulse -------------------------------------------------------------------------------------------------------------
# Whether a broker still publishes its page, counted in looks and not in time.
#
# A broker that stands still for a minute (stopped, or waiting for what does not come) never comes back by itself, and
# no restart policy sees it, since its process lives. What is counted are our own looks, a second apart: when the whole
# machine or container stood still, we did, too, and nobody is blamed for that.


LOOK_S: Final = 1.0


@final
class Pulse:
    """Of the broker that publishes one page."""

    def __init__(self, page: Path, looks_max: int, now: Callable[[], float] = time.monotonic) -> None:
        """Still after so many looks at the same publication; 0 for never."""
        self._page = page
        self._looks_max = looks_max
        self._now = now
        self._looked = now()
        self._seen: int | None = None
        self._looks = 0

    def is_still(self) -> bool:
        """Whether it has been for too long; said once, then counted anew."""
        if not self._looks_max or self._now() - self._looked < LOOK_S:
            return False
        self._looked = self._now()
        published = self._published()
        if published is None or published != self._seen:
            self._seen, self._looks = published, 0
            return False
        self._looks += 1
        if self._looks < self._looks_max:
            return False
        self._seen, self._looks = None, 0
        return True

    def _published(self) -> int | None:
        """When its last publication was; None without one, or after its last word."""
        with contextlib.suppress(StatusPageError), PageReader(str(self._page)) as reader:
            status = reader.read().status
            return None if status.phase.is_final else status.published_boottime_ns
        return None
