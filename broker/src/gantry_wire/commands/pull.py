"""Requests that read messages, and the replies to them."""

from typing import Final

from gantry_wire.codes import RequestCode
from gantry_wire.commands.fields import Fields, Int32, Int64

PULL_PREFIX: Final = b'{"code":%d,' % RequestCode.PULL_MESSAGE
"""How the JSON header of a pull (code 11) begins in its usual form."""

PULL_COMMIT_OFFSET: Final = 0x1
"""The bit of ``sys_flag`` if the pull also commits ``commit_offset``."""
PULL_SUSPEND: Final = 0x2
"""The bit if the broker may hold the pull."""
PULL_SUBSCRIPTION: Final = 0x4
"""The bit if the pull has an expression of its own."""
PULL_CLASS_FILTER: Final = 0x8
"""The bit of RocketMQ 4's filters by a Java class, which are not supported."""
PULL_LITE: Final = 0x10
"""The bit of lite pull consumers, which assign queues to themselves."""


class PullMessage(Fields):
    """Codes 11 and 361: messages of one queue from an offset on. The broker may hold the request."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    """The bits above that hold for this pull."""

    commit_offset: Int64
    suspend_timeout_millis: Int64
    """How long the broker may hold the pull."""

    sub_version: Int64
    subscription: str | None = None
    """The expression of the filter."""

    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class PullResult(Fields):
    """The header of the reply to a pull. The remark of the reply names the status in RocketMQ's words."""

    suggest_which_broker_id: Int64
    """The broker id from which to pull next."""

    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueryMessage(Fields):
    """Code 12: messages by key."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    """Since RocketMQ 5.4: `K` for a key, `U` for a unique id, `T` for a tag."""


class QueryMessageResult(Fields):
    """The header of the reply to code 12."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64
    """Where the last message in the index begins in the log."""


class ViewMessage(Fields):
    """Code 33: the one message at a physical offset."""

    offset: Int64
    topic: str | None = None
