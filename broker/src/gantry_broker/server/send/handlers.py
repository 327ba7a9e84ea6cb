"""The slow path of sends: every check that RocketMQ makes, in its order and with its codes.

`SendHandlers.handle` turns one request into a refusal, or into a draft of the current pass: the sends of one turn of
the event loop, which are appended together (`send_path`). A batch is appended at once, after the pass. Nothing is
stored, and no topic is created, before every check has passed. A message with a delay level or a time is stored in a
system topic, from which it is delivered when it is due.
"""

import logging
import random
from dataclasses import dataclass
from typing import Any, Final, final

import msgspec

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.broker_properties import remove_broker_properties
from gantry_broker.server.core.priorities import place_by_priority
from gantry_broker.server.core.refusals import Refused, check_topic_name, store_refusal
from gantry_broker.server.core.send_routes import json_text
from gantry_broker.server.core.timer_properties import as_timer, drop_timer, due_time, is_timer
from gantry_broker.server.send.send_batch import NO_ANSWER, new_batch
from gantry_broker.server.send.send_path import SendPath
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
from gantry_wire.message import CLEARED_FLAGS, FLAG_BORN_HOST_V6, FLAG_MULTI_TAGS, offset_message_id
from gantry_wire.properties import format_properties, parse_properties
from gantry_wire.recall_handle import RecallHandle

log = logging.getLogger(__name__)

SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


