"""The validation rules over several fields of a pipeline, in Python and in CEL, and the fields that cannot be changed.

Those fields are only in CEL, since only the API server knows the spec before an edit. Most rules apply to resources in
a cluster only. On a laptop the same spec may omit what a cluster needs, since the section `runtime` of the
configuration has it. The general rules apply on a laptop, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from gantry_spec.manifest.errors import Problem
from gantry_spec.pipelines.kinds import ANALYTICS, ARCHIVE, AUDIT, PIPELINE_KINDS, PipelineKind
from gantry_spec.pipelines.parts import AuditCheck, EngineMode, PipelineSpec, Transport

RESERVED_SETTINGS: Final = frozenset(
    {
        *("spark.master", "spark.app.name", "spark.submit.deployMode", "spark.driver.host", "spark.driver.port"),
        *("spark.driver.bindAddress", "spark.driver.blockManager.port", "spark.blockManager.port"),
        *("spark.driver.memory", "spark.executor.memory", "spark.executor.memoryOverhead", "spark.executor.instances"),
        *("spark.executor.cores", "spark.kubernetes.namespace", "spark.kubernetes.driver.pod.name"),
        *("spark.kubernetes.container.image", "spark.kubernetes.executor.podTemplateFile"),
        *("spark.kubernetes.authenticate.executor.serviceAccountName", "spark.kubernetes.executor.podNamePrefix"),
    }
)
"""The settings of Spark that fields of the spec or the operator control."""


class Rule(NamedTuple):
    """A validation rule over the fields of a pipeline's spec."""

    path: str
    is_kept: Callable[[Any], bool]
    """Whether a spec keeps the rule."""

    cel: str
    """The same test in CEL, over ``self``, the spec with its defaults."""

    message: str
    """What is expected, for the operator and for the API server."""

    kinds: tuple[PipelineKind, ...] = PIPELINE_KINDS
    """The kinds of pipelines that have the rule."""

    is_general: bool = False
    """Whether the rule also applies to the configuration of `gantry pipeline`."""


class FixedField(NamedTuple):
    """A field that cannot be changed after creation."""

    path: str
    cel: str
    """The rule in CEL, over ``self`` and ``oldSelf``, the spec after and before the edit."""

    message: str
    kinds: tuple[PipelineKind, ...]


RULES: Final = (
    Rule(
        "spec.brokerGroups",
        lambda spec: bool(spec.broker_groups) != bool(spec.name_servers),
        "(size(self.brokerGroups) > 0) != (size(self.nameServers) > 0)",
        "set either brokerGroups or nameServers, and not both",
    ),
    Rule(
        "spec.transport",
        lambda spec: spec.transport is not Transport.FILE,
        "self.transport != 'file'",
        "transport file reads local stores, which a pod does not have: set http, pull or auto",
    ),
    Rule(
        "spec.destination.pvc.claimName",
        lambda spec: bool(spec.destination.pvc.claim_name),
        "self.destination.pvc.claimName != ''",
        "destination.pvc.claimName is required: it names the claim for the results",
        (ARCHIVE, ANALYTICS),
    ),
    Rule(
        "spec.checkpoint.pvc.path",
        lambda spec: bool(spec.checkpoint.pvc.claim_name) or not spec.checkpoint.pvc.path,
        "self.checkpoint.pvc.claimName != '' || self.checkpoint.pvc.path == ''",
        "checkpoint.pvc.path is a folder on checkpoint.pvc.claimName: set both, or neither",
        (ARCHIVE, ANALYTICS),
    ),
    Rule(
        "spec.engine.cores",
        lambda spec: spec.engine.mode is EngineMode.LOCAL or not spec.engine.cores,
        "self.engine.mode == 'local' || self.engine.cores == 0",
        "engine.cores applies to mode local only; with mode kubernetes set engine.executor.cores",
    ),
    Rule(
        "spec.engine.sparkConf",
        lambda spec: not RESERVED_SETTINGS & spec.engine.spark_conf.keys(),
        f"!self.engine.sparkConf.exists(key, key in [{', '.join(repr(key) for key in sorted(RESERVED_SETTINGS))}])",
        "a key of sparkConf is reserved, because another field or Gantry itself controls it",
        is_general=True,
    ),
    Rule(
        "spec.archive",
        lambda spec: (AuditCheck.ARCHIVE in spec.checks) == (spec.archive is not None),
        "('archive' in self.checks) == has(self.archive)",
        "archive, the name of a TopicArchive, must be set with the check archive, and only then",
        (AUDIT,),
    ),
    Rule(
        "spec.schemas",
        lambda spec: not any(one.schema_file for one in spec.schemas),
        "self.schemas.all(one, one.schemaFile == '')",
        "schemaFile is a file of the machine that runs gantry pipeline, which a pod does not have: set schema",
        (ARCHIVE,),
    ),
)

FIXED: Final = (
    FixedField(
        "spec.destination",
        "self.destination == oldSelf.destination",
        "the destination cannot change: create another resource for another destination",
        (ARCHIVE, ANALYTICS),
    ),
    FixedField(
        "spec.checkpoint",
        "self.checkpoint == oldSelf.checkpoint",
        "the checkpoint cannot change, since it has the progress: create another resource for another one",
        (ARCHIVE, ANALYTICS),
    ),
    FixedField(
        "spec.layout.rowsPerFile",
        "self.layout.rowsPerFile == oldSelf.layout.rowsPerFile && self.layout.timeZone == oldSelf.layout.timeZone"
        " && self.layout.partitionBy == oldSelf.layout.partitionBy",
        "rowsPerFile, timeZone and partitionBy determine the files and cannot change: create another archive",
        (ARCHIVE,),
    ),
)


def broken_rules(kind: PipelineKind, spec: Any) -> Iterator[Problem]:
    """Yield the problem of every rule that the spec of a resource breaks."""
    for rule in RULES:
        if kind in rule.kinds and not rule.is_kept(spec):
            yield Problem(rule.path, rule.message)


def broken_general_rules(spec: PipelineSpec) -> Iterator[Problem]:
    """Yield the problem of every general rule that a spec breaks."""
    for rule in RULES:
        if rule.is_general and not rule.is_kept(spec):
            yield Problem(rule.path, rule.message)
