"""Find the replicas of a broker's log and the transports to them, from name servers, sidecars and directories.

Name servers list the brokers that run. Sidecars list brokers, too, also those that are down, so a broker's log can be
read while it does not run. A sidecar is identified by the broker that it reports, never by its address. A slave
that lags too far behind its master is left out, since a reader would have to wait for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final, final

from gantry_status.page_values import readable_end
from gantry_wire.runtime_table import log_range
from pyspark_rocketmq.brokers import Brokers
from pyspark_rocketmq.errors import Refused
from pyspark_rocketmq.model import MASTER, ReadFrom, Replica
from pyspark_rocketmq.replica_view import Unreachable, ViewError
from pyspark_rocketmq.settings import ReadSettings, parse_member_name
from pyspark_rocketmq.transport.sidecar import Sidecars

CACHE_TTL_S: Final = 5.0
"""Seconds for which discovered replicas are reused."""


@final
@dataclass(frozen=True, slots=True)
class _KnownReplica:
    """One replica, and the end of its readable log; None if it was not reported."""

    replica: Replica
    end: int | None = None


@final
class Discovery:
    """Finds the replicas of all brokers, and caches them. One thread at a time."""

    def __init__(self, settings: ReadSettings, brokers: Brokers, sidecars: Sidecars) -> None:
        self._settings = settings
        self._brokers = brokers
        self._sidecars = sidecars
        self._replicas: dict[str, tuple[Replica, ...]] = {}
        self._fresh_until = 0.0
        self.failures = ""
        """The errors of the sources that did not answer the last discovery; empty if all answered."""

    def __repr__(self) -> str:
        return f"<Discovery {sorted(self._replicas)}>"

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Return a broker's replicas in the order in which they are tried. Raises Unreachable or Refused."""
        if time.monotonic() >= self._fresh_until or broker not in self._replicas:
            self._replicas = self._discover()
            self._fresh_until = time.monotonic() + CACHE_TTL_S
        return self._replicas.get(broker, ())

    def brokers(self) -> tuple[str, ...]:
        """Return every broker that any source lists."""
        self.invalidate()
        self._replicas = self._discover()
        self._fresh_until = time.monotonic() + CACHE_TTL_S
        return tuple(sorted(self._replicas))

    def invalidate(self) -> None:
        """Discard the cache, so that the next call discovers replicas again."""
        self._fresh_until = 0.0

    def master_address(self, broker: str) -> str:
        """Return the address of a broker's master now. Raises Unreachable."""
        for one in self._brokers.call(lambda admin: admin.brokers.all()):
            if one.name == broker and one.is_master:
                return one.address
        raise Unreachable(f"the name servers list no master of {broker}")

    # -- discovery -----------------------------------------------------------------------------------------------------

    def _discover(self) -> dict[str, tuple[Replica, ...]]:
        """Ask all sources, and return the replicas by broker, in the order in which they are tried."""
        found: dict[str, dict[int, _KnownReplica]] = {}
        failures: list[Exception] = []
        for add_replicas in (self._add_registered, self._add_sidecars):
            try:
                add_replicas(found)
            except (ViewError, Refused) as error:
                failures.append(error)
        self._add_directories(found)
        self.failures = "; ".join(map(str, failures))
        if failures and not found:
            raise failures[0]
        return {broker: self._sort_replicas(by_number) for broker, by_number in found.items()}

    def _add_registered(self, found: dict[str, dict[int, _KnownReplica]]) -> None:
        if not self._settings.has_name_servers:
            return
        for one in self._brokers.call(lambda admin: admin.brokers.all()):
            replica = Replica(one.name, one.broker_id, one.address)
            found.setdefault(one.name, {})[one.broker_id] = _KnownReplica(replica)

    def _add_sidecars(self, found: dict[str, dict[int, _KnownReplica]]) -> None:
        for url, status in self._sidecars.members().items():
            # A sidecar of an earlier version names it `said`.
            broker, reported = status.get("broker_name"), status.get("reported_role") or status.get("said") or {}
            number = MASTER if status.get("role") == "master" else reported.get("broker_id")
            if not broker or number is None:
                continue
            by_number = found.setdefault(broker, {})
            known = by_number.get(number, _KnownReplica(Replica(broker, number, reported.get("address") or "")))
            if known.replica.sidecar is None:
                by_number[number] = _KnownReplica(replace(known.replica, sidecar=url), _readable_end(status))

    def _add_directories(self, found: dict[str, dict[int, _KnownReplica]]) -> None:
        for name, directory in self._settings.directories.items():
            broker, number = parse_member_name(name)
            by_number = found.setdefault(broker, {})
            if number is not None:
                known = by_number.get(number, _KnownReplica(Replica(broker, number, "")))
                by_number[number] = replace(known, replica=replace(known.replica, directory=directory))
                continue
            by_number = by_number or {MASTER: _KnownReplica(Replica(broker, MASTER, ""))}
            found[broker] = {
                number: replace(one, replica=replace(one.replica, directory=one.replica.directory or directory))
                for number, one in by_number.items()
            }

    def _sort_replicas(self, by_number: dict[int, _KnownReplica]) -> tuple[Replica, ...]:
        """Return the replicas that may be read, in the order in which they are tried."""
        settings = self._settings
        master = by_number.get(MASTER)
        if settings.read_from is ReadFrom.MASTER:
            return () if master is None else (master.replica,)
        slaves = [one for number, one in sorted(by_number.items()) if number != MASTER]
        if master is not None and slaves:
            end = self._read_end(master)
            slaves = [one for one in slaves if not self._is_lagging(one, end)]
        replicas = tuple(one.replica for one in slaves)
        if settings.read_from is ReadFrom.SLAVE or master is None:
            return replicas
        return (*replicas, master.replica)

    def _is_lagging(self, slave: _KnownReplica, master_end: int | None) -> bool:
        end = self._read_end(slave)
        return master_end is not None and end is not None and master_end - end > self._settings.replica_lag_bytes_max

    def _read_end(self, one: _KnownReplica) -> int | None:
        """Return the end of a replica's log; the broker itself is queried where no sidecar reported it."""
        if one.end is not None or not one.replica.address:
            return one.end
        try:
            facts = self._brokers.call(lambda admin: admin.brokers.runtime(one.replica.address))
            return log_range(facts)[1]
        except (ViewError, Refused, ValueError):
            return None


def _readable_end(status: dict[str, Any]) -> int | None:
    confirmed, committed = status.get("confirmed"), status.get("committed")
    return None if confirmed is None or committed is None else readable_end(confirmed, committed)
