"""The descriptions of CRDs for an OLM bundle: their fields, with the forms in which a console shows them.

Names and texts are those of the CRD, so a field is described once, in `gantry_spec`. Forms show single values of the
spec and of its parts, and resources; longer parts are edited as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

DESCRIPTOR: Final = "urn:alm:descriptor:com.tectonic.ui:"
KUBERNETES_DESCRIPTOR: Final = "urn:alm:descriptor:io.kubernetes"


def owned(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a CRD for the ClusterServiceVersion, with the fields for a console's forms."""
    [version] = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    kind = definition["spec"]["names"]["kind"]
    return {
        "name": definition["metadata"]["name"],
        "version": version["name"],
        "kind": kind,
        "displayName": display_name(kind),
        "description": schema["description"],
        "specDescriptors": [
            _descriptor(path, field, _form(path[-1], field))
            for path, field in _shown_fields(schema["properties"]["spec"])
        ],
        "statusDescriptors": [
            _descriptor((name,), field, _status_form(name))
            for name, field in schema["properties"]["status"]["properties"].items()
            if name == "conditions" or field["type"] not in ("object", "array")
        ],
    }


def display_name(name: str) -> str:
    """Return the name of a field or kind as words: `nameServers` becomes `Name servers`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    return words[:1].upper() + words[1:]


def _shown_fields(spec: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the fields that a form can show: single values of the spec and of its parts, and resources."""
    for name, field in spec["properties"].items():
        if _form(name, field):
            yield (name,), field
        for inner_name, inner in field.get("properties", {}).items():
            if name not in ("template", "resources") and _form(inner_name, inner):
                yield (name, inner_name), inner


def _form(name: str, field: dict[str, Any]) -> list[str]:
    """Return the descriptors of a field's form; empty if no form shows it."""
    if name == "resources":
        return [f"{DESCRIPTOR}resourceRequirements"]
    if name.endswith("Secret"):
        return [f"{KUBERNETES_DESCRIPTOR}:Secret"]
    if "enum" in field:
        return [f"{DESCRIPTOR}select:{value}" for value in field["enum"] if value is not None]
    if field.get("x-kubernetes-int-or-string"):
        return [f"{DESCRIPTOR}text"]
    forms = {"boolean": "booleanSwitch", "integer": "number", "number": "number", "string": "text"}
    form = forms.get(field.get("type", ""))
    return [f"{DESCRIPTOR}{form}"] if form else []


def _status_form(name: str) -> list[str]:
    """Return the descriptors of a field of the status."""
    forms = {"phase": f"{KUBERNETES_DESCRIPTOR}.phase", "conditions": f"{KUBERNETES_DESCRIPTOR}.conditions"}
    return [forms.get(name, f"{DESCRIPTOR}text")]


def _descriptor(path: tuple[str, ...], field: dict[str, Any], forms: list[str]) -> dict[str, Any]:
    """Return the descriptor of a field, with the description of the CRD."""
    name = ": ".join((display_name(path[0]), *(display_name(one).lower() for one in path[1:])))
    return {
        "path": ".".join(path),
        "displayName": name,
        "description": field["description"],
        "x-descriptors": forms,
    }
