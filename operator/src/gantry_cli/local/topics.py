"""Topics and groups of consumers that the spec names: created and updated on every master, never deleted.

It is done again when the spec or the set of shards with a master changes, and after a failure. Each master is compared
with its own tables, by the rule of the sidecar in a cluster (`gantry_client.wanted`): what the spec does not name stays
as an administrator has set it.
"""

from __future__ import annotations

from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.access import Access
from gantry_client import Admin, ClientError
from gantry_client.wanted import group_change, topic_change
from gantry_spec.broker_conf import broker_name, cluster_name
from gantry_spec.manifest import Spec


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
                names = {broker_name(self._group, shard) for shard in shards}
                masters = [one.address for one in await admin.brokers.masters(self._cluster) if one.name in names]
                if len(masters) < len(names):
                    return []
                told += await self._keep_topics(admin, spec, masters)
                told += await self._keep_groups(admin, spec, masters)
        except (ClientError, CliError) as error:
            told = [f"topics and groups of the spec: {error}"]
            told, self._failure = [] if told == self._failure else told, told
            return told
        self._done, self._failure = key, []
        return told

    @staticmethod
    async def _keep_topics(admin: Admin, spec: Spec, masters: list[str]) -> list[str]:
        """Its number of queues is the spec's. Who may use it, its order, and queues to be drained are not."""
        tables = [await admin.brokers.topic_table(address) for address in masters] if spec.topics else []
        told: list[str] = []
        for topic in spec.topics:
            like = next((table[topic.name] for table in tables if topic.name in table), None)
            changes = [topic_change(topic.name, topic.queues, table.get(topic.name), like=like) for table in tables]
            for address, change in zip(masters, changes, strict=True):
                if change is not None:
                    await admin.brokers.put_topic(address, change)
            if any(changes):
                told.append(f"topic {topic.name} has {topic.queues} queues on each shard")
        return told

    @staticmethod
    async def _keep_groups(admin: Admin, spec: Spec, masters: list[str]) -> list[str]:
        """How often a message is delivered again is the spec's. Every other setting is an administrator's."""
        tables = [await admin.brokers.group_table(address) for address in masters] if spec.groups else []
        told: list[str] = []
        for group in spec.groups:
            changes = [group_change(group.name, group.retry_max, table.get(group.name)) for table in tables]
            for address, change in zip(masters, changes, strict=True):
                if change is not None:
                    await admin.brokers.put_group(address, change)
            if any(changes):
                told.append(f"consumer group {group.name} is delivered to {group.retry_max} times again")
        return told
