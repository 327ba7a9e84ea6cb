"""Requests that append messages to the log, the replies to them, and the request by which a broker pushes a reply."""

from gantry_wire.commands.fields import Fields, Int32, Int64


class MessageFields(Fields):
    """The fields of each header that travels with a message."""

    producer_group: str
    topic: str
    default_topic: str
    """The topic whose settings an unknown topic gets when it is created."""

    default_topic_queue_nums: Int32
    """The largest number of queues that it gets."""

    queue_id: Int32
    sys_flag: Int32
    """RocketMQ's flags of the message: compression, transaction, kinds of hosts."""

    born_timestamp: Int64
    flag: Int32
    """A number for use by the application."""


class SendMessage(MessageFields):
    """Code 10: one message, or a batch of them; code 324: a reply. `SendMessageV2` has the same fields, renamed."""

    properties: str | None = None
    reconsume_times: Int32 | None = None
    """How often consumers have sent the message back."""

    unit_mode: bool | None = None
    """A flag of RocketMQ's deployments in units, without effect here."""

    batch: bool | None = None
    """Whether the body is a batch."""

    max_reconsume_times: Int32 | None = None


class SendMessageV2(
    Fields,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    },
):
    """Codes 310, 320 and 325: `SendMessage` with names of one letter, as Java clients send it, and a broker name.

    The fields are listed again, since a struct renames only those of its own.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None


class SendResult(Fields):
    """The reply to a send: the broker's ids of the messages, and the queue offset of the first one."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    """The unique id that the request named, or that the broker made for a single message without one."""

    batch_uniq_id: str | None = None
    """Set only for topics with batch consume queues, which this broker does not have."""

    recall_handle: str | None = None
    """The handle of a timer message, for code 370."""


class SendBack(Fields):
    """Code 36: a consumer could not consume the message at `offset` of the log."""

    offset: Int64
    group: str
    delay_level: Int32
    """The delay before the retry: 0 leaves it to the broker, a negative one gives the message up."""

    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class PushReply(MessageFields):
    """Code 326, broker to client: a reply as it was sent, with its origin. The body is the message's."""

    born_host: str
    """The replying client as `host:port`."""
    store_host: str
    """The broker's address as `host:port`."""
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
