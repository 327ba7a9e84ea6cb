"""Topics and subscription groups that a spec names: created and updated on masters, never deleted.

    missing            created
    different          the numbers of the spec are changed, and nothing else; removed queues stay readable, because
                       consumers would otherwise lose the messages in them
    as in the spec     not changed, because every change is announced to all clients

Each broker is compared with its own table: what an administrator set on one broker is neither reset, nor copied to
another broker that has the topic. A missing topic gets the settings and attributes that it has on the first broker that
has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, final

import msgspec

from gantry_client.admin import Admin
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig

INTERVAL_S: Final = 30.0
"""The interval between comparisons of the same masters: a topic may have been deleted in between."""


class MasterTerm(NamedTuple):
    """A master in one of its terms. A different identity or epoch may have an older table."""

    address: str
    identity: str
    """The uuid of the master's store."""

    epoch: int


class DeclaredTables(NamedTuple):
    """Numbers of queues by topic, and numbers of redeliveries by subscription group."""

    topics: Mapping[str, int]
    """The number of queues of each topic."""

    groups: Mapping[str, int]
    """The number of redeliveries of each subscription group."""


@final
class TopicReconciler:
    """Compares masters with the declared tables after every change of either, and every `INTERVAL_S`.

    Owned by the event loop.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s: Final = clock_s
        self._last_reconciled: tuple[DeclaredTables, list[tuple[str, int]]] | None = None
        """The tables and terms of the last successful reconciliation; None after a failure."""
        self._next_s = 0.0

    def is_due(self, declared: DeclaredTables, masters: Sequence[MasterTerm]) -> bool:
        """Return whether the masters must be compared now."""
        if not masters or not (declared.topics or declared.groups):
            return False
        return self._last_reconciled != (declared, _term_keys(masters)) or self._clock_s() >= self._next_s

    def reset(self) -> None:
        """Make the next comparison due at once."""
        self._last_reconciled = None

    async def reconcile(self, admin: Admin, declared: DeclaredTables, masters: Sequence[MasterTerm]) -> DeclaredTables:
        """Create and update what differs, and return it. Raises ``ClientError``, and then is due again."""
        self._last_reconciled = None
        addresses = [master.address for master in masters]
        changed = DeclaredTables(
            await _reconcile_topics(admin, declared.topics, addresses),
            await _reconcile_groups(admin, declared.groups, addresses),
        )
        self._last_reconciled, self._next_s = (declared, _term_keys(masters)), self._clock_s() + INTERVAL_S
        return changed


def _term_keys(masters: Sequence[MasterTerm]) -> list[tuple[str, int]]:
    return [(master.identity, master.epoch) for master in masters]


async def _reconcile_topics(admin: Admin, declared: Mapping[str, int], addresses: list[str]) -> dict[str, int]:
    tables = [await admin.brokers.topic_table(address) for address in addresses] if declared else []
    changed = {}
    for name, queues in declared.items():
        like = next((table[name] for table in tables if name in table), None)
        for address, table in zip(addresses, tables, strict=False):
            change = topic_change(name, queues, table.get(name), like=like)
            if change is not None:
                await admin.brokers.put_topic(address, change, sets_attributes=name not in table)
                changed[name] = queues
    return changed


async def _reconcile_groups(admin: Admin, declared: Mapping[str, int], addresses: list[str]) -> dict[str, int]:
    tables = [await admin.brokers.group_table(address) for address in addresses] if declared else []
    changed = {}
    for name, retry_max in declared.items():
        for address, table in zip(addresses, tables, strict=False):
            change = group_change(name, retry_max, table.get(name))
            if change is not None:
                await admin.brokers.put_group(address, change)
                changed[name] = retry_max
    return changed


def topic_change(
    name: str, queues: int, existing: TopicConfig | None, *, like: TopicConfig | None = None
) -> TopicConfig | None:
    """Return the new configuration of a topic; None if it needs no change. A missing topic copies ``like``."""
    if existing is None:
        base = like or TopicConfig(topic_name=name)
        return msgspec.structs.replace(base, read_queue_nums=queues, write_queue_nums=queues)
    if existing.write_queue_nums == queues <= existing.read_queue_nums:
        return None
    return msgspec.structs.replace(
        existing, write_queue_nums=queues, read_queue_nums=max(queues, existing.read_queue_nums)
    )


def group_change(name: str, retry_max: int, existing: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig | None:
    """Return the new configuration of a consumer group; None if it needs no change."""
    if existing is None:
        return SubscriptionGroupConfig(group_name=name, retry_max_times=retry_max)
    if existing.retry_max_times == retry_max:
        return None
    return msgspec.structs.replace(existing, retry_max_times=retry_max)
