"""Pure functions that build the answer documents from observations and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, Literal

from gantry_admin.at_risk import AtRisk
from gantry_admin.documents import (
    AtRiskDocument,
    BufferDocument,
    DiskDocument,
    LeaseDocument,
    LoopStateDocument,
    RangeDocument,
    RoleDocument,
    SlaveDocument,
    StatusDocument,
)
from gantry_admin.health import describe_loop_state, loop_state_of
from gantry_admin.lease_renewal import LeaseRenewalStatus
from gantry_admin.settings import HealthSettings
from gantry_admin.watch import PageObservation
from gantry_status import HotPath, LogRange, Status
from gantry_status.broker_state import BrokerState, RangeState

IN_ANOTHER_FORM: Final = {"phase", "role", "slaves", "store_uuid", "log_missing_ranges", "last_error"}
"""The fields of both documents whose values are converted."""

PAGE_NAMES: Final = frozenset(StatusDocument.model_fields) & {field.name for field in fields(Status)} - IN_ANOTHER_FORM
"""The fields of a status document that are copied unchanged from the status page."""

HOT_PATHS: Final[dict[HotPath, Literal["compiled", "python"] | None]] = {
    HotPath.UNKNOWN: None,
    HotPath.PYTHON: "python",
    HotPath.COMPILED: "compiled",
}
"""The words of a status document for the broker's hot path."""


def loop_state_document(observation: PageObservation, now_ns: int, settings: HealthSettings) -> LoopStateDocument:
    """Return the document that says whether the broker's event loop runs."""
    return LoopStateDocument(
        state=loop_state_of(observation, now_ns, settings).value,
        reason=describe_loop_state(observation, now_ns, settings),
        since_ms=observation.age_ms(now_ns),
        last_heartbeat_wall_ms=None if observation.reading is None else observation.reading.status.published_wall_ms,
    )


def risk_documents(risks: tuple[AtRisk, ...]) -> list[AtRiskDocument]:
    """Return the documents of the data at risk."""
    return [AtRiskDocument(loss=risk.loss.value, bytes=risk.bytes, seconds=risk.seconds) for risk in risks]


def lease_document(status: LeaseRenewalStatus, now_ns: int) -> LeaseDocument:
    """Return the document of the Lease's renewal."""
    age_ms = None if status.renewed_ms is None else max(now_ns // 1_000_000 - status.renewed_ms, 0)
    return LeaseDocument(
        is_held=age_ms is not None and status.duration_ms is not None and age_ms < status.duration_ms,
        renewed_age_ms=age_ms,
        duration_ms=status.duration_ms,
        reason=status.reason or None,
    )


def role_document(state: BrokerState) -> RoleDocument:
    """Return the role that the broker reported: those fields of its state that the document has."""
    document = {name: getattr(state, name) for name in RoleDocument.model_fields}
    return RoleDocument(
        **document
        | {
            "role": state.role.value.lower(),
            "electable": list(state.electable),
            "master": state.master or None,
            "problem": state.problem or None,
            "missing": _range_documents(state.missing),
            "accepted": _range_documents(state.accepted),
        }
    )


def missing_range_documents(status: Status | None, state: BrokerState | None) -> list[RangeDocument]:
    """Return the missing ranges: those of the broker's report if they add up to the page's bytes, else the page's own.

    The page has only the first four ranges, so its own may be fewer than all.
    """
    if status is None or not status.log_missing_bytes:
        return []
    if state is not None and state.missing_bytes == status.log_missing_bytes:
        return _range_documents(state.missing)
    return _range_documents(status.log_missing_ranges)


def _range_documents(ranges: Sequence[LogRange | RangeState]) -> list[RangeDocument]:
    return [RangeDocument(start=one.start, end=one.end) for one in ranges]


def slave_documents(status: Status, state: BrokerState | None, now_ns: int) -> list[SlaveDocument]:
    """Return a master's slaves: offsets from the status page, which is newer; identity and address from its report."""
    names = {slave.number: slave for slave in state.slaves} if state is not None else {}
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
    """Return the values of ``PAGE_NAMES``; all None without a status page."""
    return {name: None if status is None else getattr(status, name) for name in PAGE_NAMES}


def buffer_document(status: Status) -> BufferDocument:
    """Return the document of the write buffer."""
    return BufferDocument(
        medium=status.pool_medium.name.lower(),
        buffers_total=status.pool_buffers_total,
        buffers_free=status.pool_buffers_free,
        is_crash_safe=status.is_crash_safe,
    )


def disk_document(status: Status) -> DiskDocument:
    """Return the document of the disk's size and use."""
    return DiskDocument(total_bytes=status.disk_total_bytes, used_bytes=status.disk_used_bytes)
