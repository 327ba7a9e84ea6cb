"""A message on its way into the log: what the append loop needs of it, in the order it takes it apart.

A tuple, since one is made for every message: positional construction costs a tenth of a microsecond, and the loop
unpacks it in one step. Everything in it is final; the store adds offsets, its time, its host and the seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_wire.seal import sealable_properties


class Draft(NamedTuple):
    """One message to append."""

    queue: ConsumeQueue
    """From ``QueueTable.get_or_create(topic, queue_id)``."""

    body: bytes | memoryview
    """As sent; never decompressed."""

    properties: bytes
    """Encoded, at most 32767 bytes, without a seal: the store adds its own."""

    sys_flag: int
    """With bit 0x10 exactly when ``born_host`` has 20 bytes."""

    flag: int
    born_timestamp_ms: int
    born_host: bytes
    """8 bytes (IPv4 and port) or 20 (IPv6 and port)."""

    reconsume_times: int
    prepared_offset: int
    tags_code: int
    """What the consume queue says of the tags, unless there is a delay."""

    delay_ms: int
    """Above 0: the queue says the delivery time instead, store time plus this."""

    keys: Sequence[str]
    """What the message is found by: the unique key, then the user's keys. Empty: not indexed."""

    def record_bytes(self, store_host_bytes: int) -> int:
        """How long its record will be. The append loop computes the same on its way."""
        properties, seal_bytes = sealable_properties(self.properties)
        hosts_extra = len(self.born_host) - 8 + store_host_bytes - 8
        return self.queue.record_overhead + len(self.body) + len(properties) + seal_bytes + hosts_extra
