"""Sends in words: every check that RocketMQ makes, in its order, with its codes.

`SendHandlers.take` turns one request into drafts of the current pass or into a refusal; nothing is stored, and no topic
made, before every check has passed. Timer messages are refused clearly until they exist.
"""

import logging
import random
from dataclasses import dataclass
from typing import Final, final

import msgspec

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.refusals import Refused, check_topic_name, store_refusal
from gantry_broker.server.core.send_routes import json_text
from gantry_broker.server.send.send_path import NO_ANSWER, SendPath
from gantry_broker.store.draft import Draft
from gantry_remoting import Connection
from gantry_remoting.addresses import join_address
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.batch import BatchEntry, decode_batch
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import PERMISSION_NORMAL
from gantry_wire.commands.send import SendMessage, SendMessageV2
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.hashing import tags_code
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.message import FLAG_BORN_HOST_V6, FLAG_MULTI_TAGS, TRANSACTION_MASK, offset_message_id
from gantry_wire.properties import format_properties, parse_properties

log = logging.getLogger(__name__)

SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
TIMER_PROPERTIES: Final = (keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS)
MEMORY_FLAGS: Final = FLAG_BORN_HOST_V6 | 0x20


@dataclass(slots=True)
class Outgoing:
    """A message on its way into a queue, after all checks of its request."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    reconsume_times: int = 0


@final
class SendHandlers:
    """The readable path of sends. Owned by the event loop."""

    def __init__(self, core: BrokerCore, path: SendPath) -> None:
        self.core: Final = core
        self.path: Final = path
        self.random: Final = random.Random()

    def take(self, command: Command, connection: Connection) -> bytes | None:
        """Put the request's messages into the pass, or answer it at once."""
        try:
            self._refuse_if_busy(command)
            send = read_send(command)
            config = self._check(send, command, connection)
            if send.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
                return self._take_batch(send, command, connection, config)
            self._take_single(send, command, connection, config)
        except Refused as refused:
            return refuse(command, refused.code, refused.remark)
        except FieldError as error:
            return refuse(command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            # The firewall between one send and the others of its turn.
            log.error("a send failed", exc_info=error, extra={"code": command.code})
            text = f"the broker failed to handle the request: {type(error).__name__}"
            return refuse(command, ResponseCode.SYSTEM_ERROR, text)
        return None

    # ------- checks

    def admit(self, send: SendMessageV2, command: Command, connection: Connection) -> TopicConfig:
        """The topic of a send that may be stored now, for sends that go another way. Raises Refused."""
        self._refuse_if_busy(command)
        return self._check(send, command, connection)

    def _refuse_if_busy(self, command: Command) -> None:
        """Raise Refused while sends of this read are refused. A one-way send is stored late rather than dropped."""
        refusal = self.path.refusal
        if refusal is not None and not (command.is_oneway and refusal.spares_oneway):
            self.core.stats.refusals.count(refusal)
            raise Refused(refusal.code, refusal.remark)

    def _check(self, send: SendMessageV2, command: Command, connection: Connection) -> TopicConfig:
        """The topic of a send that may be stored, as it is or as it would be made."""
        check_topic_name(send.topic)
        if send.topic in names.NOT_SENDABLE_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"sending message to topic[{send.topic}] is forbidden")
        config = self._topic(send)
        queues = max(config.write_queue_nums, config.read_queue_nums)
        if send.queue_id >= queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{send.queue_id}] is illegal, topic[{send.topic}] has {queues} queues, "
                f"producer: {join_address(*connection.peer)}",
            )
        self._check_sizes(send, command.body)
        return config

    def _check_sizes(self, send: SendMessageV2, body: bytes) -> None:
        limit = self.core.settings.message_bytes_max
        properties_bytes = len((send.properties or "").encode("utf-8", "surrogatepass"))
        if not body or len(body) > limit or properties_bytes > PROPERTIES_BYTES_MAX:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its body has {len(body)} bytes (1 to {limit} are allowed), "
                f"its properties {properties_bytes} (at most {PROPERTIES_BYTES_MAX})",
            )

    def _topic(self, send: SendMessageV2) -> TopicConfig:
        core = self.core
        config = core.topics.find(send.topic)
        if config is None and send.topic.startswith(names.RETRY_PREFIX):
            config = one_queue(send.topic)
        if config is None:
            queues = min(send.default_topic_queue_nums, core.settings.default_topic_queues)
            config = core.topics.from_template(send.topic, send.default_topic, queues)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{send.topic}] not exist, apply first please!")
        return config

    # ------- one message

    def _take_single(self, send: SendMessageV2, command: Command, connection: Connection, config: TopicConfig) -> None:
        properties = clean(parse_properties(send.properties or ""))
        unique = properties.setdefault(keys.UNIQUE_KEY, self.core.routes.next_unique_id())
        refuse_unsupported(properties)
        message = Outgoing(
            send.topic, self._queue_id(send, config), command.body, properties, send.reconsume_times or 0
        )
        message, config = self._redirect_exhausted_retry(send, message, config)
        if is_half(message.properties, message.reconsume_times):
            draft = self._half(message, send, self.path.host_of(connection))
        else:
            draft = self.draft(message, send, self.path.host_of(connection))
        template = NO_ANSWER if command.is_oneway else self.core.routes.template(message.queue_id)
        answer = (template, json_text(unique), command.opaque)
        self._make(config)
        if not is_waiting(properties):
            self.path.unwaited.add(len(self.path.drafts))
        self.path.drafts.append(draft)
        self.path.answers.append(answer)

    def _queue_id(self, send: SendMessageV2, config: TopicConfig) -> int:
        """The queue that the producer chose, or any."""
        return send.queue_id if send.queue_id >= 0 else self.random.randrange(max(1, config.write_queue_nums))

    def _make(self, config: TopicConfig) -> None:
        """The topic exists from now on, and has a route."""
        self.core.topics.put(config)
        if config.topic_name not in self.core.routes.by_topic:
            self.core.routes.make(config)

    def _redirect_exhausted_retry(
        self, send: SendMessageV2, message: Outgoing, config: TopicConfig
    ) -> tuple[Outgoing, TopicConfig]:
        """What a consumer resends to its retry topic too often goes to the dead letters; the rest where it was sent.

        A group that holds queue locks consumes in order; what it resends it has given up already.
        """
        if not send.topic.startswith(names.RETRY_PREFIX):
            return message, config
        group_name = send.topic[len(names.RETRY_PREFIX) :]
        group = self.core.groups.find(group_name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group_name}")
        times_max = group.retry_max_times if send.max_reconsume_times is None else send.max_reconsume_times
        if message.reconsume_times <= times_max and not self.core.locks.is_held(group_name):
            return message, config
        topic = names.dead_letter_topic(group_name)
        properties = {name: value for name, value in message.properties.items() if name != keys.DELAY_LEVEL}
        message = Outgoing(topic, 0, message.body, properties, message.reconsume_times)
        return message, self.core.topics.find(topic) or one_queue(topic)

    def store_one(
        self, message: Outgoing, send: SendMessageV2, config: TopicConfig, connection: Connection
    ) -> tuple[str, int]:
        """Append one message at once, outside of the pass: its offset message id and its queue offset.

        Raises Refused and BrokerError; the topic exists afterwards.
        """
        draft = self.draft(message, send, self.path.host_of(connection))
        self._make(config)
        physical_offsets, queue_offsets = self.core.store.append([draft])
        self.core.stats.put(1, self.core.store)
        return offset_message_id(self.core.store_host, physical_offsets[0]), queue_offsets[0]

    def draft(self, message: Outgoing, send: SendMessageV2, born_host: bytes) -> Draft:
        """What the store appends for `message`. Raises Refused when its properties no longer fit."""
        core = self.core
        properties = {**message.properties, **core.routes.added}
        topic, queue_id, delay_ms = message.topic, message.queue_id, 0
        level = delay_level(properties, len(core.settings.store.delay_levels_ms))
        if level:
            properties[keys.REAL_TOPIC], properties[keys.REAL_QUEUE_ID] = topic, str(queue_id)
            properties[keys.DELAY_LEVEL] = str(level)
            topic, queue_id = names.SCHEDULE_TOPIC, level - 1
            delay_ms = core.settings.store.delay_levels_ms[level - 1]
        data = fitting(properties)
        config = core.topics.find(message.topic)
        multi = FLAG_MULTI_TAGS if config is not None and config.topic_filter_type == "MULTI_TAG" else 0
        sys_flag = send.sys_flag & ~(MEMORY_FLAGS | TRANSACTION_MASK) | multi
        return Draft(
            queue=core.store.queues.get_or_create(topic, queue_id),
            body=message.body,
            properties=data,
            sys_flag=sys_flag | (FLAG_BORN_HOST_V6 if len(born_host) == 20 else 0),
            flag=send.flag,
            born_timestamp_ms=send.born_timestamp,
            born_host=born_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=0,
            tags_code=tags_code(properties.get(keys.TAGS)),
            delay_ms=delay_ms,
            keys=keys.message_keys(properties),
        )

    def _half(self, message: Outgoing, send: SendMessageV2, born_host: bytes) -> Draft:
        """The first half of a transaction: stored where nobody reads it, until its producer says how it has ended."""
        if self.core.settings.rejects_transactions:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.core.settings.broker_ip}] sending transaction message is forbidden",
            )
        properties = half_properties(message.properties, message.topic, message.queue_id)
        return self.draft(
            Outgoing(names.HALF_TOPIC, 0, message.body, properties, message.reconsume_times), send, born_host
        )

    # ------- batches

    def _take_batch(
        self, send: SendMessageV2, command: Command, connection: Connection, config: TopicConfig
    ) -> bytes | None:
        if names.is_retry_or_dead_letter(send.topic):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {send.topic}")
        entries = batch_entries(command.body, self.core.settings.batch_messages_max)
        queue_id = self._queue_id(send, config)
        shared = parse_properties(send.properties or "")
        batch_id = shared.pop(keys.UNIQUE_KEY, None)
        drafts: list[Draft] = []
        for entry in entries:
            properties = clean({**shared, **parse_properties(entry.properties.decode("utf-8", "replace"))})
            if keys.DELAY_LEVEL in properties or keys.TRANSACTION_PREPARED in properties:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch holds no delayed or transactional messages")
            refuse_unsupported(properties)
            properties.setdefault(keys.UNIQUE_KEY, self.core.routes.next_unique_id())
            message = Outgoing(send.topic, queue_id, entry.body, properties)
            one = msgspec.structs.replace(send, flag=entry.flag)
            drafts.append(self.draft(message, one, self.path.host_of(connection)))
        self.path.flush_for(connection)
        self._make(config)
        try:
            physical_offsets, queue_offsets = self.core.store.append_contiguous(drafts)
        except BrokerError as error:
            refusal = store_refusal(error)
            self.core.stats.refusals.count(refusal)
            raise Refused(refusal.code, refusal.remark) from error
        self.core.stats.put(len(drafts), self.core.store)
        self.core.statistics.batched(send.topic, len(drafts))
        if command.is_oneway:
            return None
        ids = ",".join(offset_message_id(self.core.store_host, offset) for offset in physical_offsets)
        ext = {
            "msgId": ids,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offsets[0]),
            "MSG_REGION": self.core.routes.added[keys.MESSAGE_REGION],
            "TRACE_ON": "true",
        }
        # Never `batchUniqId`: Apache sends it for topics of batch consume queues only, where the batch is one message.
        # Java 5 would return it as the message id, and no stored message has it.
        if batch_id is not None:
            ext["transactionId"] = batch_id
        reply = self.path.ack_gate.answer(command.reply(ext=ext), connection, is_waiting=is_waiting(shared))
        return None if reply is None else reply.encode()


