"""Stores messages that a consumer sends back, in the retry topic of its group or in its dead letters.

    failures so far      0      1      2     ...    15      16
    goes to            retry  retry  retry   ...  retry    dead letters
    after (levels)      10 s   30 s   1 min  ...    2 h     at once          levels 3 to 18

The group sets the limit of retries (`retryMaxTimes`, 16); a limit in the consumer's request overrides it. A delay level
in the request overrides that of the table; a negative one sends the message to the dead letters at once. The number of
failures is stored in the record, so that neither a restart nor another broker with a copy of it starts counting again.
Retries of a group are spread over its retry queues, since their order does not matter.
"""

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.broker_properties import remove_broker_properties
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.send.handlers import OutgoingMessage, SendHandlers
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.nameserver import PERMISSION_WRITE
from gantry_wire.commands.send import SendBack, SendMessageV2
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import FLAG_INNER_BATCH, StoredMessage, decode_record

FIRST_RETRY_LEVEL = 3
"""The delay level of a message that has failed once."""
RECONSUME_TIMES_MAX = (1 << 31) - 1
"""The limit of the field in a record; the first sender chooses the initial count."""


@handles(RequestCode.CONSUMER_SEND_MSG_BACK)
def send_back(sends: SendHandlers, command: Command, connection: Connection) -> Command | None:
    back = SendBack.read(command.ext)
    group = _find_group(sends, back)
    if group.retry_queue_nums <= 0:
        return command.reply()
    original = _read_original(sends, back)
    message = _make_retry(sends, back, group, original)
    send = SendMessageV2(
        producer_group=names.SYSTEM_GROUP_PREFIX,
        topic=message.topic,
        default_topic="",
        default_topic_queue_nums=0,
        queue_id=message.queue_id,
        sys_flag=original.sys_flag,
        born_timestamp=original.born_timestamp_ms,
        flag=original.flag,
    )
    core = sends.core
    core.store.append([sends.make_draft(message, send, original.born_host)])
    core.topic_statistics.count_send_back(back.group, _counted_topic(core, back.group, original))
    core.stats.count_put(1, core.store)
    return sends.send_path.ack_gate.reply_or_hold(command, command.reply(), connection)


def _counted_topic(core: BrokerCore, group: str, original: StoredMessage) -> str:
    """Return the topic under which a message counts that was sent back.

    A retry counts under the topic of the first delivery, as in RocketMQ. Its property is the client's text: so it is
    used only for a message of the group's own retries, and if it names a topic that the group consumes. Otherwise a
    client could add counters of any name, which are kept for a day, and count for groups of other topics.
    """
    named = original.properties.get(keys.RETRY_TOPIC, "")
    if names.pop_retry_origin(original.topic, group) != named and original.topic != names.retry_topic(group):
        return original.topic
    consumer = core.clients.consumers.get(group)
    is_consumed = core.offsets.is_consumed(group, named) or (consumer is not None and named in consumer.subscriptions)
    return named if is_consumed and core.topics.find(named) is not None else original.topic


def _find_group(sends: SendHandlers, back: SendBack) -> SubscriptionGroupConfig:
    if names.group_fault(back.group) is not None or names.topic_fault(names.retry_topic(back.group)) is not None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group {back.group[:64]} is illegal")
    group = sends.core.groups.find_or_create(back.group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {back.group}")
    return group


def _read_original(sends: SendHandlers, back: SendBack) -> StoredMessage:
    record = sends.core.store.guard.message_at(back.offset) if back.offset >= 0 else None
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {back.offset}")
    try:
        message = decode_record(record)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the message at {back.offset} is damaged: {error}") from error
    if message.sys_flag & FLAG_INNER_BATCH:
        # RocketMQ refuses it, too. Its clients then send the one message of the batch to the retry topic themselves.
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the record at {back.offset} is a batch of several messages")
    if message.topic in names.HIDDEN_TOPICS or (back.delay_level < 0 and not _is_origin(back, message.topic)):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {back.offset}")
    return message


def _is_origin(back: SendBack, topic: str) -> bool:
    """Return whether a message of ``topic`` may go to the dead letters of a request that names its origin.

    A proxy sends such requests for its clients. It has compared their permissions with the origin that they name, and
    the guard compares only those of the proxy with the message. Consumers name the topic to which the message was sent
    first, also for a message of their retry topic. Their retries are not compared, since some leave out a namespace.
    """
    if back.origin_topic in (None, "", topic) or topic == names.retry_topic(back.group):
        return True
    return names.pop_retry_origin(topic, back.group) == back.origin_topic


def _make_retry(
    sends: SendHandlers, back: SendBack, group: SubscriptionGroupConfig, original: StoredMessage
) -> OutgoingMessage:
    """Return the message as it is stored again: with its retry or dead letter topic, queue and properties."""
    properties = remove_broker_properties(dict(original.properties))
    for name in (keys.DELAY_LEVEL, keys.REAL_TOPIC, keys.REAL_QUEUE_ID):
        properties.pop(name, None)
    properties.setdefault(keys.RETRY_TOPIC, original.topic)
    properties.setdefault(keys.ORIGIN_MESSAGE_ID, original.offset_message_id)
    times_max = group.retry_max_times if back.max_reconsume_times is None else back.max_reconsume_times
    queue_id = 0
    is_given_up = original.reconsume_times >= times_max or back.delay_level < 0
    if is_given_up:
        topic = names.dead_letter_topic(back.group)
        config = sends.core.topics.ensure(topic, 1)
    else:
        topic = names.retry_topic(back.group)
        config = sends.core.topics.ensure(topic, group.retry_queue_nums)
        queue_id = sends.random.randrange(max(1, min(group.retry_queue_nums, config.write_queue_nums)))
        level = back.delay_level or FIRST_RETRY_LEVEL + original.reconsume_times
        properties[keys.DELAY_LEVEL] = str(level)
    if not config.perm & PERMISSION_WRITE:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
    times = min(original.reconsume_times + 1, RECONSUME_TIMES_MAX)
    return OutgoingMessage(topic, queue_id, original.body, properties, times)
