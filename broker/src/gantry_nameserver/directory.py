"""The directory of live brokers: names, addresses by id, and the last heartbeat of each.

Two tables must agree: `names` is what clients receive (one name, its addresses by broker id), `live` has one entry per
registered address with its data version and the connection that it registered over. An address is in `names` only while
it is in `live`, so a broker whose connection is closed is in no route.

    names   "broker-a" -> cluster, {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    live    (cluster, "10.0.0.1:10911") -> data version, last heartbeat, connection

The module uses no clock and no socket: times are arguments, and a connection is any object, compared by identity.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.nameserver import BrokerData


@dataclass(slots=True, kw_only=True)
class LiveBroker:
    """One registered broker address that is alive."""

    cluster: str
    name: str
    address: str
    ha_address: str
    version: DataVersion
    """The version of the topics of its last registration."""

    heartbeat_timeout_ms: int
    """How long it may be silent before it is removed."""

    last_heartbeat_ms: int
    connection: object
    """The connection over which it registered."""

    filter_servers: list[str]
    """Addresses that RocketMQ 4 registers for filtering, which routes pass on."""

    external_address: str = ""
    """The address for clients outside the network; empty if there is none."""

    def is_expired(self, now_ms: int) -> bool:
        return self.last_heartbeat_ms + self.heartbeat_timeout_ms < now_ms

    def accepts_from(self, connection: object) -> bool:
        """Return whether requests of `connection` count for this broker after it registered.

        With epochs (`stateVersion` above zero) two masters may share one address, and only the connection that
        registered the newer one counts. Without epochs every connection counts, as in RocketMQ.
        """
        return self.version.state_version == 0 or self.connection is connection


@final
class BrokerDirectory:
    """The names and live addresses of brokers. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._names: dict[str, BrokerData] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}

    def __repr__(self) -> str:
        return f"<BrokerDirectory names={len(self._names)} live={len(self._live)}>"

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveBroker]:
        return iter(list(self._live.values()))

    @property
    def names(self) -> dict[str, BrokerData]:
        """The broker data by broker name. Read only."""
        return self._names

    def find_by_name(self, name: str) -> BrokerData | None:
        return self._names.get(name)

    def find_live(self, cluster: str, address: str) -> LiveBroker | None:
        return self._live.get((cluster, address))

    def clusters(self) -> dict[str, list[str]]:
        """Return the broker names by cluster, both sorted."""
        clusters: dict[str, list[str]] = {}
        for name, broker in sorted(self._names.items()):
            clusters.setdefault(broker.cluster, []).append(name)
        return dict(sorted(clusters.items()))

    def brokers_of(self, cluster: str) -> list[str]:
        return [name for name, broker in sorted(self._names.items()) if broker.cluster == cluster]

    def add(self, broker_id: int, live: LiveBroker, *, zone: str | None, can_act_as_master: bool) -> BrokerData:
        """Add `live` under its name and id. An address has one id: an older entry of the address is removed.

        The live entry of the broker that held the id before is removed, too.
        """
        broker = self._names.setdefault(live.name, BrokerData(cluster=live.cluster, broker_name=live.name))
        if broker.cluster != live.cluster:
            for address in broker.broker_addrs.values():
                self._live.pop((broker.cluster, address), None)
            broker.cluster = live.cluster
        for other_id in [i for i, address in broker.broker_addrs.items() if address == live.address and i != broker_id]:
            del broker.broker_addrs[other_id]
        replaced = broker.broker_addrs.get(broker_id)
        if replaced is not None and replaced != live.address:
            self._live.pop((broker.cluster, replaced), None)
        broker.broker_addrs[broker_id] = live.address
        broker.zone_name, broker.enable_acting_master = zone, can_act_as_master
        self._live[live.cluster, live.address] = live
        return broker

    def remove(self, cluster: str, name: str, address: str) -> bool:
        """Remove one address and, if it was the last, its name; return whether it was registered."""
        was_live = self._live.pop((cluster, address), None) is not None
        broker = self._names.get(name)
        if broker is None or broker.cluster != cluster:
            return was_live
        ids = [broker_id for broker_id, known in broker.broker_addrs.items() if known == address]
        for broker_id in ids:
            del broker.broker_addrs[broker_id]
        if not broker.broker_addrs:
            del self._names[name]
        return was_live or bool(ids)

    def record_heartbeat(self, cluster: str, address: str, connection: object, now_ms: int) -> bool:
        """Record a heartbeat; return False if it does not count.

        It does not if the broker is not registered, or was registered with an epoch over another connection.
        """
        live = self._live.get((cluster, address))
        if live is None or not live.accepts_from(connection):
            return False
        live.last_heartbeat_ms = now_ms
        return True

    def list_expired(self, now_ms: int) -> list[LiveBroker]:
        return [live for live in self._live.values() if live.is_expired(now_ms)]

    def list_registered_over(self, connection: object) -> list[LiveBroker]:
        return [live for live in self._live.values() if live.connection is connection]

    def find_holder(self, name: str, broker_id: int) -> LiveBroker | None:
        """Return the live entry with this name and broker id, or None."""
        broker = self._names.get(name)
        address = None if broker is None else broker.broker_addrs.get(broker_id)
        return None if broker is None or address is None else self._live.get((broker.cluster, address))
