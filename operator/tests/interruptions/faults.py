"""Interruptions of an operator: which fault meets which of its effects.

An *effect* is a write to the API server or an order to a sidecar. Effects are counted from the begin of an operation.
A fault happens at one effect, or from one effect on.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final, NamedTuple


class Fault(StrEnum):
    """How the operator is interrupted at one of its effects."""

    KILLED_BEFORE = "killed before"
    """The operator is killed just before it makes the effect."""

    KILLED_AFTER = "killed after"
    """The operator is killed just after it has made the effect, before it knows the answer."""

    ANSWER_LOST = "answer lost"
    """The effect is made, and the operator gets an error instead of the answer."""

    REPEATED = "made twice"
    """The effect is made, its answer is lost, and it is made again at once."""

    CONFLICT = "409"
    INVALID = "422"
    THROTTLED = "429"
    FAILED = "500"
    """The API server, or the sidecar, answers with this status and does nothing."""

    LATE_EVENTS = "late events"
    """Watch events come two seconds late, for some seconds."""

    DOUBLE_EVENTS = "double events"
    """Each watch event comes again two seconds later, for some seconds."""

    STALE_START = "stale start"
    """The operator is killed after the effect, and the next one starts with a list from two seconds before."""


ALL: Final = tuple(Fault)


class Interruption(NamedTuple):
    """One fault at one effect."""

    fault: Fault
    effect: int
    """The number of the effect, from 1 on."""

    def __str__(self) -> str:
        return f"{self.fault} at effect {self.effect}"


def single(effects: int) -> list[tuple[Interruption, ...]]:
    """Return every fault at every effect, each alone."""
    return [(Interruption(fault, effect),) for fault in ALL for effect in range(1, effects + 1)]


def pairs(effects: int, count: int, seed: str) -> list[tuple[Interruption, ...]]:
    """Return ``count`` pairs of faults at different effects, from a seed."""
    chance = random.Random(seed)
    found: list[tuple[Interruption, ...]] = []
    for _ in range(count if effects > 1 else 0):
        first, second = sorted(chance.sample(range(1, effects + 1), 2))
        found.append((Interruption(chance.choice(ALL), first), Interruption(chance.choice(ALL), second)))
    return found
