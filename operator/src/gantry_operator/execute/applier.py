"""Applies the desired objects of a group: when they have changed, when they are missing, and every ``REAPPLY_MS``.

At rest this makes no calls. An object that was deleted by someone else is created again when the watch reports it, if
its kind is watched. Changes by others are reverted every ``REAPPLY_MS``. A group that is new to this process is applied
completely once, because it is not known what was applied before.

Some fields of a StatefulSet are immutable. Where the API server rejects a change of them, and nothing else, the
StatefulSet is deleted without its pods, and created again: the new one adopts the pods. A StatefulSet that is invalid
for another reason stays as it is, because another one would be rejected, too. Claims are resized here, too, because a
StatefulSet never changes claims that exist.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from gantry_operator.api import (
    CLAIMS,
    DEPLOYMENTS,
    PODS,
    ROUTE_KINDS,
    SERVICES,
    STATEFUL_SETS,
    Kind,
    Kubernetes,
    Object,
    ObjectRef,
    annotations_of,
    labels_of,
    ref_of,
    revision_of,
    uid_of,
)
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, InvalidObject, NamespaceTerminating, NotFound
from gantry_operator.objects.base import hash_of
from gantry_operator.objects.names import (
    COMPONENT_LABEL,
    FORMER_HIBERNATED_REPLICAS_ANNOTATION,
    GROUP_LABEL,
    HIBERNATED_REPLICAS_ANNOTATION,
    HOME_LABEL,
    SHARD_LABEL,
)
from gantry_spec.manifest.quantities import quantity_bytes

log = logging.getLogger(__name__)

REAPPLY_MS: Final = 30 * 60_000
"""The time after which objects are applied again although they have not changed."""

WATCHED: Final[frozenset[Kind]] = frozenset({STATEFUL_SETS, DEPLOYMENTS, SERVICES, *ROUTE_KINDS})
"""The kinds of desired objects that are watched: an object of these that is not in the cache does not exist."""

RETRY_MS: Final = 5_000
"""The time after a failure before the same object is applied again."""

HIBERNATION_ANNOTATIONS: Final = frozenset({HIBERNATED_REPLICAS_ANNOTATION, FORMER_HIBERNATED_REPLICAS_ANNOTATION})
"""The annotations that a StatefulSet has only while its group is hibernated."""

NO_SHARD: Final[Mapping[str, ObjectRef]] = {}
"""No shard is to be removed."""


@final
class Applier:
    """Applies the objects of one group. Owned by the task of the group's loop."""

    def __init__(
        self,
        key: ResourceKey,
        cache: Cache,
        api: Kubernetes,
        clock: Clock,
        watched: frozenset[Kind] = WATCHED,
    ) -> None:
        self.claim_problems: dict[str, str] = {}
        """The claims that could not grow, with the reasons."""

        self._key: Final = key
        self._cache: Final = cache
        self._api: Final = api
        self._clock: Final = clock
        self._watched: Final = watched
        self._applied: Final[dict[ObjectRef, str]] = {}
        self._applied_all_ms: int | None = None
        self._hashed: tuple[Sequence[Object], list[tuple[ObjectRef, str, Object]]] | None = None
        """The objects that were rendered last, with their references and hashes."""

        self._errors: Final[dict[ObjectRef, ApiError]] = {}
        self._tried_ms: Final[dict[ObjectRef, int]] = {}

    def __repr__(self) -> str:
        return f"<Applier {'/'.join(self._key)} problems={sorted(self.problems)}>"

    @property
    def problems(self) -> dict[str, str]:
        """The objects that could not be applied, with the reasons."""
        return {str(ref): str(error) for ref, error in self._errors.items()}

    @property
    def needs_edit(self) -> bool:
        """Whether the API server finds an object invalid, and will refuse it until the resource is edited."""
        return any(isinstance(error, InvalidObject) for error in self._errors.values())

    async def apply(self, rendered: Sequence[Object], leaving: Mapping[str, ObjectRef] = NO_SHARD) -> None:
        """Apply the objects that need it. Errors are kept in ``problems``; only ``NamespaceTerminating`` is raised.

        ``leaving`` has, by the label of each shard that is to be removed, its first StatefulSet. The objects of such a
        shard are applied only if that StatefulSet is now as the cache has it: an operator that has just started, whose
        list is behind, must not create a removed shard again, or start its brokers.
        """
        now_ms, current = self._clock.now_ms(), dict[ObjectRef, bool]()
        is_due = self._applied_all_ms is None or now_ms - self._applied_all_ms >= REAPPLY_MS
        if is_due:
            self._applied.clear()
            self._applied_all_ms = now_ms
        if self._hashed is None or self._hashed[0] is not rendered:
            self._hashed = rendered, [(ref_of(document), hash_of(document), document) for document in rendered]
        for ref, mark, document in self._hashed[1]:
            is_missing = ref.kind in self._watched and self._cache.get(ref) is None
            if self._applied.get(ref) == mark and not is_missing:
                continue
            if ref in self._errors and now_ms - self._tried_ms.get(ref, -RETRY_MS) < RETRY_MS:
                continue
            first = leaving.get(labels_of(document).get(SHARD_LABEL, ""))
            if first is not None and first not in current:
                current[first] = await self._is_current(first)
            if first is not None and not current[first]:
                continue
            self._tried_ms[ref] = now_ms
            if await self._apply_one(ref, document):
                self._applied[ref] = mark
        self._forget({ref for ref, _, _ in self._hashed[1]})

    def _forget(self, refs: set[ObjectRef]) -> None:
        """Forget what was applied, and which problems occurred, for all objects except ``refs``."""
        for ref in self._applied.keys() - refs:
            del self._applied[ref]
        for ref in self._errors.keys() - refs:
            del self._errors[ref]

    async def _is_current(self, ref: ObjectRef) -> bool:
        """Return whether an object exists as the cache has it. The cache takes over what the API server has."""
        known = self._cache.get(ref)
        try:
            found = await self._api.get(ref)
        except NotFound:
            if known is not None:
                self._cache.apply_event("DELETED", known)
            return False
        except ApiError as error:
            return self._record_problem(ref, error)
        self._cache.put(found)
        return known is not None and revision_of(known) == revision_of(found)

    async def _apply_one(self, ref: ObjectRef, document: Object) -> bool:
        """Apply an object, by a new one if only immutable fields differ. Return whether it succeeded."""
        try:
            try:
                self._cache.put(await self._api.apply(document))
            except InvalidObject as error:
                known = self._cache.get(ref)
                if ref.kind is not STATEFUL_SETS or known is None or not error.is_immutability_only:
                    raise
                await self._recreate(ref, document, known)
        except NamespaceTerminating:
            raise
        except ApiError as error:
            return self._record_problem(ref, error)
        self._errors.pop(ref, None)
        return True

    async def _recreate(self, ref: ObjectRef, document: Object, known: Object) -> None:
        """Delete a StatefulSet without its pods, and create it again, so that the new one adopts the pods."""
        log.info("recreating StatefulSet; its pods are kept", extra={"object": str(ref)})
        await self._api.delete(ref, uid=uid_of(known), is_orphaning=True)
        self._cache.apply_event("DELETED", known)
        self._cache.put(await self._api.apply(document))

    def _record_problem(self, ref: ObjectRef, error: ApiError) -> bool:
        known = self._errors.get(ref)
        self._errors[ref] = error
        level = logging.WARNING if known is None or str(known) != str(error) else logging.DEBUG
        log.log(level, "failed to apply object; retrying", extra={"object": str(ref), "reason": str(error)})
        return False

    # -- claims and hibernated StatefulSets ----------------------------------------------------------------------------

    async def adopt_claims(self) -> None:
        """Label the claims that a user has created to restore a group, as its StatefulSet labels its own claims.

        A StatefulSet uses a claim by its name, and does not change it. Without labels, the operator does not watch it.
        """
        for pod in self._cache.of_group(PODS, self._key):
            stateful_set = self._cache.get(ObjectRef(STATEFUL_SETS, self._key[0], labels_of(pod).get(HOME_LABEL, "")))
            for template in () if stateful_set is None else stateful_set["spec"].get("volumeClaimTemplates") or ():
                name = f"{template['metadata']['name']}-{pod['metadata']['name']}"
                ref = ObjectRef(CLAIMS, self._key[0], name)
                known = self._cache.get(ref)
                is_labelled = known is not None and GROUP_LABEL in labels_of(known)
                if (pod.get("spec") or {}).get("nodeName") and not is_labelled and self._take_retry(ref):
                    await self._label_claim(ref, labels_of(template))

    async def _label_claim(self, ref: ObjectRef, labels: Mapping[str, str]) -> None:
        """Label a claim if it exists."""
        try:
            claim = await self._api.get(ref)
            self._cache.put(await self._api.patch(ref, {"metadata": {"labels": dict(labels)}}, uid=uid_of(claim)))
        except ApiError as error:
            log.warning("failed to label claim", extra={"object": str(ref), "reason": str(error)})

    def _take_retry(self, ref: ObjectRef) -> bool:
        """Return whether a new attempt is due, and record it."""
        now_ms = self._clock.now_ms()
        if now_ms - self._tried_ms.get(ref, -10 * RETRY_MS) < 10 * RETRY_MS:
            return False
        self._tried_ms[ref] = now_ms
        return True

    async def grow_claims(self, size_bytes: int) -> None:
        """Make every claim of a broker request at least this size. One of an unknown size is left alone."""
        for claim in self._cache.of_group(CLAIMS, self._key):
            requests = (claim["spec"].get("resources") or {}).get("requests") or {}
            requested, ref = quantity_bytes(str(requests.get("storage", "0"))), ref_of(claim)
            if labels_of(claim).get(COMPONENT_LABEL) != "broker" or requested is None or requested >= size_bytes:
                self.claim_problems.pop(str(ref), None)
                continue
            if not self._take_retry(ref):
                continue
            change = {"spec": {"resources": {"requests": {"storage": str(size_bytes)}}}}
            try:
                self._cache.put(await self._api.patch(ref, change, uid=uid_of(claim)))
            except ApiError as error:
                self.claim_problems[str(ref)] = f"{ref} cannot grow: {error}"
                log.warning("failed to grow claim", extra={"object": str(ref), "reason": str(error)})
            else:
                self.claim_problems.pop(str(ref), None)

    async def clear_hibernation_annotations(self) -> None:
        """Remove the hibernation annotation from StatefulSets that were rendered with pods again."""
        for stateful_set in self._cache.of_group(STATEFUL_SETS, self._key):
            found = HIBERNATION_ANNOTATIONS & annotations_of(stateful_set).keys()
            if not found or not (stateful_set["spec"].get("replicas") or 0):
                continue
            change = {"metadata": {"annotations": dict.fromkeys(found)}}
            try:
                self._cache.put(await self._api.patch(ref_of(stateful_set), change, uid=uid_of(stateful_set)))
            except ApiError as error:
                log.warning(
                    "failed to remove hibernation annotation",
                    extra={"object": str(ref_of(stateful_set)), "reason": str(error)},
                )
