"""What keeps a pipeline from running, and what it reads: by what is known of groups and other pipelines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gantry_operator.api import manifest_of
from gantry_operator.pipelines.claims import shared_with
from gantry_operator.pipelines.deciding import Problem
from gantry_operator.pipelines.facts import EngineFacts, PipelineFacts
from gantry_operator.pipelines.sources import source_of
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.pipelines.kinds import ARCHIVE, Pipeline
from gantry_spec.pipelines.parts import EngineMode

Object = Mapping[str, Any]


def facts_or_problem(
    pipeline: Pipeline, engine: EngineFacts, group: Object | None, others: Sequence[Pipeline]
) -> PipelineFacts | Problem:
    """What its rendering needs, or why there is none."""
    spec = pipeline.spec
    problem = Problem("SharedDestination", shared_with(pipeline, others))
    if problem.text:
        return problem
    if not (spec.engine.image or engine.image):
        return Problem("ImageMissing", "the operator was given no image of pipelines: say spec.engine.image")
    if spec.engine.mode is EngineMode.KUBERNETES and not all(engine.executors_role):
        words = "the operator may give no driver the right to make executors (rbac.executors of its chart)"
        return Problem("EngineRefused", words)
    read: BrokerGroup | None = None
    if spec.broker_groups:
        found = _group(spec.broker_groups[0], group)
        if isinstance(found, Problem):
            return found
        read = found
    archive = None
    name = getattr(spec, "archive", None)
    if name is not None:
        named = (one for one in others if one.kind is ARCHIVE and one.metadata.name == name)
        target = next((one for one in named if one.metadata.namespace == pipeline.metadata.namespace), None)
        if target is None:
            return Problem("ArchiveNotFound", f"there is no TopicArchive {name} in this namespace")
        archive = target.destination.pvc
    return PipelineFacts(engine=engine, source=source_of(pipeline, read), archive=archive)


def _group(name: str, document: Object | None) -> BrokerGroup | Problem:
    if document is None:
        return Problem("GroupNotFound", f"there is no BrokerGroup {name} in this namespace")
    try:
        return group_of(manifest_of(document))
    except ManifestError as error:
        return Problem("GroupNotFound", f"the BrokerGroup {name} cannot be read: {error}")
