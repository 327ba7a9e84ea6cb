"""The draft of a message: the fields that the append loop needs, in the order in which it unpacks them.

A tuple, since one is created for every message: positional construction costs a tenth of a microsecond, and the loop
unpacks it in one step. All fields are final; the store adds offsets, its time, its host and the seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_wire.seal import sealable_properties


class Draft(NamedTuple):
    """One message to append to the log."""

    queue: ConsumeQueue
    """The queue, from ``QueueTable.get_or_create(topic, queue_id)``."""

    body: bytes | memoryview
    """The body as sent, which is never decompressed."""

    properties: bytes
    """The encoded properties, at most 32767 bytes, without a seal: the store adds its own."""

    sys_flag: int
    """RocketMQ's system flags, with bit 0x10 exactly when ``born_host`` has 20 bytes."""

    flag: int
    """The producer's own flag, which RocketMQ stores and does not use."""

    born_timestamp_ms: int
    """When the producer created the message, by its clock."""

    born_host: bytes
    """The producer's address: 8 bytes (IPv4 and port) or 20 (IPv6 and port)."""

    reconsume_times: int
    """How often consumers have sent the message back to be retried."""

    prepared_offset: int
    """In the message that ends a transaction, the offset of its half message; else 0."""

    tags_code: int
    """The tags code of the queue unit, unless there is a delay."""

    delay_ms: int
    """If above 0, the queue unit holds the delivery time instead of the tags code: store time plus this."""

    keys: Sequence[str]
    """Keys to index: the unique key, then the user's keys. Empty if the message is not indexed."""

    def record_bytes(self, store_host_bytes: int) -> int:
        """Return the size of the record. The append loop computes the same value inline."""
        properties, seal_bytes = sealable_properties(self.properties)
        hosts_extra = len(self.born_host) - 8 + store_host_bytes - 8
        return self.queue.record_overhead + len(self.body) + len(properties) + seal_bytes + hosts_extra
