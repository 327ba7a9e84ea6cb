"""Handles requests about groups: from their clients, from administrators, and about connected clients.

Functions over `BrokerCore`; all run in the event loop.
"""

from typing import Any

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.clients import Member
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused, check_group_name, check_topic_name
from gantry_broker.server.core.topic_attributes import GROUP_ATTRIBUTES, changed_attributes
from gantry_broker.server.core.topics import QUEUES_MAX
from gantry_broker.server.pull.pull_plans import check_filter_type
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.admin import (
    GroupField,
    GroupForbidden,
    GroupName,
    ProducerGroup,
    SubscriptionGroupConfig,
    TopicListing,
)
from gantry_wire.commands.clients import (
    CheckClientConfig,
    ConsumerData,
    ConsumerGroup,
    Document,
    HeartbeatData,
    LockBatch,
    LockBatchResult,
    UnregisterClient,
)
from gantry_wire.commands.consumers import TopicOfGroup
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.transactions import ENDS_ONCE
from gantry_wire.fastjson import dumps
from gantry_wire.filters import parse_filter

# ------- clients: heartbeats, unregistration, members of a group, queue locks


@handles(RequestCode.HEART_BEAT)
def handle_heartbeat(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Register the groups of a heartbeat. Unknown groups are ignored, as in RocketMQ; their pulls are refused."""
    beat = read_document(command.body, HeartbeatData)
    admitted = [data for data in beat.consumer_data_set if _admit(core, data)]
    beat = msgspec.structs.replace(beat, consumer_data_set=admitted)
    changed = core.clients.register_heartbeat(beat, command, connection)
    ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
    if beat.heartbeat_fingerprint == 0:
        ext["IS_SUB_CHANGE"] = "true"
    ext[ENDS_ONCE] = "true" if core.settings.store.is_index_enabled else "false"
    return command.reply(ext=ext)


def _admit(core: BrokerCore, data: ConsumerData) -> bool:
    """Whether the group exists or may be created; creates its retry topic, ordered like its subscriptions."""
    group = core.groups.find_or_create(data.group_name)
    if group is None:
        return False
    retry_topic = names.retry_topic(data.group_name)
    if names.topic_fault(retry_topic) is None:
        topics = core.topics
        config = topics.ensure(retry_topic, max(1, group.retry_queue_nums))
        subscriptions = data.subscription_data_set  # empty in a heartbeat without subscriptions
        is_ordered = any(topics.is_ordered(one.topic) for one in subscriptions)
        if subscriptions and config.order != is_ordered and core.gate.write_refusal is None:
            topics.put(msgspec.structs.replace(config, order=is_ordered))
    return True


@handles(RequestCode.UNREGISTER_CLIENT)
def unregister_client(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = UnregisterClient.read(command.ext)
    core.clients.unregister(connection, request.producer_group, request.consumer_group)
    return command.reply()


@handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
def list_members(core: BrokerCore, command: Command, connection: Connection) -> Command:
    group = ConsumerGroup.read(command.ext).consumer_group
    state = core.clients.consumers.get(group)
    if state is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:300]}")
    return command.reply(body=dumps({"consumerIdList": state.client_ids}))


@handles(RequestCode.LOCK_BATCH_MQ)
def lock_queues(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Lock queues for a client. The request is refused if holders are unknown.

    After an error a client keeps the locks that it has; after an empty answer it drops them.
    """
    request = read_document(command.body, LockBatch)
    lock_pause_ms = core.locks.lock_pause_ms
    if lock_pause_ms:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"no queue is locked for another {lock_pause_ms} ms: this broker has just become the master, "
            "and does not know the present lock holders",
        )
    if not core.is_sure_master():
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no queue is locked: this broker may no longer be the master")
    held = core.locks.lock(request.consumer_group, request.client_id, request.mq_set)
    return command.reply(body=write_document(LockBatchResult(lock_ok_mq_set=held)))


