"""The route table: built from registrations, queried for routes. Pure: no socket, no clock, no file.

It follows the rules that RocketMQ's brokers and clients rely on:

- Queues come from registrations of the master and, from RocketMQ 5 on, of the member with the smallest id. Known ones
  are updated only when the data version changes, so that a wiped write permission stays wiped.
- The first registration of a broker must not contain exactly one topic: it cannot be distinguished from an incremental
  update of an unknown broker, and accepting it would publish a broker without its other topics.
- An address has one id and one name in its cluster. A broker that registers with new ones loses the old ones.
- An id belongs to the highest `stateVersion` (Gantry writes its epoch there): a former master with an older one is
  ignored while the newer one lives, whether it comes from another address or over another connection.
- When the last address of a broker name is removed, the name, its queues and its static mappings are removed with it.

The encoding of registrations and routes is not part of this module.
"""

import logging
from dataclasses import dataclass, field
from typing import Final, final

import msgspec

from gantry_nameserver.directory import BrokerDirectory, LiveBroker
from gantry_nameserver.topics import TopicTable
from gantry_wire.commands.admin import DataVersion, TopicConfig
from gantry_wire.commands.nameserver import (
    MASTER_ID,
    PERMISSION_WRITE,
    BrokerData,
    BrokerMemberGroup,
    QueueData,
    RegisterBrokerResult,
    RegisteredTopics,
    TopicRoute,
)

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_MS: Final = 120_000
"""The heartbeat timeout of brokers that do not send one: RocketMQ's 120 s."""


