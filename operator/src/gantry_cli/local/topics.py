"""Topics and subscription groups of a local group's spec, created and updated on its masters and never deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.access import Access
from gantry_client import Admin, ClientError
from gantry_client.topic_reconciler import MasterTerm, TopicReconciler, WantedTables
from gantry_spec.manifest import Spec


@final
class LocalTopicReconciler:
    """Runs the `TopicReconciler` for one local group, and reports its changes as lines."""

    def __init__(self, name_servers: str, access: Access, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._access: Final = access
        self._name_servers: Final = name_servers
        self._reconciler: Final = TopicReconciler(clock_s)
        self._failure = ""
        """The failure that was reported last, so that it is not repeated every second."""

    async def reconcile(self, spec: Spec, masters: Sequence[MasterTerm]) -> list[str]:
        """Reconcile these masters if they are due. Return what was changed, or why it could not be."""
        wanted = WantedTables(
            {topic.name: topic.queues for topic in spec.topics},
            {group.name: group.retry_max for group in spec.groups},
        )
        if not self._reconciler.is_due(wanted, masters):
            return []
        try:
            async with Admin(self._name_servers, client_settings=self._access.client_settings()) as admin:
                changed = await self._reconciler.reconcile(admin, wanted, masters)
        except (ClientError, CliError) as error:
            failure, self._failure = self._failure, f"topics and groups of the spec: {error}"
            return [] if self._failure == failure else [self._failure]
        self._failure = ""
        return [
            *(f"topic {name} has {queues} queues on each shard" for name, queues in changed.topics.items()),
            *(f"consumer group {name} is delivered to {times} times again" for name, times in changed.groups.items()),
        ]
