"""The columns of a message, as Spark and Arrow name them.

`TYPES` is Spark's DDL, and `arrow_schema` must match what Spark makes of it: Spark refuses a batch whose types differ.
Nullability counts as a difference only where a column is declared NOT NULL, which none of these is.
"""

from typing import Final

import pyarrow as pa

from gantry_wire import properties as names

TYPES: dict[str, str] = {
    "topic": "string",
    "broker": "string",
    "queue": "int",
    "offset": "bigint",
    "tags": "string",
    "keys": "string",
    "messageId": "string",
    "bornTime": "timestamp",
    "storeTime": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "flag": "int",
    "sysFlag": "int",
    "reconsumeTimes": "int",
    "physicalOffset": "bigint",
    "size": "int",
    "bodySize": "int",
    "properties": "map<string,string>",
    "body": "binary",
}
"""In the order of a row. `size` is the size of the stored record, `bodySize` that of the body as stored; `body` is
decompressed, and null if it cannot be. `keys` are as the sender wrote them (separated by spaces); `messageId` is the
sender's (UNIQ_KEY), else the broker's; `properties` has all but the record's own checksum. An invalid time is null."""

COLUMNS: tuple[str, ...] = tuple(TYPES)

_NOT_HEADER = frozenset({"properties", "body", "tags", "keys", "messageId"})
"""The columns that need the body or the properties of a message."""

HEADER_COLUMNS: tuple[str, ...] = tuple(name for name in COLUMNS if name not in _NOT_HEADER)
"""Columns that need neither body nor properties; reading only these is several times faster."""

ARROW_OF: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
}
"""Arrow's types by Spark's type names."""

SYSTEM_PROPERTIES: Final = frozenset(
    {
        names.KEYS, names.TAGS, names.WAIT_STORE, names.DELAY_LEVEL, names.RETRY_TOPIC, names.REAL_TOPIC,
        names.REAL_QUEUE_ID, names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES, names.CHECK_IMMUNITY_SECONDS, names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.MIN_OFFSET, names.MAX_OFFSET, names.ORIGIN_MESSAGE_ID, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES,
        names.MESSAGE_REGION, names.TRACE_ON, names.UNIQUE_KEY, names.CLUSTER, names.RECORD_CRC,
        names.TIMER_DELAY_SECONDS, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.POP_CHECKPOINT,
        names.BORN_HOST, names.INSTANCE_ID,
    }
)  # fmt: skip
"""Properties that RocketMQ reserves: some are columns, brokers and clients write the others."""


def ddl(columns: tuple[str, ...] = COLUMNS) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"`{name}` {TYPES[name]}" for name in columns)


def arrow_schema(columns: tuple[str, ...] = COLUMNS) -> pa.Schema:
    """Return the columns as an Arrow schema."""
    return pa.schema([pa.field(name, ARROW_OF[TYPES[name]]) for name in columns])
