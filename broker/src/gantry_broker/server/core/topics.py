"""The topics of this broker, with their queues and permissions.

The table determines the routes of clients. A topic with stored messages must never be missing in it: every change is
written at once, and at the start topics are added that have queues, but which the file lacks after a crash.
Owned by the event loop; `persist.py` writes it to disk.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_wire import names
from gantry_wire.commands.admin import DataVersion, TopicConfig, TopicConfigTable
from gantry_wire.commands.nameserver import PERMISSION_INHERIT, PERMISSION_NORMAL, PERMISSION_READ, PERMISSION_WRITE

QUEUES_MAX: Final = 65536
"""The limit of queues of a topic on one broker; every queue costs a file once it is used."""

DELAY_LEVELS_MAX: Final = 32
"""The queues of the topic of delayed messages, one for each level."""


def system_topics(
    cluster: str, broker: str, *, auto_create: bool, default_queues: int, trace_topic: str | None = None
) -> list[TopicConfig]:
    """Return the system topics as RocketMQ 5 creates them; the trace topic only if it is configured."""

    def topic(name: str, queues: int, perm: int = PERMISSION_NORMAL) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    with_inheritance = PERMISSION_NORMAL | PERMISSION_INHERIT
    topics = [
        topic(names.SELF_TEST_TOPIC, 1),
        topic(names.BENCHMARK_TOPIC, 1024),
        topic(cluster, 16, with_inheritance),
        topic(broker, 1, with_inheritance),
        topic(names.OFFSET_MOVED_TOPIC, 1),
        topic(names.SCHEDULE_TOPIC, DELAY_LEVELS_MAX),
        topic(names.TIMER_TOPIC, 1),
        topic(names.reply_topic(cluster), 1),
        topic(names.HALF_TOPIC, 1),
        topic(names.OP_HALF_TOPIC, 1),
    ]
    if trace_topic is not None:
        topics.append(topic(trace_topic, 1))
    if auto_create:
        topics.append(topic(names.AUTO_CREATE_TOPIC, default_queues, with_inheritance))
    return topics


@final
class TopicTable:
    """The configurations of topics by name, with the version that name servers compare."""

    def __init__(self, clock: Clock, on_change: Callable[[str], None], *, auto_create: bool = True) -> None:
        self._clock = clock
        self._on_change = on_change
        self._topics: dict[str, TopicConfig] = {}
        self._system: set[str] = set()
        self.is_auto_creating = auto_create
        """Whether the first message to an unknown topic creates it."""

        self.version = DataVersion(timestamp=clock.wall_ms())
        self.change_count = 0
        """The number of changes of the table since this start: what was derived from it holds for one count."""

    def __repr__(self) -> str:
        return f"<TopicTable topics={len(self._topics)} version={self.version.counter}>"

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    @property
    def all(self) -> Mapping[str, TopicConfig]:
        return self._topics

    def is_system(self, topic: str) -> bool:
        """Whether this is a system topic, which administrators must not change."""
        return topic in self._system or topic in names.SYSTEM_TOPICS or topic.startswith(names.INTERNAL_PREFIX)

    def is_read_by_archive(self, topic: str, queue_id: int) -> bool:
        """Whether an archive reads this queue: an application's topic, which exists and may be read, has it."""
        config = self._topics.get(topic)
        is_own = self.is_system(topic) or names.is_internal_topic(topic)
        return (
            config is not None
            and not is_own
            and bool(config.perm & PERMISSION_READ)
            and queue_id < config.read_queue_nums
        )

    @property
    def system_names(self) -> list[str]:
        return sorted(self._system | names.SYSTEM_TOPICS)

    def is_ordered(self, topic: str) -> bool:
        """Whether this is an existing order topic."""
        config = self._topics.get(topic)
        return config is not None and config.order

    def seed(self, configs: list[TopicConfig]) -> None:
        """Add missing system topics; those that exist keep their configuration."""
        self.change_count += 1
        for config in configs:
            self._system.add(config.topic_name)
            self._topics.setdefault(config.topic_name, config)

    def set_auto_create(self, is_allowed: bool, queues: int) -> None:
        """Set whether the first message to an unknown topic creates it, with at most ``queues`` queues."""
        self.is_auto_creating = is_allowed
        if is_allowed:
            self._system.add(names.AUTO_CREATE_TOPIC)
            self.ensure(names.AUTO_CREATE_TOPIC, queues, PERMISSION_NORMAL | PERMISSION_INHERIT)

    def adopt_queues(self, queues: Mapping[str, list[int]]) -> list[str]:
        """Add topics that have queues, with or without files, but no configuration; return their names."""
        adopted = [topic for topic in queues if topic not in self._topics and names.topic_fault(topic) is None]
        for topic in adopted:
            count = max(queues[topic], default=0) + 1
            self.put(
                TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count, perm=PERMISSION_NORMAL)
            )
        return adopted

    def put(self, config: TopicConfig) -> None:
        """Create a topic, or replace its configuration."""
        assert names.topic_fault(config.topic_name) is None, "callers refuse invalid names"
        if self._topics.get(config.topic_name) == config:
            return
        self._topics[config.topic_name] = config
        self._record_change(config.topic_name)

    def mark_ordered(self, topics: Collection[str]) -> None:
        """Mark those of the topics that exist as order topics."""
        for topic in topics:
            config = self._topics.get(topic)
            if config is not None and not config.order:
                self.put(msgspec.structs.replace(config, order=True))

    def delete(self, topic: str) -> bool:
        """Delete a topic; False if it does not exist."""
        if self._topics.pop(topic, None) is None:
            return False
        self._record_change(topic)
        return True

    def ensure(self, topic: str, queues: int, perm: int = PERMISSION_NORMAL) -> TopicConfig:
        """Return the topic; create it with `queues` queues if it is missing."""
        config = self._topics.get(topic)
        if config is None:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            self.put(config)
        return config

    def ensure_queue(self, topic: str, queue_id: int) -> None:
        """Ensure that the topic exists with this queue readable, for a message whose send was acknowledged earlier.

        After a crash the topic may be missing, or may have been created again with fewer queues than producers use.
        """
        config = self.ensure(topic, queue_id + 1)
        if config.read_queue_nums <= queue_id < QUEUES_MAX:
            self.put(msgspec.structs.replace(config, read_queue_nums=queue_id + 1))

    def from_template(self, topic: str, template: str, queues: int) -> TopicConfig | None:
        """Return the configuration of an unknown topic under auto-creation; None if the template does not allow it."""
        if template == names.AUTO_CREATE_TOPIC and not self.is_auto_creating:
            return None  # the template may remain in the table from a time when auto-creation was allowed
        source = self._topics.get(template)
        if source is None or not source.perm & PERMISSION_INHERIT:
            return None
        count = max(1, min(queues, source.write_queue_nums))
        perm = source.perm & ~PERMISSION_INHERIT
        return TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count, perm=perm)

    def document(self) -> TopicConfigTable:
        """Return the table in the format of topics.json and of name servers."""
        return TopicConfigTable(data_version=self.version, topic_config_table=dict(self._topics))

    def load(self, document: TopicConfigTable) -> None:
        """Load topics.json, except for topics with invalid names."""
        self.change_count += 1
        self.version = document.data_version
        for name, config in document.topic_config_table.items():
            if names.topic_fault(name) is None:
                self._topics[name] = config

    def replace_from_master(self, document: TopicConfigTable) -> list[str]:
        """Replace configurations by those of the master; return the topics that it lacks, which the caller deletes."""
        self.change_count += 1
        for name, config in document.topic_config_table.items():
            if names.topic_fault(name) is None and self._topics.get(name) != config:
                self._topics[name] = config
                self._on_change(name)
        self.version = document.data_version
        return [name for name in self._topics if name not in document.topic_config_table and not self.is_system(name)]

    def _record_change(self, topic: str) -> None:
        self.version = self.version.next(self._clock.wall_ms())
        self.change_count += 1
        self._on_change(topic)


def published_topics(
    own: TopicConfigTable, epoch: int, *, is_withdrawn: bool, is_hidden: bool = False
) -> TopicConfigTable:
    """Return the topics for name servers: with the epoch, and with the permissions that clients have now.

    The epoch decides which of two masters is the newer one. A withdrawn master has no write permission. A hidden one
    has no permission: it is registered only so that slaves find it.
    """
    version = msgspec.structs.replace(own.data_version, state_version=epoch)
    topics = own.topic_config_table
    if is_withdrawn or is_hidden:
        # Name servers accept a table only if its version differs. A table with all permissions has no negative counter,
        # that of a withdrawn master an odd one, and that of a hidden master an even one.
        counter = -1 - 2 * version.counter - is_hidden
        version = msgspec.structs.replace(version, counter=counter)
        denied = PERMISSION_READ | PERMISSION_WRITE if is_hidden else PERMISSION_WRITE
        topics = {name: msgspec.structs.replace(one, perm=one.perm & ~denied) for name, one in topics.items()}
    return msgspec.structs.replace(own, data_version=version, topic_config_table=topics)