@dataclass(slots=True)
class OutgoingMessage:
    """A message for a queue, after all checks of its request."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    reconsume_times: int = 0
    """How often consumers have sent the message back."""


@final
class SendHandlers:
    """Handles sends that do not take the fast path. Owned by the event loop."""

    def __init__(self, core: BrokerCore, send_path: SendPath) -> None:
        self.core: Final = core
        self.send_path: Final = send_path
        self.random: Final = random.Random()

    def handle(self, command: Command, connection: Connection) -> bytes | None:
        """Put a message into the pass, or append a batch; return the answer, or None if it follows later or never."""
        try:
            self._refuse_if_busy(command)
            send = read_send(command)
            config = self._check_send(send, command, connection)
            if send.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
                return self._take_batch(send, command, connection, config)
            self._take_single(send, command, connection, config)
        except Refused as refused:
            return encode_refusal(command, refused.code, refused.remark)
        except FieldError as error:
            return encode_refusal(command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            # An error in one send must not affect the others of its turn.
            log.error("unexpected error while handling send", exc_info=error, extra={"code": command.code})
            text = f"the broker failed to handle the request: {type(error).__name__}"
            return encode_refusal(command, ResponseCode.SYSTEM_ERROR, text)
        return None

    # ------- checks

    def admit(self, send: SendMessageV2, command: Command, connection: Connection) -> TopicConfig:
        """Check a send that another handler stores, and return its topic. Raises Refused."""
        self._refuse_if_busy(command)
        return self._check_send(send, command, connection)

    def _refuse_if_busy(self, command: Command) -> None:
        """Raise Refused if the sends of this read are refused.

        A one-way send is not refused for mere overload (`Refusal.accepts_oneway`): it is stored late, not dropped.
        """
        refusal = self.send_path.refusal
        if refusal is not None and not (command.is_oneway and refusal.accepts_oneway):
            self.core.stats.refusals.count(refusal)
            raise Refused(refusal.code, refusal.remark)

    def _check_send(self, send: SendMessageV2, command: Command, connection: Connection) -> TopicConfig:
        """Return the topic of a valid send, either existing or as it would be created. Raises Refused."""
        check_topic_name(send.topic)
        if not names.is_sendable(send.topic):
            raise Refused(ResponseCode.NO_PERMISSION, f"sending message to topic[{send.topic}] is forbidden")
        config = self._find_topic(send)
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

    def _find_topic(self, send: SendMessageV2) -> TopicConfig:
        core = self.core
        config = core.topics.find(send.topic)
        if config is None and send.topic.startswith(names.RETRY_PREFIX):
            config = single_queue_topic(send.topic)
        if config is None:
            queues = min(send.default_topic_queue_nums, core.settings.default_topic_queues)
            config = core.topics.from_template(send.topic, send.default_topic, queues)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{send.topic}] not exist, apply first please!")
        return config

    # ------- one message

    def _take_single(self, send: SendMessageV2, command: Command, connection: Connection, config: TopicConfig) -> None:
        properties = remove_broker_properties(parse_properties(send.properties or ""))
        unique = properties.setdefault(keys.UNIQUE_KEY, self.core.send_routes.next_unique_id())
        queue_id = place_by_priority(properties, self._queue_id(send, config), config.write_queue_nums)
        message = OutgoingMessage(send.topic, queue_id, command.body, properties, send.reconsume_times or 0)
        message, config = self._redirect_exhausted_retry(send, message, config)
        handle = ""
        if is_half(message.properties, message.reconsume_times):
            draft = self._make_half_draft(message, send, self.send_path.host_of(connection))
        else:
            due_ms = self._due_time(message)
            draft = self.make_draft(message, send, self.send_path.host_of(connection), due_ms)
            handle = self._recall_handle(message, due_ms, unique)
        routes = self.core.send_routes
        template = NO_ANSWER if command.is_oneway else routes.make_reply_template(message.queue_id, handle)
        answer = (template, json_text(unique), command.opaque)
        self._create_topic(config)
        self.send_path.batch.add(draft, answer, is_waiting_for_store(properties))

    def _queue_id(self, send: SendMessageV2, config: TopicConfig) -> int:
        """Return the queue that the producer chose, or a random one."""
        return send.queue_id if send.queue_id >= 0 else self.random.randrange(max(1, config.write_queue_nums))

    def _create_topic(self, config: TopicConfig) -> None:
        """Create the topic and its route, if they do not exist."""
        self.core.topics.put(config)
        if config.topic_name not in self.core.send_routes.by_topic:
            self.core.send_routes.create_route(config)

    def _redirect_exhausted_retry(
        self, send: SendMessageV2, message: OutgoingMessage, config: TopicConfig
    ) -> tuple[OutgoingMessage, TopicConfig]:
        """Redirect a message that a consumer has resent to its retry topic too often to the dead letters.

        A group that holds queue locks consumes in order, and resends only messages that it has given up.
        """
        if not send.topic.startswith(names.RETRY_PREFIX):
            return message, config
        group_name = send.topic[len(names.RETRY_PREFIX) :]
        group = self.core.groups.find_or_create(group_name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group_name}")
        times_max = group.retry_max_times if send.max_reconsume_times is None else send.max_reconsume_times
        if message.reconsume_times <= times_max and not self.core.locks.is_held(group_name):
            return message, config
        topic = names.dead_letter_topic(group_name)
        properties = {name: value for name, value in message.properties.items() if name != keys.DELAY_LEVEL}
        message = OutgoingMessage(topic, 0, message.body, properties, message.reconsume_times)
        return message, self.core.topics.find(topic) or single_queue_topic(topic)

    def append_one(
        self, message: OutgoingMessage, send: SendMessageV2, config: TopicConfig, connection: Connection
    ) -> tuple[str, int]:
        """Append one message at once, outside of the pass; return its offset message id and its queue offset.

        Creates the topic if it is missing. Raises Refused and BrokerError.
        """
        draft = self.make_draft(message, send, self.send_path.host_of(connection))
        self._create_topic(config)
        physical_offsets, queue_offsets = self.core.store.append([draft])
        self.core.stats.count_put(1, self.core.store)
        return offset_message_id(self.core.store_host, physical_offsets[0]), queue_offsets[0]

    def _due_time(self, message: OutgoingMessage) -> int | None:
        """Return when a message without a delay level is due, if it is a timer that has to wait. Raises Refused."""
        if parse_delay_level(message.properties, len(self.core.settings.store.delay_levels_ms)):
            return None
        return due_time(message.properties, self.core.settings, self.core.clock.wall_ms())

    def _recall_handle(self, message: OutgoingMessage, due_ms: int | None, unique: str) -> str:
        """Return the handle by which a producer recalls a timer message; empty for every other message."""
        if due_ms is None or names.is_retry_or_dead_letter(message.topic):
            return ""
        return RecallHandle(message.topic, self.core.settings.broker_name, str(due_ms), unique).encode()

    def make_draft(
        self, message: OutgoingMessage, send: SendMessageV2, born_host: bytes, due_ms: int | None = None
    ) -> Draft:
        """Return the draft that the store appends for `message`, a timer message if it has a time at which it is due.

        Raises Refused if its properties are too long.
        """
        core = self.core
        properties = {**message.properties, **core.send_routes.added_properties}
        topic, queue_id, delay_ms = message.topic, message.queue_id, 0
        level = parse_delay_level(properties, len(core.settings.store.delay_levels_ms))
        if due_ms is not None:
            properties = as_timer(properties, topic, queue_id, due_ms)
            topic, queue_id = names.TIMER_TOPIC, 0
        elif level:
            drop_timer(properties)
            properties[keys.REAL_TOPIC], properties[keys.REAL_QUEUE_ID] = topic, str(queue_id)
            properties[keys.DELAY_LEVEL] = str(level)
            topic, queue_id = names.SCHEDULE_TOPIC, level - 1
            delay_ms = core.settings.store.delay_levels_ms[level - 1]
        data = encode_stored_properties(properties)
        config = core.topics.find(message.topic)
        multi = FLAG_MULTI_TAGS if config is not None and config.topic_filter_type == "MULTI_TAG" else 0
        sys_flag = send.sys_flag & ~CLEARED_FLAGS | multi
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

    def _make_half_draft(self, message: OutgoingMessage, send: SendMessageV2, born_host: bytes) -> Draft:
        """Return the draft of a half message, which is stored out of reach of consumers until its transaction ends."""
        if self.core.settings.rejects_transactions:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.core.settings.broker_ip}] sending transaction message is forbidden",
            )
        # A timer begins with the commit; an invalid time is refused here, where the producer gets the answer.
        due_time(message.properties, self.core.settings, self.core.clock.wall_ms())
        properties = half_properties(message.properties, message.topic, message.queue_id)
        return self.make_draft(
            OutgoingMessage(names.HALF_TOPIC, 0, message.body, properties, message.reconsume_times), send, born_host
        )

    # ------- batches

    def _take_batch(
        self, send: SendMessageV2, command: Command, connection: Connection, config: TopicConfig
    ) -> bytes | None:
        if names.is_retry_or_dead_letter(send.topic):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {send.topic}")
        queue_id = self._queue_id(send, config)
        shared = parse_properties(send.properties or "")
        batch_id = shared.pop(keys.UNIQUE_KEY, None)
        shared.pop(keys.KEYS, None)  # Java's automatic batches name the keys of all their messages there.
        drafts = self._take_entries(send, command.body, connection, queue_id, shared)
        if drafts is None:
            drafts = self._make_drafts(send, command.body, connection, queue_id, shared)
        self.send_path.flush_for(connection)
        self._create_topic(config)
        try:
            physical_offsets, queue_offsets = self.core.store.append_contiguous(drafts)
        except BrokerError as error:
            refusal = store_refusal(error)
            self.core.stats.refusals.count(refusal)
            raise Refused(refusal.code, refusal.remark) from error
        self.core.stats.count_put(len(drafts), self.core.store)
        self.core.topic_statistics.count_batch(send.topic, len(drafts))
        if command.is_oneway:
            return None
        ext = {
            "msgId": self.core.send_routes.message_ids(physical_offsets),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offsets[0]),
            keys.MESSAGE_REGION: self.core.send_routes.added_properties[keys.MESSAGE_REGION],
            keys.TRACE_ON: "true",
        }
        # Never `batchUniqId`: Apache sends it for topics of batch consume queues only, where the batch is one record.
        # Java 5 would return it as the message id, and no stored message has it.
        if batch_id is not None:
            ext["transactionId"] = batch_id
        reply = self.send_path.ack_gate.reply_or_hold(
            command, command.reply(ext=ext), connection, is_waiting=is_waiting_for_store(shared)
        )
        return None if reply is None else reply.encode()

    def _take_entries(
        self, send: SendMessageV2, body: bytes, connection: Connection, queue_id: int, shared: dict[str, str]
    ) -> Any:
        """Return the messages of a usual batch as the store appends them; None if only `_make_drafts` can do that."""
        routes = self.core.send_routes
        route = routes.by_topic.get(send.topic)
        if route is None or queue_id >= len(route.slots):
            return None
        slot = route.slots[queue_id] or routes.create_slot(route, queue_id)
        host, host_flag = self.send_path.host_and_flag(connection)
        marks = [f"{name}{keys.KEY_END}".encode("utf-8", "surrogatepass") for name in shared]
        batch, count_max = new_batch(), self.core.settings.batch_messages_max
        is_taken = batch.take_entries(body, send, slot, host, host_flag, marks, routes, count_max)
        return batch.drafts if is_taken else None

    def _make_drafts(
        self, send: SendMessageV2, body: bytes, connection: Connection, queue_id: int, shared: dict[str, str]
    ) -> list[Draft]:
        """Return the drafts of the messages of any batch. Raises Refused.

        A message has its own properties, then those of the request whose names it lacks.
        """
        drafts: list[Draft] = []
        for entry in read_batch(body, self.core.settings.batch_messages_max):
            own = parse_properties(entry.properties.decode("utf-8", "replace"))
            properties = remove_broker_properties({**own, **{name: shared[name] for name in shared if name not in own}})
            if keys.DELAY_LEVEL in properties or keys.TRANSACTION_PREPARED in properties or is_timer(properties):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot contain delayed or transactional messages")
            properties.setdefault(keys.UNIQUE_KEY, self.core.send_routes.next_unique_id())
            message = OutgoingMessage(send.topic, queue_id, entry.body, properties)
            one = msgspec.structs.replace(send, flag=entry.flag)
            drafts.append(self.make_draft(message, one, self.send_path.host_of(connection)))
        return drafts


def read_batch(body: bytes, messages_max: int) -> list[BatchEntry]:
    """Return the messages of a batch. Raises Refused."""
    try:
        entries = decode_batch(body)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {error}") from error
    if any(not entry.body for entry in entries):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch contains a message without a body")
    if len(entries) > messages_max:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch contains more than {messages_max} messages")
    return entries


def encode_refusal(command: Command, code: ResponseCode, remark: str) -> bytes | None:
    return None if command.is_oneway else command.reply(code, remark).encode()


def single_queue_topic(topic: str) -> TopicConfig:
    """Return the configuration of a retry or dead letter topic, as RocketMQ creates it."""
    return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=PERMISSION_NORMAL)


def read_send(command: Command) -> SendMessageV2:
    """Read the fields of a request with code 10, 310, 320, 324 or 325. Raises FieldError."""
    if command.code not in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return SendMessageV2.read(command.ext)
    first = SendMessage.read(command.ext)
    return SendMessageV2(**{info.name: getattr(first, info.name) for info in msgspec.structs.fields(SendMessage)})


def parse_delay_level(properties: dict[str, str], levels: int) -> int:
    """Return the delay level of a message, at most the highest; 0 for none."""
    text = properties.get(keys.DELAY_LEVEL, "0")
    try:
        level = int(text)
    except ValueError:
        return 0
    return max(0, min(level, levels))


def is_waiting_for_store(properties: dict[str, str]) -> bool:
    """Whether the sender wants its answer only when the message is as durable as the mode promises."""
    return properties.get(keys.WAIT_STORE, "true").lower() != "false"


def encode_stored_properties(properties: dict[str, str]) -> bytes:
    """Encode the properties. Raises Refused if they are longer than a record can hold."""
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
    """Return the properties of a message for this queue as a half message: a transaction has no delay."""
    half = {**properties, keys.REAL_TOPIC: topic, keys.REAL_QUEUE_ID: str(queue_id)}
    half.pop(keys.DELAY_LEVEL, None)
    if unique := half.get(keys.UNIQUE_KEY):
        half[keys.TRANSACTION_ID] = unique
    return half


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether this is a half message, and not a message that a consumer sends back for a later retry."""
    is_retry = reconsume_times > 0 and properties.get(keys.DELAY_LEVEL, "0").lstrip("0") != ""
    return properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true" and not is_retry
