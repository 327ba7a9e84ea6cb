"""The role of a consumer in its group."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRole:
    """The group and the kind of one consumer."""

    group: str
    is_ordered: bool = False
    """Whether it consumes the messages of a queue one after the other, under a lock."""

    is_passive: bool = True
    """True for a push consumer, which also consumes the retry topic of its group, unless it is a broadcast consumer;
    False for a poll consumer. The brokers receive it with every heartbeat."""
