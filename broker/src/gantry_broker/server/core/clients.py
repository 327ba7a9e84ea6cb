"""The connected producers and consumers, their groups, and the subscriptions of the groups.

A client is one connection with a client id. It registers by heartbeats, and is removed when its connection closes, when
it unregisters, or when it has sent no heartbeat for two minutes. The consumers of a group are notified at once when
the group changes, so that they rebalance its queues, unless it is broadcasting or its configuration forbids the notice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

from gantry_broker.ports import Clock
from gantry_remoting import Connection
from gantry_remoting.addresses import join_address
from gantry_wire import Command, RequestCode, oneway
from gantry_wire.commands.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantry_wire.filters import MessageFilter, TagFilter, is_tag_type, parse_filter

CLIENT_TIMEOUT_MS = 120_000
"""A client without a heartbeat for this time is removed, as in RocketMQ."""


@dataclass(slots=True)
class Member:
    """The membership of one client in one producer group or consumer group; not a broker of a shard."""

    connection: Connection
    client_id: str
    language: str
    """The client's language as its requests name it, such as JAVA."""

    version: int
    """RocketMQ's number of the client's version."""

    last_heartbeat_ms: int
    """Monotonic time of the last heartbeat."""

    @property
    def address(self) -> str:
        return join_address(*self.connection.peer)


@dataclass(slots=True)
class Subscription:
    """The subscription of a group to one topic, with its parsed filter."""

    data: SubscriptionData
    """The subscription as the client has sent it."""

    filter: MessageFilter | None
    """None if the expression is invalid; pulls are answered with ``fault`` then."""
    fault: str = ""
    """Why the expression is invalid; empty if it is valid."""


