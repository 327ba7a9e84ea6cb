"""The order in which replicas and transports are tried, and the connections that are kept between attempts.

A *view* is one replica, read by one transport (`replica_view`). `Opener` opens views for a task. `ReplicaViews` keeps
views between the requests of a driver, and calls one replica after the other until one answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

from pyspark_rocketmq.brokers import Brokers
from pyspark_rocketmq.discovery import Discovery
from pyspark_rocketmq.errors import DataLost, Refused
from pyspark_rocketmq.model import Replica, Task, TransportKind
from pyspark_rocketmq.replica_view import RangeDeleted, Unreachable, View, ViewError
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.file import FileView
from pyspark_rocketmq.transport.http import HttpView
from pyspark_rocketmq.transport.pull import PullView
from pyspark_rocketmq.transport.sidecar import Sidecars

T = TypeVar("T")
Attempt = tuple[Replica, TransportKind]
"""A replica, and the transport by which it is tried."""

_PREFERENCE: Final = (TransportKind.FILE, TransportKind.HTTP, TransportKind.PULL)
"""The transports, the best one first."""


def list_attempts(replicas: Sequence[Replica], transport: TransportKind, *, is_physical: bool = False) -> list[Attempt]:
    """Return the attempts in order: each replica by its best transport, then each by its second best.

    Ranges of the log itself (`is_physical`) cannot be pulled.
    """
    usable = [(replica, _usable_transports(replica, transport, is_physical)) for replica in replicas]
    rounds = max((len(kinds) for _, kinds in usable), default=0)
    found = [(replica, kinds[turn]) for turn in range(rounds) for replica, kinds in usable if turn < len(kinds)]
    seen: set[tuple[TransportKind, str | None]] = set()
    return [one for one in found if not (_attempt_key(one) in seen or seen.add(_attempt_key(one)))]  # type: ignore[func-returns-value]


def _attempt_key(attempt: Attempt) -> tuple[TransportKind, str | None]:
    """Return a key of the attempt: several replicas may share one directory, which is tried once."""
    replica, kind = attempt
    return kind, {TransportKind.FILE: replica.directory, TransportKind.HTTP: replica.sidecar}.get(kind, replica.address)


def _usable_transports(replica: Replica, transport: TransportKind, is_physical: bool) -> list[TransportKind]:
    offered = {
        TransportKind.FILE: replica.directory is not None,
        TransportKind.HTTP: replica.sidecar is not None,
        TransportKind.PULL: bool(replica.address) and not is_physical,
    }
    return [kind for kind in _PREFERENCE if offered[kind] and transport in (kind, TransportKind.AUTO)]


@final
class Opener:
    """Opens views, and keeps their shared connections until `close`. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self.brokers: Final = Brokers(settings)
        self.sidecars: Final = Sidecars(settings)
        self.discovery: Final = Discovery(settings, self.brokers, self.sidecars)

    def __repr__(self) -> str:
        return f"<Opener {self._settings.name_servers}>"

    def open(self, replica: Replica, kind: TransportKind) -> View:
        """Open a view. Raises a ViewError or Refused if it is known at once that it cannot be read."""
        if kind is TransportKind.FILE:
            return FileView(replica, self._settings)
        if kind is TransportKind.HTTP:
            return HttpView(replica, self.sidecars, self._settings)
        return PullView(replica, self.brokers, self._settings)

    def replicas(self, task: Task) -> tuple[Replica, ...]:
        """Return the current replicas of the task's broker; empty if no source answers.

        A broker that was moved has another address.
        """
        self.discovery.invalidate()
        try:
            return self.discovery.replicas(task.broker)
        except (ViewError, Refused):
            return ()

    def close(self) -> None:
        """Close all connections of this object."""
        self.sidecars.close()
        self.brokers.close()


@final
class ReplicaViews:
    """Views of all brokers' replicas, each opened at its first use. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._opener: Final = Opener(settings)
        self.brokers: Final = self._opener.brokers
        self.discovery: Final = self._opener.discovery
        self._views: dict[Attempt, View] = {}

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Return a broker's replicas in reading order. Raises Unreachable if the settings exclude all of them."""
        found = self.discovery.replicas(broker)
        if not list_attempts(found, self._settings.transport):
            self.discovery.invalidate()
            wanted = f"readFrom={self._settings.read_from.value}, transport={self._settings.transport.value}"
            why = self.discovery.failures
            raise Unreachable(f"{broker} has no replica for {wanted}" + (f" ({why})" if why else ""))
        return found

    def call(self, broker: str, request: Callable[[View], T]) -> T:
        """Return the response of the first replica that answers.

        Raises Unreachable, or DataLost if all replicas have deleted the range; Refused or DamagedRecord as soon as one
        replica raises it.
        """
        errors_found: list[ViewError] = []
        for attempt in list_attempts(self.replicas(broker), self._settings.transport):
            try:
                if attempt not in self._views:
                    self._views[attempt] = self._opener.open(*attempt)
                return request(self._views[attempt])
            except ViewError as error:
                errors_found.append(error)
                view = self._views.pop(attempt, None)
                if view is not None:
                    view.close()
        self.discovery.invalidate()
        reasons = "; ".join(map(str, errors_found))
        if errors_found and all(isinstance(fault, RangeDeleted) for fault in errors_found):
            raise DataLost(f"{broker}: {reasons}")
        raise Unreachable(reasons or "no replica found")

    def close(self) -> None:
        """Close all connections and files."""
        for view in self._views.values():
            view.close()
        self._views.clear()
        self._opener.close()
