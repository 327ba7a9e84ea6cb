"""Requests about timer messages: recalling one, and the state of the broker's timers."""

import struct
from typing import Final, NamedTuple, Self

import msgspec

from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.clients import Document
from gantry_wire.commands.fields import Fields
from gantry_wire.errors import RemoteProtocolError

_CHECKPOINT: Final = struct.Struct(">7q")

ENGINE_TYPE: Final = "E_T"
"""The field of code 5001 that names the engine of timers."""
ENGINE_FILES: Final = "F"
"""The engine that keeps timers in files, RocketMQ's default."""
ENGINE_ROCKSDB: Final = "R"
"""The engine that keeps timers in RocksDB."""


class RecallMessage(Fields):
    """Code 370: recall a message that was not delivered yet."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallResult(Fields):
    """The reply to code 370: the unique id of the recalled message."""

    msg_id: str


class TimerCheckpoint(NamedTuple):
    """The body of the reply to code 60: the progress of the broker's timers, as RocketMQ's slaves copy it."""

    last_read_ms: int
    """Messages that are due before this time are delivered."""

    log_flushed: int
    """The flushed end of RocketMQ's own timer log; Gantry has none."""

    queue_offset: int
    """The offset in the queue of timer messages up to which they are in the files of the timers."""

    master_queue_offset: int
    """The same offset of the master."""

    state_version: int
    timestamp: int
    counter: int

    def encode(self) -> bytes:
        """Return the bytes of the body."""
        return _CHECKPOINT.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body. Raises RemoteProtocolError for one of another size."""
        if len(data) != _CHECKPOINT.size:
            raise RemoteProtocolError(f"a timer checkpoint has {_CHECKPOINT.size} bytes, and this one has {len(data)}")
        return cls(*_CHECKPOINT.unpack(data))


class TimerMetric(Document):
    """The number of pending timer messages of one topic."""

    count: int = 0
    time_stamp: int = 0


class TimerMetrics(Document):
    """The body of the reply to code 61."""

    data_version: DataVersion | None = None
    timing_count: dict[str, TimerMetric] = msgspec.field(default_factory=dict)
    """The number of pending timer messages, by topic."""
