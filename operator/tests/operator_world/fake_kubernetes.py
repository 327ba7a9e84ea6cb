"""A Kubernetes API in memory: the port of ``gantry_operator.api`` with the rules that its users rely on.

Revisions grow with every change, uids are never used twice, preconditions are compared, server-side apply takes away
what its manager said before and no longer says, and every change is told to whoever watches. What else a cluster does
(pods of StatefulSets, volumes, nodes) is the business of whoever plays the cluster. Faults: ``refuse`` may raise.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, final

from gantry_operator.api import FIELD_MANAGER, PODS, STATUS_MANAGER, Kind, Object, Place, kind_of, place_of
from gantry_operator.errors import ApiError, Conflict, Gone

T = TypeVar("T")
Listed = list[Object]
Watcher = Callable[[str, Object], None]


def copied(value: T) -> T:
    """One of its own. By way of bytes, which takes a tenth of what `copy.deepcopy` does: worlds do little else."""
    made: T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return made


@final
class FakeKubernetes:
    """Owned by one event loop."""

    def __init__(self) -> None:
        self.objects: Final[dict[Place, Object]] = {}
        self.calls: Final[list[tuple[str, Place]]] = []
        """Verb and place of every call that came through."""

        self.watchers: Final[list[Watcher]] = []
        self.refuse: Callable[[str, Place], ApiError | None] = lambda verb, place: None
        self.is_compared = True
        """Whether revisions and uids are: a twin turns that off."""

        self.deleting: Callable[[Object, int | None], bool] = lambda document, grace_s: True
        """Asked when a pod is deleted: whether it is gone at once."""

        self._applied: Final[dict[tuple[Place, str], Object]] = {}
        self._count = 100

    # -- the port ------------------------------------------------------------------------------------------------------

    async def get(self, place: Place) -> Object:
        self._come("get", place)
        return copied(self._find(place))

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> Listed:
        self._come("list", Place(kind, namespace, ""))
        return [
            copied(one)
            for place, one in sorted(self.objects.items(), key=lambda pair: (pair[0].namespace, pair[0].name))
            if place.kind == kind and namespace in ("", place.namespace) and matches(one, labels)
        ]

    async def apply(self, document: Object) -> Object:
        return self._apply(place_of(document), document, FIELD_MANAGER)

    async def apply_status(self, place: Place, status: Mapping[str, Any]) -> Object:
        self._find(place)
        return self._apply(place, {"status": dict(status)}, STATUS_MANAGER)

    async def patch(
        self, place: Place, change: Mapping[str, Any], *, uid: str = "", revision: str = "", part: str = ""
    ) -> Object:
        self._come("patch", place)
        known = self._find(place)
        metadata = known["metadata"]
        self._compare(place, uid or (change.get("metadata") or {}).get("uid", ""), metadata["uid"])
        self._compare(
            place, revision or (change.get("metadata") or {}).get("resourceVersion", ""), metadata["resourceVersion"]
        )
        told = dict(change)
        if "metadata" in told:
            told["metadata"] = {
                key: value for key, value in told["metadata"].items() if key not in ("uid", "resourceVersion")
            }
        return self.put(merged(known, told))

    async def create(self, document: Object) -> Object:
        place = place_of(document)
        self._come("create", place)
        if place in self.objects:
            raise Conflict(str(place), "it exists", 409)
        return self.put(copied(document))

    async def delete(self, place: Place, *, uid: str, grace_s: int | None = None, is_orphaning: bool = False) -> None:
        assert uid, "nothing is deleted by its name alone"
        self._come("delete", place)
        known = self.objects.get(place)
        if known is None:
            return
        self._compare(place, uid, known["metadata"]["uid"])
        if place.kind == PODS and not self.deleting(known, grace_s):
            return
        self.remove(place)

    # -- what a cluster does -------------------------------------------------------------------------------------------

    def put(self, document: Object) -> Object:
        """Whole, as it shall be; nothing happens if it is so already."""
        place, known = place_of(document), self.objects.get(place_of(document))
        document = copied(document)
        metadata = document["metadata"]
        if known is not None:
            head = known["metadata"]
            metadata |= {key: head[key] for key in ("uid", "resourceVersion", "generation")}
            if document == known:
                return copied(known)
            if document.get("spec") != known.get("spec"):
                metadata["generation"] = head["generation"] + 1
        else:
            metadata |= {"uid": metadata.get("uid") or f"uid-{self._next()}", "generation": 1}
        metadata["resourceVersion"] = str(self._next())
        self.objects[place] = document
        self._tell("ADDED" if known is None else "MODIFIED", document)
        return copied(document)

    def remove(self, place: Place) -> None:
        """It is gone."""
        document = self.objects.pop(place, None)
        if document is None:
            return
        for key in [key for key in self._applied if key[0] == place]:
            del self._applied[key]
        document["metadata"]["resourceVersion"] = str(self._next())
        self._tell("DELETED", document)

    def found(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """A copy, without a call."""
        return copied(self.objects.get(Place(kind, namespace, name)))

    def of_kind(self, kind: Kind) -> Listed:
        """All of them, without a call."""
        return [copied(one) for place, one in self.objects.items() if place.kind == kind]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _apply(self, place: Place, document: Mapping[str, Any], manager: str) -> Object:
        self._come("status" if manager == STATUS_MANAGER else "apply", place)
        before = self._applied.get((place, manager), {})
        head = {"apiVersion": place.kind.api_version, "kind": place.kind.name}
        known = self.objects.get(place) or head | {"metadata": {"name": place.name, "namespace": place.namespace}}
        result = merged(merged(known, taken_back(before, document)), document)
        answer = self.put(result)
        self._applied[place, manager] = copied(dict(document))
        return answer

    def _come(self, verb: str, place: Place) -> None:
        error = self.refuse(verb, place)
        if error is not None:
            raise error
        self.calls.append((verb, place))

    def _find(self, place: Place) -> Object:
        try:
            return self.objects[place]
        except KeyError:
            raise Gone(str(place), "not found", 404) from None

    def _compare(self, place: Place, wanted: str, found: str) -> None:
        if self.is_compared and wanted and wanted != found:
            raise Conflict(str(place), f"it is {found}, and {wanted} was meant", 409)

    def _tell(self, what: str, document: Object) -> None:
        for watcher in list(self.watchers):
            watcher(what, copied(document))

    def _next(self) -> int:
        self._count += 1
        return self._count


def matches(document: Object, labels: str) -> bool:
    """Whether it has these labels: ``a=b,c=d`` or just ``a``."""
    has = document["metadata"].get("labels") or {}
    for term in (one for one in labels.split(",") if one):
        name, is_valued, value = term.partition("=")
        if name not in has or (is_valued and has[name] != value):
            return False
    return True


def merged(known: Mapping[str, Any], change: Mapping[str, Any]) -> Object:
    """A merge patch: None takes away."""
    result = copied(dict(known))
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[key] = copied(value)
    return result


def taken_back(before: Mapping[str, Any], now: Mapping[str, Any]) -> Object:
    """The patch that removes what was said before and is not said now."""
    gone: Object = {}
    for key, value in before.items():
        if key not in now:
            gone[key] = None
        elif isinstance(value, Mapping) and isinstance(now[key], Mapping):
            inner = taken_back(value, now[key])
            if inner:
                gone[key] = inner
    return gone


def kind_at(path: str, kinds: tuple[Kind, ...]) -> tuple[Place, str]:
    """What a path of the API means, and which part of it."""
    for kind in kinds:
        root = kind.path().rpartition("/")[0]
        if not path.startswith(root + "/"):
            continue
        words = path.removeprefix(root + "/").split("/")
        namespace = ""
        if words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        if words[0] == kind.plural:
            return Place(kind, namespace, words[1] if len(words) > 1 else ""), words[2] if len(words) > 2 else ""
    raise KeyError(path)


assert kind_of({"apiVersion": "v1", "kind": "Pod"}) is PODS, "one table for both"