def batch_entries(body: bytes, messages_max: int) -> list[BatchEntry]:
    """The messages of a batch. Raises Refused."""
    try:
        entries = decode_batch(body)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {error}") from error
    if any(not entry.body for entry in entries):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch holds a message without a body")
    if len(entries) > messages_max:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch holds more than {messages_max} messages")
    return entries


def refuse(command: Command, code: ResponseCode, remark: str) -> bytes | None:
    return None if command.is_oneway else command.reply(code, remark).encode()


def one_queue(topic: str) -> TopicConfig:
    """A retry or dead letter topic as RocketMQ makes it."""
    return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=PERMISSION_NORMAL)


def read_send(command: Command) -> SendMessageV2:
    """The fields of code 10, 310, 320, 324 or 325. Raises FieldError."""
    if command.code not in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return SendMessageV2.read(command.ext)
    first = SendMessage.read(command.ext)
    return SendMessageV2(**{info.name: getattr(first, info.name) for info in msgspec.structs.fields(SendMessage)})


def clean(properties: dict[str, str]) -> dict[str, str]:
    """Without what only the broker may say."""
    properties.pop(keys.POP_CHECKPOINT, None)
    properties.pop(keys.RECORD_CRC, None)
    return properties


def refuse_unsupported(properties: dict[str, str]) -> None:
    """RocketMQ without its timer wheel says the same with code 1, which clients try thrice, and bury the text."""
    if any(name in properties for name in TIMER_PROPERTIES):
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, "accurate timer message is not enabled; use one of the delay levels instead"
        )


