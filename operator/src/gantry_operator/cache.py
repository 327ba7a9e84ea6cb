"""What the watches have shown last: every object that matters here, by group, so that a look asks nobody.

Fed by watches, by a full list now and then, and by the answers to our own changes, which come before the watch tells of
them. Of two, the newer revision stays. A list takes away what is not in it any more and has not changed since the list
was asked for: a watch that was interrupted never tells what went meanwhile.

A pod that is gone leaves its last state behind, until its successor goes, too: whether its process had ended when it
went is the difference between a pod that was stopped and one whose machine is merely not asked any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, final

from gantry_operator.api import GROUPS, NODES, PODS, Kind, Object, Place, labels_of, place_of, revision_of, uid_of
from gantry_operator.objects.names import GROUP_LABEL

ResourceKey = tuple[str, str]
"""Namespace and name of a group or pipeline."""

Woken = Callable[[ResourceKey], None]


def name_of(document: Object) -> str:
    """A group is called what it is called."""
    return str(document["metadata"]["name"])


OWNERS: Final[Mapping[Kind, Callable[[Object], str]]] = {GROUPS: name_of}
"""Kinds that are looked after, and by which word their objects are labelled."""


@final
class Cache:
    """Owned by the event loop."""

    def __init__(
        self,
        label: str = GROUP_LABEL,
        owners: Mapping[Kind, Callable[[Object], str]] = OWNERS,
        *,
        knows_machines: bool = True,
    ) -> None:
        """Of groups; or of other owners, whose objects have another label."""
        self.knows_machines: Final = knows_machines
        """Whether Nodes and PersistentVolumes may be read."""

        self._label: Final = label
        self._owners: Final = owners
        self._subscribers: Final[list[Woken]] = []
        self._objects: Final[dict[Place, Object]] = {}
        self._of_group: Final[dict[tuple[Kind, ResourceKey], set[Place]]] = {}
        self._departed: Final[dict[Place, Object]] = {}

    def __repr__(self) -> str:
        return f"<Cache objects={len(self._objects)}>"

    def subscribe(self, changed: Woken) -> None:
        """Call this with the key of the resource whose object has changed; of a machine, with every key."""
        self._subscribers.append(changed)

    # -- asked ---------------------------------------------------------------------------------------------------------

    def get(self, place: Place) -> Object | None:
        """One, if it is there."""
        return self._objects.get(place)

    def of_group(self, kind: Kind, key: ResourceKey) -> list[Object]:
        """All of a kind that belong to a group, by name."""
        places = sorted(self._of_group.get((kind, key), ()), key=lambda place: place.name)
        return [self._objects[place] for place in places]

    def of_kind(self, kind: Kind) -> list[Object]:
        """All of a kind."""
        return [document for place, document in self._objects.items() if place.kind == kind]

    def departed(self, place: Place) -> Object | None:
        """The last state of the last pod of this name that has gone."""
        return self._departed.get(place)

    def owner_keys(self) -> list[ResourceKey]:
        """Of all groups, or other owners, that exist."""
        owners = (one for one in self._objects.items() if one[0].kind in self._owners)
        return sorted((place.namespace, self._owners[place.kind](document)) for place, document in owners)

    def owner(self, key: ResourceKey) -> Object | None:
        """What is looked after under this key."""
        found = (one for kind in self._owners for one in self.of_group(kind, key))
        return next(found, None)

    # -- told ----------------------------------------------------------------------------------------------------------

    def take(self, what: str | None, document: Object) -> None:
        """A watch has told: ADDED, MODIFIED, DELETED, or None for what is there at its beginning."""
        if what == "DELETED":
            self._remove(place_of(document), document)
        else:
            self.put(document)

    def put(self, document: Object) -> None:
        """It is so now, or was so when it was answered."""
        place = place_of(document)
        known = self._objects.get(place)
        if known is not None and not _is_newer(document, known):
            return
        document = {key: value for key, value in document.items() if key != "metadata"} | {
            "metadata": {key: value for key, value in document["metadata"].items() if key != "managedFields"}
        }
        if known is not None and place.kind == PODS and uid_of(known) != uid_of(document):
            self._departed[place] = known
        elif place.kind == PODS and known is None:
            departed = self._departed.get(place)
            if departed is not None and uid_of(departed) == uid_of(document):
                return
        self._forget_group(place)
        self._objects[place] = document
        group = self._key_of(place, document)
        if group is not None:
            self._of_group.setdefault((place.kind, group), set()).add(place)
        self._tell(place, document)

    def replace(self, listed: Iterable[Object], before: dict[Place, str]) -> None:
        """A whole list; ``before`` are the revisions that were here when it was asked for."""
        found = {place_of(document): document for document in listed}
        for place, revision in before.items():
            known = self._objects.get(place)
            if place not in found and known is not None and revision_of(known) == revision:
                self._remove(place, known)
        for document in found.values():
            self.put(document)

    def revisions(self, kind: Kind, namespace: str = "") -> dict[Place, str]:
        """What is here now, for ``replace``."""
        return {
            place: revision_of(document)
            for place, document in self._objects.items()
            if place.kind == kind and namespace in ("", place.namespace)
        }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _remove(self, place: Place, last: Object) -> None:
        known = self._objects.get(place)
        if known is not None and uid_of(known) != uid_of(last):
            return
        self._forget_group(place)
        self._objects.pop(place, None)
        if place.kind == PODS and known is not None:
            self._departed[place] = last if _is_newer(last, known) else known
        self._tell(place, last)

    def _forget_group(self, place: Place) -> None:
        known = self._objects.get(place)
        group = None if known is None else self._key_of(place, known)
        if group is not None:
            self._of_group.get((place.kind, group), set()).discard(place)

    def _tell(self, place: Place, document: Object) -> None:
        group = self._key_of(place, document)
        keys = self.owner_keys() if place.kind == NODES else [] if group is None else [group]
        for key in keys:
            for changed in self._subscribers:
                changed(key)

    def _key_of(self, place: Place, document: Object) -> ResourceKey | None:
        named = self._owners.get(place.kind)
        name = labels_of(document).get(self._label) if named is None else named(document)
        return None if name is None else (place.namespace, name)


def _is_newer(document: Object, known: Object) -> bool:
    """By revision. In every API server that there is they are numbers that grow; elsewhere the last one is right."""
    mine, theirs = revision_of(document), revision_of(known)
    if mine.isdigit() and theirs.isdigit():
        return int(mine) > int(theirs)
    return mine != theirs
