"""The data of a fake broker, and helpers that its handlers share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import final

from gantry_remoting.server import Connection
from gantry_testing.client.log import FakeLog
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command, oneway
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.commands.clients import ConsumerData, ConsumerGroup, HeartbeatData, MessageQueue
from gantry_wire.names import AUTO_CREATE_TOPIC, DEAD_LETTER_PREFIX, RETRY_PREFIX

Handler = Callable[["BrokerState", Command, Connection], Command | Awaitable[Command | None] | None]


@final
@dataclass(slots=True)
class BrokerState:
    """One fake broker's data. Tests may read and change it freely."""

    name: str
    cluster: str
    log: FakeLog
    auto_creates_topics: bool = True
    """Whether a send creates its topic, and the name server lists the template of such topics."""
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Committed offsets by (group, topic, queue id)."""
    clients: dict[Connection, HeartbeatData] = field(default_factory=dict)
    """The last heartbeat of every connection."""
    locks: dict[tuple[str, MessageQueue], str] = field(default_factory=dict)
    """The client that holds a queue for an ordered group."""
    send_backs: list[dict[str, str]] = field(default_factory=list)
    """Headers of every send-back, in order."""

    def topic(self, name: str, *, queues: int = 4) -> TopicConfig | None:
        """Return the topic's configuration, created now if brokers create topics on first use."""
        known = self.topics.get(name)
        is_derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        if known is None and (self.auto_creates_topics or is_derived):
            known = TopicConfig(
                topic_name=name,
                read_queue_nums=1 if is_derived else queues,
                write_queue_nums=1 if is_derived else queues,
            )
            self.topics[name] = known
        return known

    def consumers(self, group: str) -> list[tuple[Connection, str, ConsumerData]]:
        """Return the connected members of `group`."""
        return [
            (connection, heartbeat.client_id, data)
            for connection, heartbeat in self.clients.items()
            for data in heartbeat.consumer_data_set
            if data.group_name == group
        ]

    def notify_group(self, group: str) -> None:
        """Notify the members of `group` that their number changed."""
        notice = ConsumerGroup(consumer_group=group).write()
        for connection, _, _ in self.consumers(group):
            connection.send(oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notice).encode())

    def forget(self, connection: Connection) -> None:
        """Remove a client that has disconnected."""
        heartbeat = self.clients.pop(connection, None)
        if heartbeat is not None:
            for data in heartbeat.consumer_data_set:
                self.notify_group(data.group_name)

    def registered_topics(self) -> dict[str, TopicConfig]:
        """Return the topics that the name server gets."""
        template = TopicConfig(topic_name=AUTO_CREATE_TOPIC, perm=7)
        return self.topics | ({AUTO_CREATE_TOPIC: template} if self.auto_creates_topics else {})


def missing_topic(command: Command, topic: str) -> Command:
    return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
