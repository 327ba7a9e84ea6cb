"""What commands say to programs: one type for each document, and one table of which command says which.

The names of fields are a promise: they stay, and new ones may come. What a document is made of elsewhere (a broker's
status, what is found in a store) is the type of that place, so that no copy of it can lag behind. docs/output.md shows
all of them, and a test compares it with this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypedDict

import msgspec

from gantry_broker.store.inspect.findings import Finding
from gantry_broker.store.inspect.repair_plan import RepairPlan
from gantry_broker.store.inspect.summary import StoreSummary
from gantry_broker.store.message_store import RecoveryReport
from gantry_cli.cluster_view import BrokerView, GroupView, TopicView
from gantry_cli.ha_group import Member
from gantry_cli.ha_steps import Step
from gantry_cli.local.look import Look
from gantry_cli.migrate_plan import Outcome
from gantry_cli.stack import StackRecord
from gantry_status.orders import HaStatus, Promised


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """`gantry status`: a cluster."""

    name_server: str
    local_stack: StackRecord | None
    """The `gantry up` here, if it is that cluster."""
    brokers: tuple[BrokerView, ...]
    topics: tuple[TopicView, ...]
    topics_total: int
    groups: tuple[GroupView, ...]
    local_group: Look | None = None
    """The group of `gantry up` here, if it is that cluster, as its supervisor saw it last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDocument:
    """One queue of a topic: messages `[min_offset, max_offset)`."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_message_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDocument:
    """`gantry topic describe`: one topic."""

    topic: TopicView
    queues: list[QueueDocument]
    groups: list[GroupView]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreatedDocument:
    """`gantry topic create`: what there is now."""

    topic: str
    queues: int
    brokers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletedDocument:
    """`gantry topic delete`: what went."""

    topic: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDocument:
    """`gantry produce`: what became of one message."""

    status: str
    message_id: str
    offset_message_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class MessageDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`gantry consume`: one message. Of the last three fields there is one."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    store_timestamp_ms: int
    born_timestamp_ms: int
    born_host: str
    tags: str | None
    keys: list[str]
    reconsume_times: int
    properties: dict[str, str]
    body: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    """A body that is no UTF-8 text."""
    body_fault: str | msgspec.UnsetType = msgspec.UNSET
    """Why the body cannot be unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDocument:
    """`gantry group resend`: where dead letters went."""

    group: str
    is_dry_run: bool
    sent: dict[str, int]
    without_origin: list[str]
    unreadable: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersDocument:
    """`gantry ha status`: a group."""

    members: list[Member]


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


class VerifyDocument(TypedDict):
    """`gantry store verify`: what was compared, and what was found."""

    root: str
    is_in_use: bool
    is_clean: bool
    start: int
    end: int
    is_whole: bool
    is_interrupted: bool
    records: int
    records_bytes: int
    records_sealed: int
    queues: int
    units: int
    older_records: int
    index_files: int
    index_entries: int
    elapsed_s: float
    gb_per_s: float
    is_damaged: bool
    lost_messages: int
    harms: dict[str, int]
    findings_omitted: int
    findings: list[Finding]


class RecordDocument(TypedDict, total=False):
    """`gantry store dump`: one record, or what is there instead; then `damaged` and `reason` are there."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    born_timestamp_ms: int
    born_host: str
    store_host: str
    message_id: str
    flag: int
    sys_flag: int
    reconsume_times: int
    prepared_offset: int
    properties: dict[str, str]
    body_bytes: int
    body: str
    body_hex: str
    body_base64: str
    body_fault: str
    damaged: bool
    reason: str
    length: int | None
    around: str
    around_start: int


DOCUMENTS: Final[dict[str, Any]] = {
    "gantry status": ClusterDocument,
    "gantry topic list": list[str],
    "gantry topic create": TopicCreatedDocument,
    "gantry topic delete": TopicDeletedDocument,
    "gantry topic describe": TopicDocument,
    "gantry produce": ReceiptDocument,
    "gantry consume": MessageDocument,
    "gantry group resend": ResendDocument,
    "gantry store inspect": StoreSummary,
    "gantry store verify": VerifyDocument,
    "gantry store dump": RecordDocument,
    "gantry store repair-plan": RepairPlan,
    "gantry store recover": RecoveryReport,
    "gantry ha status": MembersDocument,
    "gantry ha promote": MoveDocument,
    "gantry ha promise": Promised,
    "gantry ha follow": HaStatus,
    "gantry ha demote": HaStatus,
    "gantry ha fence": HaStatus,
    "gantry ha drain": HaStatus,
    "gantry ha flush": HaStatus,
    "gantry migrate": Outcome,
}
