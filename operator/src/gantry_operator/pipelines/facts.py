"""What rendering a pipeline needs to know beside the pipeline itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import msgspec

from gantry_operator.pipelines.sources import Source
from gantry_spec.pipelines.parts import Volume


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Root of both. Never written itself."""


@final
class EngineFacts(Part, frozen=True):
    """The same for all pipelines."""

    image: str = ""
    """Of driver and executors, where a pipeline names none; empty: each has to."""

    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    executors_role: tuple[str, str] = ("", "")
    """Kind and name of the role that lets a driver make executors; empty: mode `kubernetes` is refused."""

    operator_namespace: str = "gantry-system"
    operator_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/name": "gantry-operator"}
    )
    prometheus_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/name": "prometheus"}
    )


@final
class PipelineFacts(Part, frozen=True):
    """Of one pipeline."""

    engine: EngineFacts
    source: Source
    archive: Volume | None = None
    """Where the archive is that an audit compares."""
