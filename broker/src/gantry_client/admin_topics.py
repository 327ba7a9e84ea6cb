"""Topics of a cluster: create, change, delete, list, and how full their queues are."""

import asyncio
from collections.abc import Mapping
from typing import Final, final

from gantry_client.admin_brokers import Brokers
from gantry_client.clock import Deadline
from gantry_client.documents import GroupListing, QueueOffsets
from gantry_client.errors import NoRoute
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
"""How often a name server is asked whether it knows a new topic yet."""


@final
class Topics:
    """Questions and orders about topics."""

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
        """Create `topic` on every master (of `cluster`), or change it there.

        Returns when every broker has said so and the name servers know the topic, which brokers tell them in a moment;
        after `request_timeout_ms` it returns all the same, for they will tell them later.

        `permission` is 6 to read and write, 4 to read only, 2 to write only, 0 for neither. `attributes` are set, or
        taken away where their value is None; others stay as they are. Fewer `queues` than `read_queues` lets consumers
        empty the queues that producers no longer see.
        """
        self._session.require_open()
        check_topic(topic)
        order = CreateTopic(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=read_queues or queues,
            write_queue_nums=queues,
            perm=permission,
            topic_filter_type="SINGLE_TAG",
            order=is_ordered,
            topic_sys_flag=0,
            attributes=_changes(attributes) if attributes else None,
        )
        masters = await self._brokers.masters(cluster)
        for broker in masters:
            await self._session.calls.demand(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, order)
        await self._wait_for_route(topic, {broker.name for broker in masters})

    async def settings(self, topic: str) -> dict[str, TopicConfig]:
        """What is set for `topic`, by the names of the brokers that have it."""
        route = await self.route(topic)
        return {
            broker_name: await self._session.calls.document(
                address, RequestCode.GET_TOPIC_CONFIG, TopicConfig, TopicName(topic=topic)
            )
            for broker_name, address in sorted(route.read_addresses())
        }

    async def order(self, topic: str) -> str | None:
        """Over which queues an order topic's messages are spread: `broker:queues;broker:queues`; None if it is none."""
        self._session.require_open()
        return await self._session.name_servers.value(ORDER_TOPIC_NAMESPACE, topic)

    async def set_order(self, topic: str, order: str) -> None:
        """Say so on every name server. Brokers mark the topic as ordered with their next registration."""
        self._session.require_open()
        check_topic(topic)
        await self._session.name_servers.tell_all(
            RequestCode.PUT_KV_CONFIG, PutKeyValue(namespace=ORDER_TOPIC_NAMESPACE, key=topic, value=order)
        )

    async def remove_order(self, topic: str) -> None:
        """Undo that. A topic that brokers have marked stays marked until it is changed there, too."""
        self._session.require_open()
        await self._session.name_servers.tell_all(
            RequestCode.DELETE_KV_CONFIG, KeyValueAddress(namespace=ORDER_TOPIC_NAMESPACE, key=topic)
        )

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete `topic` with its messages from every master (of `cluster`), and then from the name servers."""
        self._session.require_open()
        for broker in await self._brokers.masters(cluster):
            await self._session.calls.demand(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic=topic))
        await self._session.name_servers.tell_all(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNameServer(topic=topic, cluster_name=cluster)
        )

    async def all(self, *, with_internal: bool = False) -> list[str]:
        """The topics that applications made; with `with_internal` also retry, dead letter and system topics."""
        self._session.require_open()
        topics = sorted(set(await self._session.name_servers.topics()))
        if with_internal:
            return topics
        internal = await self._broker_topics()
        return [topic for topic in topics if topic not in internal and not is_internal_topic(topic)]

    async def route(self, topic: str) -> Route:
        """Where `topic` is now, asked anew. Raises NoRoute."""
        self._session.require_open()
        route = await self._session.routes.refresh(topic)
        if route is None:
            raise NoRoute(topic, "no broker has registered it")
        return route

    async def stats(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """The ends of every queue of `topic`."""
        route = await self.route(topic)
        table: dict[MessageQueue, QueueOffsets] = {}
        for _, address in route.read_addresses():
            table |= await self._brokers.queue_table(address, topic)
        return dict(sorted(table.items(), key=lambda item: (item[0].broker_name, item[0].queue_id)))

    async def groups(self, topic: str) -> list[str]:
        """The groups that have consumed `topic`."""
        route = await self.route(topic)
        groups: set[str] = set()
        for _, address in route.read_addresses():
            listing = await self._session.calls.document(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GroupListing, TopicName(topic=topic)
            )
            groups.update(listing.group_list)
        return sorted(groups)

    async def offsets_at(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """For every queue of `topic` the first message stored at or after `timestamp_ms`."""
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
        """Every broker and every cluster has a topic of its own name, and every cluster one for replies."""
        brokers = await self._brokers.all()
        clusters = {broker.cluster for broker in brokers}
        return {broker.name for broker in brokers} | clusters | {reply_topic(cluster) for cluster in clusters}


def _changes(attributes: Mapping[str, str | None]) -> str:
    """As brokers read them. Raises ValueError for what would be read as something else."""
    parts: list[str] = []
    for name, value in attributes.items():
        if not name or any(sign in name for sign in "+-=,") or "," in (value or "") or value == "":
            raise ValueError(f"an attribute is a name and a value, without + - = and commas: {name!r}")
        parts.append(f"-{name}" if value is None else f"+{name}={value}")
    return ",".join(parts)
