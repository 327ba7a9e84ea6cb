"""Which way to which replica is tried when, and the connections that are kept between tries.

`Opener` opens views for a task; `ReplicaViews` keeps them between the questions of a driver, and asks one replica after
the other until one answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

from pyspark_rocketmq.brokers import Brokers
from pyspark_rocketmq.discovery import Discovery
from pyspark_rocketmq.errors import DataLost, Refused
from pyspark_rocketmq.model import Replica, Task, TransportKind
from pyspark_rocketmq.replica_view import Gone, Unreachable, View, ViewError
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.file import FileView
from pyspark_rocketmq.transport.http import HttpView
from pyspark_rocketmq.transport.pull import PullView
from pyspark_rocketmq.transport.sidecar import Sidecars

T = TypeVar("T")
Attempt = tuple[Replica, TransportKind]

_PREFERENCE: Final = (TransportKind.FILE, TransportKind.HTTP, TransportKind.PULL)


def attempts(replicas: Sequence[Replica], transport: TransportKind, *, is_physical: bool = False) -> list[Attempt]:
    """What to try, in order: each replica by its best way, and only then the others by their second best.

    Ranges of the log itself (`is_physical`) cannot be pulled.
    """
    ways = [(replica, _ways(replica, transport, is_physical)) for replica in replicas]
    rounds = max((len(kinds) for _, kinds in ways), default=0)
    found = [(replica, kinds[turn]) for turn in range(rounds) for replica, kinds in ways if turn < len(kinds)]
    seen: set[tuple[TransportKind, str | None]] = set()
    return [one for one in found if not (_place(one) in seen or seen.add(_place(one)))]  # type: ignore[func-returns-value]


def _place(attempt: Attempt) -> tuple[TransportKind, str | None]:
    """One directory may stand for several replicas; it is tried once."""
    replica, kind = attempt
    return kind, {TransportKind.FILE: replica.directory, TransportKind.HTTP: replica.sidecar}.get(kind, replica.address)


def _ways(replica: Replica, transport: TransportKind, is_physical: bool) -> list[TransportKind]:
    offered = {
        TransportKind.FILE: replica.directory is not None,
        TransportKind.HTTP: replica.sidecar is not None,
        TransportKind.PULL: bool(replica.address) and not is_physical,
    }
    return [kind for kind in _PREFERENCE if offered[kind] and transport in (kind, TransportKind.AUTO)]


@final
class Opener:
    """Opens views, and keeps what they share until `close`. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self.brokers: Final = Brokers(settings)
        self.sidecars: Final = Sidecars(settings)
        self.discovery: Final = Discovery(settings, self.brokers, self.sidecars)

    def __repr__(self) -> str:
        return f"<Opener {self._settings.name_servers}>"

    def open(self, replica: Replica, kind: TransportKind) -> View:
        """Raises a ViewError or Refused if it is known at once that it cannot be read."""
        if kind is TransportKind.FILE:
            return FileView(replica, self._settings)
        if kind is TransportKind.HTTP:
            return HttpView(replica, self.sidecars, self._settings)
        return PullView(replica, self.brokers, self._settings)

    def replicas(self, task: Task) -> tuple[Replica, ...]:
        """Who has the broker's log now; empty if nobody can say. A broker that moved has another address."""
        self.discovery.forget()
        try:
            return self.discovery.replicas(task.broker)
        except (ViewError, Refused):
            return ()

    def close(self) -> None:
        """Close all connections."""
        self.sidecars.close()
        self.brokers.close()


@final
class ReplicaViews:
    """Views of all brokers' replicas, each opened when it is first asked. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._opener: Final = Opener(settings)
        self.brokers: Final = self._opener.brokers
        self.discovery: Final = self._opener.discovery
        self._views: dict[Attempt, View] = {}

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Who has a broker's log, in the order in which they are read. Raises Unreachable if none can be read as the
        settings want it."""
        found = self.discovery.replicas(broker)
        if not attempts(found, self._settings.transport):
            self.discovery.forget()
            wanted = f"readFrom={self._settings.read_from.value}, transport={self._settings.transport.value}"
            why = self.discovery.trouble
            raise Unreachable(f"{broker} has no replica for {wanted}" + (f" ({why})" if why else ""))
        return found

    def ask(self, broker: str, question: Callable[[View], T]) -> T:
        """The answer of the first replica that has one. Raises Unreachable, or DataLost if the range is gone on all."""
        faults: list[ViewError] = []
        for attempt in attempts(self.replicas(broker), self._settings.transport):
            try:
                if attempt not in self._views:
                    self._views[attempt] = self._opener.open(*attempt)
                return question(self._views[attempt])
            except ViewError as error:
                faults.append(error)
                view = self._views.pop(attempt, None)
                if view is not None:
                    view.close()
        self.discovery.forget()
        said = "; ".join(map(str, faults))
        if faults and all(isinstance(fault, Gone) for fault in faults):
            raise DataLost(f"{broker}: {said}")
        raise Unreachable(said or "there is no replica to ask")

    def close(self) -> None:
        """Close all connections and files."""
        for view in self._views.values():
            view.close()
        self._views.clear()
        self._opener.close()
