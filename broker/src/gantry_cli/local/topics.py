"""Topics and groups of consumers that the spec names: created and updated on every master, never deleted.

It is done again when the spec or the set of shards with a master changes, and after a failure. What is there already
as it should be is left as it is, since every change of a topic is told to all clients.
"""

from __future__ import annotations

from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.access import Access
from gantry_client import Admin, ClientError, NoRoute
from gantry_spec.broker_conf import broker_name, cluster_name
from gantry_spec.manifest import Spec
from gantry_spec.manifest.parts import ConsumerGroup, Topic
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig


@final
class Upkeep:
    """Of one group."""

    def __init__(self, group: str, name_servers: str, access: Access) -> None:
        self._group: Final = group
        self._access: Final = access
        self._cluster: Final = cluster_name(group)
        self._name_servers: Final = name_servers
        self._done: tuple[object, ...] = ()
        self._failure: list[str] = []
        """What was said last, so that it is not said every second."""

    async def keep(self, spec: Spec, shards: tuple[int, ...]) -> list[str]:
        """Have them on these shards, whose masters are registered; what was done, or could not be."""
        key = (tuple(spec.topics), tuple(spec.groups), shards)
        if key == self._done or not (spec.topics or spec.groups) or not shards:
            return []
        told: list[str] = []
        try:
            async with Admin(self._name_servers, client_settings=self._access.client_settings()) as admin:
                masters = {broker_name(self._group, shard) for shard in shards}
                if not masters <= {one.name for one in await admin.brokers.masters(self._cluster)}:
                    return []
                for topic in spec.topics:
                    told += await self._topic(admin, topic, masters)
                for group in spec.groups:
                    told += await self._consumers(admin, group)
        except (ClientError, CliError) as error:
            told = [f"topics and groups of the spec: {error}"]
            told, self._failure = [] if told == self._failure else told, told
            return told
        self._done, self._failure = key, []
        return told

    async def _topic(self, admin: Admin, topic: Topic, masters: set[str]) -> list[str]:
        """Its number of queues is the spec's. Who may use it, its order, and queues to be drained are not."""
        try:
            there = await admin.topics.settings(topic.name)
        except NoRoute:
            there = {}
        wanted = topic.queues
        configs = [there.get(name) for name in masters]
        if all(one is not None and one.write_queue_nums == wanted <= one.read_queue_nums for one in configs):
            return []
        known = next(iter(there.values()), TopicConfig(topic_name=topic.name))
        await admin.topics.create(
            topic.name,
            queues=wanted,
            read_queues=max([wanted, *(config.read_queue_nums for config in there.values())]),
            permission=known.perm,
            is_ordered=known.order,
            cluster=self._cluster,
        )
        return [f"topic {topic.name} has {wanted} queues on each shard"]

    async def _consumers(self, admin: Admin, group: ConsumerGroup) -> list[str]:
        config = SubscriptionGroupConfig(group_name=group.name, retry_max_times=group.retry_max)
        await admin.groups.create(config, cluster=self._cluster)
        return [f"consumer group {group.name} is delivered to {group.retry_max} times again"]
