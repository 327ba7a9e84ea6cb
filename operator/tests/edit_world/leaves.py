"""Every leaf of a definition's schema: what somebody can write into a spec, by path, as the API server knows it.

A leaf has no fields of its own that are known: a text, a number, a mapping of whatever keys, a part of a pod. Items of
lists are gone into with ``[]``, so that a field added to an item is a leaf, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def leaves(schema: Schema, path: str = "") -> Iterator[str]:
    """Below a schema of an object."""
    for name, inner in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        items = inner.get("items", {})
        if inner.get("properties"):
            yield from leaves(inner, here)
        elif items.get("properties"):
            yield from leaves(items, f"{here}[]")
        else:
            yield here


def spec_schema(definition: Schema) -> Schema:
    """Of the spec in a CustomResourceDefinition that serves one version."""
    [version] = definition["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def without_rows(definition: Schema, paths: set[str]) -> set[str]:
    """Leaves that nobody has thought about."""
    return set(leaves(spec_schema(definition))) - paths


def without_leaves(definition: Schema, paths: set[str]) -> set[str]:
    """Rows of fields that are no more."""
    return paths - set(leaves(spec_schema(definition)))
