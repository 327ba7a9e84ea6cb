"""What a pipeline's things are called: `NAME-archive`, `NAME-audit` or `NAME-analytics`, all but its Jobs.

Pods carry it as a label, and another one for each group that they may read: by that the group's policy lets them in.
"""

from __future__ import annotations

from typing import Final

from gantry_operator.objects.base import Object, common_labels, owned_by
from gantry_operator.objects.names import COMPONENT_LABEL, OUR_PREFIXES
from gantry_spec.manifest.group import API_GROUP
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, Pipeline

PIPELINE_LABEL: Final = f"{API_GROUP}/pipeline"
TEMPLATE_ANNOTATION: Final = f"{API_GROUP}/template"
DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
PAGE_PORT: Final = 8090
DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079
RESERVED: Final = (*OUR_PREFIXES, "spark-")
"""Of labels and annotations that a template may not set."""

JOB_OF_KIND: Final = {kind.name: kind.job for kind in PIPELINE_KINDS}


def base_of(document: Object) -> str:
    """What the objects of a resource are called."""
    return f"{document['metadata']['name']}-{JOB_OF_KIND[document['kind']]}"


def labels(pipeline: Pipeline, component: str) -> dict[str, str]:
    """Of an object or pod."""
    return common_labels("gantry-pipeline", pipeline.metadata) | {
        COMPONENT_LABEL: component,
        PIPELINE_LABEL: pipeline.base,
    }


def selector(pipeline: Pipeline, component: str = "") -> dict[str, str]:
    """What its pods are told apart by."""
    return {PIPELINE_LABEL: pipeline.base} | ({COMPONENT_LABEL: component} if component else {})


def made(pipeline: Pipeline, kind: tuple[str, str], body: Object, *, name: str = "", component: str = DRIVER) -> Object:
    """An object of the pipeline; ``kind`` is its apiVersion and kind."""
    head = {"labels": labels(pipeline, component)}
    return owned_by(pipeline.kind.name, pipeline.metadata, kind, name or pipeline.base, head, body)
