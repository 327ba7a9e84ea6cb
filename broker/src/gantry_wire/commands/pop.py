"""Requests of pop consumption, in which the broker decides which messages a consumer gets, and the replies to them.

    200050 pop                  -> messages, which stay invisible to the group for a while; each has a receipt
    200051, 200151 ack          the consumer is done with the message (or with several)
    200053 change invisible     -> a new receipt; the message is invisible for another time
    200052 peek                 -> messages, which stay visible
    200054, 200055              whether messages wait, how many requests wait
    400, 401, 402               which queues a consumer reads, and whether by pull or by pop

See `gantry_wire.pop_receipts` for receipts, and for the texts of a reply from which a consumer makes them.
"""

from typing import Final

import msgspec

from gantry_wire.commands.clients import Document, MessageQueue
from gantry_wire.commands.fields import Fields, Int32, Int64

START_AT_MIN: Final = 0
"""The ``init_mode`` of a group that starts with the oldest message of a queue."""
START_AT_MAX: Final = 1
"""The ``init_mode`` of a group that starts with the newest message of a queue."""

MODE_PULL: Final = "PULL"
MODE_POP: Final = "POP"


class PopMessage(Fields):
    """Code 200050: messages for a group, from one queue or from any. The broker may hold the request."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """The queue; -1 for any."""

    max_msg_nums: Int32
    invisible_time: Int64
    """For how many milliseconds the messages stay invisible to other consumers of the group."""

    poll_time: Int64
    """For how many milliseconds the broker may hold the request."""

    init_mode: Int32
    born_time: Int64 = 0
    """The time of the request by the client's clock."""

    exp_type: str | None = None
    exp: str | None = None
    """The expression of the filter."""

    order: bool = False
    """Whether the messages of a queue are consumed in their order: a queue is locked until they are acked."""

    attempt_id: str | None = None
    """With ``order``: an id by which a repeated request gets the messages of the lost reply again."""


class PopResult(Fields):
    """The header of the reply to code 200050."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    """The number of messages that remain in the queues."""

    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(Fields):
    """Code 200051: a consumer is done with one message."""

    consumer_group: str
    topic: str
    """The topic of the queue: for a message that was redelivered, the retry topic."""

    queue_id: Int32
    extra_info: str
    """The receipt."""

    offset: Int64
    """The offset of the message in the queue."""


class BatchAck(Document, omit_defaults=False):
    """Acks of messages of one checkpoint, in the body of code 200151."""

    consumer_group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    """The topic to which the messages were sent, also if they were redelivered."""

    retry: str = msgspec.field(name="r")
    """The retry flag of the receipt."""

    start_offset: Int64 = msgspec.field(name="so")
    queue_id: Int32 = msgspec.field(name="q")
    revive_queue_id: Int32 = msgspec.field(name="rq")
    pop_time: Int64 = msgspec.field(name="pt")
    invisible_time: Int64 = msgspec.field(name="it")
    bit_set: bytes = msgspec.field(name="b")
    """The acked messages: bit ``n`` of this little-endian number is the message at ``start_offset + n``."""


class BatchAckMessages(Document):
    """The body of code 200151: acks of messages from several checkpoints."""

    broker_name: str | None = None
    acks: list[BatchAck] = msgspec.field(default_factory=list)


class ChangeInvisibleTime(Fields):
    """Code 200053: a consumer needs more time for a message, or wants it back sooner."""

    consumer_group: str
    topic: str
    """The topic of the queue, as in ``AckMessage``."""

    queue_id: Int32
    extra_info: str
    """The receipt."""

    offset: Int64
    invisible_time: Int64
    """For how many milliseconds from now on the message is invisible."""

    suspend: bool = False
    """Whether the delivery did not fail, so that the next one is not counted; since RocketMQ 5.5."""


class ChangeInvisibleTimeResult(Fields):
    """The header of the reply to code 200053, from which the client makes the new receipt."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessage(Fields):
    """Code 200052: the next messages of a group, which stay visible."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class Notification(Fields):
    """Code 200054: wait until there are messages that a pop would return."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationResult(Fields, omit_defaults=False):
    """The header of the reply to code 200054."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfo(Fields):
    """Code 200055: how many pops of a group wait for messages of a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResult(Fields):
    """The header of the reply to code 200055."""

    polling_num: Int32


class QueryAssignment(Document):
    """The body of code 400: which queues of a topic a consumer should read."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str = "CLUSTERING"


class QueueAssignment(Document):
    """One queue that a consumer should read, by pull or by pop; the queue id -1 of a pop stands for any queue."""

    message_queue: MessageQueue | None = None
    mode: str = MODE_PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResult(Document):
    """The body of the reply to code 400."""

    message_queue_assignments: list[QueueAssignment] = msgspec.field(default_factory=list)


class MessageRequestMode(Document):
    """The body of code 401: whether a group reads a topic by pull or by pop."""

    topic: str
    consumer_group: str
    mode: str = MODE_PULL
    pop_share_queue_num: Int32 = 0
    """How many other consumers also read the queues of a consumer that pops; 0 or at least their number: all."""


class MessageRequestModes(Document):
    """The body of the reply to code 402, and the file ``messageRequestMode.json``: topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = msgspec.field(default_factory=dict)
