"""The CustomResourceDefinitions of pipelines, whole and from the structs, as ``manifest.crd`` makes that of groups."""

from __future__ import annotations

from typing import Any

from gantry_spec.manifest.crd import NAME_CHARACTERS_MAX, without_nulls
from gantry_spec.manifest.group import API_GROUP, VERSION
from gantry_spec.manifest.reading import plain
from gantry_spec.manifest.schema import Schema, schema_of
from gantry_spec.manifest.shapes import purpose_of
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, PipelineKind
from gantry_spec.pipelines.rules import FIXED, RULES
from gantry_spec.pipelines.status import PipelineStatus

COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Rows", "integer", ".status.lastRun.rows", 0),
    ("Lag", "integer", ".status.lag.rows", 0),
    ("Last-Run", "date", ".status.lastRun.start", 0),
    ("Schedule", "string", ".spec.schedule", 1),
    ("Engine", "string", ".spec.engine.mode", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def pipeline_schema(kind: PipelineKind) -> Schema:
    """``openAPIV3Schema`` of a kind."""
    spec: Schema = {"description": purpose_of(kind.spec)} | schema_of(kind.spec)
    spec["x-kubernetes-validations"] = [
        *({"rule": rule.cel, "message": rule.message} for rule in RULES if kind in rule.kinds),
        *({"rule": one.cel, "message": f"{one.path}: {one.message}"} for one in FIXED if kind in one.kinds),
    ]
    return {
        "description": kind.purpose,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {"description": purpose_of(PipelineStatus)} | schema_of(PipelineStatus),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.metadata.name) <= {NAME_CHARACTERS_MAX}",
                "message": f"metadata.name may have {NAME_CHARACTERS_MAX} characters: it is part of pods' names",
            }
        ],
    }


def pipeline_crds() -> list[dict[str, Any]]:
    """The documents to apply."""
    return [_crd(kind) for kind in PIPELINE_KINDS]


def defaults_of(kind: PipelineKind) -> dict[str, Any]:
    """A spec of nothing but defaults."""
    found: dict[str, Any] = without_nulls(plain(kind.spec()))
    return found


def _crd(kind: PipelineKind) -> dict[str, Any]:
    columns = [
        {"name": name, "type": sort, "jsonPath": path} | ({"priority": priority} if priority else {})
        for name, sort, path, priority in COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": pipeline_schema(kind)},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }
