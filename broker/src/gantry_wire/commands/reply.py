"""The request by which a broker hands a reply to whoever asked."""

from gantry_wire.commands.fields import Fields, Int32, Int64


class PushReply(Fields):
    """Code 326, broker to client: a reply as it was sent, with where it comes from. The body is the message's."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    """`host:port` of the replier."""
    store_host: str
    """`host:port` of the broker."""
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
