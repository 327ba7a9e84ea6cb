"""The pipeline resources: three kinds with their fields, validation rules, status and CustomResourceDefinitions.

``parts`` and ``kinds`` define the fields, ``rules`` checks combinations of fields and edits, ``reading`` parses a
resource into them, and ``crds`` generates the definitions.
"""

from gantry_spec.pipelines.kinds import ANALYTICS, ARCHIVE, AUDIT, PIPELINE_KINDS, Pipeline, PipelineKind
from gantry_spec.pipelines.reading import pipeline_of

__all__ = ["ANALYTICS", "ARCHIVE", "AUDIT", "PIPELINE_KINDS", "Pipeline", "PipelineKind", "pipeline_of"]
