"""A fake broker's handlers for sends."""

from random import randrange

from msgspec.structs import replace

from gantry_remoting.server import Connection
from gantry_testing.client.state import BrokerState, Handler, missing_topic
from gantry_wire.batch import decode_batch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.send import PushReply, SendBack, SendMessage, SendMessageV2, SendResult
from gantry_wire.message import StoredMessage
from gantry_wire.names import dead_letter_topic, retry_topic
from gantry_wire.properties import (
    CLUSTER,
    DELAY_LEVEL,
    ORIGIN_MESSAGE_ID,
    REPLY_TO_CLIENT,
    RETRY_TOPIC,
    UNIQUE_KEY,
    encode_properties,
    parse_properties,
)


def send(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle sends (codes 10, 310 and 320)."""
    header = SendMessage.read(command.ext) if command.code == RequestCode.SEND_MESSAGE else _read_v2(command)
    config = state.topic(header.topic, queues=header.default_topic_queue_nums)
    if config is None:
        return missing_topic(command, header.topic)
    queue_id = header.queue_id if header.queue_id >= 0 else randrange(config.write_queue_nums)
    if queue_id >= max(config.write_queue_nums, config.read_queue_nums):
        return command.reply(ResponseCode.INVALID_PARAMETER, f"request queueId[{queue_id}] is illegal")
    base = StoredMessage(
        topic=header.topic,
        queue_id=queue_id,
        body=command.body,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        store_timestamp_ms=header.born_timestamp,
        reconsume_times=header.reconsume_times or 0,
        properties_bytes=_with_cluster(state, header.properties),
    )
    stored = [state.log.append(message) for message in _messages(base, is_batch=bool(header.batch))]
    result = SendResult(
        msg_id=",".join(message.offset_message_id for message in stored),
        queue_id=queue_id,
        queue_offset=stored[0].queue_offset,
        transaction_id=parse_properties(header.properties or "").get(UNIQUE_KEY),
    )
    return command.reply(ext=result.write())


def _with_cluster(state: BrokerState, properties: str | None) -> bytes:
    """Return the properties of a message with the cluster that brokers add: replies go to its reply topic."""
    return encode_properties({**parse_properties(properties or ""), CLUSTER: state.cluster})


async def send_reply(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle replies (codes 324 and 325): push them to the requester without storing them."""
    is_long = command.code == RequestCode.SEND_REPLY_MESSAGE
    header = SendMessage.read(command.ext) if is_long else _read_v2(command)
    client_id = parse_properties(header.properties or "").get(REPLY_TO_CLIENT)
    found = [one for one, beat in state.clients.items() if beat.client_id == client_id and beat.producer_data_set]
    if not found:
        return command.reply(ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> not found.")
    push = PushReply(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=header.properties,
        born_host=f"{connection.peer[0]}:{connection.peer[1]}",
        store_host="127.0.0.1:0",
        store_timestamp=header.born_timestamp,
    )
    request = Command(code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=push.write(), body=command.body)
    answer = await found[-1].request(request, 3000)
    if answer.code != ResponseCode.SUCCESS:
        return command.reply(ResponseCode.SYSTEM_ERROR, answer.remark)
    return command.reply(ext=SendResult(msg_id="0", queue_id=header.queue_id, queue_offset=0).write())


def _read_v2(command: Command) -> SendMessageV2:
    return SendMessageV2.read(command.ext)


def _messages(base: StoredMessage, *, is_batch: bool) -> list[StoredMessage]:
    if not is_batch:
        return [base]
    return [
        replace(base, body=entry.body, flag=entry.flag, properties_bytes=entry.properties)
        for entry in decode_batch(base.body)
    ]


def send_back(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request CONSUMER_SEND_MSG_BACK (code 36).

    The message is redelivered at once; `state.send_backs` has its delay level.
    """
    header = SendBack.read(command.ext)
    state.send_backs.append(command.ext)
    original = state.log.at(header.offset)
    if original is None:
        return command.reply(ResponseCode.SYSTEM_ERROR, "look message by offset failed")
    times_max = 16 if header.max_reconsume_times is None else header.max_reconsume_times
    is_dead = original.reconsume_times >= times_max or header.delay_level < 0
    topic = dead_letter_topic(header.group) if is_dead else retry_topic(header.group)
    properties = dict(original.properties)
    properties.setdefault(RETRY_TOPIC, original.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, original.offset_message_id)
    properties.pop(DELAY_LEVEL, None)
    state.topic(topic)
    state.log.append(
        replace(
            original,
            topic=topic,
            queue_id=0,
            reconsume_times=original.reconsume_times + 1,
            properties_bytes=encode_properties(properties),
        )
    )
    return command.reply()


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send,
    RequestCode.SEND_MESSAGE_V2: send,
    RequestCode.SEND_BATCH_MESSAGE: send,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.SEND_REPLY_MESSAGE: send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_reply,
}
