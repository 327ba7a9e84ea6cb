"""From looks and words to documents. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from gantry_admin.at_risk import AtRisk
from gantry_admin.documents import (
    AtRiskDocument,
    BrokerMotion,
    BufferDocument,
    DiskDocument,
    LeaseDocument,
    RangeDocument,
    RoleDocument,
    SlaveDocument,
    StatusDocument,
)
from gantry_admin.health import motion, moving_words
from gantry_admin.lease_renewal import LeaseWord
from gantry_admin.settings import HealthSettings
from gantry_admin.watch import Look
from gantry_status import LogRange, Status
from gantry_status.broker_state import BrokerState, RangeState

IN_ANOTHER_FORM: Final = {"phase", "role", "slaves", "store_uuid", "log_missing_ranges", "last_error"}
PAGE_NAMES: Final = frozenset(StatusDocument.model_fields) & {field.name for field in fields(Status)} - IN_ANOTHER_FORM
"""What the document of a status shows of the page as it is."""


def motion_document(look: Look, now_ns: int, settings: HealthSettings) -> BrokerMotion:
    """Whether the broker moves."""
    return BrokerMotion(
        state=motion(look, now_ns, settings).value,
        reason=moving_words(look, now_ns, settings),
        since_ms=look.age_ms(now_ns),
        last_heartbeat_wall_ms=None if look.reading is None else look.reading.status.published_wall_ms,
    )


def risk_documents(risks: tuple[AtRisk, ...]) -> list[AtRiskDocument]:
    """What would be lost."""
    return [AtRiskDocument(loss=risk.loss.value, bytes=risk.bytes, seconds=risk.seconds) for risk in risks]


def lease_document(word: LeaseWord, now_ns: int) -> LeaseDocument:
    """How the Lease stands."""
    age_ms = None if word.renewed_ms is None else max(now_ns // 1_000_000 - word.renewed_ms, 0)
    return LeaseDocument(
        is_held=age_ms is not None and word.duration_ms is not None and age_ms < word.duration_ms,
        renewed_age_ms=age_ms,
        duration_ms=word.duration_ms,
        reason=word.reason or None,
    )


def role_document(state: BrokerState) -> RoleDocument:
    """What the broker reported about its role: the fields of its state that the document has."""
    document = {name: getattr(state, name) for name in RoleDocument.model_fields}
    return RoleDocument(
        **document
        | {
            "role": state.role.value.lower(),
            "electable": list(state.electable),
            "acks_needed": state.acks_needed or 0,
            "master": state.master or None,
            "trouble": state.trouble or None,
            "missing": _range_documents(state.missing),
            "accepted": _range_documents(state.accepted),
        }
    )


def missing_range_documents(status: Status | None, word: BrokerState | None) -> list[RangeDocument]:
    """The ranges that add up to the page's missing bytes: the broker's own list if it does, else the page's."""
    if status is None or not status.log_missing_bytes:
        return []
    if word is not None and word.missing_bytes == status.log_missing_bytes:
        return _range_documents(word.missing)
    return _range_documents(status.log_missing_ranges)


def _range_documents(ranges: Sequence[LogRange | RangeState]) -> list[RangeDocument]:
    return [RangeDocument(start=one.start, end=one.end) for one in ranges]


def slave_documents(status: Status, word: BrokerState | None, now_ns: int) -> list[SlaveDocument]:
    """Numbers from the page, which are fresher; names from what the broker said."""
    names = {slave.number: slave for slave in word.slaves} if word is not None else {}
    found = []
    for slave in status.slaves:
        name = names.get(slave.slave_id)
        behind = None if slave.received is None or status.wrote is None else max(status.wrote - slave.received, 0)
        seen = slave.last_seen_boottime_ns
        found.append(
            SlaveDocument(
                slave_id=slave.slave_id,
                identity=None if name is None else name.identity,
                address=None if name is None else name.address or None,
                received=slave.received,
                flushed=slave.flushed,
                behind_bytes=behind,
                silent_ms=None if seen is None else max(now_ns - seen, 0) // 1_000_000,
            )
        )
    return found


def page_values(status: Status | None) -> dict[str, Any]:
    """The values of ``PAGE_NAMES``; null without a page."""
    return {name: None if status is None else getattr(status, name) for name in PAGE_NAMES}


def buffer_document(status: Status) -> BufferDocument:
    """The write buffer."""
    return BufferDocument(
        medium=status.pool_medium.name.lower(),
        buffers_total=status.pool_buffers_total,
        buffers_free=status.pool_buffers_free,
        is_crash_safe=status.is_crash_safe,
    )


def disk_document(status: Status) -> DiskDocument:
    """The disk."""
    return DiskDocument(total_bytes=status.disk_total_bytes, used_bytes=status.disk_used_bytes)
