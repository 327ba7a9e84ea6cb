"""The record in a shard's Lease, replaced by compare-and-swap: this change alone decides which member is the master.

    read from the API server  -->  compare the version with the expected one  -->  write, if the revision is the same
          ^                                                                                |
          `------------------------ the Lease was renewed meanwhile: 409 ------------------'

A renewal changes the revision of the Lease, but not the version of the record (``gantry_spec.lease_annotations``). So
it makes the swap start again, up to ``TRIES_MAX`` times, while a replaced record ends the swap. No order rests on a
write before its answer: a swap that may have succeeded is found by the next observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_operator.api import LEASES, Kubernetes, Object, ObjectRef, annotations_of, revision_of, uid_of
from gantry_operator.clock import Clock
from gantry_operator.errors import Conflict, NotFound
from gantry_operator.objects import names
from gantry_operator.objects.base import labels, make_object
from gantry_operator.observe.last_report import LAST_REPORT, WRITE_MS, format_last_report, is_annotation_outdated
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import InvalidLeaseRecord, lease_annotations, lease_seconds, record_of
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.observed import LastReport

TRIES_MAX: Final = 6
"""How often a swap is tried while renewals change the revision of the Lease."""


@final
class LeaseWriter:
    """Writes the Leases of one group's shards. ``on_written`` gets each written Lease. Owned by the group's task."""

    def __init__(self, api: Kubernetes, clock: Clock, on_written: Callable[[Object], None]) -> None:
        self._api: Final = api
        self._clock: Final = clock
        self._on_written: Final = on_written
        self._last_report_ms: Final[dict[int, int]] = {}

    async def replace(self, group: BrokerGroup, shard: int, expected: str | None, record: LeaseRecord) -> None:
        """Replace the record of this version, or create the first one. Raises ``Conflict`` for another version."""
        ref = lease_ref(group, shard)
        for _ in range(TRIES_MAX):
            try:
                current = await self._api.get(ref)
            except NotFound:
                if expected is not None:
                    raise Conflict(str(ref), "the record does not exist any more") from None
                self._on_written(await self._api.create(_document(group, shard, record)))
                return
            check_version(str(ref), current, expected)
            annotations = lease_annotations(msgspec.structs.replace(record, version=expected or ""))
            try:
                answer = await self._api.patch(
                    ref,
                    {"metadata": {"annotations": annotations}},
                    uid=uid_of(current),
                    revision=revision_of(current),
                )
            except Conflict:
                continue
            self._on_written(answer)
            return
        raise Conflict(str(ref), f"it was changed during each of {TRIES_MAX} attempts")

    async def keep_last_report(
        self, group: BrokerGroup, shard: int, lease: Object | None, report: LastReport | None
    ) -> None:
        """Write the master's last report into the Lease, if it has changed and the last write is long enough ago."""
        if lease is None or report is None or not is_annotation_outdated(report, annotations_of(lease)):
            return
        now_ms = self._clock.now_ms()
        if now_ms - self._last_report_ms.get(shard, -WRITE_MS) < WRITE_MS:
            return
        self._last_report_ms[shard] = now_ms
        change = {"metadata": {"annotations": {LAST_REPORT: format_last_report(report, self._clock)}}}
        self._on_written(await self._api.patch(lease_ref(group, shard), change, uid=uid_of(lease)))


def check_version(what: str, current: Object, expected: str | None) -> None:
    """Raise ``Conflict`` unless the present record has the expected version."""
    try:
        record = record_of(annotations_of(current))
    except InvalidLeaseRecord as error:
        raise Conflict(what, str(error)) from error
    version = None if record is None else record.version
    if version != expected:
        raise Conflict(what, f"the record has version {version}, but {expected} was expected")


def lease_ref(group: BrokerGroup, shard: int) -> ObjectRef:
    """Return the reference to a shard's Lease."""
    return ObjectRef(LEASES, group.metadata.namespace, names.shard_name(group.metadata.name, shard))


def _document(group: BrokerGroup, shard: int, record: LeaseRecord) -> Object:
    ref = lease_ref(group, shard)
    body = {"spec": {"leaseDurationSeconds": lease_seconds(record.duration_ms)}}
    annotations = lease_annotations(msgspec.structs.replace(record, version=""))
    kind = (LEASES.api_version, LEASES.name)
    own_labels = labels(group, names.BROKER, shard)
    return make_object(group, kind, ref.name, own_labels, body, annotations=annotations)
