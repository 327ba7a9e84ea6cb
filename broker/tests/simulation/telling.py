"""A history as it was lived: every verb that was called from outside, as a line that can be pasted into a test.

Verbs call each other (whoever appends to a store that is down opens it first), and only the outermost is told: saying
it again does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar


class Call(NamedTuple):
    """One verb, with what it was told."""

    verb: str
    arguments: Sequence[object]
    keywords: Mapping[str, object]

    def __str__(self) -> str:
        words = [repr(one) for one in self.arguments] + [f"{name}={value!r}" for name, value in self.keywords.items()]
        return f"life.{self.verb}({', '.join(words)})"


class Teller:
    """Whoever remembers its verbs."""

    def __init__(self) -> None:
        self.history: Final[list[Call]] = []
        self.depth = 0
        """How many verbs are under way."""

    def say(self, call: Call) -> None:
        """Do once more what was told."""
        getattr(self, call.verb)(*call.arguments, **call.keywords)


Who = TypeVar("Who", bound=Teller)
What = ParamSpec("What")


def verb(method: Callable[Concatenate[Who, What], None]) -> Callable[Concatenate[Who, What], None]:
    """A method that a history is made of."""

    @functools.wraps(method)
    def said(self: Who, /, *arguments: What.args, **keywords: What.kwargs) -> None:
        if self.depth == 0:
            self.history.append(Call(method.__name__, arguments, keywords))
        self.depth += 1
        try:
            method(self, *arguments, **keywords)
        finally:
            self.depth -= 1

    return said
