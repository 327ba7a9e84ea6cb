"""How a value is found in a report, the same way in whatever says it: a document, a pod, the objects of a group.

spec.containers.0.image             a value by its path; numbers are places in lists
spec.tolerations?dedicated          whether the text stands anywhere in that value: yes or no
Service/orders-0:spec.type          the same, of an object
Service/orders-0                    whether there is such an object: yes or no
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edit_world.row import ABSENT

YES_OR_NO = {True: "yes", False: "no"}


def value_in(document: Any, key: str) -> str:
    """In one document."""
    path, is_asked, text = key.partition("?")
    value = document
    for name in path.split("."):
        if isinstance(value, list):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    if is_asked:
        return YES_OR_NO[text in str(value)]
    return ABSENT if value is None else str(value)


def object_named(objects: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """``Kind/name`` of them, if it is there."""
    return next((one for one in objects if name_of(one) == name), None)


def name_of(document: Mapping[str, Any]) -> str:
    """``Kind/name``."""
    return f"{document['kind']}/{document['metadata']['name']}"


def object_value(found: Mapping[str, Any] | None, key: str) -> str:
    """Of an object that was looked for by what stands before the colon."""
    _, has_path, path = key.partition(":")
    if not has_path:
        return YES_OR_NO[found is not None]
    return ABSENT if found is None else value_in(found, path)
