"""What `gantry ha` says to programs about a whole group; single orders are answered with what the broker says."""

from __future__ import annotations

from dataclasses import dataclass

from gantry_cli.ha_group import Member
from gantry_cli.ha_steps import Step
from gantry_status.broker_state import document_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersDocument:
    """`gantry ha status`: a group."""

    members: list[Member]


def members_document(members: list[Member]) -> dict[str, object]:
    """The same, with -1 for what the brokers do not know."""
    return {
        "members": [
            {
                "path": one.path,
                "status": None if one.status is None else document_of(one.status),
                "failure": one.failure,
            }
            for one in members
        ]
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDocument:
    """`gantry ha promote`: who is the master now. After a failure only `error` and `steps` are there."""

    error: str | None
    epoch: int
    master: str
    number: int
    loss: str
    is_complete: bool
    steps: list[Step]
