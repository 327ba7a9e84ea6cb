"""One loop for each resource: observe, decide, execute, report, then wait for a change or for the next tick.

    woken by     a change of anything that belongs to the resource, an action that has finished, and a tick
    the spec     read anew in each round; one that cannot be read becomes a condition, and nothing is executed
    reconcile    what differs from kind to kind: a `Reconciler`, which comes in through the constructor
    the report   the status, where it is worth a write, and then the events

A resource that no operator has reconciled before takes its turn (``TURNS``), because its first round creates everything
that it has: of many that are created at once some are made while others wait, and the calls of running groups do not
queue behind all of that. A resource with a status never waits: a group may need another master.

No error ends a loop. What the API server refuses is a condition or an event; an unexpected error is logged, counted,
and tried again later, for this resource alone. There is no finalizer: a resource that is gone, or whose namespace is
being deleted, needs nothing from the operator.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar, final

from gantry_operator.api import Kubernetes, Object, place_of, uid_of
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock, moment_text
from gantry_operator.errors import ApiError, Gone, Terminating
from gantry_operator.event_recorder import Event, EventRecorder
from gantry_operator.metrics import Metrics
from gantry_operator.status import broken_status
from gantry_spec.manifest.errors import ManifestError

log = logging.getLogger(__name__)

QUIET_S: Final = 0.05
"""Changes that come within this time are reconciled together."""

RETRY_S: Final = 1.0
"""After an error of the API server, or a spec that cannot be read. A failover must not wait longer than a tick."""

BUG_S: Final = 10.0
"""After an unexpected error."""

LEAVING_S: Final = 10.0
"""Between two checks whether a resource in a terminating namespace is gone, beside the watch that reports it."""

REPEAT_MS: Final = 60_000
"""The same error is logged as a warning again after this time."""

TURNS: Final = 8
"""New resources at a time. Each makes one call after the other, so that is as many as there are threads for calls."""


class Written(NamedTuple):
    """The status that was written last, by this process or before it."""

    status: Mapping[str, Any]
    age_ms: int


class Outcome(NamedTuple):
    """What a round has come to."""

    pause_s: float
    status: Mapping[str, Any] | None = None
    """The status to write; None if the written one need not be replaced yet."""

    events: Sequence[Event] = ()


class Reconciler(Protocol):
    """What differs between kinds of resources."""

    async def reconcile(self, document: Object, written: Written) -> Outcome:
        """Run one round. Raises ``ManifestError`` for a spec that cannot be read, and leaves of ``ApiError``."""

    async def close(self) -> None:
        """Cancel the actions that are still under way."""


R = TypeVar("R", bound=Reconciler)


@dataclass(frozen=True, kw_only=True)
class LoopContext(ABC, Generic[R]):
    """What all loops of one kind of resource share, and none changes."""

    noun: ClassVar[str]
    """What logs call such a resource."""

    cache: Cache
    api: Kubernetes
    clock: Clock
    metrics: Metrics

    @abstractmethod
    def make_reconciler(self, key: ResourceKey, wake_now: Callable[[], None]) -> R:
        """Make one for a resource. It calls ``wake_now`` when an action has finished: the next need not wait."""


@final
class ErrorReporter:
    """Logs the errors of one resource's rounds: each reason once, and then not again for ``REPEAT_MS``.

    A namespace that is being deleted is no error. Its pods go, then Services, Leases and the rest, and last the
    resource; until then every creation is refused. So the first such answer is logged, and nothing is done for this
    resource any more: another one of its name, in a new namespace, has a loop of its own. ``Gone`` is logged for
    debugging only: the watch will report what has gone.
    """

    def __init__(self, noun: str, key: ResourceKey, clock: Clock) -> None:
        self.is_leaving = False
        """Whether the namespace is being deleted."""

        self._noun: Final = noun
        self._key: Final = key
        self._clock: Final = clock
        self._reason = ""
        self._reported_ms = 0

    def report(self, error: ApiError) -> float:
        """Log what a round has ended with. Returns the seconds until the next round."""
        facts = {self._noun: "/".join(self._key), "reason": str(error)}
        if isinstance(error, Terminating):
            self.is_leaving = True
            log.info("namespace of %s is terminating; nothing more is changed", self._noun, extra=facts)
            return LEAVING_S
        now_ms = self._clock.now_ms()
        is_repeated = str(error) == self._reason and now_ms - self._reported_ms < REPEAT_MS
        if not is_repeated:
            self._reason, self._reported_ms = str(error), now_ms
        level = logging.DEBUG if is_repeated or isinstance(error, Gone) else logging.WARNING
        log.log(level, "failed to reconcile %s; retrying", self._noun, extra=facts)
        return RETRY_S


@final
class ResourceLoop(Generic[R]):
    """Owned by its own task."""

    def __init__(self, key: ResourceKey, context: LoopContext[R], turns: asyncio.Semaphore | None = None) -> None:
        self.key: Final = key
        self.reconciler: Final = context.make_reconciler(key, self._wake_now)
        self.reconciled_ms: int = context.clock.now_ms()
        """When the last round ended."""

        self.is_waiting = False
        """Whether it waits for its turn: then it is not late, but another resource may be."""

        self._context: Final = context
        self._turns: Final = asyncio.Semaphore() if turns is None else turns
        self._errors: Final = ErrorReporter(context.noun, key, context.clock)
        self._recorder: Final = EventRecorder(context.api, context.clock)
        self._awake: Final = asyncio.Event()
        self._is_urgent = False
        self._events: list[Event] = []
        """Those that are still to be recorded."""

        self._uid = ""
        self._written: Mapping[str, Any] | None = None
        self._written_ms = 0

    def __repr__(self) -> str:
        return f"<ResourceLoop {self._context.noun} {'/'.join(self.key)} {self.reconciler!r}>"

    def wake(self) -> None:
        """Start the next round soon, because something has changed."""
        self._awake.set()

    def _wake_now(self) -> None:
        self._is_urgent = True
        self._awake.set()

    async def run(self) -> None:
        """Reconcile until the resource is gone, or until cancelled."""
        try:
            pause_s = await self._first_step()
            while pause_s is not None:
                await self._pause(pause_s)
                pause_s = await self._guarded_step()
        finally:
            await self.reconciler.close()

    async def _first_step(self) -> float | None:
        document = self._context.cache.owner(self.key)
        if document is None or document.get("status"):
            return await self._guarded_step()
        self.is_waiting = self._turns.locked()
        async with self._turns:
            self.is_waiting, self.reconciled_ms = False, self._context.clock.now_ms()
            return await self._guarded_step()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
                await asyncio.sleep(0 if self._is_urgent else QUIET_S)
        except TimeoutError:
            pass
        self._awake.clear()
        self._is_urgent = False

    async def _guarded_step(self) -> float | None:
        try:
            with self._context.metrics.reconcile():
                return await self.step()
        except ApiError as error:
            return self._errors.report(error)
        except Exception:
            noun = self._context.noun
            log.exception("unexpected error while reconciling %s", noun, extra={noun: "/".join(self.key)})
            self._context.metrics.bug()
            return BUG_S
        finally:
            self.reconciled_ms = self._context.clock.now_ms()

    async def step(self) -> float | None:
        """Run one round. Returns the seconds until the next one; None when the resource is gone."""
        document, now_ms = self._context.cache.owner(self.key), self._context.clock.now_ms()
        if document is None or document["metadata"].get("deletionTimestamp") or not self._is_same(document):
            return None
        if self._errors.is_leaving:
            return LEAVING_S
        before = (document.get("status") or {}) if self._written is None else self._written
        written = Written(before, now_ms - self._written_ms)
        try:
            outcome = await self.reconciler.reconcile(document, written)
        except ManifestError as error:
            outcome = self._rejected(document, written, str(error))
        await self._report(document, outcome, now_ms)
        return outcome.pause_s

    def _is_same(self, document: Object) -> bool:
        """Whether no other resource has the name by now: nothing that is remembered here is true of that."""
        self._uid = self._uid or uid_of(document)
        return self._uid == uid_of(document)

    def _rejected(self, document: Object, written: Written, message: str) -> Outcome:
        before, now = document.get("status") or {}, moment_text(self._context.clock.wall())
        status = broken_status(document["metadata"].get("generation", 0), "InvalidSpec", message, before, now)
        events = [Event("InvalidSpec", message, is_warning=True)]
        return Outcome(RETRY_S, status if status != written.status else None, events)

    async def _report(self, document: Object, outcome: Outcome, now_ms: int) -> None:
        """Write the status, then record the events, which wait for the next round if the API server fails."""
        self._events = list(dict.fromkeys([*self._events, *outcome.events]))
        if outcome.status is not None:
            answer = await self._context.api.apply_status(place_of(document), outcome.status)
            self._context.cache.put(answer)
            self._written, self._written_ms = outcome.status, now_ms
        while self._events:
            await self._recorder.record(document, self._events.pop(0))


@final
class LoopKeeper(Generic[R]):
    """A loop for each resource of one kind, started when it appears and stopped when it is gone.

    A loop that has ended although its resource exists is started again. Owned by the event loop.
    """

    def __init__(self, context: LoopContext[R], namespaces: Sequence[str] = ()) -> None:
        """For resources of these namespaces; none means all."""
        self.context: Final = context
        self.namespaces: Final = tuple(namespaces) or ("",)
        self.loops: Final[dict[ResourceKey, ResourceLoop[R]]] = {}
        self._turns: Final = asyncio.Semaphore(TURNS)
        self._tasks: Final[dict[ResourceKey, asyncio.Task[None]]] = {}
        self._is_closed = False
        context.cache.subscribe(self._changed)

    def __repr__(self) -> str:
        return f"<LoopKeeper {self.context.noun} loops={len(self.loops)}>"

    def start_missing(self) -> None:
        """Start a loop for each resource that has none."""
        for key in self.context.cache.owner_keys():
            self._start(key)

    def age_ms_max(self) -> int:
        """How long ago the last round of the latest loop ended. A loop that waits for its turn does not count."""
        return max((self._age_ms(loop) for loop in self.loops.values()), default=0)

    def stale(self, after_s: float) -> str:
        """Say which resources were not reconciled for so long; empty if none."""
        late = ["/".join(key) for key, loop in self.loops.items() if self._age_ms(loop) > after_s * 1000]
        return f"these {self.context.noun}s have not come round for {after_s:g} s: {', '.join(late)}" if late else ""

    async def close(self) -> None:
        """Stop every loop, and wait for them."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _age_ms(self, loop: ResourceLoop[R]) -> int:
        return 0 if loop.is_waiting else self.context.clock.now_ms() - loop.reconciled_ms

    def _changed(self, key: ResourceKey) -> None:
        loop = self.loops.get(key)
        if loop is not None:
            loop.wake()
        else:
            self._start(key)

    def _start(self, key: ResourceKey) -> None:
        document = self.context.cache.owner(key)
        is_ours = key[0] in self.namespaces or self.namespaces == ("",)
        if self._is_closed or key in self._tasks or document is None or not is_ours:
            return
        if document["metadata"].get("deletionTimestamp"):
            return
        loop, noun = ResourceLoop(key, self.context, self._turns), self.context.noun
        task = asyncio.get_running_loop().create_task(loop.run(), name=f"gantry-{noun}-{'/'.join(key)}")
        self.loops[key], self._tasks[key] = loop, task
        task.add_done_callback(lambda task: self._ended(key, task))
        log.info("started reconciling %s", noun, extra={noun: "/".join(key)})

    def _ended(self, key: ResourceKey, task: asyncio.Task[None]) -> None:
        del self.loops[key], self._tasks[key]
        noun, facts = self.context.noun, {self.context.noun: "/".join(key)}
        if not task.cancelled() and task.exception() is not None:
            log.critical("loop of %s failed; starting another", noun, extra=facts, exc_info=task.exception())
        elif not task.cancelled():
            log.info("stopped reconciling %s", noun, extra=facts)
