"""What rendering a pipeline needs to know beside the pipeline itself, or what keeps it from running. Pure.

There is one writer for each destination and each checkpoint. Two drivers on one checkpoint break it, and two archives
in one folder count as one to a reader. The older pipeline keeps the folder, so that an archive is not taken over by
naming it; folders inside of one another count as the same. What two operators or a person might start at once is left
to the lock that a job takes beside its archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from gantry_operator.api import manifest_of
from gantry_operator.objects import configuration, names
from gantry_operator.objects.facts import OperatorFacts, Part
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.pipelines.kinds import ARCHIVE, Pipeline
from gantry_spec.pipelines.parts import EngineMode, Volume


@final
class EngineFacts(OperatorFacts, frozen=True):
    """The same for all pipelines."""

    image: str = ""
    """Of driver and executors, where a pipeline names none; empty: each has to."""

    executors_role: tuple[str, str] = ("", "")
    """Kind and name of the role that lets a driver make executors; empty: mode `kubernetes` is refused."""


@final
class Source(Part, frozen=True):
    """Where a pipeline reads.

    Of a group's Secrets only what reads is handed on: the token for reading, the accounts' `credentials` and the
    public `ca.crt`; never a token that gives orders, and never a private key.
    """

    name_servers: tuple[str, ...]
    sidecars: tuple[str, ...] = ()
    group: str = ""
    token_secret: str = ""
    """With the key `read-token`."""

    credentials_secret: str = ""
    """With the key `credentials`."""

    ca_secret: str = ""
    """With the key `ca.crt`."""


@final
class PipelineFacts(Part, frozen=True):
    """Of one pipeline."""

    engine: EngineFacts
    source: Source
    archive: Volume | None = None
    """Where the archive is that an audit compares."""


class Problem(NamedTuple):
    """Why nothing is run."""

    reason: str
    text: str


def facts_or_problem(
    pipeline: Pipeline, engine: EngineFacts, group: Mapping[str, Any] | None, others: Sequence[Pipeline]
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


def _group(name: str, document: Mapping[str, Any] | None) -> BrokerGroup | Problem:
    if document is None:
        return Problem("GroupNotFound", f"there is no BrokerGroup {name} in this namespace")
    try:
        return group_of(manifest_of(document))
    except ManifestError as error:
        return Problem("GroupNotFound", f"the BrokerGroup {name} cannot be read: {error}")


def source_of(pipeline: Pipeline, group: BrokerGroup | None) -> Source:
    """Of a pipeline that names this group, or name servers of its own."""
    access = pipeline.spec.access
    if group is None:
        return Source(
            name_servers=tuple(pipeline.spec.name_servers),
            credentials_secret=access.credentials_secret,
            ca_secret=access.tls_secret,
        )
    name, namespace, spec = group.metadata.name, group.metadata.namespace, group.spec
    scheme = "https" if spec.access.tls_secret else "http"
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
        ca_secret=access.tls_secret or spec.access.tls_secret,
    )


# -- one writer for each folder ---------------------------------------------------------------------------------------


class Folder(NamedTuple):
    """On a claim."""

    claim: str
    words: tuple[str, ...]

    def overlaps(self, other: Folder) -> bool:
        """Whether one is the other or inside of it."""
        shared = min(len(self.words), len(other.words))
        return self.claim == other.claim and self.words[:shared] == other.words[:shared]

    def __str__(self) -> str:
        return "/".join((self.claim, *self.words))


def folders_of(pipeline: Pipeline) -> Iterator[Folder]:
    """What it writes into."""
    for destination in (pipeline.destination, pipeline.checkpoint):
        if destination.pvc.claim_name:
            words = tuple(word for word in destination.pvc.path.split("/") if word)
            yield Folder(destination.pvc.claim_name, words)


def shared_with(pipeline: Pipeline, others: Iterable[Pipeline]) -> str:
    """Who has a folder of this one already, in a sentence; empty if nobody has."""
    mine = list(folders_of(pipeline))
    for other in sorted(others, key=_age):
        is_same = (other.kind, other.metadata.name) == (pipeline.kind, pipeline.metadata.name)
        is_elsewhere = other.metadata.namespace != pipeline.metadata.namespace
        if is_same or is_elsewhere or _age(other) >= _age(pipeline):
            continue
        for folder in mine:
            if any(folder.overlaps(theirs) for theirs in folders_of(other)):
                return f"{other.kind.name} {other.metadata.name} writes into {folder}: name another folder"
    return ""


def _age(pipeline: Pipeline) -> tuple[str, str, str]:
    """Kubernetes writes times of creation so that they sort as text; of one second the name decides."""
    return pipeline.created, pipeline.metadata.name, pipeline.kind.name
