"""One writer for each destination and each checkpoint: which of several pipelines has a folder. Pure.

Two drivers on one checkpoint break it, and two archives in one folder count as one to whoever reads it. The older
pipeline keeps the folder, so that nobody takes an archive over by naming it; folders inside of one another count as
the same. What two operators or a hand might begin at once is left to the lock that a job takes beside its archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gantry_spec.pipelines.kinds import Pipeline


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
