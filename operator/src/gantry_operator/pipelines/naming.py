"""The names of a pipeline's objects: `NAME-archive`, `NAME-audit` or `NAME-analytics`, except for its Jobs.

Pods have this name as a label, and another label for each group that they read, which the group's network policy
admits.
"""

from __future__ import annotations

from typing import Final

from gantry_operator.objects.base import Object, common_labels, owned_by
from gantry_operator.objects.names import COMPONENT_LABEL, OUR_PREFIXES
from gantry_operator.objects.names import PIPELINE_LABEL as PIPELINE_LABEL
from gantry_spec.manifest.group import API_GROUP
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, Pipeline

TEMPLATE_ANNOTATION: Final = f"{API_GROUP}/template"
"""The annotation of a pod with the hash of its template and configuration."""

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
PAGE_PORT: Final = 8090
"""The port on which a driver serves its progress page."""

DRIVER_PORT: Final = 7078
"""The port on which executors reach the driver."""

BLOCKS_PORT: Final = 7079
"""The port on which Spark transfers blocks of data."""

RESERVED: Final = (*OUR_PREFIXES, "spark-")
"""The prefixes of labels and annotations that a user's template cannot set."""

JOB_OF_KIND: Final = {kind.name: kind.job for kind in PIPELINE_KINDS}
"""The name of the job by the kind of the resource."""


def base_of(document: Object) -> str:
    """Return the common name of the objects of a pipeline."""
    return f"{document['metadata']['name']}-{JOB_OF_KIND[document['kind']]}"


def labels(pipeline: Pipeline, component: str) -> dict[str, str]:
    """Return the labels of an object or pod of the pipeline."""
    return common_labels("gantry-pipeline", pipeline.metadata) | {
        COMPONENT_LABEL: component,
        PIPELINE_LABEL: pipeline.base,
    }


def selector(pipeline: Pipeline, component: str = "") -> dict[str, str]:
    """Return labels that select the pods of a pipeline, or of one of its components."""
    return {PIPELINE_LABEL: pipeline.base} | ({COMPONENT_LABEL: component} if component else {})


def make_object(
    pipeline: Pipeline, kind: tuple[str, str], body: Object, *, name: str = "", component: str = DRIVER
) -> Object:
    """Return an object of the pipeline; ``kind`` is its apiVersion and kind."""
    head = {"labels": labels(pipeline, component)}
    return owned_by(pipeline.kind.name, pipeline.metadata, kind, name or pipeline.base, head, body)