@dataclass(slots=True)
class ConsumerGroupState:
    """A consumer group that has members now."""

    consume_type: str
    """RocketMQ's name of the way to consume, such as CONSUME_PASSIVELY for push consumers."""

    message_model: str
    """CLUSTERING, where members share the queues, or BROADCASTING."""

    consume_from_where: str
    """RocketMQ's name of the place where a group without offsets begins."""

    members: dict[Connection, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """The subscription to each topic, by the topic's name."""

    @property
    def client_ids(self) -> list[str]:
        """The ids of all members, each once, although a client has two members until its old connection is closed."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


def new_member(connection: Connection, client_id: str, command: Command, now_ms: int) -> Member:
    return Member(connection, client_id, command.language, command.version, now_ms)


@final
class ClientRegistry:
    """All clients of this broker. Owned by the event loop."""

    def __init__(self, clock: Clock, *, may_notify: Callable[[str], bool] = lambda group: True) -> None:
        self._clock = clock
        self._may_notify = may_notify
        self.producers: dict[str, dict[Connection, Member]] = {}
        """The connected members of each producer group."""
        self.consumers: dict[str, ConsumerGroupState] = {}
        """The consumer groups with connected members."""
        self.change_count = 0
        """The number of changes of consumer groups and subscriptions: what was derived from them holds for one count.
        """
        self.producers_by_id: Final[dict[str, Connection]] = {}
        """For each client id in any producer group, the connection of its last heartbeat.

        A connection of another account does not replace one that is open.
        """

    def __repr__(self) -> str:
        return f"<ClientRegistry producers={len(self.producers)} consumers={len(self.consumers)}>"

    def register_heartbeat(self, beat: HeartbeatData, command: Command, connection: Connection) -> bool:
        """Register the groups of a client. True if a consumer group or its subscriptions changed."""
        now_ms = self._clock.monotonic_ms()
        for producer in beat.producer_data_set:
            members = self.producers.setdefault(producer.group_name, {})
            before = members.get(connection)
            if before is not None and before.client_id != beat.client_id:
                self._remove_client_id(before.client_id, connection)
            members[connection] = new_member(connection, beat.client_id, command, now_ms)
            self._assign_client_id(beat.client_id, connection)
        changed = False
        for consumer in beat.consumer_data_set:
            member = new_member(connection, beat.client_id, command, now_ms)
            changed = self._register_consumer(consumer, member, is_without_subscriptions=beat.without_sub) or changed
        return changed

    def _assign_client_id(self, client_id: str, connection: Connection) -> None:
        """Send replies for this client id to this connection, unless a client of another account uses the id."""
        known = self.producers_by_id.get(client_id)
        if known is None or not known.is_open or known.account == connection.account:
            self.producers_by_id[client_id] = connection

    def _remove_client_id(self, client_id: str, connection: Connection) -> None:
        if self.producers_by_id.get(client_id) is connection:
            del self.producers_by_id[client_id]

    def _register_consumer(self, data: ConsumerData, member: Member, *, is_without_subscriptions: bool) -> bool:
        """Register a member. True if the group changed.

        ``is_without_subscriptions``: the heartbeat omits subscriptions, since they are those of the last one.
        """
        group = self.consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroupState(data.consume_type, data.message_model, data.consume_from_where)
            self.consumers[data.group_name] = group
            self.change_count += 1
        self.change_count += group.message_model != data.message_model
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = member.connection not in group.members
        group.members[member.connection] = member
        changed = not is_without_subscriptions and self._update_subscriptions(group, data.subscription_data_set)
        if is_new or changed:
            self.notify(data.group_name)
        return is_new or changed

    def notify(self, group_name: str) -> None:
        """Notify the consumers of a group that it has changed, so that they rebalance its queues."""
        group = self.consumers.get(group_name)
        if group is None or group.message_model == "BROADCASTING" or not self._may_notify(group_name):
            return
        for connection in group.members:
            notice = oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group_name})
            connection.send(notice.encode())

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client from these groups at its request."""
        if producer_group:
            self._drop_producer(producer_group, connection)
        if consumer_group:
            self._drop_consumer(consumer_group, connection)

    def remove_connection(self, connection: Connection) -> list[str]:
        """Remove a closed connection from all groups; return the consumer groups that lost a member."""
        for group in [name for name, members in self.producers.items() if connection in members]:
            self._drop_producer(group, connection)
        lost = [name for name, group in self.consumers.items() if connection in group.members]
        for name in lost:
            self._drop_consumer(name, connection)
        return lost

    def expire(self) -> list[Connection]:
        """Remove members whose last heartbeat is too old; return the connections without any group, to be closed."""
        oldest_ms = self._clock.monotonic_ms() - CLIENT_TIMEOUT_MS
        silent = {member.connection for member in self._all_members() if member.last_heartbeat_ms < oldest_ms}
        for name, producers in list(self.producers.items()):
            for connection in [one for one, member in producers.items() if member.last_heartbeat_ms < oldest_ms]:
                self._drop_producer(name, connection)
        for name, group in list(self.consumers.items()):
            for connection in [one for one, member in group.members.items() if member.last_heartbeat_ms < oldest_ms]:
                self._drop_consumer(name, connection)
        return list(silent - {member.connection for member in self._all_members()})

    def subscription(self, group: str, topic: str) -> Subscription | None:
        state = self.consumers.get(group)
        return None if state is None else state.subscriptions.get(topic)

    def groups_subscribed_to(self, topic: str) -> list[str]:
        return sorted(name for name, group in self.consumers.items() if topic in group.subscriptions)

    def _all_members(self) -> Iterator[Member]:
        for producers in self.producers.values():
            yield from producers.values()
        for group in self.consumers.values():
            yield from group.members.values()

    def _drop_producer(self, group: str, connection: Connection) -> None:
        members = self.producers.get(group, {})
        member = members.pop(connection, None)
        if not members:
            self.producers.pop(group, None)
        if member is None or self.producers_by_id.get(member.client_id) is not connection:
            return
        if not any(connection in others for others in self.producers.values()):
            del self.producers_by_id[member.client_id]

    def _drop_consumer(self, name: str, connection: Connection) -> None:
        group = self.consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        if group.members:
            self.notify(name)
        else:
            del self.consumers[name]
            self.change_count += 1

    def _update_subscriptions(self, group: ConsumerGroupState, subscriptions: list[SubscriptionData]) -> bool:
        """Replace older subscriptions and remove those that are missing. True if a topic or an expression changed."""
        changed = False
        for data in subscriptions:
            known = group.subscriptions.get(data.topic)
            if known is None or data.sub_version > known.data.sub_version:
                group.subscriptions[data.topic] = _parse_subscription(data)
                self.change_count += 1
                changed = changed or known is None or _expression_of(known.data) != _expression_of(data)
        topics = {data.topic for data in subscriptions}
        for topic in [topic for topic in group.subscriptions if topic not in topics]:
            del group.subscriptions[topic]
            self.change_count += 1
            changed = True
        return changed


def _expression_of(data: SubscriptionData) -> tuple[str | None, str | None]:
    return data.expression_type, data.sub_string


def _parse_subscription(data: SubscriptionData) -> Subscription:
    """Parse the filter of a subscription.

    An invalid expression does not prevent the registration of the client's other groups. An invalid expression for
    tags, such as ``||``, matches only messages without a tag.
    """
    try:
        return Subscription(data, parse_filter(data.expression_type, data.sub_string))
    except ValueError as error:
        if is_tag_type(data.expression_type):
            return Subscription(data, TagFilter(data.sub_string or "", frozenset({""}), frozenset({0})))
        return Subscription(data, None, str(error))
