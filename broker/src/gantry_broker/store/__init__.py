"""The message store: a durable commit log, and the consume queues and the key index that are derived from it.

``MessageStore`` is the entry point. It appends ``Draft`` values and returns ``ReadResult`` values.
"""

from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.settings import FlushSettings, StoreSettings, parse_delay_levels

__all__ = [
    "ConfigFile",
    "ConsumeQueue",
    "Draft",
    "FlushSettings",
    "MessageStore",
    "ReadResult",
    "ReadStatus",
    "RecoveryReport",
    "StoreSettings",
    "parse_delay_levels",
]