class RegistrationRefused(Exception):
    """A registration was refused. The caller should answer code 1 with this text; nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """The registration of a broker (request code 103)."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str = ""
    zone: str | None = None
    """RocketMQ's name of the availability zone, which routes pass on."""

    heartbeat_timeout_ms: int | None = None
    """How long it may be silent; None for RocketMQ's 120 s."""

    can_act_as_master: bool | None = None
    """None for a broker older than RocketMQ 5, which does not send it."""
    topics: RegisteredTopics = field(default_factory=RegisteredTopics)
    filter_servers: list[str] | None = None
    """Addresses that RocketMQ 4 registers for filtering; None if it sends none."""

    external_address: str = ""
    """The address for clients outside the network; empty if there is none."""
    connection: object = None
    """The connection over which it came, compared by identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLimits:
    """Limits on the size of a route table."""

    brokers_max: int = 10_000
    """The maximum number of live addresses: far more than any cluster has, to bound memory."""

    topics_max: int = 1_000_000
    """The maximum number of topics of all brokers; about 500 bytes each."""


@final
class RouteTable:
    """The brokers, the topics, and the routes to them. Owned by the event loop's thread."""

    def __init__(self, limits: RouteLimits | None = None) -> None:
        self.brokers = BrokerDirectory()
        self.topics = TopicTable()
        self._limits = limits or RouteLimits()

    def __repr__(self) -> str:
        return f"<RouteTable {self.brokers!r} {self.topics!r}>"

    # ------- registration of brokers

    def register(
        self, registration: BrokerRegistration, now_ms: int, *, deletes_absent_topics: bool = False
    ) -> RegisterBrokerResult:
        """Register a broker; the result for a slave has the address of its master. Raises RegistrationRefused.

        An outdated registration is ignored and gets an empty result; its address is unregistered, unless it is the
        newer broker's, too. With `deletes_absent_topics` topics of the broker that it does not contain are removed.
        """
        if self._ignore_if_outdated(registration):
            return RegisterBrokerResult()
        live = self.brokers.find_live(registration.cluster, registration.address)
        self._check_acceptable(registration, is_new=live is None)
        if live is not None and live.name != registration.name:
            self.unregister(live.cluster, live.name, live.address)
            live = None
        is_first = not self._is_registered_id(registration)
        has_new_version = is_first or live is None or live.version != registration.topics.data_version
        broker = self.brokers.add(
            registration.broker_id, _live_broker(registration, live, now_ms),
            zone=registration.zone, can_act_as_master=bool(registration.can_act_as_master),
        )  # fmt: skip
        if _provides_topics(registration, broker):
            self._update_topics(
                registration, broker, has_new_version=has_new_version, deletes_absent=deletes_absent_topics
            )
        if live is None:
            log.info("broker registered", extra=_log_fields(registration))
        return self._master_for(registration)

    def unregister_over(self, connection: object, cluster: str, name: str, address: str) -> bool:
        """Unregister a broker over `connection`. Ignored if another connection registered it with an epoch since."""
        live = self.brokers.find_live(cluster, address)
        if live is not None and not live.accepts_from(connection):
            log.warning("ignored unregistration of a replaced broker", extra={"broker": name, "address": address})
            return False
        return self.unregister(cluster, name, address)

    def unregister(self, cluster: str, name: str, address: str) -> bool:
        """Remove the address of a broker; return whether it was registered."""
        was_known = self.brokers.remove(cluster, name, address)
        broker = self.brokers.find_by_name(name)
        if broker is None:
            self.topics.remove_broker(name)
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            self.topics.allow_writes(name, is_allowed=False)
        if was_known:
            log.info("broker unregistered", extra={"cluster": cluster, "broker": name, "address": address})
        return was_known

    def unregister_connection(self, connection: object) -> list[LiveBroker]:
        """Unregister every broker that registered over a connection that is closed."""
        removed = self.brokers.list_registered_over(connection)
        for live in removed:
            self.unregister(live.cluster, live.name, live.address)
        return removed

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Unregister every broker whose heartbeat timeout has passed."""
        expired = self.brokers.list_expired(now_ms)
        for live in expired:
            log.warning(
                "broker expired",
                extra={"broker": live.name, "address": live.address, "after_ms": live.heartbeat_timeout_ms},
            )
            self.unregister(live.cluster, live.name, live.address)
        return expired

    def find_data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the data version of the topics of a broker; None if it is not registered."""
        live = self.brokers.find_live(cluster, address)
        return None if live is None else live.version

    # ------- changes by administrators

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Add one topic on registered brokers. Raises RegistrationRefused for an unknown broker, and at the limit."""
        unknown = sorted({data.broker_name for data in queues} - set(self.brokers.names))
        if unknown:
            raise RegistrationRefused(f"the topic is on a broker that is not registered: {', '.join(unknown)}")
        if topic not in self.topics and len(self.topics) >= self._limits.topics_max:
            raise RegistrationRefused(f"the name server has {len(self.topics)} topics, its maximum")
        for data in queues:
            self.topics.put(topic, data)

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Remove a topic in one cluster, or in all clusters."""
        return self.topics.remove_topic(topic, self.brokers.brokers_of(cluster) if cluster else None)

    # ------- requests by clients

    def route(self, topic: str, *, with_acting_master: bool = False, order: str | None = None) -> TopicRoute | None:
        """Return the route of `topic`, or None. `order` is the order configuration of an ordered topic.

        With `with_acting_master` a slave may stand for a missing master (setting `supportActingMaster`).
        """
        queues = self.topics.queues(topic)
        brokers = [_copy(self.brokers.names[name]) for name in sorted(queues) if name in self.brokers.names]
        if not brokers:
            return None
        if with_acting_master:
            for broker in brokers:
                _present_acting_master(broker, queues[broker.broker_name])
        return TopicRoute(
            queue_datas=[msgspec.structs.replace(queues[name]) for name in sorted(queues)],
            broker_datas=brokers,
            filter_server_table=self._filter_servers(brokers),
            order_topic_conf=order,
            topic_queue_mapping_by_broker=self.topics.mappings(topic),
        )

    def members(self, cluster: str, name: str) -> BrokerMemberGroup:
        """Return the addresses under one broker name."""
        broker = self.brokers.find_by_name(name)
        addresses = {} if broker is None else dict(sorted(broker.broker_addrs.items()))
        return BrokerMemberGroup(cluster=cluster, broker_name=name, broker_addrs=addresses)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        topics: set[str] = set()
        for name in self.brokers.brokers_of(cluster):
            topics |= self.topics.topics_of(name)
        return sorted(topics)

    # ------- implementation

    def _check_acceptable(self, registration: BrokerRegistration, *, is_new: bool) -> None:
        broker = self.brokers.find_by_name(registration.name)
        if broker is not None and broker.cluster != registration.cluster:
            others = sorted(address for address in broker.broker_addrs.values() if address != registration.address)
            if others:
                raise RegistrationRefused(
                    f"broker {registration.name} is registered in cluster {broker.cluster} from {others[0]}; "
                    f"a name belongs to one cluster"
                )
        if len(registration.topics.topic_config_table) == 1 and not self._is_registered_id(
            registration, any_address=True
        ):
            raise RegistrationRefused("a first registration with exactly one topic is refused as an incremental update")
        if is_new and len(self.brokers) >= self._limits.brokers_max:
            raise RegistrationRefused(f"the name server has {len(self.brokers)} brokers, its maximum")
        added = sum(config.topic_name not in self.topics for config in registration.topics.topic_config_table.values())
        if added and len(self.topics) + added > self._limits.topics_max:
            raise RegistrationRefused(
                f"the name server would have more than {self._limits.topics_max} topics, its maximum"
            )

    def _is_registered_id(self, registration: BrokerRegistration, *, any_address: bool = False) -> bool:
        holder = self.brokers.find_holder(registration.name, registration.broker_id)
        return holder is not None and (any_address or holder.address == registration.address)

    def _ignore_if_outdated(self, registration: BrokerRegistration) -> bool:
        """Return whether another live broker with the same id has a newer state version.

        Another broker is one at another address, or at the same address over another connection. If there is one, log
        the registration as ignored, and unregister its address unless the newer broker has the same one.
        """
        holder = self.brokers.find_holder(registration.name, registration.broker_id)
        if holder is None or holder.version.state_version <= registration.topics.data_version.state_version:
            return False
        if holder.address == registration.address and holder.connection is registration.connection:
            return False
        log.warning(
            "ignored registration of outdated broker",
            extra=_log_fields(registration)
            | {"holder": holder.address, "holder_state_version": holder.version.state_version},
        )
        if holder.address != registration.address:
            self.unregister(registration.cluster, registration.name, registration.address)
        return True

    def _update_topics(
        self, registration: BrokerRegistration, broker: BrokerData, *, has_new_version: bool, deletes_absent: bool
    ) -> None:
        name, topics = registration.name, registration.topics
        configs = topics.topic_config_table.values()
        if deletes_absent and not topics.topic_queue_mapping_info_map:
            for absent in self.topics.topics_of(name) - {config.topic_name for config in configs}:
                self.topics.remove_topic(absent, [name])
        is_read_only = registration.broker_id != MASTER_ID and broker.enable_acting_master
        for config in configs:
            if has_new_version or name not in self.topics.queues(config.topic_name):
                self.topics.put(config.topic_name, _queue_data(name, config, without_write=is_read_only))
        if has_new_version:
            for mapping in topics.topic_queue_mapping_info_map.values():
                if mapping.bname == name and name in self.topics.queues(mapping.topic):
                    self.topics.put_mapping(mapping)

    def _master_for(self, registration: BrokerRegistration) -> RegisterBrokerResult:
        master = None if registration.broker_id == MASTER_ID else self.brokers.find_holder(registration.name, MASTER_ID)
        if master is None:
            return RegisterBrokerResult()
        return RegisterBrokerResult(ha_server_addr=master.ha_address, master_addr=master.address)

    def _filter_servers(self, brokers: list[BrokerData]) -> dict[str, list[str]]:
        table: dict[str, list[str]] = {}
        for broker in brokers:
            for address in broker.broker_addrs.values():
                live = self.brokers.find_live(broker.cluster, address)
                if live is not None and live.filter_servers:
                    table[address] = live.filter_servers
        return table


