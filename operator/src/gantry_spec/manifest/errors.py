"""The errors of a manifest: every problem with the path of its field and its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final


class Problem(NamedTuple):
    """One problem of a manifest."""

    path: str
    """The path of the field as it is written: ``spec.replication.inSyncReplicas``; empty for the whole file."""

    text: str
    """The description of the problem, with the expected value or the remedy."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@final
class ManifestError(Exception):
    """The manifest is invalid. The error lists every problem that was found; correct the file and apply it again."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
