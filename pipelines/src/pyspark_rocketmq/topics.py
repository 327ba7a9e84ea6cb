"""Which topics are an application's, and which are RocketMQ's own."""

from typing import Final

from gantry_wire.names import SYSTEM_TOPICS, is_retry_or_dead_letter

_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
REPLY_SUFFIX: Final = "_REPLY_TOPIC"


def is_internal(topic: str) -> bool:
    """Whether it is left out where topics are not named one by one. Brokers and clusters also have topics of their own
    names, which only name servers can tell."""
    return (
        topic in SYSTEM_TOPICS
        or is_retry_or_dead_letter(topic)
        or topic.startswith(_PREFIXES)
        or topic.endswith(REPLY_SUFFIX)
    )
