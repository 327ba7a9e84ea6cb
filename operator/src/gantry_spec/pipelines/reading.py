"""Parsing of a custom resource into a valid ``Pipeline``, or into a list of its problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.group import API_VERSION, Metadata
from gantry_spec.manifest.reading import decode_value, problem_of, unknown_fields
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, Pipeline, PipelineKind
from gantry_spec.pipelines.parts import PipelineSpec
from gantry_spec.pipelines.rules import broken_rules

BY_NAME: Final[dict[str, PipelineKind]] = {kind.name: kind for kind in PIPELINE_KINDS}
"""The kinds of pipelines by their names in manifests."""


def pipeline_of(document: Mapping[str, Any]) -> Pipeline:
    """Return a pipeline from the body of its resource. Raises ``ManifestError``."""
    kind = BY_NAME.get(str(document.get("kind")))
    if kind is None or document.get("apiVersion") != API_VERSION:
        named = f"{document.get('apiVersion')!r} {document.get('kind')!r}"
        raise ManifestError(
            [Problem("kind", f"{named} is not supported, expected {', '.join(BY_NAME)} of {API_VERSION}")]
        )
    spec = document.get("spec") or {}
    problems = list(unknown_fields(spec, kind.spec, "spec"))
    if problems:
        raise ManifestError(problems)
    metadata: Metadata = _decode(document["metadata"], Metadata, "metadata")
    read: PipelineSpec = _decode(spec, kind.spec, "spec")
    broken = list(broken_rules(kind, read))
    if broken:
        raise ManifestError(broken)
    created = str((document["metadata"] or {}).get("creationTimestamp") or "")
    return Pipeline(kind=kind, metadata=metadata, spec=read, created=created)


def _decode(value: object, part: type[Any], path: str) -> Any:
    """Return a value as the part of a resource at ``path``. Raises ``ManifestError``."""
    try:
        return msgspec.convert(value, part, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        problem = problem_of(str(error))
        raise ManifestError([problem._replace(path=f"{path}.{problem.path}" if problem.path else path)]) from error