def _live_broker(registration: BrokerRegistration, previous: LiveBroker | None, now_ms: int) -> LiveBroker:
    timeout_ms = registration.heartbeat_timeout_ms
    filter_servers = registration.filter_servers
    if filter_servers is None:
        filter_servers = previous.filter_servers if previous is not None else []
    return LiveBroker(
        cluster=registration.cluster,
        name=registration.name,
        address=registration.address,
        ha_address=registration.ha_address,
        version=registration.topics.data_version,
        heartbeat_timeout_ms=timeout_ms if timeout_ms is not None and timeout_ms > 0 else HEARTBEAT_TIMEOUT_MS,
        last_heartbeat_ms=now_ms,
        connection=registration.connection,
        filter_servers=filter_servers,
        external_address=registration.external_address,
    )


def _provides_topics(registration: BrokerRegistration, broker: BrokerData) -> bool:
    """Return whether routes use the topics of the registration: a master's, or from RocketMQ 5 on the smallest id's."""
    if registration.broker_id == MASTER_ID:
        return True
    return registration.can_act_as_master is not None and registration.broker_id == min(broker.broker_addrs)


def _queue_data(name: str, config: TopicConfig, *, without_write: bool) -> QueueData:
    return QueueData(
        broker_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm & ~PERMISSION_WRITE if without_write else config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _copy(broker: BrokerData) -> BrokerData:
    return msgspec.structs.replace(broker, broker_addrs=dict(sorted(broker.broker_addrs.items())))


def _present_acting_master(broker: BrokerData, queues: QueueData) -> None:
    """Present the smallest slave id as the master of a read-only broker without a master."""
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master or queues.perm & PERMISSION_WRITE:
        return
    addresses[MASTER_ID] = addresses.pop(min(addresses))


def _log_fields(registration: BrokerRegistration) -> dict[str, object]:
    return {
        "cluster": registration.cluster,
        "broker": registration.name,
        "broker_id": registration.broker_id,
        "address": registration.address,
        "topics": len(registration.topics.topic_config_table),
        "state_version": registration.topics.data_version.state_version,
    }
