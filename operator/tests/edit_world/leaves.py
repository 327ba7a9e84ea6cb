"""Every leaf of a definition's schema: the paths of all fields that a spec can have, as the API server knows them.

A leaf has no known fields of its own: a text, a number, a mapping with any keys, a part of a pod. Items of lists are
entered with ``[]``, so that a field added to an item is a leaf, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def leaves(schema: Schema, path: str = "") -> Iterator[str]:
    """Yield the paths of all leaves below the schema of an object."""
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
    """Return the schema of the spec in a CustomResourceDefinition that serves one version."""
    [version] = definition["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def without_rows(definition: Schema, paths: set[str]) -> set[str]:
    """Return the leaves that have no row in the table."""
    return set(leaves(spec_schema(definition))) - paths


def without_leaves(definition: Schema, paths: set[str]) -> set[str]:
    """Return the paths of rows whose field does not exist any more."""
    return paths - set(leaves(spec_schema(definition)))
