"""Deletes the objects that a group no longer needs: those of a removed part of its spec, and those of removed shards.

Server-side apply removes fields, but never objects: without pruning, the objects of a removed part of the spec would
stay, and an external address would stay open.

    checked      when other objects are rendered than before, then every ``RETRY_MS`` until nothing is left over; when
                 this process starts; and every ``REAPPLY_MS``
    not checked  for a new group that has neither an edit nor a status: it never had other objects
    deleted      Services, TCPRoutes, budgets, policies and Certificates that this group owns, the StatefulSet of its
                 name servers, and Deployment, ConfigMap and ServiceAccount of its proxies and of its archive server
    kept         objects of a shard whose StatefulSets have no replicas: a hibernated shard keeps them, and those of a
                 removed one are deleted by ``delete_shards`` when the shard has no pod
                 the Service of a pod that still exists
                 replaced name servers, while a broker still runs with their addresses: it registers there

TCPRoutes are found in the cache, since a cluster may lack their kind. All other objects are listed; a cluster without
cert-manager has no Certificates.

Volumes and Secrets are never deleted here; StatefulSets and Leases of brokers only with their shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

from gantry_operator.api import (
    ACCOUNTS,
    BUDGETS,
    CERTIFICATES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    PODS,
    POLICIES,
    ROLE_BINDINGS,
    ROLES,
    ROUTE_KINDS,
    SERVICES,
    STATEFUL_SETS,
    Kind,
    Kubernetes,
    Object,
    ObjectRef,
    annotations_of,
    labels_of,
    owner_uids,
    ref_of,
    uid_of,
)
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, is_kind_missing
from gantry_operator.execute.applier import REAPPLY_MS, RETRY_MS
from gantry_operator.objects.names import (
    ARCHIVE_SERVER,
    BROKER,
    COMPONENT_LABEL,
    GROUP_LABEL,
    NAME_SERVER,
    PROXY,
    SHARD_LABEL,
    TEMPLATE_ANNOTATION,
)
from gantry_operator.observe.group_objects import intended_replicas

log = logging.getLogger(__name__)

SHARD_KINDS: Final = (
    *(*ROUTE_KINDS, SERVICES, CONFIG_MAPS, BUDGETS, ROLE_BINDINGS, ROLES, ACCOUNTS, LEASES, STATEFUL_SETS),
)
"""The kinds of a shard's objects except volumes. StatefulSets come last, because removed shards are found by them."""

PRUNED_KINDS: Final = (
    *(DEPLOYMENTS, *ROUTE_KINDS, SERVICES, BUDGETS, POLICIES, STATEFUL_SETS, CONFIG_MAPS, ACCOUNTS, CERTIFICATES),
)
"""The kinds of objects that are deleted where they are not rendered any more. Pods of Deployments stop first."""

COMPONENTS_OF_KIND: Final = {
    STATEFUL_SETS: frozenset({NAME_SERVER}),
    **dict.fromkeys((DEPLOYMENTS, CONFIG_MAPS, ACCOUNTS), frozenset({PROXY, ARCHIVE_SERVER})),
}
"""The kinds of which only the objects of some components are deleted."""


