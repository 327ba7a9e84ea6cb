"""What a move of the master role is asked for, what it did step by step, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, final, overload

import msgspec

from gantry_cli.ha_group import CannotMove, Member, Reached
from gantry_status.orders import AskPromise, AskStatus, HaStatus, OrderError, Promised, StatusOrder

LOOK_TIMEOUT_S: Final = 5.0


class Caller(Protocol):
    """Whom orders are given: an ``OrderClient``, or a test's own broker."""

    @property
    def path(self) -> str: ...

    @overload
    async def call(self, order: AskPromise, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a person wants."""

    to: int | None = None
    """Who shall be the master; None leaves it to the election."""
    named: frozenset[int] = frozenset()
    """Who may be the master; empty for what the members have recorded."""
    old_master: int | None = None
    """Who it was, if nobody who answers has recorded that."""
    is_forced: bool = False
    drain_timeout_ms: int = 10_000


class Step(msgspec.Struct, frozen=True):
    """One thing that was done."""

    what: str
    member: str
    took_ms: float
    note: str = ""
    is_done: bool = True


@final
@dataclass(slots=True, kw_only=True)
class Moved:
    """What came of it."""

    epoch: int
    master: str
    number: int
    loss: str
    """What may be lost; nothing if nothing can be."""
    is_complete: bool
    """Whether everybody who answers follows."""
    steps: list[Step] = field(default_factory=list)


async def look(clients: Sequence[Caller]) -> list[Member]:
    """Ask everybody who they are, side by side."""

    async def one(client: Caller) -> Member:
        try:
            return Member(client.path, await client.call(AskStatus(), timeout_s=LOOK_TIMEOUT_S))
        except OrderError as error:
            return Member(client.path, None, str(error))

    return list(await asyncio.gather(*map(one, clients)))


@final
class Steps:
    """The steps of one move, in the order in which they ended."""

    def __init__(self, tell: Callable[[Step], None]) -> None:
        self.all: Final[list[Step]] = []
        self._tell: Final = tell

    @asynccontextmanager
    async def step(self, what: str, member: Reached, note: str = "") -> AsyncIterator[None]:
        """Put down what is done inside, how long it took, and why it failed if it did."""
        began = time.perf_counter()
        failure = ""
        try:
            yield
        except (OrderError, CannotMove) as error:
            failure = str(error)
            raise
        finally:
            took_ms = (time.perf_counter() - began) * 1000
            step = Step(what, member.name, round(took_ms, 1), failure or note, not failure)
            self.all.append(step)
            self._tell(step)
