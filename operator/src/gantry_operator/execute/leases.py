"""The record in a shard's Lease, replaced by compare-and-swap: the one change that decides who leads.

    read it now, from the API server  -->  is its version the expected one?  -->  write onto just that revision
          ^                                                                            |
          `------------------------ somebody has renewed it meanwhile: 409 ------------'

A renewal changes the revision and not the record's version (``gantry_spec.lease_annotations``), so it makes the swap
begin anew, a few times; a record that was replaced ends it. What is written nobody is told of before it is answered: a
swap that may have been done is seen at the next look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_operator.api import LEASES, Kubernetes, Object, Place, annotations_of, revision_of, uid_of
from gantry_operator.clock import Clock
from gantry_operator.errors import Conflict, Gone
from gantry_operator.objects import names
from gantry_operator.objects.base import labels, made
from gantry_operator.observe.last_word import LAST_WORD, WRITE_MS, is_news, last_word_text
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import BadRecord, lease_annotations, lease_seconds, record_of
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.observed import LastWord

TRIES_MAX: Final = 6


@final
class Leases:
    """Of one group; owned by its task. ``kept`` is told what stands there after each write."""

    def __init__(self, api: Kubernetes, clock: Clock, kept: Callable[[Object], None]) -> None:
        self._api: Final = api
        self._clock: Final = clock
        self._kept: Final = kept
        self._words_ms: Final[dict[int, int]] = {}

    async def replace(self, group: BrokerGroup, shard: int, expected: str | None, record: LeaseRecord) -> None:
        """The version that was seen. Raises ``Conflict`` when it is another one by now."""
        place = place_of_lease(group, shard)
        for _ in range(TRIES_MAX):
            try:
                current = await self._api.get(place)
            except Gone:
                if expected is not None:
                    raise Conflict(str(place), "there is no record any more") from None
                self._kept(await self._api.create(_document(group, shard, record)))
                return
            compare(str(place), current, expected)
            annotations = lease_annotations(msgspec.structs.replace(record, version=expected or ""))
            try:
                answer = await self._api.patch(
                    place,
                    {"metadata": {"annotations": annotations}},
                    uid=uid_of(current),
                    revision=revision_of(current),
                )
            except Conflict:
                continue
            self._kept(answer)
            return
        raise Conflict(str(place), f"it was changed {TRIES_MAX} times meanwhile")

    async def keep_last_word(self, group: BrokerGroup, shard: int, lease: Object | None, word: LastWord | None) -> None:
        """Keep the master's last word, if it says something new and some time has passed."""
        if lease is None or word is None or not is_news(word, annotations_of(lease)):
            return
        now_ms = self._clock.now_ms()
        if now_ms - self._words_ms.get(shard, -WRITE_MS) < WRITE_MS:
            return
        self._words_ms[shard] = now_ms
        change = {"metadata": {"annotations": {LAST_WORD: last_word_text(word, self._clock)}}}
        self._kept(await self._api.patch(place_of_lease(group, shard), change, uid=uid_of(lease)))


def compare(what: str, current: Object, expected: str | None) -> None:
    """Raise ``Conflict`` unless the record that stands there has the expected version."""
    try:
        record = record_of(annotations_of(current))
    except BadRecord as error:
        raise Conflict(what, str(error)) from error
    version = None if record is None else record.version
    if version != expected:
        raise Conflict(what, f"its version is {version}, and {expected} was expected")


def place_of_lease(group: BrokerGroup, shard: int) -> Place:
    """A shard's."""
    return Place(LEASES, group.metadata.namespace, names.shard_name(group.metadata.name, shard))


def _document(group: BrokerGroup, shard: int, record: LeaseRecord) -> Object:
    place = place_of_lease(group, shard)
    body = {"spec": {"leaseDurationSeconds": lease_seconds(record.duration_ms)}}
    annotations = lease_annotations(msgspec.structs.replace(record, version=""))
    kind = (LEASES.api_version, LEASES.name)
    marked = labels(group, names.BROKER, shard)
    return made(group, kind, place.name, marked, body, annotations=annotations)
