"""The permissions that each request needs, in one table for broker and name server.

The table covers what RocketMQ's PlainAccessValidator checks, and what it does not check: batches, locks, offsets and
ranges of queues, lookups by log offset, the source of a message that is sent back, half messages. A code that is not in
the table needs an administrator, so that a new handler is closed by default; a test requires an entry for every
handler.

    a topic's name in a header    PUB to store, SUB to read, one of the two for its route and configuration;
                                  a retry topic belongs to its group
    a group's name                SUB
    an offset in the log          the permission for the topic of the message at that offset, looked up by the guard

The functions here read exactly the fields that the handlers read, so that a request cannot name one topic to the guard
and another to the handler. They are pure.
"""

from collections.abc import Callable
from typing import Final

from gantry_access.permissions import (
    ADMIN_ONLY,
    Kind,
    Need,
    Needs,
    Permission,
    consume_need,
    metadata_need,
    publish_need,
    read_need,
)
from gantry_wire import names
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import GroupField, TopicName
from gantry_wire.commands.clients import (
    CheckClientConfig,
    ConsumerGroup,
    Document,
    HeartbeatData,
    LockBatch,
    UnregisterClient,
)
from gantry_wire.commands.consumers import ConsumeStatsRequest, TopicOfGroup
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.pop import BatchAckMessages
from gantry_wire.commands.pull import ViewMessage
from gantry_wire.commands.send import SendBack

Reader = Callable[[Command], Needs]
"""Returns the needs of a request, from its fields."""


class AssignmentRequest(Document):
    """The body of request code 400: the group and topic whose queues are to be assigned."""

    consumer_group: str = ""
    topic: str = ""


NUMBER_CHARACTERS_MAX: Final = 19
"""The maximum length of a 64-bit offset."""


def needs_of(command: Command) -> Needs:
    """Return the needs of `command`. Raises FieldError if a field that names its topic, group or offset is invalid."""
    reader = NEEDS.get(command.code)
    return ADMIN_ONLY if reader is None else reader(command)


def _field(command: Command, name: str) -> str:
    value = command.ext.get(name)
    if not value:
        raise FieldError(f"the custom field is wrong or missing: {name}")
    return value


def _publish_to(field: str) -> Reader:
    return lambda command: (publish_need(_field(command, field)),)


def _read_topic(field: str) -> Reader:
    return lambda command: (read_need(_field(command, field)),)


def _topic_metadata(field: str) -> Reader:
    return lambda command: (metadata_need(_field(command, field)),)


def _administrator(command: Command) -> Needs:
    return ADMIN_ONLY


def _queue_of_group(command: Command) -> Needs:
    """Return the needs of a pull or a consumer offset: the group and the topic."""
    return (consume_need(_field(command, "consumerGroup")), read_need(_field(command, "topic")))


def _route(command: Command) -> Needs:
    """Return the needs of a route query. Any producer may query the template topic, which reveals no other topic."""
    topic = TopicName.read(command.ext).topic
    return () if topic == names.AUTO_CREATE_TOPIC else (metadata_need(topic),)


def _view(command: Command) -> Needs:
    return (Need(Kind.MESSAGE, str(ViewMessage.read(command.ext).offset), Permission.SUB),)


def _heartbeat(command: Command) -> Needs:
    """Return the needs of every subscription in a heartbeat. Producers need none: each send is checked."""
    beat = read_document(command.body, HeartbeatData)
    found: dict[Need, None] = {}
    for consumer in beat.consumer_data_set:
        found[consume_need(consumer.group_name)] = None
        for subscription in consumer.subscription_data_set:
            found[read_need(subscription.topic)] = None
    return tuple(found)


def _unregister(command: Command) -> Needs:
    group = UnregisterClient.read(command.ext).consumer_group
    return (consume_need(group),) if group else ()


def _send_back(command: Command) -> Needs:
    """Return the needs of a send-back: the group, and the source topic, which the group must be allowed to read."""
    back = SendBack.read(command.ext)
    return (consume_need(back.group), Need(Kind.MESSAGE, str(back.offset), Permission.SUB))


def _end_transaction(command: Command) -> Needs:
    """Return the need for the topic of the half message, not for the topic in the request."""
    text = _field(command, "commitLogOffset")
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_CHARACTERS_MAX:
        raise FieldError("the custom field is wrong or missing: commitLogOffset")
    return (Need(Kind.MESSAGE, text, Permission.PUB),)


def _members(command: Command) -> Needs:
    return (consume_need(ConsumerGroup.read(command.ext).consumer_group),)


def _group_and_topic(command: Command) -> Needs:
    """Return the needs of a progress query, whose topics may be given in two fields."""
    request = ConsumeStatsRequest.read(command.ext)
    topics = request.topics or ([request.topic] if request.topic else [])
    return (consume_need(request.consumer_group), *(read_need(topic) for topic in dict.fromkeys(topics)))


