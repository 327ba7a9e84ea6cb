"""What `gantry store` says to programs where it is not a report of the store itself."""

from __future__ import annotations

from typing import TypedDict

from gantry_broker.store.inspect.findings import Finding


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
