"""The CustomResourceDefinition of a ``BrokerGroup``, generated from the structs so that the chart always matches.

``pipelines.crds`` generates those of pipelines with the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gantry_spec.manifest.changes import FIXED
from gantry_spec.manifest.group import API_GROUP, KIND, VERSION, Spec
from gantry_spec.manifest.reading import plain_values
from gantry_spec.manifest.rules import RULES
from gantry_spec.manifest.schema import Schema, schema_of
from gantry_spec.manifest.status import Status
from gantry_spec.manifest.struct_fields import description_of

Column = tuple[str, str, str, int]
"""The name, type, path and priority of a column that ``kubectl get`` prints."""

COLUMNS: Final = (
    ("Master", "string", ".status.master", 0),
    ("Epoch", "integer", ".status.epoch", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Lag", "string", ".status.lag", 0),
    ("At-Risk", "string", ".status.atRisk", 0),
    ("Phase", "string", ".status.phase", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
UNOBSERVED: Final = {"observedGeneration": -1}
"""The status of a resource that no operator has observed. Without one, tools that wait would take it for ready."""

NAME_CHARACTERS_MAX: Final = 40
"""The longest name of a group: names of pods add more to it, and may have 63 characters."""


def group_schema() -> Schema:
    """Return the ``openAPIV3Schema`` of a ``BrokerGroup``."""
    rules = [
        *((rule.cel, rule.message) for rule in RULES if rule.cel),
        *((one.cel, f"{one.path}: {one.reason}") for one in FIXED),
    ]
    spec: Schema = {"description": description_of(Spec), "default": _without_nulls(plain_values(Spec()))} | schema_of(
        Spec
    )
    return resource_schema("A group of Gantry brokers: its shards, slaves and name servers.", spec, rules, Status)


def crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition of ``BrokerGroup`` as a document to apply."""
    subresources = {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.shards",
            "statusReplicasPath": ".status.shards",
            "labelSelectorPath": ".status.selector",
        },
    }
    return definition(KIND, "brokergroups", "bg", group_schema(), subresources, COLUMNS)


def resource_schema(
    purpose: str, spec: Schema, rules: Iterable[tuple[str, str]], status: type[msgspec.Struct]
) -> Schema:
    """Return the ``openAPIV3Schema`` of a resource. ``rules`` are CEL expressions over its spec, with messages."""
    spec["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    return {
        "description": purpose,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {"description": description_of(status), "default": dict(UNOBSERVED)} | schema_of(status),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.metadata.name) <= {NAME_CHARACTERS_MAX}",
                "message": f"metadata.name may have at most {NAME_CHARACTERS_MAX} characters: pods' names contain it",
            }
        ],
    }


def definition(
    kind: str, plural: str, short: str, schema: Schema, subresources: dict[str, Any], columns: Iterable[Column]
) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    printed = [
        {"name": name, "type": sort, "jsonPath": path} | ({"priority": priority} if priority else {})
        for name, sort, path, priority in columns
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                    "additionalPrinterColumns": printed,
                }
            ],
        },
    }


def _without_nulls(value: Any) -> Any:
    """Return a default without nulls, since the API server applies the rules before it fills in nested defaults."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value
