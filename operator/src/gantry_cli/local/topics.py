"""Reconciles a local group's topics and subscription groups with its spec, and decommissions surplus shards.

Topics and subscription groups are created and updated on the masters, and never deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.access import Access
from gantry_client import Admin, ClientError
from gantry_client.topic_reconciler import DeclaredTables, MasterTerm, TopicReconciler
from gantry_spec.broker_conf import broker_name
from gantry_spec.manifest import Spec
from gantry_spec.observed import EMPTY_FOR_MS, remaining_messages


@final
class LocalTopicReconciler:
    """Runs the `TopicReconciler` for one local group, and reports its changes as lines."""

    def __init__(self, name_servers: str, access: Access, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._access: Final = access
        self._name_servers: Final = name_servers
        self._reconciler: Final = TopicReconciler(clock_s)
        self._failure = ""
        """The failure that was reported last, which is not reported again in each round."""

    async def reconcile(self, spec: Spec, masters: Sequence[MasterTerm]) -> list[str]:
        """Reconcile these masters if they are due. Return what was changed, or why it could not be."""
        declared = DeclaredTables(
            {topic.name: topic.queues for topic in spec.topics},
            {group.name: group.retry_max for group in spec.groups},
        )
        if not self._reconciler.is_due(declared, masters):
            return []
        try:
            async with Admin(self._name_servers, client_settings=self._access.client_settings()) as admin:
                changed = await self._reconciler.reconcile(admin, declared, masters)
        except (ClientError, CliError) as error:
            failure, self._failure = self._failure, f"failed to reconcile topics and groups of the spec: {error}"
            return [] if self._failure == failure else [self._failure]
        self._failure = ""
        return [
            *(f"topic {name} has {queues} queues on each shard" for name, queues in changed.topics.items()),
            *(f"consumer group {name} has at most {times} retries" for name, times in changed.groups.items()),
        ]


# -- surplus shards ----------------------------------------------------------------------------------------------------
# Shards that are removed from a manifest: producers stop sending to them, and they are removed when they are empty.
#
#     removed from the manifest             ->  withdrawn from the routes of producers  ->  its messages expire
#     empty, and old routes have expired    ->  drained, and removed
#
# A shard stays empty only while its log ends where it ended when the queues were found empty: no message came since.


CHECK_INTERVAL_S: Final = 5.0
"""The time between two checks whether a surplus shard is empty."""


@final
class ShardDecommissioner:
    """Withdraws surplus shards of a local group from the routes, and finds out when they are empty.

    Owned by one supervisor.
    """

    def __init__(
        self, group: str, name_servers: str, access: Access, report_event: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._access: Final = access
        self._group: Final = group
        self._name_servers: Final = name_servers
        self._report_event: Final = report_event
        self._clock_s: Final = clock_s
        self._withdrawn_s: Final[dict[int, float]] = {}
        """When each surplus shard was withdrawn from the routes of every name server."""
        self._attempted: Final[set[int]] = set()
        """Surplus shards that at least one name server may have withdrawn, also if another one did not answer."""
        self._ends: Final[dict[int, int]] = {}
        """The end of a shard's log when its queues were found empty."""
        self._closed: Final[set[int]] = set()
        """Shards whose master is drained, and took no sends after its queues were found empty."""
        self._checked_s = float("-inf")

    def is_empty(self, shard: int, wrote: int | None) -> bool:
        """Return whether a shard was found empty, and has taken no message since.

        A master that does not answer may have taken a message before, unless the shard was closed already: its master
        was drained.
        """
        return shard in self._ends and (wrote == self._ends[shard] or (wrote is None and shard in self._closed))

    def empty_log_end(self, shard: int) -> int | None:
        """Return the end of a shard's log when it was found empty, None if it was not."""
        return self._ends.get(shard)

    def mark_closed(self, shard: int) -> None:
        """Record that a shard's master is drained, and that its log still ends where it was found empty."""
        self._closed.add(shard)

    async def reconcile(self, wanted: int, masters: Mapping[int, tuple[str, int]]) -> None:
        """Withdraw and check the shards beyond the first ``wanted``, and restore others that were withdrawn.

        ``masters`` has the address of each shard's master and the end of its log.
        """
        surplus = {shard for shard in masters if shard >= wanted}
        restored = {shard for shard in self._attempted if shard < wanted}
        if not (surplus or restored) or self._clock_s() - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = self._clock_s()
        try:
            async with Admin(self._name_servers, client_settings=self._access.client_settings()) as admin:
                for shard in restored:
                    await admin.brokers.allow_writes(broker_name(self._group, shard))
                    self._forget(shard)
                for shard in surplus:
                    await self._check_shard(admin, shard, *masters[shard])
        except (ClientError, CliError) as error:
            self._report_event(f"failed to decommission surplus shards: {error}")

    def _forget(self, shard: int) -> None:
        self._attempted.discard(shard)
        self._withdrawn_s.pop(shard, None)
        self._ends.pop(shard, None)
        self._closed.discard(shard)

    async def _check_shard(self, admin: Admin, shard: int, address: str, wrote: int) -> None:
        self._attempted.add(shard)
        await admin.brokers.forbid_writes(broker_name(self._group, shard))
        if shard not in self._withdrawn_s:
            self._report_event(f"shard {shard} withdrawn from routes: removed from the manifest")
            self._withdrawn_s[shard] = self._clock_s()
        self._ends.pop(shard, None)
        self._closed.discard(shard)
        if self._clock_s() - self._withdrawn_s[shard] < EMPTY_FOR_MS / 1000:
            return
        messages: dict[str, int] = {}
        for topic in await admin.brokers.topic_table(address):
            queues = await admin.brokers.queue_table(address, topic)
            messages[topic] = sum(max(one.max_offset - one.min_offset, 0) for one in queues.values())
        if not remaining_messages(messages):
            self._ends[shard] = wrote
