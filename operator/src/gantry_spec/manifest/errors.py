"""What can be wrong with a manifest: every problem with the path of its field and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final


class Problem(NamedTuple):
    """One thing that is wrong."""

    path: str
    """Of the field, as it is written: ``spec.replication.inSyncReplicas``."""

    text: str
    """What is wrong with it, and what would be right."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@final
class ManifestError(Exception):
    """This is no group that can be run. Lists every problem that was found; mend the file and apply it again."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
