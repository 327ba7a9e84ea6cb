"""The configurations of consumer groups: whether they may consume, and how often a message is retried.

Owned by the event loop; written to disk by `persist.py`.
"""

from collections.abc import Callable, Mapping
from typing import Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_wire import names
from gantry_wire.commands.admin import DataVersion, SubscriptionGroupConfig
from gantry_wire.commands.clients import Document
from gantry_wire.names import SYSTEM_GROUPS

FORBIDDEN_READ: Final = 1 << 2
"""The bit for the read permission in the table of forbidden permissions, as RocketMQ numbers it."""


class GroupDocument(Document):
    """The content of subscriptionGroup.json, and of the reply to code 201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """For each group, the bits of the permissions that it lacks, by topic."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


@final
class GroupTable:
    """The configurations of consumer groups by name."""

    def __init__(self, clock: Clock, on_change: Callable[[str], None], *, auto_create: bool) -> None:
        self._clock = clock
        self._on_change = on_change
        self.is_auto_creating = auto_create
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion(timestamp=clock.wall_ms())
        self.change_count = 0
        """The number of changes of the table since this start: what was derived from it holds for one count."""
        for group in SYSTEM_GROUPS:
            self._groups[group] = SubscriptionGroupConfig(group_name=group)

    def __repr__(self) -> str:
        return f"<GroupTable groups={len(self._groups)}>"

    @property
    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        return self._groups

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group; create it with defaults if auto-creation is allowed.

        Groups with the prefix of system groups are created in any case.
        """
        config = self._groups.get(group)
        if config is None and self._may_create(group):
            config = SubscriptionGroupConfig(group_name=group)
            self.put(config)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        assert names.group_fault(config.group_name) is None, "callers refuse invalid names"
        self._groups[config.group_name] = config
        self._record_change(config.group_name)

    def delete(self, group: str) -> bool:
        was_forbidden = self._forbidden.pop(group, None)
        if self._groups.pop(group, None) is None and was_forbidden is None:
            return False
        self._record_change(group)
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether an administrator has forbidden the group to read this topic."""
        return bool(self._forbidden and self._forbidden.get(group, {}).get(topic, 0) & FORBIDDEN_READ)

    def set_forbidden(self, group: str, topic: str, *, is_forbidden: bool) -> None:
        """Forbid or permit a group to read a topic; its permissions for other topics do not change."""
        topics = dict(self._forbidden.get(group, {}))
        bits = topics.get(topic, 0)
        topics[topic] = bits | FORBIDDEN_READ if is_forbidden else bits & ~FORBIDDEN_READ
        kept = {name: value for name, value in topics.items() if value > 0}
        if kept == self._forbidden.get(group, {}):
            return
        forbidden = {name: table for name, table in self._forbidden.items() if name != group}
        self._forbidden = {**forbidden, group: kept} if kept else forbidden
        self._record_change(group)

    def document(self) -> GroupDocument:
        return GroupDocument(
            subscription_group_table=dict(self._groups), forbidden_table=self._forbidden, data_version=self.version
        )

    def load(self, document: GroupDocument) -> None:
        self.change_count += 1
        self.version = document.data_version
        self._forbidden = document.forbidden_table
        for name, config in document.subscription_group_table.items():
            if names.group_fault(name) is None:
                self._groups[name] = config

    def replace_from_master(self, document: GroupDocument) -> None:
        """Replace the configurations by those of the master; system groups stay."""
        self._groups = {name: config for name, config in self._groups.items() if name in SYSTEM_GROUPS}
        self.load(document)
        self._on_change("")

    def set_auto_create(self, is_allowed: bool) -> None:
        """Set whether a request of an unknown group, such as a heartbeat or a pull, creates it."""
        self.is_auto_creating = is_allowed

    def _may_create(self, group: str) -> bool:
        is_allowed = self.is_auto_creating or group.startswith(names.SYSTEM_GROUP_PREFIX)
        return is_allowed and names.group_fault(group) is None

    def _record_change(self, group: str) -> None:
        self.version = self.version.next(self._clock.wall_ms())
        self.change_count += 1
        self._on_change(group)
