"""What should exist, applied: when it is another thing than was applied last, when it is missing, and now and then.

At rest this asks nobody anything. A thing that somebody has taken away is made again when the watch tells of it, where
that kind is watched; what somebody has changed is put right every ``AGAIN_MS``. A group that is new to this process is
applied whole, once: what was applied before is not known.

Some fields of a StatefulSet are fixed for ever. Where the API server refuses them, the StatefulSet is deleted with its
pods left alone, and made anew around them. Claims are grown here, too, since a StatefulSet never touches those that are
there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from gantry_operator.api import (
    CLAIMS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Kind,
    Kubernetes,
    Object,
    Place,
    annotations_of,
    labels_of,
    place_of,
    uid_of,
)
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, Refused, Terminating
from gantry_operator.objects.base import hash_of
from gantry_operator.objects.names import ASLEEP_ANNOTATION, COMPONENT_LABEL, GROUP_LABEL, HOME_LABEL
from gantry_spec.manifest.quantities import parse_size

log = logging.getLogger(__name__)

AGAIN_MS: Final = 30 * 60_000
WATCHED: Final[frozenset[Kind]] = frozenset({STATEFUL_SETS, SERVICES})
"""Kinds whose absence from the cache means that they are not there."""

RETRY_MS: Final = 5_000


@final
class Applier:
    """Of one group; owned by its task."""

    def __init__(
        self,
        key: ResourceKey,
        cache: Cache,
        api: Kubernetes,
        clock: Clock,
        watched: frozenset[Kind] = WATCHED,
    ) -> None:
        self.problems: dict[str, str] = {}
        """What could not be applied, and why."""

        self._key: Final = key
        self._cache: Final = cache
        self._api: Final = api
        self._clock: Final = clock
        self._watched: Final = watched
        self._applied: Final[dict[Place, str]] = {}
        self._all_ms: int | None = None
        self._marked: tuple[Sequence[Object], list[tuple[Place, str, Object]]] | None = None
        """What was rendered last, with what it comes to."""

        self._tried_ms: Final[dict[Place, int]] = {}

    def __repr__(self) -> str:
        return f"<Applier {'/'.join(self._key)} problems={sorted(self.problems)}>"

    async def apply(self, rendered: Sequence[Object]) -> None:
        """Whatever of it has to be. What the API server says is in ``problems``; only ``Terminating`` is raised."""
        now_ms = self._clock.now_ms()
        is_due = self._all_ms is None or now_ms - self._all_ms >= AGAIN_MS
        if is_due:
            self._applied.clear()
            self._all_ms = now_ms
        if self._marked is None or self._marked[0] is not rendered:
            self._marked = rendered, [(place_of(document), hash_of(document), document) for document in rendered]
        for place, mark, document in self._marked[1]:
            is_missing = place.kind in self._watched and self._cache.get(place) is None
            if self._applied.get(place) == mark and not is_missing:
                continue
            if str(place) in self.problems and now_ms - self._tried_ms.get(place, -RETRY_MS) < RETRY_MS:
                continue
            self._tried_ms[place] = now_ms
            if await self._one(place, document):
                self._applied[place] = mark
        self._forget({place for place, _, _ in self._marked[1]})

    def _forget(self, places: set[Place]) -> None:
        for place in self._applied.keys() - places:
            del self._applied[place]
        named = {str(place) for place in places}
        self.problems = {name: text for name, text in self.problems.items() if name in named}

    async def _one(self, place: Place, document: Object) -> bool:
        try:
            try:
                self._cache.put(await self._api.apply(document))
            except Refused:
                known = self._cache.get(place)
                if place.kind is not STATEFUL_SETS or known is None:
                    raise
                await self._recreate(place, document, known)
        except Terminating:
            raise
        except ApiError as error:
            return self._failed(place, error)
        self.problems.pop(str(place), None)
        return True

    async def _recreate(self, place: Place, document: Object, known: Object) -> None:
        """Delete a StatefulSet, not its pods, and create it again around them."""
        log.info("recreating StatefulSet around its pods", extra={"place": str(place)})
        await self._api.delete(place, uid=uid_of(known), is_orphaning=True)
        self._cache.take("DELETED", known)
        self._cache.put(await self._api.apply(document))

    def _failed(self, place: Place, error: ApiError) -> bool:
        level = logging.DEBUG if self.problems.get(str(place)) == str(error) else logging.WARNING
        self.problems[str(place)] = str(error)
        log.log(level, "failed to apply object; retrying", extra={"place": str(place), "reason": str(error)})
        return False

    # -- claims and sleeping StatefulSets ------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Give claims that people have made, to bring a group back, the labels that its StatefulSet's own ones have.

        A StatefulSet takes a claim by its name and leaves it as it is, and without its labels nobody here would see it.
        """
        for pod in self._cache.of_group(PODS, self._key):
            home = self._cache.get(Place(STATEFUL_SETS, self._key[0], labels_of(pod).get(HOME_LABEL, "")))
            for template in () if home is None else home["spec"].get("volumeClaimTemplates") or ():
                name = f"{template['metadata']['name']}-{pod['metadata']['name']}"
                place = Place(CLAIMS, self._key[0], name)
                known = self._cache.get(place)
                is_seen = known is not None and GROUP_LABEL in labels_of(known)
                if (pod.get("spec") or {}).get("nodeName") and not is_seen and self._may_try(place):
                    await self._label(place, labels_of(template))

    async def _label(self, place: Place, labels: Mapping[str, str]) -> None:
        """A claim that may be there."""
        try:
            claim = await self._api.get(place)
            self._cache.put(await self._api.patch(place, {"metadata": {"labels": dict(labels)}}, uid=uid_of(claim)))
        except ApiError as error:
            log.warning("failed to label claim", extra={"place": str(place), "reason": str(error)})

    def _may_try(self, place: Place) -> bool:
        """Whether it was not tried just now; it is, from here on."""
        now_ms = self._clock.now_ms()
        if now_ms - self._tried_ms.get(place, -10 * RETRY_MS) < 10 * RETRY_MS:
            return False
        self._tried_ms[place] = now_ms
        return True

    async def grow(self, size_bytes: int) -> None:
        """Have every claim of a broker ask for so much at least."""
        for claim in self._cache.of_group(CLAIMS, self._key):
            asked = str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage", "0"))
            place = place_of(claim)
            if labels_of(claim).get(COMPONENT_LABEL) != "broker" or parse_size(asked) >= size_bytes:
                continue
            if not self._may_try(place):
                continue
            change = {"spec": {"resources": {"requests": {"storage": str(size_bytes)}}}}
            try:
                self._cache.put(await self._api.patch(place, change, uid=uid_of(claim)))
            except ApiError as error:
                log.warning("failed to grow claim", extra={"place": str(place), "reason": str(error)})

    async def wake(self) -> None:
        """StatefulSets make pods again, as they were rendered just now: that they slept is said no more."""
        for home in self._cache.of_group(STATEFUL_SETS, self._key):
            if ASLEEP_ANNOTATION not in annotations_of(home) or not (home["spec"].get("replicas") or 0):
                continue
            change = {"metadata": {"annotations": {ASLEEP_ANNOTATION: None}}}
            try:
                self._cache.put(await self._api.patch(place_of(home), change, uid=uid_of(home)))
            except ApiError as error:
                log.warning(
                    "failed to remove asleep annotation", extra={"place": str(place_of(home)), "reason": str(error)}
                )
