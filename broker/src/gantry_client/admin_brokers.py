"""Brokers as the name servers know them, and what each says of itself."""

from dataclasses import dataclass
from typing import final

from gantry_client.calls import document_of, succeeded
from gantry_client.documents import ConsumerConnections, ConsumerOffsetTable, GroupTable, QueueOffsets, TopicStats
from gantry_client.errors import Unavailable
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """One registered broker process."""

    cluster: str
    name: str
    broker_id: int
    """0 is the master."""
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@final
class Brokers:
    """Questions about brokers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def all(self, cluster: str | None = None) -> list[BrokerAddress]:
        """Every registered broker, masters first within a name; of one cluster if it is named."""
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
        """The masters among them. Raises Unavailable when there is none: nothing could be administered."""
        masters = [broker for broker in await self.all(cluster) if broker.is_master]
        if not masters:
            where = f"cluster {cluster!r}" if cluster else "any cluster"
            raise Unavailable(f"the name servers know no master of {where}")
        return masters

    async def runtime(self, address: str) -> dict[str, str]:
        """What a broker says of itself: rates, offsets, disk use."""
        self._session.require_open()
        return (await self._session.calls.document(address, RequestCode.GET_BROKER_RUNTIME_INFO, KeyValueTable)).table

    async def config(self, address: str) -> dict[str, str]:
        """A broker's effective settings, by RocketMQ's names."""
        self._session.require_open()
        reply = await self._session.calls.demand(address, RequestCode.GET_BROKER_CONFIG)
        lines = property_lines(reply.body.decode("utf-8", "replace"))
        return dict(entry for _, line in lines if (entry := split_property(line)) is not None)

    # ------- tables of one broker, for which no name server is asked

    async def topic_table(self, address: str) -> dict[str, TopicConfig]:
        """Every topic that the broker has, its own included."""
        self._session.require_open()
        found = await self._session.calls.document(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        return found.topic_config_table

    async def group_table(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Every consumer group that the broker has."""
        self._session.require_open()
        found = await self._session.calls.document(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupTable)
        return found.subscription_group_table

    async def put_topic(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic on this broker alone."""
        self._session.require_open()
        check_topic(config.topic_name)
        order = CreateTopic(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            order=config.order,
            topic_sys_flag=config.topic_sys_flag,
        )
        await self._session.calls.demand(address, RequestCode.UPDATE_AND_CREATE_TOPIC, order)

    async def put_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or change a group of consumers on this broker alone."""
        self._session.require_open()
        check_group(config.group_name)
        await self._session.calls.demand(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)

    async def offset_table(self, address: str) -> dict[str, dict[int, int]]:
        """How far every group is: `topic@group` -> queue -> the next offset to consume."""
        self._session.require_open()
        found = await self._session.calls.document(address, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetTable)
        return dict(found.offset_table)

    async def queue_table(self, address: str, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """The ends of the queues that the broker has of `topic`."""
        self._session.require_open()
        question = TopicName(topic=topic)
        found = await self._session.calls.document(address, RequestCode.GET_TOPIC_STATS_INFO, TopicStats, question)
        return found.offset_table

    async def connections(self, address: str, group: str) -> ConsumerConnections | None:
        """The connections of a group's members to the broker; None if there are none."""
        self._session.require_open()
        question = ConsumerGroup(consumer_group=group)
        reply = await self._session.calls.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, question)
        if reply.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        return document_of(succeeded(reply, address), ConsumerConnections, address)

    async def forbid_writes(self, broker_name: str) -> None:
        """Have every name server take the broker's queues out of what producers see, until `allow_writes`."""
        self._session.require_open()
        await self._session.name_servers.tell_all(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerName(broker_name=broker_name)
        )

    async def allow_writes(self, broker_name: str) -> None:
        """Undo `forbid_writes`."""
        self._session.require_open()
        await self._session.name_servers.tell_all(
            RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerName(broker_name=broker_name)
        )
