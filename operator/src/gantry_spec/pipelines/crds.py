"""The CustomResourceDefinitions of pipelines, generated from the structs with the functions of ``manifest.crd``."""

from __future__ import annotations

from typing import Any, Final

from gantry_spec.manifest.crd import definition, resource_schema
from gantry_spec.manifest.schema import Schema, schema_of
from gantry_spec.manifest.struct_fields import description_of
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, PipelineKind
from gantry_spec.pipelines.rules import FIXED, RULES
from gantry_spec.pipelines.status import PipelineStatus

COLUMNS: Final = (
    ("Phase", "string", ".status.phase", 0),
    ("Rows", "integer", ".status.lastRun.rows", 0),
    ("Lag", "integer", ".status.lag.rows", 0),
    ("Last-Run", "date", ".status.lastRun.start", 0),
    ("Schedule", "string", ".spec.schedule", 1),
    ("Engine", "string", ".spec.engine.mode", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def pipeline_schema(kind: PipelineKind) -> Schema:
    """Return the ``openAPIV3Schema`` of a kind of pipeline."""
    rules = [
        *((rule.cel, rule.message) for rule in RULES if kind in rule.kinds),
        *((one.cel, f"{one.path}: {one.message}") for one in FIXED if kind in one.kinds),
    ]
    spec: Schema = {"description": description_of(kind.spec)} | schema_of(kind.spec)
    return resource_schema(kind.purpose, spec, rules, PipelineStatus)


def pipeline_crds() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions of all pipelines as documents to apply."""
    return [
        definition(kind.name, kind.plural, kind.short, pipeline_schema(kind), {"status": {}}, COLUMNS)
        for kind in PIPELINE_KINDS
    ]
