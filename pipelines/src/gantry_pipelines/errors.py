"""What ends a job before its time, in the words of whoever has to act: one line, with a remedy, never a traceback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final


@final
class ConfigError(Exception):
    """This configuration cannot be used: lists every problem that was found. Mend the file, or the --set."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class JobError(Exception):
    """The job cannot go on. The text says what happened, the remedy what to do about it."""

    def __init__(self, problem: str, *, remedy: str = "", reason: str = "Failed", exit_code: int = 1) -> None:
        super().__init__(" ".join((f"{problem} -- {remedy}" if remedy else problem).split()))
        self.reason = reason
        """One stable word in CamelCase, which becomes a condition's reason."""

        self.exit_code = exit_code
