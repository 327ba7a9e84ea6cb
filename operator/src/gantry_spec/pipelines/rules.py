"""What the fields of a pipeline may say together, and what an edit may change: in Python and, for the API server, CEL.

A rule is tried on a resource only. On a laptop the same spec may leave out what a cluster needs, since `here` says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from gantry_spec.manifest.errors import Problem
from gantry_spec.pipelines.kinds import ANALYTICS, ARCHIVE, AUDIT, PIPELINE_KINDS, PipelineKind
from gantry_spec.pipelines.parts import AuditCheck, EngineMode, Transport

DECIDED: Final = frozenset(
    {
        *("spark.master", "spark.app.name", "spark.submit.deployMode", "spark.driver.host", "spark.driver.port"),
        *("spark.driver.bindAddress", "spark.driver.blockManager.port", "spark.blockManager.port"),
        *("spark.driver.memory", "spark.executor.memory", "spark.executor.memoryOverhead", "spark.executor.instances"),
        *("spark.executor.cores", "spark.kubernetes.namespace", "spark.kubernetes.driver.pod.name"),
        *("spark.kubernetes.container.image", "spark.kubernetes.executor.podTemplateFile"),
        *("spark.kubernetes.authenticate.executor.serviceAccountName", "spark.kubernetes.executor.podNamePrefix"),
    }
)
"""Spark's settings that fields decide, or whoever runs the pods."""


class Rule(NamedTuple):
    """One of them."""

    path: str
    is_kept: Callable[[Any], bool]
    cel: str
    """Over ``self``, the spec with its defaults."""

    message: str
    kinds: tuple[PipelineKind, ...] = PIPELINE_KINDS


class FixedField(NamedTuple):
    """A field that an edit may not change."""

    path: str
    cel: str
    message: str
    kinds: tuple[PipelineKind, ...]


RULES: Final = (
    Rule(
        "spec.brokerGroups",
        lambda spec: bool(spec.broker_groups) != bool(spec.name_servers),
        "(size(self.brokerGroups) > 0) != (size(self.nameServers) > 0)",
        "say brokerGroups or nameServers, and one of them",
    ),
    Rule(
        "spec.transport",
        lambda spec: spec.transport is not Transport.FILE,
        "self.transport != 'file'",
        "transport file reads stores on the machine itself, and a pod sees none: say http, pull or auto",
    ),
    Rule(
        "spec.destination.pvc.claimName",
        lambda spec: bool(spec.destination.pvc.claim_name),
        "self.destination.pvc.claimName != ''",
        "destination.pvc.claimName names the claim that results are written to",
        (ARCHIVE, ANALYTICS),
    ),
    Rule(
        "spec.checkpoint.pvc.path",
        lambda spec: bool(spec.checkpoint.pvc.claim_name) or not spec.checkpoint.pvc.path,
        "self.checkpoint.pvc.claimName != '' || self.checkpoint.pvc.path == ''",
        "checkpoint.pvc.path is a folder on checkpoint.pvc.claimName: say both, or neither",
        (ARCHIVE, ANALYTICS),
    ),
    Rule(
        "spec.engine.cores",
        lambda spec: spec.engine.mode is EngineMode.LOCAL or not spec.engine.cores,
        "self.engine.mode == 'local' || self.engine.cores == 0",
        "engine.cores is of mode local; with mode kubernetes say engine.executor.cores",
    ),
    Rule(
        "spec.engine.sparkConf",
        lambda spec: not DECIDED & spec.engine.spark_conf.keys(),
        f"!self.engine.sparkConf.exists(key, key in [{', '.join(repr(key) for key in sorted(DECIDED))}])",
        "a key of sparkConf is decided by another field of engine",
    ),
    Rule(
        "spec.archive",
        lambda spec: (AuditCheck.ARCHIVE in spec.checks) == (spec.archive is not None),
        "('archive' in self.checks) == has(self.archive)",
        "the check archive needs archive, the name of a TopicArchive, and only it does",
        (AUDIT,),
    ),
)

FIXED: Final = (
    FixedField(
        "spec.destination",
        "self.destination == oldSelf.destination",
        "results stay where they are: make another resource for another place",
        (ARCHIVE, ANALYTICS),
    ),
    FixedField(
        "spec.checkpoint",
        "self.checkpoint == oldSelf.checkpoint",
        "what was read is known by the checkpoint alone: make another resource for another one",
        (ARCHIVE, ANALYTICS),
    ),
    FixedField(
        "spec.layout.rowsPerFile",
        "self.layout.rowsPerFile == oldSelf.layout.rowsPerFile && self.layout.timeZone == oldSelf.layout.timeZone",
        "files are cut and named by rowsPerFile and timeZone: make another archive",
        (ARCHIVE,),
    ),
)


def broken_rules(kind: PipelineKind, spec: Any) -> Iterator[Problem]:
    """Which of them a spec breaks."""
    for rule in RULES:
        if kind in rule.kinds and not rule.is_kept(spec):
            yield Problem(rule.path, rule.message)
