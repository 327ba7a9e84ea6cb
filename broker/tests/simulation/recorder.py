"""Recording of a history: every action that a caller has called, as a line that can be pasted into a test.

Verbs call each other (``append`` on a store that is down opens it first), and only the outermost call is recorded:
replaying it does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar


class Call(NamedTuple):
    """One call of a action, with its arguments."""

    action: str
    arguments: Sequence[object]
    keywords: Mapping[str, object]

    def __str__(self) -> str:
        words = [repr(one) for one in self.arguments] + [f"{name}={value!r}" for name, value in self.keywords.items()]
        return f"simulated.{self.action}({', '.join(words)})"


class HistoryRecorder:
    """Base class of objects that record the actions called on them."""

    def __init__(self) -> None:
        self.history: Final[list[Call]] = []
        self.depth = 0
        """The number of actions that are running, one inside the other."""

    def replay(self, call: Call) -> None:
        """Repeat a recorded call on this object."""
        getattr(self, call.action)(*call.arguments, **call.keywords)


RecorderT = TypeVar("RecorderT", bound=HistoryRecorder)
ArgumentsP = ParamSpec("ArgumentsP")


def action(
    method: Callable[Concatenate[RecorderT, ArgumentsP], None],
) -> Callable[Concatenate[RecorderT, ArgumentsP], None]:
    """Decorate a method as an action, whose outermost calls are recorded."""

    @functools.wraps(method)
    def recorded(self: RecorderT, /, *arguments: ArgumentsP.args, **keywords: ArgumentsP.kwargs) -> None:
        if self.depth == 0:
            self.history.append(Call(method.__name__, arguments, keywords))
        self.depth += 1
        try:
            method(self, *arguments, **keywords)
        finally:
            self.depth -= 1

    return recorded