def delay_level(properties: dict[str, str], levels: int) -> int:
    """The delay level that a message asks for, at most the highest; 0 for none."""
    text = properties.get(keys.DELAY_LEVEL, "0")
    try:
        level = int(text)
    except ValueError:
        return 0
    return max(0, min(level, levels))


def is_waiting(properties: dict[str, str]) -> bool:
    """Whether the sender wants its answer only when the message is stored as the mode promises."""
    return properties.get(keys.WAIT_STORE, "true").lower() != "false"


def fitting(properties: dict[str, str]) -> bytes:
    """The properties as bytes. Raises Refused when they pass what a record can hold."""
    try:
        data = format_properties(properties).encode("utf-8", "replace")
    except LocalProtocolError as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
    if len(data) > PROPERTIES_BYTES_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: its properties take {len(data)} bytes with those that the broker adds, "
            f"at most {PROPERTIES_BYTES_MAX} are allowed",
        )
    return data


def half_properties(properties: dict[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Of a message for this queue, as a half message: a delay is not for transactions, as RocketMQ's clients know."""
    half = {**properties, keys.REAL_TOPIC: topic, keys.REAL_QUEUE_ID: str(queue_id)}
    half.pop(keys.DELAY_LEVEL, None)
    if unique := half.get(keys.UNIQUE_KEY):
        half[keys.TRANSACTION_ID] = unique
    return half


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether this is the first half of a transaction, and not one that comes back from a consumer to be put off."""
    is_retry = reconsume_times > 0 and properties.get(keys.DELAY_LEVEL, "0").lstrip("0") != ""
    return properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true" and not is_retry