def _topic_of_group(command: Command) -> Needs:
    request = TopicOfGroup.read(command.ext)
    group = (consume_need(request.group),)
    return (*group, read_need(request.topic)) if request.topic else group


def _group_field(command: Command) -> Needs:
    return (consume_need(GroupField.read(command.ext).group),)


def _locks(command: Command) -> Needs:
    request = read_document(command.body, LockBatch)
    topics = dict.fromkeys(queue.topic for queue in request.mq_set)
    return (consume_need(request.consumer_group), *(read_need(topic) for topic in topics))


def _check_client(command: Command) -> Needs:
    request = read_document(command.body, CheckClientConfig)
    group = (consume_need(request.group),) if request.group else ()
    subscription = request.subscription_data
    return group if subscription is None else (*group, read_need(subscription.topic))


def _popped_queue_of_group(command: Command) -> Needs:
    """Return the needs of a request about popped messages. A pop retry topic belongs to its group and its own topic."""
    group, topic = _field(command, "consumerGroup"), _field(command, "topic")
    return (consume_need(group), read_need(names.pop_retry_origin(topic, group) or topic))


def _batch_ack(command: Command) -> Needs:
    """Return the needs of a batch of acks: the groups and the topics, which may be several."""
    found: dict[Need, None] = {}
    acks = read_document(command.body, BatchAckMessages).acks
    if not acks:
        raise FieldError("a batch of acks needs acks")
    for ack in acks:
        found[consume_need(ack.consumer_group)] = None
        found[read_need(ack.topic)] = None
    return tuple(found)


def _assignment(command: Command) -> Needs:
    request = read_document(command.body, AssignmentRequest)
    if not request.consumer_group or not request.topic:
        raise FieldError("an assignment of queues needs a consumerGroup and a topic")
    return (consume_need(request.consumer_group), read_need(request.topic))


_ADMIN_CODES: Final = (
    # brokers: topics and groups as a whole
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    # brokers: settings, state and clients
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.EXCHANGE_BROKER_HA_INFO,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.SWITCH_TIMER_ENGINE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.RESET_MASTER_FLUSH_OFFSET,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    RequestCode.ADD_BROKER,
    RequestCode.REMOVE_BROKER,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.UPDATE_CONTROLLER_CONFIG,
    RequestCode.GET_CONTROLLER_CONFIG,
    RequestCode.CLEAN_BROKER_DATA,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
    RequestCode.SET_COMMITLOG_READ_MODE,
    # accounts
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
    # pop consumption
    RequestCode.POP_ROLLBACK,
    # lite topics
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.ACK_LITE_MESSAGE,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.TRIGGER_LITE_DISPATCH,
    # name servers
    RequestCode.PUT_KV_CONFIG,
    RequestCode.GET_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.GET_BROKER_MEMBER_GROUP,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
)
"""Requests that only an administrator may send."""

NEEDS: Final[dict[int, Reader]] = {
    **dict.fromkeys((int(code) for code in _ADMIN_CODES), _administrator),
    # storing
    RequestCode.SEND_MESSAGE: _publish_to("topic"),
    RequestCode.SEND_MESSAGE_V2: _publish_to("b"),
    RequestCode.SEND_BATCH_MESSAGE: _publish_to("b"),
    RequestCode.SEND_REPLY_MESSAGE: _publish_to("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _publish_to("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.END_TRANSACTION: _end_transaction,
    # reading
    RequestCode.PULL_MESSAGE: _queue_of_group,
    RequestCode.LITE_PULL_MESSAGE: _queue_of_group,
    RequestCode.QUERY_MESSAGE: _read_topic("topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.QUERY_CONSUMER_OFFSET: _queue_of_group,
    RequestCode.UPDATE_CONSUMER_OFFSET: _queue_of_group,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _read_topic("topic"),
    RequestCode.GET_MAX_OFFSET: _read_topic("topic"),
    RequestCode.GET_MIN_OFFSET: _read_topic("topic"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _read_topic("topic"),
    RequestCode.GET_TOPIC_STATS_INFO: _read_topic("topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _read_topic("topic"),
    **dict.fromkeys(
        (
            RequestCode.POP_MESSAGE,
            RequestCode.ACK_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
        ),
        _popped_queue_of_group,
    ),
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.RECALL_MESSAGE: _publish_to("topic"),
    # membership
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _members,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    # metadata
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _members,
    RequestCode.GET_CONSUME_STATS: _group_and_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _topic_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _topic_of_group,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group_field,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group_field,
    RequestCode.GET_TOPIC_CONFIG: _topic_metadata("topic"),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
}
"""The function that returns the needs of a request, by request code."""