@handles(RequestCode.UNLOCK_BATCH_MQ)
def unlock_queues(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = read_document(command.body, LockBatch)
    core.locks.unlock(request.consumer_group, request.client_id, request.mq_set)
    return command.reply()


@handles(RequestCode.CHECK_CLIENT_CONFIG)
def check_client(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Check whether this broker supports the subscription of a client."""
    request = read_document(command.body, CheckClientConfig)
    data = request.subscription_data
    if data is None:
        return command.reply()
    check_filter_type(core, request.group or "", data.topic or "", data.expression_type)
    try:
        parse_filter(data.expression_type, data.sub_string)
    except ValueError as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
    return command.reply()


# ------- administration of groups, and their connections


class GroupConfigList(Document):
    """The body of a request with code 225."""

    group_config_list: list[SubscriptionGroupConfig] = msgspec.field(default_factory=list)


@handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
async def create_group(core: BrokerCore, command: Command, connection: Connection) -> Command:
    _put_groups(core, [read_document(command.body, SubscriptionGroupConfig)])
    await core.persistence.wait_until_written("subscriptionGroup")
    return command.reply()


@handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
async def create_groups(core: BrokerCore, command: Command, connection: Connection) -> Command:
    _put_groups(core, read_document(command.body, GroupConfigList).group_config_list)
    await core.persistence.wait_until_written("subscriptionGroup")
    return command.reply()


@handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
async def delete_group(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = GroupName.read(command.ext)
    core.groups.delete(request.group_name)
    if request.clean_offset:
        core.offsets.forget_group(request.group_name)
        core.persistence.mark("consumerOffset", now=False)
    await core.persistence.wait_until_written("subscriptionGroup")
    if request.clean_offset:
        await core.persistence.wait_until_written("consumerOffset")
        await core.offsets.wait_for_changes()
    return command.reply()


@handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
def list_groups(core: BrokerCore, command: Command, connection: Connection) -> Command:
    document = core.groups.document()
    ext = {"totalGroupNum": str(len(document.subscription_group_table))}
    return command.reply(ext=ext, body=write_document(document))


@handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
def find_group(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with the configuration of a group, which a master creates with defaults, as at its first heartbeat.

    RocketMQ's broker does so, too, and its proxy refuses the heartbeat of a consumer whose group this request does not
    find.
    """
    group = GroupField.read(command.ext).group
    is_writable = core.gate.write_refusal is None
    config = core.groups.find_or_create(group) if is_writable else core.groups.all.get(group)
    if config is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group[:300]}")
    return command.reply(body=write_document(config))


@handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
def list_consumers(core: BrokerCore, command: Command, connection: Connection) -> Command:
    name = ConsumerGroup.read(command.ext).consumer_group
    state = core.clients.consumers.get(name)
    if state is None:
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:300]}] not online")
    subscriptions = {topic: msgspec.to_builtins(item.data) for topic, item in state.subscriptions.items()}
    document = {
        "connectionSet": [connection_document(member) for member in state.members.values()],
        "consumeFromWhere": state.consume_from_where,
        "consumeType": state.consume_type,
        "messageModel": state.message_model,
        "subscriptionTable": subscriptions,
    }
    return command.reply(body=dumps(document))


@handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
def list_producers(core: BrokerCore, command: Command, connection: Connection) -> Command:
    group = ProducerGroup.read(command.ext).producer_group
    members = core.clients.producers.get(group)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group[:300]}] not exist")
    return command.reply(body=dumps({"connectionSet": [connection_document(member) for member in members.values()]}))


@handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
def list_topics(core: BrokerCore, command: Command, connection: Connection) -> Command:
    group = GroupField.read(command.ext).group
    listing = TopicListing(topic_list=core.offsets.topics_of(group), broker_addr=core.settings.address)
    return command.reply(body=write_document(listing))


@handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
def find_subscription(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with the subscription of a group to a topic; it is missing if no connected consumer subscribes."""
    request = TopicOfGroup.read(command.ext)
    document: dict[str, Any] = {"group": request.group}
    if request.topic is not None:
        document["topic"] = request.topic
        found = core.clients.subscription(request.group, request.topic)
        if found is not None:
            document["subscriptionData"] = msgspec.to_builtins(found.data)
    return command.reply(body=dumps(document))


def _put_groups(core: BrokerCore, configs: list[SubscriptionGroupConfig]) -> None:
    """Create or change all of these groups, or none of them. Raises Refused."""
    for config in configs:
        check_group_name(config.group_name)
        if config.retry_queue_nums > QUEUES_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{config.retry_queue_nums} retry queues: at most {QUEUES_MAX} are allowed",
            )
    for config in [_with_changes(core, config) for config in configs]:
        core.groups.put(config)


def _with_changes(core: BrokerCore, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Return `config` with the attributes of the group after the changes. Raises Refused."""
    known = core.groups.all.get(config.group_name)
    try:
        attributes = changed_attributes(
            None if known is None else known.attributes, config.attributes, GROUP_ATTRIBUTES
        )
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    return msgspec.structs.replace(config, attributes=attributes)


def connection_document(member: Member) -> dict[str, Any]:
    """Return a client in the format of Java's Connection bean."""
    return {
        "clientAddr": member.address,
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }


@handles(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
async def forbid_topic(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Change the read permission if the request has a value, and answer with it once it is on disk."""
    request = GroupForbidden.read(command.ext)
    check_group_name(request.group)
    check_topic_name(request.topic)
    if request.readable is not None:
        core.groups.set_forbidden(request.group, request.topic, is_forbidden=not request.readable)
        await core.persistence.wait_until_written("subscriptionGroup")
    is_forbidden = core.groups.is_forbidden(request.group, request.topic)
    return command.reply(body=dumps({"group": request.group, "readable": not is_forbidden, "topic": request.topic}))


@handles(RequestCode.GET_ALL_PRODUCER_INFO)
def list_all_producers(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with every producer of every group."""
    clock = core.clock
    shift_ms = clock.wall_ms() - clock.monotonic_ms()
    groups = core.clients.producers
    data = {group: [_producer(one, shift_ms) for one in members.values()] for group, members in groups.items()}
    return command.reply(body=dumps({"data": data}))


def _producer(member: Member, shift_ms: int) -> dict[str, Any]:
    """Return a client in the format of Java's ProducerInfo bean, where addresses begin with a slash.

    ``shift_ms`` added to a monotonic time makes it a wall-clock time.
    """
    return {
        "clientId": member.client_id,
        "language": member.language,
        "lastUpdateTimestamp": member.last_heartbeat_ms + shift_ms,
        "remoteIP": f"/{member.address}",
        "version": member.version,
    }
