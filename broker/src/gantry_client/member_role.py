"""What kind of member of a group somebody is."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRole:
    """What kind of member this is."""

    group: str
    is_ordered: bool = False
    is_passive: bool = True
    """Messages are pushed at it; False for one that asks for them. Only told to the brokers."""
