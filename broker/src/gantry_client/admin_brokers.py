"""Brokers that are registered with the name servers, and the state and tables of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from gantry_client.calls import parse_document, require_success
from gantry_client.documents import ConsumerConnections, ConsumerOffsetTable, GroupTable, QueueOffsets, TopicStats
from gantry_client.errors import InvalidMessage, Unavailable
from gantry_client.outgoing import check_group, check_topic
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.admin import (
    CreateTopic,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicName,
)
from gantry_wire.commands.clients import ConsumerGroup, MessageQueue
from gantry_wire.commands.nameserver import MASTER_ID, BrokerName, KeyValueTable
from gantry_wire.names import AUTO_CREATE_TOPIC
from gantry_wire.properties_text import property_lines, split_property

NO_BROKER: Final = "no broker is registered with the name servers"
"""The error if name servers answer, and list no broker at all."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """The address of one registered broker process."""

    cluster: str
    name: str
    broker_id: int
    """The broker id; 0 is the master."""
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@final
class Brokers:
    """Requests about brokers and to single brokers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def all(self, cluster: str | None = None) -> list[BrokerAddress]:
        """Return every registered broker (of `cluster`, if given), sorted by cluster, name and id."""
        self._session.require_open()
        info = await self._session.name_servers.cluster()
        brokers = [
            BrokerAddress(cluster=data.cluster, name=name, broker_id=broker_id, address=address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
            if cluster is None or data.cluster == cluster
        ]
        return sorted(brokers, key=lambda broker: (broker.cluster, broker.name, broker.broker_id))

    async def masters(self, cluster: str | None = None) -> list[BrokerAddress]:
        """Return the registered masters (of `cluster`, if given). Raises Unavailable when no master is registered."""
        brokers = await self.all()
        masters = [one for one in brokers if one.is_master and cluster in (None, one.cluster)]
        if not brokers:
            raise Unavailable(NO_BROKER)
        if not masters:
            where = f"cluster {cluster!r}" if cluster else "any cluster"
            raise Unavailable(f"no master of {where} is registered with the name servers")
        return masters

    async def runtime(self, address: str) -> dict[str, str]:
        """Return the runtime information of a broker: rates, offsets, disk use."""
        self._session.require_open()
        return (
            await self._session.calls.request_document(address, RequestCode.GET_BROKER_RUNTIME_INFO, KeyValueTable)
        ).table

    async def config(self, address: str) -> dict[str, str]:
        """Return the effective settings of a broker, by the names that RocketMQ uses."""
        self._session.require_open()
        reply = await self._session.calls.request_success(address, RequestCode.GET_BROKER_CONFIG)
        lines = property_lines(reply.body.decode("utf-8", "replace"))
        return dict(entry for _, line in lines if (entry := split_property(line)) is not None)

    # ------- tables of one broker; these need no name server

    async def topic_table(self, address: str) -> dict[str, TopicConfig]:
        """Return every topic of a broker, including its internal topics."""
        self._session.require_open()
        found = await self._session.calls.request_document(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        return found.topic_config_table

    async def group_table(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return every consumer group of a broker."""
        self._session.require_open()
        found = await self._session.calls.request_document(
            address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupTable
        )
        return found.subscription_group_table

    async def put_topic(self, address: str, config: TopicConfig, *, sets_attributes: bool = False) -> None:
        """Create or update a topic on this broker only.

        Only with `sets_attributes` the topic gets the attributes of `config`, else it keeps its own: a broker refuses
        to set some attributes of an existing topic, even to the same value.
        """
        self._session.require_open()
        check_topic(config.topic_name)
        request = CreateTopic(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            order=config.order,
            topic_sys_flag=config.topic_sys_flag,
            attributes=attribute_changes(config.attributes) if sets_attributes else None,
        )
        await self._session.calls.request_success(address, RequestCode.UPDATE_AND_CREATE_TOPIC, request)

    async def put_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or update a consumer group on this broker only."""
        self._session.require_open()
        check_group(config.group_name)
        await self._session.calls.request_success(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)

    async def offset_table(self, address: str) -> dict[str, dict[int, int]]:
        """Return the offsets of every group: `topic@group` -> queue -> next offset to consume."""
        self._session.require_open()
        found = await self._session.calls.request_document(
            address, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetTable
        )
        return dict(found.offset_table)

    async def queue_table(self, address: str, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the first offset and the end of each queue of `topic` on this broker."""
        self._session.require_open()
        request = TopicName(topic=topic)
        found = await self._session.calls.request_document(
            address, RequestCode.GET_TOPIC_STATS_INFO, TopicStats, request
        )
        return found.offset_table

    async def connections(self, address: str, group: str) -> ConsumerConnections | None:
        """Return the connections of the consumers of `group` to this broker; None if no consumer is connected."""
        self._session.require_open()
        request = ConsumerGroup(consumer_group=group)
        reply = await self._session.calls.request(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, request)
        if reply.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        return parse_document(require_success(reply, address), ConsumerConnections, address)

    # ------- write permission, on the name servers

    async def forbid_writes(self, broker_name: str) -> None:
        """Remove the write permission of a broker's queues on every name server.

        It lasts until `allow_writes` is called, or the broker registers a changed topic table.
        """
        self._session.require_open()
        await self._session.name_servers.send_to_all(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerName(broker_name=broker_name)
        )

    async def allow_writes(self, broker_name: str) -> None:
        """Give all queues of a broker read and write permission on every name server, also read-only ones."""
        self._session.require_open()
        await self._session.name_servers.send_to_all(
            RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerName(broker_name=broker_name)
        )


def attribute_changes(attributes: Mapping[str, str | None] | None) -> str | None:
    """Format attribute changes for a broker; None removes an attribute. Raises InvalidMessage.

    The format cannot carry some characters. Returns None without any change.
    """
    parts: list[str] = []
    for name, value in (attributes or {}).items():
        if not name or any(sign in name for sign in "+-=,") or "," in (value or "") or value == "":
            raise InvalidMessage(
                f"invalid attribute {name!r}: a name has no + - = or comma, a value is not empty and has no comma"
            )
        parts.append(f"-{name}" if value is None else f"+{name}={value}")
    return ",".join(parts) or None
