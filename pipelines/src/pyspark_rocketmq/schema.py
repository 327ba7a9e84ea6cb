"""The columns of a message, as Spark and Arrow call them.

`TYPES` is Spark's DDL, and `arrow_schema` has to be what Spark makes of it: a batch whose types differ is refused by
Spark, and nullability counts as a difference only where a column is declared NOT NULL, which none of these is.
"""

from typing import Final

import pyarrow as pa

from gantry_wire import properties as words

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
"""In the order of the rows. `size` is that of the stored record, `bodySize` that of the body as stored; `body` is
unpacked, and null if it cannot be. `keys` as the sender wrote them (words, separated by spaces); `messageId` is the
sender's (UNIQ_KEY), else the broker's; `properties` has all but the record's own checksum. A time that is none is
null."""

COLUMNS: tuple[str, ...] = tuple(TYPES)

_NOT_HEADER = frozenset({"properties", "body", "tags", "keys", "messageId"})

HEADER_COLUMNS: tuple[str, ...] = tuple(name for name in COLUMNS if name not in _NOT_HEADER)
"""What is known without looking into body and properties; reading only these is several times faster."""

ARROW_OF: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
}
"""Arrow's types by Spark's."""

SYSTEM_PROPERTIES: Final = frozenset(
    {
        words.KEYS, words.TAGS, words.WAIT_STORE, words.DELAY_LEVEL, words.RETRY_TOPIC, words.REAL_TOPIC,
        words.REAL_QUEUE_ID, words.TRANSACTION_PREPARED, words.PRODUCER_GROUP, words.TRANSACTION_ID,
        words.TRANSACTION_CHECK_TIMES, words.CHECK_IMMUNITY_SECONDS, words.TRANSACTION_PREPARED_QUEUE_OFFSET,
        words.MIN_OFFSET, words.MAX_OFFSET, words.ORIGIN_MESSAGE_ID, words.RECONSUME_TIME, words.MAX_RECONSUME_TIMES,
        words.MESSAGE_REGION, words.TRACE_ON, words.UNIQUE_KEY, words.CLUSTER, words.RECORD_CRC,
        words.TIMER_DELAY_SECONDS, words.TIMER_DELAY_MS, words.TIMER_DELIVER_MS, words.POP_CHECKPOINT,
        words.BORN_HOST, words.INSTANCE_ID,
    }
)  # fmt: skip
"""Properties with a meaning of their own: columns say some of them, brokers and clients write the others."""


def ddl(columns: tuple[str, ...] = COLUMNS) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {TYPES[name]}" for name in columns)


def arrow_schema(columns: tuple[str, ...] = COLUMNS) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([pa.field(name, ARROW_OF[TYPES[name]]) for name in columns])