@final
class Pruner:
    """Deletes leftover objects of one group. Owned by the task of the group's loop."""

    def __init__(self, key: ResourceKey, cache: Cache, api: Kubernetes, clock: Clock) -> None:
        self._key: Final = key
        self._cache: Final = cache
        self._api: Final = api
        self._clock: Final = clock
        self._pruned: frozenset[ObjectRef] = frozenset()
        """The objects that were rendered at the last check, and in every round since, if it left nothing over; those of
        a new group unchecked. Empty otherwise."""

        self._pruned_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Pruner {'/'.join(self._key)}>"

    def skip_for_new_group(self, rendered: Sequence[Object], group: Object) -> None:
        """Skip the first check if the group is new, so that it never had other objects."""
        is_new = group["metadata"].get("generation") == 1 and not group.get("status")
        if is_new and self._pruned_ms is None:
            self._pruned_ms, self._pruned = self._clock.now_ms(), frozenset(ref_of(one) for one in rendered)

    async def prune(self, rendered: Sequence[Object], owner: str) -> None:
        """Delete the objects of the group with this uid that are not rendered. Errors are logged, not raised."""
        wanted, now_ms = frozenset(ref_of(one) for one in rendered), self._clock.now_ms()
        if wanted != self._pruned:
            self._pruned = frozenset()  # these objects may be left over when the former ones are rendered again
        age_ms = None if self._pruned_ms is None else now_ms - self._pruned_ms
        if age_ms is not None and age_ms < (REAPPLY_MS if wanted == self._pruned else RETRY_MS):
            return
        self._pruned_ms, self._pruned = now_ms, frozenset()
        try:
            left = [one for kind in PRUNED_KINDS for one in await self._find_leftovers(kind, wanted, owner)]
            unused = [one for one in left if not self._is_in_use(one, rendered)]
            for document in unused:
                await self._api.delete(ref_of(document), uid=uid_of(document))
                self._cache.apply_event("DELETED", document)
                log.info("deleted object that is no longer part of the group", extra={"object": str(ref_of(document))})
        except ApiError as error:
            log.warning(
                "could not delete objects that are no longer part of the group; retrying", extra={"reason": str(error)}
            )
            return
        if len(unused) == len(left):
            self._pruned = wanted

    async def delete_shards(self, is_removed: Callable[[int], bool]) -> None:
        """Delete the objects of removed shards: never volumes, and never those of a shard that has a pod."""
        alive = {labels_of(pod).get(SHARD_LABEL) for pod in self._cache.of_group(PODS, self._key)}
        stateful_sets = self._cache.of_group(STATEFUL_SETS, self._key)
        empty = {
            labels_of(stateful_set).get(SHARD_LABEL, "")
            for stateful_set in stateful_sets
            if not intended_replicas(stateful_set)
        }
        for shard in sorted(empty - alive):
            if shard.isdigit() and is_removed(int(shard)):
                await self._delete_shard(shard)

    async def _delete_shard(self, shard: str) -> None:
        try:
            for kind in SHARD_KINDS:
                for document in await self._list(kind, shard):
                    await self._api.delete(ref_of(document), uid=uid_of(document))
                    self._cache.apply_event("DELETED", document)
        except ApiError as error:
            log.warning("could not delete objects of removed shard", extra={"shard": shard, "reason": str(error)})

    async def _find_leftovers(self, kind: Kind, wanted: frozenset[ObjectRef], owner: str) -> list[Object]:
        listed = await self._list(kind)
        found = [one for one in listed if ref_of(one) not in wanted and owner in owner_uids(one)]
        shards = {labels_of(one).get(SHARD_LABEL) for one in self._running_sets()}
        if kind in COMPONENTS_OF_KIND:
            return [one for one in found if labels_of(one).get(COMPONENT_LABEL) in COMPONENTS_OF_KIND[kind]]
        return [one for one in found if labels_of(one).get(SHARD_LABEL) in {*shards, None}]

    async def _list(self, kind: Kind, shard: str = "") -> list[Object]:
        """Return the objects of a kind that have the label of the group, and that of a shard if one is given."""
        if kind in ROUTE_KINDS:
            cached = self._cache.of_group(kind, self._key)
            return [one for one in cached if shard in ("", labels_of(one).get(SHARD_LABEL))]
        of_shard = f",{SHARD_LABEL}={shard}" if shard else ""
        try:
            return await self._api.list(kind, self._key[0], f"{GROUP_LABEL}={self._key[1]}{of_shard}")
        except ApiError as error:
            if kind == CERTIFICATES and is_kind_missing(error):
                return []
            raise

    def _running_sets(self) -> Iterable[Object]:
        stateful_sets = self._cache.of_group(STATEFUL_SETS, self._key)
        return (one for one in stateful_sets if (one.get("spec") or {}).get("replicas"))

    def _is_in_use(self, document: Object, rendered: Sequence[Object]) -> bool:
        """Return whether a pod that still exists uses the object."""
        pod = ObjectRef(PODS, self._key[0], document["metadata"]["name"])
        if self._cache.get(pod) is not None:
            return True
        is_of_name_servers = labels_of(document).get(COMPONENT_LABEL) == NAME_SERVER
        has_name_servers = any(labels_of(one).get(COMPONENT_LABEL) == NAME_SERVER for one in rendered)
        return is_of_name_servers and not has_name_servers and not self._are_pods_current(rendered)

    def _are_pods_current(self, rendered: Sequence[Object]) -> bool:
        """Return whether every broker pod was started with a present template."""
        templates = {
            annotations_of(one["spec"]["template"]).get(TEMPLATE_ANNOTATION)
            for one in rendered
            if ref_of(one).kind is STATEFUL_SETS
        }
        pods = self._cache.of_group(PODS, self._key)
        brokers = (pod for pod in pods if labels_of(pod).get(COMPONENT_LABEL) == BROKER)
        return all(annotations_of(pod).get(TEMPLATE_ANNOTATION) in templates for pod in brokers)
