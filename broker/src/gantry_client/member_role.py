"""The role of a member in its consumer group."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRole:
    """The group and the kind of one member."""

    group: str
    is_ordered: bool = False
    is_passive: bool = True
    """True for a push consumer, which also consumes the retry topic of its group; False for a poll consumer. The
    brokers receive it with every heartbeat."""
