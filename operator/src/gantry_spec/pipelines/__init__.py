"""How a pipeline is written down: three kinds with their fields, rules and status, and what Kubernetes wants to know.

``parts`` and ``kinds`` are the fields, ``rules`` says what may stand together, ``reading`` turns a resource into them,
``crds`` makes of all this the definitions.
"""

from gantry_spec.pipelines.kinds import ANALYTICS, ARCHIVE, AUDIT, PIPELINE_KINDS, Pipeline, PipelineKind
from gantry_spec.pipelines.reading import pipeline_of

__all__ = ["ANALYTICS", "ARCHIVE", "AUDIT", "PIPELINE_KINDS", "Pipeline", "PipelineKind", "pipeline_of"]
