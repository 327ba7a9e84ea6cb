"""What a consumer failed to consume: put off to the group's retry topic, or given up to its dead letters.

    failures so far      0      1      2     ...    15      16
    goes to            retry  retry  retry   ...  retry    dead letters
    after (levels)      10 s   30 s   1 min  ...    2 h     at once          levels 3 to 18

The group says how often (`retryMaxTimes`, 16), a consumer's own limit in its request wins; so does its own delay level,
and a negative one gives up at once. The number of failures travels in the record, so that no restart, and no other
broker that has a copy of it, begins to count anew. Retries of a group are spread over its retry queues; one of a
message that is on the disk already needs no other place in the order.
"""

from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.send.handlers import Outgoing, SendHandlers
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.nameserver import PERMISSION_WRITE
from gantry_wire.commands.send import SendBack, SendMessageV2
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

FIRST_RETRY_LEVEL = 3
RECONSUME_TIMES_MAX = (1 << 31) - 1
"""What a record can hold; the first sender chooses where counting starts."""


@handles(RequestCode.CONSUMER_SEND_MSG_BACK)
def send_back(sends: SendHandlers, command: Command, connection: Connection) -> Command | None:
    back = SendBack.read(command.ext)
    group = _group(sends, back)
    if group.retry_queue_nums <= 0:
        return command.reply()
    original = _original(sends, back)
    message = _outgoing(sends, back, group, original)
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
    core.store.append([sends.draft(message, send, original.born_host)])
    core.statistics.sent_back(back.group, message.properties[keys.RETRY_TOPIC])
    core.stats.put(1, core.store)
    return None if command.is_oneway else sends.path.ack_gate.answer(command.reply(), connection)


def _group(sends: SendHandlers, back: SendBack) -> SubscriptionGroupConfig:
    if names.group_fault(back.group) is not None or names.topic_fault(names.retry_topic(back.group)) is not None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group {back.group[:64]} is illegal")
    group = sends.core.groups.find(back.group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {back.group}")
    return group


def _original(sends: SendHandlers, back: SendBack) -> StoredMessage:
    record = sends.core.store.guard.message_at(back.offset) if back.offset >= 0 else None
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {back.offset}")
    try:
        message = decode_record(record)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the message at {back.offset} is damaged: {error}") from error
    if message.topic in names.UNSHOWN_TOPICS:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {back.offset}")
    return message


def _outgoing(sends: SendHandlers, back: SendBack, group: SubscriptionGroupConfig, original: StoredMessage) -> Outgoing:
    """Where the message goes now, and with which properties."""
    properties = dict(original.properties)
    for name in (keys.DELAY_LEVEL, keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.RECORD_CRC):
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
    return Outgoing(topic, queue_id, original.body, properties, times)
