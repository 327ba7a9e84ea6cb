"""The cache of watched objects, by group, so that an observation needs no calls to the API server.

It is updated by watches, by full lists, and by the answers to the operator's own changes, which arrive before their
watch events. Of two versions of an object the newer one stays. A list removes the objects that it does not contain and
that have not changed since it was requested: a watch that was interrupted never reports deletions.

The last state of a deleted pod is kept, with that of its machine at that time, until its successor is deleted, too. It
shows whether the pod's process had ended, or whether the pod was only removed from the API server while its machine did
not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, final

from gantry_operator.api import GROUPS, NODES, PODS, Kind, Object, ObjectRef, labels_of, ref_of, revision_of, uid_of
from gantry_operator.objects.names import GROUP_LABEL

ResourceKey = tuple[str, str]
"""The namespace and the name of a group or pipeline."""

Subscriber = Callable[[ResourceKey], None]


def own_name(document: Object) -> str:
    """Return the name of a group, by which its objects are labelled."""
    return str(document["metadata"]["name"])


OWNERS: Final[Mapping[Kind, Callable[[Object], str]]] = {GROUPS: own_name}
"""The kinds that own objects, each with the function that returns the label value of these objects."""


class DeletedPod(NamedTuple):
    """The last states of a deleted pod and of its Node when the deletion was observed."""

    pod: Object
    node: Object | None
    """The Node of the pod; None if it is not known."""


@final
class Cache:
    """The watched objects of groups, or of other owners. Owned by the event loop."""

    def __init__(
        self,
        label: str = GROUP_LABEL,
        owners: Mapping[Kind, Callable[[Object], str]] = OWNERS,
        *,
        can_read_nodes: bool = True,
    ) -> None:
        """Create a cache for groups, or for other owners, whose objects have another label."""
        self.can_read_nodes: Final = can_read_nodes
        """Whether the operator may read Nodes and PersistentVolumes."""

        self._label: Final = label
        self._owners: Final = owners
        self._subscribers: Final[list[Subscriber]] = []
        self._objects: Final[dict[ObjectRef, Object]] = {}
        self._refs_of_group: Final[dict[tuple[Kind, ResourceKey], set[ObjectRef]]] = {}
        self._deleted_pods: Final[dict[ObjectRef, DeletedPod]] = {}

    def __repr__(self) -> str:
        return f"<Cache objects={len(self._objects)}>"

    def subscribe(self, changed: Subscriber) -> None:
        """Call ``changed`` with the key of each resource of which an object changes; for a Node, with every key."""
        self._subscribers.append(changed)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get(self, ref: ObjectRef) -> Object | None:
        """Return an object, or None if the cache does not have it."""
        return self._objects.get(ref)

    def of_group(self, kind: Kind, key: ResourceKey) -> list[Object]:
        """Return all objects of a kind that belong to a group, sorted by name."""
        refs = sorted(self._refs_of_group.get((kind, key), ()), key=lambda ref: ref.name)
        return [self._objects[ref] for ref in refs]

    def of_kind(self, kind: Kind) -> list[Object]:
        """Return all objects of a kind."""
        return [document for ref, document in self._objects.items() if ref.kind == kind]

    def deleted_pod(self, ref: ObjectRef) -> DeletedPod | None:
        """Return the last state of the pod of this name that was deleted last."""
        return self._deleted_pods.get(ref)

    def owner_keys(self) -> list[ResourceKey]:
        """Return the keys of all groups, or other owners, that exist."""
        owners = (one for one in self._objects.items() if one[0].kind in self._owners)
        return sorted((ref.namespace, self._owners[ref.kind](document)) for ref, document in owners)

    def owner(self, key: ResourceKey) -> Object | None:
        """Return the group, or other owner, with this key."""
        found = (one for kind in self._owners for one in self.of_group(kind, key))
        return next(found, None)

    # -- updates -------------------------------------------------------------------------------------------------------

    def apply_event(self, event_type: str | None, document: Object) -> None:
        """Apply a watch event: ADDED, MODIFIED, DELETED, or None for an object that existed when the watch began."""
        if event_type == "DELETED":
            self._remove(ref_of(document), document)
        else:
            self.put(document)

    def put(self, document: Object) -> None:
        """Take over this version of an object, unless a newer one is known."""
        ref = ref_of(document)
        known = self._objects.get(ref)
        if known is not None and not _is_newer(document, known):
            return
        document = {key: value for key, value in document.items() if key != "metadata"} | {
            "metadata": {key: value for key, value in document["metadata"].items() if key != "managedFields"}
        }
        if known is not None and ref.kind == PODS and uid_of(known) != uid_of(document):
            self._keep_deleted(ref, known)
        elif ref.kind == PODS and known is None:
            deleted_pod = self._deleted_pods.get(ref)
            if deleted_pod is not None and uid_of(deleted_pod.pod) == uid_of(document):
                return  # an event of a deleted pod that came late
        self._forget_group(ref)
        self._objects[ref] = document
        group = self._key_of(ref, document)
        if group is not None:
            self._refs_of_group.setdefault((ref.kind, group), set()).add(ref)
        self._notify(ref, document)

    def replace(self, listed: Iterable[Object], before: dict[ObjectRef, str]) -> None:
        """Take over a full list. ``before`` are the revisions that the cache had when the list was requested."""
        found = {ref_of(document): document for document in listed}
        for ref, revision in before.items():
            known = self._objects.get(ref)
            if ref not in found and known is not None and revision_of(known) == revision:
                self._remove(ref, known)
        for document in found.values():
            self.put(document)

    def revisions(self, kind: Kind, namespace: str = "") -> dict[ObjectRef, str]:
        """Return the present revisions of a kind, for ``replace``."""
        return {
            ref: revision_of(document)
            for ref, document in self._objects.items()
            if ref.kind == kind and namespace in ("", ref.namespace)
        }

    # -- internals -----------------------------------------------------------------------------------------------------

    def _remove(self, ref: ObjectRef, last: Object) -> None:
        known = self._objects.get(ref)
        if known is not None and uid_of(known) != uid_of(last):
            return
        self._forget_group(ref)
        self._objects.pop(ref, None)
        if ref.kind == PODS and known is not None:
            self._keep_deleted(ref, last if _is_newer(last, known) else known)
        self._notify(ref, last)

    def _keep_deleted(self, ref: ObjectRef, pod: Object) -> None:
        node = (pod.get("spec") or {}).get("nodeName")
        self._deleted_pods[ref] = DeletedPod(pod, self._objects.get(ObjectRef(NODES, "", node)) if node else None)

    def _forget_group(self, ref: ObjectRef) -> None:
        known = self._objects.get(ref)
        group = None if known is None else self._key_of(ref, known)
        if group is not None:
            self._refs_of_group.get((ref.kind, group), set()).discard(ref)

    def _notify(self, ref: ObjectRef, document: Object) -> None:
        group = self._key_of(ref, document)
        keys = self.owner_keys() if ref.kind == NODES else [] if group is None else [group]
        for key in keys:
            for changed in self._subscribers:
                changed(key)

    def _key_of(self, ref: ObjectRef, document: Object) -> ResourceKey | None:
        named = self._owners.get(ref.kind)
        name = labels_of(document).get(self._label) if named is None else named(document)
        return None if name is None else (ref.namespace, name)


def _is_newer(document: Object, known: Object) -> bool:
    """Return whether a version is newer. Revisions of all known API servers are growing numbers; else the last wins."""
    mine, theirs = revision_of(document), revision_of(known)
    if mine.isdigit() and theirs.isdigit():
        return int(mine) > int(theirs)
    return mine != theirs
