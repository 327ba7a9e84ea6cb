"""The properties of a message that belong to the system: applications neither set nor see them."""

from typing import Final

from gantry_wire import properties as wire

SHARDING_KEY: Final = wire.SHARDING_KEY
"""The message group."""
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PRIORITY: Final = wire.PRIORITY
"""The priority of a message, from RocketMQ 5.4 on."""
