"""The CustomResourceDefinition of a ``BrokerGroup``, whole and from the structs, so that the chart's never drifts."""

from __future__ import annotations

from typing import Any

from gantry_spec.manifest.changes import FIXED
from gantry_spec.manifest.group import API_GROUP, KIND, VERSION, Spec
from gantry_spec.manifest.reading import plain
from gantry_spec.manifest.rules import RULES
from gantry_spec.manifest.schema import Schema, schema_of
from gantry_spec.manifest.shapes import purpose_of
from gantry_spec.manifest.status import Status

COLUMNS = (
    ("Master", "string", ".status.master", 0),
    ("Epoch", "integer", ".status.epoch", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Lag", "string", ".status.lag", 0),
    ("At-Risk", "string", ".status.atRisk", 0),
    ("Phase", "string", ".status.phase", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
NAME_CHARACTERS_MAX = 40


def group_schema() -> Schema:
    """``openAPIV3Schema``."""
    validations = [
        *({"rule": rule.cel, "message": rule.message} for rule in RULES if rule.cel),
        *({"rule": one.cel, "message": f"{one.path}: {one.reason}"} for one in FIXED),
    ]
    spec: Schema = {"description": purpose_of(Spec), "default": without_nulls(plain(Spec()))} | schema_of(Spec)
    spec["x-kubernetes-validations"] = validations
    return {
        "description": "A group of Gantry brokers: its shards, slaves and name servers.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {"description": purpose_of(Status)} | schema_of(Status),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.metadata.name) <= {NAME_CHARACTERS_MAX}",
                "message": f"metadata.name may have {NAME_CHARACTERS_MAX} characters: it is part of pods' names",
            }
        ],
    }


def without_nulls(value: Any) -> Any:
    """A default as the API server takes it: rules are tried on it as it stands, before anything is filled in."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


def crd() -> dict[str, Any]:
    """The document to apply."""
    columns = [
        {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
        for name, kind, path, priority in COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"brokergroups.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": "brokergroups",
                "singular": "brokergroup",
                "shortNames": ["bg"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": group_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.shards",
                            "statusReplicasPath": ".status.shards",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }
