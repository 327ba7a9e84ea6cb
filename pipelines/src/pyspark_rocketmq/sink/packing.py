"""Turn rows into entries of batches, or into single messages. Pure.

    row --> [UNIQ_KEY, WAIT, SPARK_ID, TAGS, KEYS, __SHARDINGKEY, its own] + body

Every message has the property `SPARK_ID`: its row, partition, batch and query. A repeated batch repeats the ids as long
as its plan is deterministic, so a consumer can drop a message whose id it has already processed.
"""

from __future__ import annotations

from typing import Final, final

from gantry_client import Message
from gantry_wire import properties as names
from gantry_wire.batch import ENTRY_BYTES_MIN, BatchEntry
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from pyspark_rocketmq.errors import InvalidRow
from pyspark_rocketmq.sink.rows import SHARDING_KEY, SPARK_ID, Row

_K: Final = names.KEY_END
_V: Final = names.VALUE_END
BROKERS_PROPERTIES_BYTES: Final = 512
"""Bytes that brokers add to the properties of a message: region, cluster, a checksum, and the real topic and queue of a
half message."""


@final
class Packer:
    """Packs the rows of one partition of one batch."""

    def __init__(self, identity: str) -> None:
        """Create a packer; ``identity`` is `query:batch:partition`."""
        self.identity: Final = identity
        self._head: Final = f"{names.UNIQUE_KEY}{_K}"
        self._middle: Final = f"{_V}{names.WAIT_STORE}{_K}true{_V}{SPARK_ID}{_K}{identity}:"

    def entry(self, row: Row, message_id: str) -> BatchEntry:
        """Return a row as an entry of a batch. Raises InvalidRow."""
        text = f"{self._head}{message_id}{self._middle}{row.number}{_V}"
        if row.tags:
            text += f"{names.TAGS}{_K}{row.tags.strip()}{_V}"
        if row.keys:
            text += f"{names.KEYS}{_K}{names.KEY_SEPARATOR.join(row.keys)}{_V}"
        if row.sharding_key is not None:
            text += f"{SHARDING_KEY}{_K}{row.sharding_key}{_V}"
        for name, value in row.properties:
            text += f"{name}{_K}{value}{_V}"
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRow(f"row {row.number}: a property, tag or key is not Unicode text: {error}") from error
        if len(encoded) > PROPERTIES_BYTES_MAX - BROKERS_PROPERTIES_BYTES:
            raise InvalidRow(
                f"row {row.number}: its properties, tags and keys have {len(encoded)} bytes, "
                f"the limit is {PROPERTIES_BYTES_MAX - BROKERS_PROPERTIES_BYTES}"
            )
        return BatchEntry(row.flag, row.body, encoded)

    def message(self, row: Row) -> Message:
        """Return a row as a single message."""
        return Message(
            row.topic, row.body, tags=row.tags or None, keys=row.keys,
            properties={**dict(row.properties), SPARK_ID: f"{self.identity}:{row.number}"},
            delay_level=row.delay_level, sharding_key=row.sharding_key, flag=row.flag,
        )  # fmt: skip


def entry_bytes(entry: BatchEntry) -> int:
    """Return the bytes of an entry in a request."""
    return ENTRY_BYTES_MIN + len(entry.body) + len(entry.properties)
