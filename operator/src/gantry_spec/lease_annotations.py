"""How a ``LeaseRecord`` stands in a Kubernetes Lease: as annotations, with a counter of their own. Pure.

    metadata.annotations: gantry.dev/record   "{\"epoch\":3000,\"reigns\":[...],...}"
                          gantry.dev/version  "7"                 how often the record was replaced
    spec: renewTime, holderIdentity, ...                          what a renewal writes

`resourceVersion` cannot be the record's version: each renewal changes it, and whoever decides counts from when he first
saw a version. So the record has a counter, to which whoever replaces the record adds one, and which a renewal leaves
alone. `resourceVersion` is for the compare-and-swap of both: a record that was replaced makes every renewal fail that
is under way, and a renewal makes whoever replaces the record read it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import API_GROUP

RECORD: Final = f"{API_GROUP}/record"
VERSION: Final = f"{API_GROUP}/version"
VERSION_DIGITS_MAX: Final = 18


class BadRecord(ValueError):
    """Somebody has written into the Lease what is no record. Nobody may renew it; an operator must look."""


def lease_annotations(record: LeaseRecord) -> dict[str, str]:
    """What is to stand in the Lease once ``record`` has taken the place of the one with its ``version``."""
    names = zip(record.__struct_encode_fields__, record.__struct_fields__, strict=True)
    fields = {written: getattr(record, name) for written, name in names if name != "version"}
    count = _count(record.version) if record.version else 0
    return {RECORD: msgspec.json.encode(fields).decode(), VERSION: str(count + 1)}


def record_of(annotations: Mapping[str, str]) -> LeaseRecord | None:
    """The record that stands there, with its version; None in a Lease without one. Raises ``BadRecord``."""
    text, version = annotations.get(RECORD), annotations.get(VERSION)
    if text is None and version is None:
        return None
    if text is None or version is None:
        raise BadRecord(f"{RECORD} and {VERSION} belong together")
    _count(version)
    try:
        record = msgspec.json.decode(text, type=LeaseRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecord(f"{RECORD} is no record: {error}") from error
    return msgspec.structs.replace(record, version=version)


def lease_seconds(duration_ms: int) -> int:
    """A duration as ``leaseDurationSeconds``: whole seconds, never fewer than are meant."""
    return max(1, -(-duration_ms // 1000))


def lease_time(at: datetime) -> str:
    """A moment as Kubernetes writes it in Leases."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _count(version: str) -> int:
    if not (version.isascii() and version.isdigit() and len(version) <= VERSION_DIGITS_MAX):
        raise BadRecord(f"{VERSION} is no number: {version[:40]!r}")
    return int(version)
