"""Topics and subscription groups of a local group's spec, created and updated on its masters and never deleted; and
shards that the spec has no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.access import Access
from gantry_client import Admin, ClientError
from gantry_client.topic_reconciler import MasterTerm, TopicReconciler, WantedTables
from gantry_spec.broker_conf import broker_name
from gantry_spec.manifest import Spec
from gantry_spec.observed import QUIET_MS, remaining_messages


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


# -- shards that go ----------------------------------------------------------------------------------------------------
# Shards that a manifest has no more: nobody is sent there, and they go when no message is left on them.
#
#     taken away from the manifest  ->  name servers show producers nothing of it  ->  its messages expire
#     nothing is left, and nobody who may know an old route can come any more      ->  drained, and removed
#
# Whether anything came between the last look at its queues and its end is seen by its log: it must be as long as it
# was.


AGAIN_S: Final = 5.0


@final
class Emptying:
    """Of one supervisor."""

    def __init__(
        self, group: str, name_servers: str, access: Access, tell: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._access: Final = access
        self._group: Final = group
        self._name_servers: Final = name_servers
        self._tell: Final = tell
        self._clock_s: Final = clock_s
        self._since_s: Final[dict[int, float]] = {}
        self._ends: Final[dict[int, int]] = {}
        """Where the log of a shard ended when nothing was found on it."""
        self._closed: Final[set[int]] = set()
        """Shards whose master takes no sends any more, and took none since nothing was found."""
        self._looked_s = float("-inf")

    def is_empty(self, shard: int, wrote: int | None) -> bool:
        """Whether nothing was left on a shard, and nothing has come since.

        A master that does not answer may have taken something before it fell silent, unless it was closed then.
        """
        return shard in self._ends and (wrote == self._ends[shard] or (wrote is None and shard in self._closed))

    def end(self, shard: int) -> int | None:
        """Where the log of a shard ended when nothing was found on it."""
        return self._ends.get(shard)

    def close(self, shard: int) -> None:
        """Its master is drained, and was found to be as empty as before."""
        self._closed.add(shard)

    async def keep(self, wanted: int, masters: Mapping[int, tuple[str, int]]) -> None:
        """``masters``: where those of shards are, and where their logs end. ``wanted``: how many there shall be."""
        surplus = {shard for shard in masters if shard >= wanted}
        back = {shard for shard in self._since_s if shard < wanted}
        if not (surplus or back) or self._clock_s() - self._looked_s < AGAIN_S:
            return
        self._looked_s = self._clock_s()
        try:
            async with Admin(self._name_servers, client_settings=self._access.client_settings()) as admin:
                for shard in back:
                    await admin.brokers.allow_writes(broker_name(self._group, shard))
                    self._forget(shard)
                for shard in surplus:
                    await self._look(admin, shard, *masters[shard])
        except (ClientError, CliError) as error:
            self._tell(f"shards that go: {error}")

    def _forget(self, shard: int) -> None:
        self._since_s.pop(shard, None)
        self._ends.pop(shard, None)
        self._closed.discard(shard)

    async def _look(self, admin: Admin, shard: int, address: str, wrote: int) -> None:
        if shard not in self._since_s:
            self._tell(f"shard {shard} is scaled away: producers are shown nothing of it any more")
            self._since_s[shard] = self._clock_s()
        await admin.brokers.forbid_writes(broker_name(self._group, shard))
        self._ends.pop(shard, None)
        self._closed.discard(shard)
        if self._clock_s() - self._since_s[shard] < QUIET_MS / 1000:
            return
        messages: dict[str, int] = {}
        for topic in await admin.brokers.topic_table(address):
            queues = await admin.brokers.queue_table(address, topic)
            messages[topic] = sum(max(one.max_offset - one.min_offset, 0) for one in queues.values())
        if not remaining_messages(messages):
            self._ends[shard] = wrote
