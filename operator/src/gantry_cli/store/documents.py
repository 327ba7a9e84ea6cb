"""The documents of `gantry store`. The names of their fields are stable."""

from __future__ import annotations

import base64
from typing import Any, Literal, TypedDict

import msgspec

from gantry_broker.store.inspect.dump import DumpEntry, Hole, NoMessage
from gantry_broker.store.inspect.findings import Finding
from gantry_broker.store.inspect.verify import VerifyReport
from gantry_remoting import join_address
from gantry_wire.compress import inflate_body
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_host

# -- document types ----------------------------------------------------------------------------------------------------
# The types here are those of the documents of `verify` and `dump`; the other commands print values of
# `gantry_broker.store` as they are.


class VerifyDocument(TypedDict):
    """`gantry store verify`: what was checked, and the findings."""

    root: str
    is_in_use: bool
    """Whether a broker has the store open."""

    is_clean: bool
    """Whether the file `abort` is missing, as after a clean stop of the broker."""

    start: int
    """The start of the range of the log that was read."""

    end: int
    """The exclusive end of that range."""

    is_full_range: bool
    """Whether the whole log was read."""

    is_interrupted: bool
    """Whether the user interrupted the command."""

    records: int
    records_bytes: int
    records_sealed: int
    """The number of records in ranges where a seal protects the whole record."""

    queues: int
    units: int
    """The number of queue units that were read."""

    older_records: int
    """The number of records of topics that were deleted, or deleted and created again."""

    index_files: int
    index_entries: int
    elapsed_s: float
    gb_per_s: float
    is_damaged: bool
    lost_messages: int
    harms: dict[str, int]
    """The number of findings by severity."""

    findings_omitted: int
    """The number of findings that are counted and not listed."""

    findings: list[Finding]


class RecordDocument(TypedDict, total=False):
    """`gantry store dump`: one record; a damaged or missing one has `damaged` and `reason`."""

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


# -- conversion to documents -------------------------------------------------------------------------------------------


BodyForm = Literal["text", "hex", "none"]


def verify_document(report: VerifyReport, elapsed_s: float) -> VerifyDocument:
    """Return the document of `verify`."""
    findings = report.findings
    return VerifyDocument(
        root=report.root,
        is_in_use=report.is_in_use,
        is_clean=report.is_clean,
        start=report.start,
        end=report.end,
        is_full_range=report.is_full_range,
        is_interrupted=report.is_interrupted,
        records=report.records,
        records_bytes=report.records_bytes,
        records_sealed=report.records_sealed,
        queues=report.queues,
        units=report.units,
        older_records=report.older_records,
        index_files=report.index_files,
        index_entries=report.index_entries,
        elapsed_s=round(elapsed_s, 3),
        gb_per_s=round((report.end - report.start) / 1e9 / elapsed_s, 3) if elapsed_s > 0 else 0.0,
        is_damaged=findings.is_damaged,
        lost_messages=findings.lost_messages,
        harms={str(harm): count for harm, count in findings.counts.items()},
        findings_omitted=findings.omitted,
        findings=list(findings.kept),
    )


def dump_document(one: DumpEntry, body: BodyForm) -> dict[str, Any]:
    """Return the document of one record of `dump`, or of the damage in its place."""
    match one:
        case Hole():
            document: dict[str, Any] = msgspec.to_builtins(one)
            document["around"] = one.around.hex()
            return {"damaged": True, **document}
        case NoMessage():
            document = msgspec.to_builtins(one)
            return {"damaged": document.pop("is_damage"), **document}
        case StoredMessage():
            return _record_document(one) | _body_fields(one, body)


def _record_document(message: StoredMessage) -> dict[str, Any]:
    return {
        "offset": message.physical_offset,
        "size": message.size,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": join_address(*decode_host(message.born_host)),
        "store_host": join_address(*decode_host(message.store_host)),
        "message_id": message.offset_message_id,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset,
        "properties": message.properties,
        "body_bytes": len(message.body),
    }


def _body_fields(message: StoredMessage, form: BodyForm) -> dict[str, str]:
    """Return the body as a consumer would receive it, or why it cannot be decompressed; as ``hex``, as it is stored."""
    if form == "none":
        return {}
    if form == "hex":
        return {"body_hex": message.body.hex()}
    try:
        body = inflate_body(message.body, message.sys_flag)
    except RemoteProtocolError as error:
        return {"body_fault": str(error)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
