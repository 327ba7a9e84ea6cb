"""What each request needs, in one table for broker and name server.

At least what RocketMQ's PlainAccessValidator checks, and what it passes over: batches, locks, offsets and ranges of
queues, what is looked up by its place in the log, the source of a message that is sent back, half messages. A code that
is not in the table is for administrators, so that a new handler is closed until somebody has thought about it; a test
demands the thought.

    a topic's name in a header    PUB to store, SUB to read; a retry topic belongs to its group
    a group's name                SUB
    an offset in the log          the permission for the topic that the message there belongs to, looked up by the guard

It reads exactly the fields that the handlers read, so that a request cannot name one topic to the
guard and another one to the handler. Pure: a command in, needs out.
"""

from collections.abc import Callable
from typing import Final

from gantry_access.permissions import (
    ADMIN_ONLY,
    Kind,
    Need,
    Needs,
    Permission,
    consuming,
    knowing,
    publishing,
    reading,
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
from gantry_wire.commands.pull import ViewMessage
from gantry_wire.commands.send import SendBack

Reader = Callable[[Command], Needs]


class Division(Document):
    """The body of code 400: whose queues of which topic are to be divided."""

    consumer_group: str = ""
    topic: str = ""


NUMBER_CHARACTERS_MAX: Final = 19
"""Of a 64-bit offset."""


def needed(command: Command) -> Needs:
    """What the sender of `command` needs. Raises FieldError for a request that does not say what it is about."""
    reader = NEEDS.get(command.code)
    return ADMIN_ONLY if reader is None else reader(command)


def _field(command: Command, name: str) -> str:
    value = command.ext.get(name)
    if not value:
        raise FieldError(f"the custom field is wrong or missing: {name}")
    return value


def _published_to(field: str) -> Reader:
    return lambda command: (publishing(_field(command, field)),)


def _read_from(field: str) -> Reader:
    return lambda command: (reading(_field(command, field)),)


def _known(field: str) -> Reader:
    return lambda command: (knowing(_field(command, field)),)


def _administrator(command: Command) -> Needs:
    return ADMIN_ONLY


def _queue_of_group(command: Command) -> Needs:
    """A pull, or a consumer's offset in a queue: the group and the topic."""
    return (consuming(_field(command, "consumerGroup")), reading(_field(command, "topic")))


def _route(command: Command) -> Needs:
    """Where a topic is. Producers of new topics ask for the template's route, which says nothing of anybody."""
    topic = TopicName.read(command.ext).topic
    return () if topic == names.AUTO_CREATE_TOPIC else (knowing(topic),)


def _view(command: Command) -> Needs:
    return (Need(Kind.MESSAGE, str(ViewMessage.read(command.ext).offset), Permission.SUB),)


def _heartbeat(command: Command) -> Needs:
    """Every subscription of every consumer in it. Being a producer is no permission: each send is checked."""
    beat = read_document(command.body, HeartbeatData)
    found: dict[Need, None] = {}
    for consumer in beat.consumer_data_set:
        found[consuming(consumer.group_name)] = None
        for subscription in consumer.subscription_data_set:
            found[reading(subscription.topic)] = None
    return tuple(found)


def _unregister(command: Command) -> Needs:
    group = UnregisterClient.read(command.ext).consumer_group
    return (consuming(group),) if group else ()


def _send_back(command: Command) -> Needs:
    """The group it goes to, and the topic it comes from: otherwise a group could fetch what it may not read."""
    back = SendBack.read(command.ext)
    return (consuming(back.group), Need(Kind.MESSAGE, str(back.offset), Permission.SUB))


def _end_transaction(command: Command) -> Needs:
    """The topic is what the half message says, not what the request says."""
    text = _field(command, "commitLogOffset")
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_CHARACTERS_MAX:
        raise FieldError("the custom field is wrong or missing: commitLogOffset")
    return (Need(Kind.MESSAGE, text, Permission.PUB),)


def _members(command: Command) -> Needs:
    return (consuming(ConsumerGroup.read(command.ext).consumer_group),)


def _group_and_topic(command: Command) -> Needs:
    """How far a group is, perhaps in some topics only, which the request may name in two ways."""
    request = ConsumeStatsRequest.read(command.ext)
    topics = request.topics or ([request.topic] if request.topic else [])
    return (consuming(request.consumer_group), *(reading(topic) for topic in dict.fromkeys(topics)))


def _topic_of_group(command: Command) -> Needs:
    request = TopicOfGroup.read(command.ext)
    group = (consuming(request.group),)
    return (*group, reading(request.topic)) if request.topic else group


def _group_field(command: Command) -> Needs:
    return (consuming(GroupField.read(command.ext).group),)


def _locks(command: Command) -> Needs:
    request = read_document(command.body, LockBatch)
    topics = dict.fromkeys(queue.topic for queue in request.mq_set)
    return (consuming(request.consumer_group), *(reading(topic) for topic in topics))


def _check_client(command: Command) -> Needs:
    request = read_document(command.body, CheckClientConfig)
    group = (consuming(request.group),) if request.group else ()
    subscription = request.subscription_data
    return group if subscription is None else (*group, reading(subscription.topic))


def _division(command: Command) -> Needs:
    request = read_document(command.body, Division)
    if not request.consumer_group or not request.topic:
        raise FieldError("a division of queues names a consumerGroup and a topic")
    return (consuming(request.consumer_group), reading(request.topic))


_FOR_ADMINISTRATORS: Final = (
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
    # brokers: themselves and their clients
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
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.POP_ROLLBACK,
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

NEEDS: Final[dict[int, Reader]] = {
    **dict.fromkeys((int(code) for code in _FOR_ADMINISTRATORS), _administrator),
    # storing
    RequestCode.SEND_MESSAGE: _published_to("topic"),
    RequestCode.SEND_MESSAGE_V2: _published_to("b"),
    RequestCode.SEND_BATCH_MESSAGE: _published_to("b"),
    RequestCode.SEND_REPLY_MESSAGE: _published_to("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _published_to("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.END_TRANSACTION: _end_transaction,
    # reading
    RequestCode.PULL_MESSAGE: _queue_of_group,
    RequestCode.LITE_PULL_MESSAGE: _queue_of_group,
    RequestCode.QUERY_MESSAGE: _read_from("topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.QUERY_CONSUMER_OFFSET: _queue_of_group,
    RequestCode.UPDATE_CONSUMER_OFFSET: _queue_of_group,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _read_from("topic"),
    RequestCode.GET_MAX_OFFSET: _read_from("topic"),
    RequestCode.GET_MIN_OFFSET: _read_from("topic"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _read_from("topic"),
    RequestCode.GET_TOPIC_STATS_INFO: _read_from("topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _read_from("topic"),
    # refused by this broker, whoever asks; needs are those of RocketMQ, so that who may pull is told to pull instead
    **dict.fromkeys(
        (
            RequestCode.POP_MESSAGE,
            RequestCode.ACK_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
        ),
        _queue_of_group,
    ),
    RequestCode.QUERY_ASSIGNMENT: _division,
    RequestCode.RECALL_MESSAGE: _published_to("topic"),
    # being a member
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _members,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    # knowing
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _members,
    RequestCode.GET_CONSUME_STATS: _group_and_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _topic_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _topic_of_group,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group_field,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group_field,
    RequestCode.GET_TOPIC_CONFIG: _known("topic"),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
}
"""By request code."""
