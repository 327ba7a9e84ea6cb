"""Deletion of objects that a group has no more: a closed way in, the Service of a removed slave, a removed shard.

Server-side apply removes fields, and never objects: without this, what an edit no longer asks for would stay, and an
entrance that was closed would stay open.

    looked for   when the group is rendered with other objects than before, when this process starts, and now and then
    not          for a new group that has neither an edit nor a status: it never had other objects
    deleted      Services, budgets and policies of this very group, and the StatefulSet of its name servers
    kept         what belongs to a shard that is not rendered: ``delete_shards`` deletes it when the shard has no pod
                 the Service of a pod that still exists
                 name servers that were replaced, while a broker was started with them: it registers there

Volumes and Secrets are never deleted here; brokers' StatefulSets and Leases only with their shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

from gantry_operator.api import (
    ACCOUNTS,
    BUDGETS,
    CONFIG_MAPS,
    LEASES,
    PODS,
    POLICIES,
    ROLE_BINDINGS,
    ROLES,
    SERVICES,
    STATEFUL_SETS,
    Kind,
    Kubernetes,
    Object,
    Place,
    annotations_of,
    labels_of,
    owner_uids,
    place_of,
    uid_of,
)
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError
from gantry_operator.execute.applier import AGAIN_MS, RETRY_MS
from gantry_operator.objects.names import (
    BROKER,
    COMPONENT_LABEL,
    GROUP_LABEL,
    NAME_SERVER,
    SHARD_LABEL,
    TEMPLATE_ANNOTATION,
)
from gantry_operator.observe.group_objects import replicas_meant

log = logging.getLogger(__name__)

SHARD_KINDS: Final = (SERVICES, CONFIG_MAPS, BUDGETS, ROLE_BINDINGS, ROLES, ACCOUNTS, LEASES, STATEFUL_SETS)
"""What a shard has beside its volumes; StatefulSets come last, because by them a removed shard is found."""

CLEARED: Final = (SERVICES, BUDGETS, POLICIES, STATEFUL_SETS)


@final
class Leftovers:
    """Of one group; owned by its task."""

    def __init__(self, key: ResourceKey, cache: Cache, api: Kubernetes, clock: Clock) -> None:
        self._key: Final = key
        self._cache: Final = cache
        self._api: Final = api
        self._clock: Final = clock
        self._cleared: frozenset[Place] = frozenset()
        """What was rendered when nothing was left over last."""

        self._looked_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Leftovers {'/'.join(self._key)}>"

    def begin(self, rendered: Sequence[Object], group: Object) -> None:
        """For a group that is new, nothing needs to be looked for."""
        is_new = group["metadata"].get("generation") == 1 and not group.get("status")
        if is_new and self._looked_ms is None:
            self._looked_ms, self._cleared = self._clock.now_ms(), frozenset(place_of(one) for one in rendered)

    async def clear(self, rendered: Sequence[Object], owner: str) -> None:
        """Delete what is the group's, by the uid of the group, and is not rendered. Never raises for the API server."""
        wanted, now_ms = frozenset(place_of(one) for one in rendered), self._clock.now_ms()
        age_ms = None if self._looked_ms is None else now_ms - self._looked_ms
        if age_ms is not None and age_ms < (AGAIN_MS if wanted == self._cleared else RETRY_MS):
            return
        self._looked_ms = now_ms
        try:
            left = [one for kind in CLEARED for one in await self._left(kind, wanted, owner)]
            going = [one for one in left if not self._is_needed(one, rendered)]
            for document in going:
                await self._api.delete(place_of(document), uid=uid_of(document))
                self._cache.take("DELETED", document)
                log.info("deleted object that is no longer part of the group", extra={"place": str(place_of(document))})
        except ApiError as error:
            log.warning("could not delete objects that are no longer part of the group", extra={"reason": str(error)})
            return
        if len(going) == len(left):
            self._cleared = wanted

    async def delete_shards(self, is_removed: Callable[[int], bool]) -> None:
        """Delete the objects of removed shards: never volumes, and never of a shard that has a pod."""
        alive = {labels_of(pod).get(SHARD_LABEL) for pod in self._cache.of_group(PODS, self._key)}
        homes = self._cache.of_group(STATEFUL_SETS, self._key)
        empty = {labels_of(home).get(SHARD_LABEL, "") for home in homes if not replicas_meant(home)}
        for shard in sorted(empty - alive):
            if shard.isdigit() and is_removed(int(shard)):
                await self._delete_shard(shard)

    async def _delete_shard(self, shard: str) -> None:
        selector = f"{GROUP_LABEL}={self._key[1]},{SHARD_LABEL}={shard}"
        try:
            for kind in SHARD_KINDS:
                for document in await self._api.list(kind, self._key[0], selector):
                    await self._api.delete(place_of(document), uid=uid_of(document))
                    self._cache.take("DELETED", document)
        except ApiError as error:
            log.warning("could not delete objects of removed shard", extra={"shard": shard, "reason": str(error)})

    async def _left(self, kind: Kind, wanted: frozenset[Place], owner: str) -> list[Object]:
        listed = await self._api.list(kind, self._key[0], f"{GROUP_LABEL}={self._key[1]}")
        found = [one for one in listed if place_of(one) not in wanted and owner in owner_uids(one)]
        shards = {labels_of(one).get(SHARD_LABEL) for one in self._homes()}
        if kind is STATEFUL_SETS:
            return [one for one in found if labels_of(one).get(COMPONENT_LABEL) == NAME_SERVER]
        return [one for one in found if labels_of(one).get(SHARD_LABEL) in {*shards, None}]

    def _homes(self) -> Iterable[Object]:
        homes = self._cache.of_group(STATEFUL_SETS, self._key)
        return (one for one in homes if (one.get("spec") or {}).get("replicas"))

    def _is_needed(self, document: Object, rendered: Sequence[Object]) -> bool:
        """Whether something that runs still counts on it."""
        pod = Place(PODS, self._key[0], document["metadata"]["name"])
        if self._cache.get(pod) is not None:
            return True
        is_of_name_servers = labels_of(document).get(COMPONENT_LABEL) == NAME_SERVER
        has_name_servers = any(labels_of(one).get(COMPONENT_LABEL) == NAME_SERVER for one in rendered)
        return is_of_name_servers and not has_name_servers and not self._are_started_with(rendered)

    def _are_started_with(self, rendered: Sequence[Object]) -> bool:
        """Whether every broker that is there has a template of now."""
        templates = {
            annotations_of(one["spec"]["template"]).get(TEMPLATE_ANNOTATION)
            for one in rendered
            if place_of(one).kind is STATEFUL_SETS
        }
        pods = self._cache.of_group(PODS, self._key)
        brokers = (pod for pod in pods if labels_of(pod).get(COMPONENT_LABEL) == BROKER)
        return all(annotations_of(pod).get(TEMPLATE_ANNOTATION) in templates for pod in brokers)
