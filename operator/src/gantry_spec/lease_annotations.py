"""The annotations that store a ``LeaseRecord`` in a Kubernetes Lease, with a version counter of their own. Pure.

    metadata.annotations: gantry.dev/record   "{\"epoch\":3000,\"terms\":[...],...}"
                          gantry.dev/version  "7"                 1 for the first record, and 1 more for each next one
    spec: renewTime, holderIdentity, ...                          written by a renewal

`resourceVersion` cannot be the record's version: each renewal changes it, and timeouts are measured from the first
observation of a version. So the record has a counter that each replacement increments and a renewal keeps.
`resourceVersion` serves the compare-and-swap of both: after a replacement every renewal in progress fails, and after a
renewal a replacement in progress has to read the Lease again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from gantry_spec.lease import FORMER_NAMES, FORMER_NAMES_DEPTH, LeaseRecord, encode_record
from gantry_spec.manifest.group import API_GROUP
from gantry_status.former_names import with_present_names

RECORD: Final = f"{API_GROUP}/record"
"""The annotation that has the record as JSON."""

VERSION: Final = f"{API_GROUP}/version"
"""The annotation that has the number of the record's version."""

VERSION_DIGITS_MAX: Final = 18


class InvalidLeaseRecord(ValueError):
    """The Lease holds an invalid record. It must not be renewed, and an administrator has to repair it."""


def lease_annotations(record: LeaseRecord) -> dict[str, str]:
    """Return the annotations for a record. Its ``version`` is that of the record that it replaces; empty for none."""
    count = _count(record.version) if record.version else 0
    return {RECORD: encode_record(record, with_version=False).decode(), VERSION: str(count + 1)}


def record_of(annotations: Mapping[str, str]) -> LeaseRecord | None:
    """Return the record in a Lease with its version; None if it has none. Raises ``InvalidLeaseRecord``."""
    text, version = annotations.get(RECORD), annotations.get(VERSION)
    if text is None and version is None:
        return None
    if text is None or version is None:
        raise InvalidLeaseRecord(f"{RECORD} and {VERSION} must both be set")
    _count(version)
    try:
        document = with_present_names(msgspec.json.decode(text), FORMER_NAMES, depth=FORMER_NAMES_DEPTH)
        record = msgspec.convert(document, LeaseRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidLeaseRecord(f"{RECORD} is not a valid record: {error}") from error
    return msgspec.structs.replace(record, version=version)


def lease_seconds(duration_ms: int) -> int:
    """Return a duration as ``leaseDurationSeconds``, rounded up to whole seconds."""
    return max(1, -(-duration_ms // 1000))


def lease_time(at: datetime) -> str:
    """Return a time in the format that Kubernetes uses in Leases."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _count(version: str) -> int:
    if not (version.isascii() and version.isdigit() and len(version) <= VERSION_DIGITS_MAX):
        raise InvalidLeaseRecord(f"{VERSION} is not a number: {version[:40]!r}")
    return int(version)
