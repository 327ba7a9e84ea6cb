"""Who has the log of a broker, and by which ways it is reached: name servers, sidecars and directories in one picture.

Name servers know who runs. Sidecars know it, too, and stay when their broker does not, so what they have can be read
while a broker is down. A sidecar is known by what it says of its broker, never by its address. A slave that is too far
behind its master is left out: it would be waited for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final, final

from gantry_status.facts import readable_end
from gantry_wire.runtime_table import log_range
from pyspark_rocketmq.brokers import Brokers
from pyspark_rocketmq.errors import Refused
from pyspark_rocketmq.model import MASTER, ReadFrom, Replica
from pyspark_rocketmq.replica_view import Unreachable, ViewError
from pyspark_rocketmq.settings import ReadSettings, parse_member_name
from pyspark_rocketmq.transport.sidecar import Sidecars

FRESH_S: Final = 5.0
"""How long a picture is believed."""


@final
@dataclass(frozen=True, slots=True)
class _Found:
    """One replica, and how far its log can be read; None if nobody said."""

    replica: Replica
    end: int | None = None


@final
class Discovery:
    """The picture, made anew when it is old. One thread at a time."""

    def __init__(self, settings: ReadSettings, brokers: Brokers, sidecars: Sidecars) -> None:
        self._settings = settings
        self._brokers = brokers
        self._sidecars = sidecars
        self._picture: dict[str, tuple[Replica, ...]] = {}
        self._fresh_until = 0.0
        self.trouble = ""
        """Who could not be asked when the picture was made, if anybody."""

    def __repr__(self) -> str:
        return f"<Discovery {sorted(self._picture)}>"

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """In the order in which they are to be tried; empty if nobody has it now. Raises Unreachable or Refused."""
        if time.monotonic() >= self._fresh_until or broker not in self._picture:
            self._picture = self._look()
            self._fresh_until = time.monotonic() + FRESH_S
        return self._picture.get(broker, ())

    def brokers(self) -> tuple[str, ...]:
        """Every broker that anybody knows of."""
        self.forget()
        self._picture = self._look()
        self._fresh_until = time.monotonic() + FRESH_S
        return tuple(sorted(self._picture))

    def forget(self) -> None:
        """Look again when asked next."""
        self._fresh_until = 0.0

    def master_address(self, broker: str) -> str:
        """Where its master listens now. Raises Unreachable."""
        for one in self._brokers.ask(lambda admin: admin.brokers.all()):
            if one.name == broker and one.is_master:
                return one.address
        raise Unreachable(f"the name servers know no master of {broker} now")

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self) -> dict[str, tuple[Replica, ...]]:
        found: dict[str, dict[int, _Found]] = {}
        trouble: list[Exception] = []
        for look in (self._add_registered, self._add_sidecars):
            try:
                look(found)
            except (ViewError, Refused) as error:
                trouble.append(error)
        self._add_directories(found)
        self.trouble = "; ".join(map(str, trouble))
        if trouble and not found:
            raise trouble[0]
        return {broker: self._ordered(by_number) for broker, by_number in found.items()}

    def _add_registered(self, found: dict[str, dict[int, _Found]]) -> None:
        if not self._settings.has_name_servers:
            return
        for one in self._brokers.ask(lambda admin: admin.brokers.all()):
            replica = Replica(one.name, one.broker_id, one.address)
            found.setdefault(one.name, {})[one.broker_id] = _Found(replica)

    def _add_sidecars(self, found: dict[str, dict[int, _Found]]) -> None:
        for url, status in self._sidecars.members().items():
            broker, said = status.get("broker_name"), status.get("said") or {}
            number = MASTER if status.get("role") == "master" else said.get("broker_id")
            if not broker or number is None:
                continue
            by_number = found.setdefault(broker, {})
            known = by_number.get(number, _Found(Replica(broker, number, said.get("address") or "")))
            if known.replica.sidecar is None:
                by_number[number] = _Found(replace(known.replica, sidecar=url), _readable_end(status))

    def _add_directories(self, found: dict[str, dict[int, _Found]]) -> None:
        for name, directory in self._settings.directories.items():
            broker, number = parse_member_name(name)
            by_number = found.setdefault(broker, {})
            if number is not None:
                known = by_number.get(number, _Found(Replica(broker, number, "")))
                by_number[number] = replace(known, replica=replace(known.replica, directory=directory))
                continue
            by_number = by_number or {MASTER: _Found(Replica(broker, MASTER, ""))}
            found[broker] = {
                number: replace(one, replica=replace(one.replica, directory=one.replica.directory or directory))
                for number, one in by_number.items()
            }

    def _ordered(self, by_number: dict[int, _Found]) -> tuple[Replica, ...]:
        settings = self._settings
        master = by_number.get(MASTER)
        if settings.read_from is ReadFrom.MASTER:
            return () if master is None else (master.replica,)
        slaves = [one for number, one in sorted(by_number.items()) if number != MASTER]
        if master is not None and slaves:
            end = self._end_of(master)
            slaves = [one for one in slaves if not self._lags(one, end)]
        replicas = tuple(one.replica for one in slaves)
        if settings.read_from is ReadFrom.SLAVE or master is None:
            return replicas
        return (*replicas, master.replica)

    def _lags(self, slave: _Found, master_end: int | None) -> bool:
        end = self._end_of(slave)
        return master_end is not None and end is not None and master_end - end > self._settings.replica_lag_bytes_max

    def _end_of(self, one: _Found) -> int | None:
        """How far its log goes; asked of the broker itself where no sidecar said it."""
        if one.end is not None or not one.replica.address:
            return one.end
        try:
            facts = self._brokers.ask(lambda admin: admin.brokers.runtime(one.replica.address))
            return log_range(facts)[1]
        except (ViewError, Refused, ValueError):
            return None


def _readable_end(status: dict[str, Any]) -> int | None:
    confirmed, committed = status.get("confirmed"), status.get("committed")
    return None if confirmed is None or committed is None else readable_end(confirmed, committed)
