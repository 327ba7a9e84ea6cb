"""What is answered of a whole group: members, shards, and the durability ledger of each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gantry_admin.documents import AtRiskDocument, Document, StatusDocument


class MemberDocument(Document):
    """One broker of the group as its sidecar says."""

    url: str
    is_self: bool
    is_reachable: bool
    age_ms: int | None
    fault: str | None
    status: StatusDocument | None


class RiskDocument(Document):
    """What one fault would take from a shard now."""

    fault: Literal["process", "machine", "disk", "slave"] = Field(
        description="The master's process, its machine (which comes back with its disk), its disk, or its furthest "
        "slave and then its disk."
    )
    bytes: int | None = Field(description="That were acknowledged and are nowhere else.")
    age_ms: int | None = Field(description="Of the oldest of them, at most.")
    band: str = Field(description="A round number that holds `bytes`: what status of a group and alerts show.")


class LedgerDocument(Document):
    """The durability ledger of a shard: the very one by which rolls wait and failovers are refused."""

    is_fresh: bool = Field(description="Whether it rests on something that was seen a moment ago.")
    master: int | None = Field(description="The number of the broker that it is about.")
    epoch: int | None
    acknowledged: int | None = Field(description="Up to where clients may have been told that it is safe.")
    wrote: int | None
    committed: int | None
    flushed: int | None
    replicated: int | None = Field(description="What the furthest slave has that may be promoted.")
    acks_needed: int
    in_sync: list[int] = Field(description="Slaves within `--max-lag`, by number.")
    is_draining: bool
    bound: str | None = Field(description="What the bytes at risk wait for: buffer, disk or slave.")
    flush_mode: Literal["sync", "async"] = Field(description="Whether the disk is waited for; `async` if not known.")
    risks: list[RiskDocument]


class ShardDocument(Document):
    """The brokers of one name: one master and its slaves."""

    broker_name: str
    epoch: int | None = Field(description="The newest that any of them has.")
    masters: list[str] = Field(
        description="Who says that it is the master in the newest epoch, by sidecar; one, if all is well."
    )
    stale_masters: list[str] = Field(description="Who says so in an older epoch.")
    members: list[str]
    wrote: int | None
    confirmed: int | None
    at_risk: list[AtRiskDocument] = Field(description="As the master's sidecar sees it; its slaves count only at last.")
    ledger: LedgerDocument | None = Field(default=None, description="Null without one master that has said who it is.")


class GroupDocumentView(Document):
    """This broker and the others whose sidecars are known, in one picture."""

    shards: list[ShardDocument]
    members: list[MemberDocument]
