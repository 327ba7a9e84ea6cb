"""Topics of a cluster: create, update, delete and list them, and the offsets of their queues."""

import asyncio
from collections.abc import Mapping
from typing import Final, final

from gantry_client.admin_brokers import Brokers, attribute_changes
from gantry_client.clock import Deadline
from gantry_client.documents import GroupListing, QueueOffsets
from gantry_client.outgoing import check_topic
from gantry_client.queue_calls import QueueCalls
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_wire.codes import RequestCode
from gantry_wire.commands.admin import CreateTopic, TopicConfig, TopicName
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.nameserver import (
    ORDER_TOPIC_NAMESPACE,
    DeleteTopicFromNameServer,
    KeyValueAddress,
    PutKeyValue,
)
from gantry_wire.names import AUTO_CREATE_TOPIC, is_internal_topic, reply_topic

ROUTE_POLL_MS: Final = 20
"""How often the route of a new topic is polled."""


@final
class Topics:
    """Requests about topics, to brokers and name servers."""

    def __init__(self, session: Session, brokers: Brokers) -> None:
        self._session = session
        self._brokers = brokers
        self._queue_calls = QueueCalls(session)

    async def create(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        permission: int = 6,
        is_ordered: bool = False,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create or update `topic` on every master (of `cluster`, if given).

        Returns when every broker has confirmed it and the name server in use has the route. After `request_timeout_ms`
        it returns without the route, because brokers repeat their registration.

        `permission` is 6 to read and write, 4 to read only, 2 to write only, 0 for neither. `attributes` are set, or
        removed where their value is None; others are unchanged. Fewer `queues` than `read_queues` lets consumers drain
        the queues to which producers no longer send.
        """
        self._session.require_open()
        check_topic(topic)
        request = CreateTopic(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=read_queues or queues,
            write_queue_nums=queues,
            perm=permission,
            topic_filter_type="SINGLE_TAG",
            order=is_ordered,
            topic_sys_flag=0,
            attributes=attribute_changes(attributes),
        )
        masters = await self._brokers.masters(cluster)
        for broker in masters:
            await self._session.calls.request_success(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, request)
        await self._wait_for_route(topic, {broker.name for broker in masters})

    async def settings(self, topic: str) -> dict[str, TopicConfig]:
        """Return the configuration of `topic` on each of its brokers, by broker name."""
        route = await self.route(topic)
        return {
            broker_name: await self._session.calls.request_document(
                address, RequestCode.GET_TOPIC_CONFIG, TopicConfig, TopicName(topic=topic)
            )
            for broker_name, address in sorted(route.read_addresses())
        }

    async def order(self, topic: str) -> str | None:
        """Return the queues of an ordered topic as `broker:queues;broker:queues`; None for an ordinary topic."""
        self._session.require_open()
        return await self._session.name_servers.value(ORDER_TOPIC_NAMESPACE, topic)

    async def set_order(self, topic: str, order: str) -> None:
        """Set the order configuration on every name server. Brokers apply it at their next registration."""
        self._session.require_open()
        check_topic(topic)
        await self._session.name_servers.send_to_all(
            RequestCode.PUT_KV_CONFIG, PutKeyValue(namespace=ORDER_TOPIC_NAMESPACE, key=topic, value=order)
        )

    async def remove_order(self, topic: str) -> None:
        """Remove the order configuration. Brokers keep the topic marked as ordered until it is updated there, too."""
        self._session.require_open()
        await self._session.name_servers.send_to_all(
            RequestCode.DELETE_KV_CONFIG, KeyValueAddress(namespace=ORDER_TOPIC_NAMESPACE, key=topic)
        )

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete `topic` with its messages from every master (of `cluster`, if given), then from the name servers."""
        self._session.require_open()
        for broker in await self._brokers.masters(cluster):
            await self._session.calls.request_success(
                broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic=topic)
            )
        await self._session.name_servers.send_to_all(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNameServer(topic=topic, cluster_name=cluster)
        )

    async def all(self, *, with_internal: bool = False) -> list[str]:
        """Return the topics of applications; with `with_internal` also retry, dead letter and system topics."""
        self._session.require_open()
        topics = sorted(set(await self._session.name_servers.topics()))
        if with_internal:
            return topics
        internal = await self._broker_topics()
        return [topic for topic in topics if topic not in internal and not is_internal_topic(topic)]

    async def route(self, topic: str) -> Route:
        """Return the route of `topic`, freshly queried. Raises NoRoute."""
        self._session.require_open()
        route = await self._session.routes.refresh(topic)
        if route is None:
            raise await self._session.routes.error_for_unknown(topic)
        return route

    async def stats(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the first offset and the end of every queue of `topic`."""
        route = await self.route(topic)
        table: dict[MessageQueue, QueueOffsets] = {}
        for _, address in route.read_addresses():
            table |= await self._brokers.queue_table(address, topic)
        return dict(sorted(table.items(), key=lambda item: (item[0].broker_name, item[0].queue_id)))

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that have consumed `topic`."""
        route = await self.route(topic)
        groups: set[str] = set()
        for _, address in route.read_addresses():
            listing = await self._session.calls.request_document(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GroupListing, TopicName(topic=topic)
            )
            groups.update(listing.group_list)
        return sorted(groups)

    async def offsets_at(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at or after `timestamp_ms`, for every queue of `topic`."""
        route = await self.route(topic)
        return {queue: await self._queue_calls.offset_at(queue, timestamp_ms) for queue in route.read_queues}

    async def _wait_for_route(self, topic: str, broker_names: set[str]) -> None:
        deadline = Deadline(self._session.settings.request_timeout_ms)
        while not deadline.has_passed:
            route = await self._session.routes.refresh(topic)
            if route is not None and broker_names <= route.brokers.keys():
                return
            await asyncio.sleep(ROUTE_POLL_MS / 1000)

    async def _broker_topics(self) -> set[str]:
        """Return the topics that are named for brokers and clusters, and the reply topics of the clusters."""
        brokers = await self._brokers.all()
        clusters = {broker.cluster for broker in brokers}
        return {broker.name for broker in brokers} | clusters | {reply_topic(cluster) for cluster in clusters}
