"""The archive that a group names: the facts about it for rendering its server, or the problem that keeps it from one.

Pure. The server reads the spec of the archive's job, so that both agree on what is archived; an upgrade of the operator
does not change it (``configuration.stable_values``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.api import manifest_of
from gantry_operator.objects.facts import ArchiveFacts
from gantry_operator.pipelines.configuration import stable_values
from gantry_operator.pipelines.facts import EngineFacts, Problem
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.pipelines import pipeline_of

MANY_NODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
"""The access modes of a claim that pods on several Nodes can mount at a time."""

ONE_POD: Final = "ReadWriteOncePod"
"""The access mode of a claim that only one pod can mount."""


def archive_facts(
    group: BrokerGroup,
    engine: EngineFacts,
    document: Mapping[str, Any] | None,
    claim: Mapping[str, Any] | None,
    deployment: Mapping[str, Any] | None = None,
) -> ArchiveFacts | Problem:
    """Return the facts about the archive that a group names, or why it has no server.

    ``document`` is the TopicArchive, and ``claim`` that of its destination; None for one that is not known. Without the
    claim a server that exists, with this ``deployment``, stays as it is.
    """
    name = group.spec.retention.archive
    assert name is not None, "the group names an archive"
    if document is None:
        return Problem("ArchiveNotFound", f'TopicArchive "{name}" not found in this namespace')
    try:
        pipeline = pipeline_of(manifest_of(document))
    except ManifestError as error:
        return Problem("ArchiveInvalid", f'TopicArchive "{name}" is invalid: {error}')
    groups, volume = pipeline.spec.broker_groups, pipeline.destination.pvc
    if groups and group.metadata.name not in groups:
        text = f'TopicArchive "{name}" archives BrokerGroup "{groups[0]}", not this group; nothing is deleted meanwhile'
        return Problem("ArchiveOfAnotherGroup", text)
    image = pipeline.spec.engine.image or engine.image
    if not image:
        text = f'the operator has no default image of pipelines: set spec.engine.image of TopicArchive "{name}"'
        return Problem("ImageMissing", text)
    modes = access_modes(claim)
    if ONE_POD in modes:
        text = f"claim {volume.claim_name} is {ONE_POD}, and the archive's job mounts it: use ReadWriteMany"
        return Problem("VolumeNotShareable", text)
    return ArchiveFacts(
        name=name,
        pipeline=pipeline.base,
        image=image,
        pull_policy=engine.pull_policy,
        spec=stable_values(pipeline),
        claim=volume.claim_name,
        path=volume.path,
        is_on_one_node=_is_bound(deployment) if claim is None else not MANY_NODES & modes,
        template=pipeline.spec.engine.pod_template,
    )


def _is_bound(deployment: Mapping[str, Any] | None) -> bool:
    """Return whether a server was rendered for a claim of one Node; true for one that does not exist."""
    strategy = ((deployment or {}).get("spec") or {}).get("strategy") or {}
    return str(strategy.get("type", "Recreate")) == "Recreate"


def archive_named_by(group: Mapping[str, Any]) -> str:
    """Return the name of the archive that the resource of a group names; empty if it names none."""
    return str(((group.get("spec") or {}).get("retention") or {}).get("archive") or "")


def access_modes(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the access modes of a claim: those of its volume, or else those that it requests; none if unknown."""
    known = claim or {}
    found = (known.get("status") or {}).get("accessModes") or (known.get("spec") or {}).get("accessModes") or ()
    return frozenset(found)
