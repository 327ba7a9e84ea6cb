"""The errors that end a job, shown without a traceback: a line for each problem, with the remedy if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final


@final
class ConfigError(Exception):
    """The configuration is invalid: lists every problem that was found. Correct the file, or the --set."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class JobError(Exception):
    """The job cannot continue. The problem states what happened, the remedy what to do about it."""

    def __init__(self, problem: str, *, remedy: str = "", reason: str = "Failed", exit_code: int = 1) -> None:
        super().__init__(" ".join((f"{problem} -- {remedy}" if remedy else problem).split()))
        self.reason = reason
        """Stable CamelCase word for programs; the operator uses it as a condition's reason."""

        self.exit_code = exit_code
