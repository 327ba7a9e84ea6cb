"""The input of rendering besides the pipeline itself, or the problem that keeps the pipeline from running. Pure.

Each destination and each checkpoint has one writer. Two drivers on one checkpoint would damage it, and a reader would
take two archives in one folder for one. The older pipeline keeps a folder, so that a new one cannot take it over;
nested folders count as the same. The events of two new pipelines come in any order: if the younger one has a workload
already when the older one is known, the workload is deleted. Jobs that two operators or a user start at the same time
are kept apart by the lock that a job takes in its archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from gantry_operator.api import manifest_of
from gantry_operator.objects import configuration, names
from gantry_operator.objects.certificates import authority_secret_of
from gantry_operator.objects.facts import FactsPart, OperatorFacts
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.pipelines.kinds import ARCHIVE, Pipeline
from gantry_spec.pipelines.parts import EngineMode, Volume


@final
class EngineFacts(OperatorFacts, frozen=True):
    """The facts that are the same for all pipelines."""

    image: str = ""
    """The image of drivers and executors of pipelines that set no image; empty if every pipeline must set one."""

    executors_role: tuple[str, str] = ("", "")
    """Kind and name of the role with which a driver creates executors; empty if mode `kubernetes` is refused."""


@final
class Source(FactsPart, frozen=True):
    """The source from which a pipeline reads.

    A pipeline only gets secrets for reading: the group's token for reading, the accounts' `credentials` and the public
    `ca.crt`; never a token that gives orders, and never a private key.
    """

    name_servers: tuple[str, ...]
    """The addresses (``host:port``) of the name servers."""

    sidecars: tuple[str, ...] = ()
    """The URLs of the sidecars; none if no group is named."""

    group: str = ""
    """The name of the group; empty if none is named."""

    token_secret: str = ""
    """The Secret with the key `read-token`."""

    credentials_secret: str = ""
    """The Secret with the key `credentials`."""

    ca_secret: str = ""
    """The Secret with the key `ca.crt`."""


@final
class PipelineFacts(FactsPart, frozen=True):
    """All facts for rendering the objects of a pipeline."""

    engine: EngineFacts
    source: Source
    archive: Volume | None = None
    """The volume of the archive that an audit compares."""

    served_group: str = ""
    """The group that reads this archive: its server mounts the same claim, so their pods prefer the same Node."""


SHARED_DESTINATION: Final = "SharedDestination"
"""The reason of a pipeline whose folder an older pipeline keeps. It must not have a workload."""


class Problem(NamedTuple):
    """The reason why a pipeline cannot run, for its conditions."""

    reason: str
    """The reason as one stable word in CamelCase."""

    text: str


def facts_or_problem(
    pipeline: Pipeline,
    engine: EngineFacts,
    group: Mapping[str, Any] | None,
    others: Sequence[Pipeline],
    served_group: str = "",
) -> PipelineFacts | Problem:
    """Return the facts for rendering a pipeline, or the problem that keeps it from running.

    ``others`` are the pipelines of its namespace; it may be one of them.
    """
    spec = pipeline.spec
    problem = Problem(SHARED_DESTINATION, shared_folder(pipeline, others))
    if problem.text:
        return problem
    if not (spec.engine.image or engine.image):
        return Problem("ImageMissing", "the operator has no default image of pipelines: set spec.engine.image")
    if spec.engine.mode is EngineMode.KUBERNETES and not all(engine.executors_role):
        message = (
            "the operator cannot grant drivers the right to create executors: set rbac.executors of its chart, or"
            " spec.engine.mode: local"
        )
        return Problem("EngineRefused", message)
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
            return Problem("ArchiveNotFound", f'TopicArchive "{name}" not found in this namespace')
        archive = target.destination.pvc
    return PipelineFacts(engine=engine, source=source_of(pipeline, read), archive=archive, served_group=served_group)


def _group(name: str, document: Mapping[str, Any] | None) -> BrokerGroup | Problem:
    if document is None:
        return Problem("GroupNotFound", f'BrokerGroup "{name}" not found in this namespace')
    try:
        return group_of(manifest_of(document))
    except ManifestError as error:
        return Problem("GroupNotFound", f'BrokerGroup "{name}" is invalid: {error}')


def source_of(pipeline: Pipeline, group: BrokerGroup | None) -> Source:
    """Return the source of a pipeline that refers to this group, or that names its own name servers."""
    access = pipeline.spec.access
    if group is None:
        return Source(
            name_servers=tuple(pipeline.spec.name_servers),
            credentials_secret=access.credentials_secret,
            ca_secret=access.tls_secret,
        )
    name, namespace, spec = group.metadata.name, group.metadata.namespace, group.spec
    scheme = "https" if spec.access.has_tls else "http"
    sidecars = tuple(
        f"{scheme}://{names.member_host(name, namespace, shard, member)}:{names.SIDECAR_PORT}"
        for shard in range(spec.shards)
        for member in spec.members
    )
    return Source(
        name_servers=configuration.name_servers(group),
        sidecars=sidecars,
        group=name,
        token_secret=names.secret_name(name),
        credentials_secret=access.credentials_secret or spec.access.acl_secret,
        ca_secret=access.tls_secret or authority_secret_of(group),
    )


# -- one writer for each folder ---------------------------------------------------------------------------------------


class Folder(NamedTuple):
    """A folder in the volume of a claim."""

    claim: str
    segments: tuple[str, ...]

    def overlaps(self, other: Folder) -> bool:
        """Return whether the folders are equal, or one contains the other."""
        shared = min(len(self.segments), len(other.segments))
        return self.claim == other.claim and self.segments[:shared] == other.segments[:shared]

    def __str__(self) -> str:
        return "/".join((self.claim, *self.segments))


def folders_of(pipeline: Pipeline) -> Iterator[Folder]:
    """Yield the folders that a pipeline writes to."""
    for destination in (pipeline.destination, pipeline.checkpoint):
        if destination.pvc.claim_name:
            segments = tuple(word for word in destination.pvc.path.split("/") if word)
            yield Folder(destination.pvc.claim_name, segments)


def shared_folder(pipeline: Pipeline, others: Iterable[Pipeline]) -> str:
    """Return a message that names an older pipeline with the same folder; empty if there is none."""
    mine = list(folders_of(pipeline))
    for other in sorted(others, key=_age):
        is_same = (other.kind, other.metadata.name) == (pipeline.kind, pipeline.metadata.name)
        is_other_namespace = other.metadata.namespace != pipeline.metadata.namespace
        if is_same or is_other_namespace or _age(other) >= _age(pipeline):
            continue
        for folder in mine:
            if any(folder.overlaps(others_folder) for others_folder in folders_of(other)):
                return (
                    f"{other.kind.name} {other.metadata.name} already writes to {folder}, or to a folder above or below"
                    " it: choose another folder"
                )
    return ""


def _age(pipeline: Pipeline) -> tuple[str, str, str]:
    """Return a sort key by age: creation times of Kubernetes sort as text, and names decide within a second."""
    return pipeline.created, pipeline.metadata.name, pipeline.kind.name
