"""Finds values in reports by keys, which have the same form for documents, pods and the objects of a group.

spec.containers.0.image             a value by its path; numbers are indexes of lists
spec.tolerations?dedicated          whether that value contains the text: yes or no
Service/orders-0:spec.type          a value of an object
Service/orders-0                    whether the object exists: yes or no
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edit_world.row import ABSENT

YES_OR_NO = {True: "yes", False: "no"}


def value_in(document: Any, key: str) -> str:
    """Return the value at a key of one document as text."""
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
    """Return the object with the name ``Kind/name``, if it exists."""
    return next((one for one in objects if name_of(one) == name), None)


def name_of(document: Mapping[str, Any]) -> str:
    """Return the name of an object in the form ``Kind/name``."""
    return f"{document['kind']}/{document['metadata']['name']}"


def object_value(found: Mapping[str, Any] | None, key: str) -> str:
    """Return the value of a key in the object that was found by the part before the colon."""
    _, has_path, path = key.partition(":")
    if not has_path:
        return YES_OR_NO[found is not None]
    return ABSENT if found is None else value_in(found, path)
