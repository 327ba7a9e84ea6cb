"""One loop for each resource: observe, decide, execute, report, then wait for a change or for the next tick.

    wake-up      a change of any object that belongs to the resource, a finished action, or the next tick
    spec         is read anew in each round; an invalid spec becomes a condition, and nothing is executed
    reconcile    depends on the kind of resource: a `Reconciler`, which is passed to the constructor
    report       the status, if it needs to be written, and then the events

The first rounds of new groups are limited to ``FIRST_ROUNDS_MAX`` at a time, and so are those of new pipelines, because
the first round creates all objects of a resource. When many resources are created at once, some are set up while the
others wait, and API calls for running groups do not queue behind all of them. A resource with a status never waits: a
group may need a new master.

No error ends a loop. Rejections by the API server become conditions or events. An unexpected error is logged, counted
and retried later, for this resource alone. There is no finalizer: a resource that was deleted, or whose namespace is
being deleted, needs nothing from the operator.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar, final

from gantry_operator.api import Kubernetes, Object, ref_of, uid_of
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock, format_time
from gantry_operator.errors import ApiError, NamespaceTerminating, NotFound
from gantry_operator.event_recorder import Event, EventRecorder
from gantry_operator.metrics import Metrics
from gantry_operator.status import invalid_status
from gantry_spec.manifest.errors import ManifestError

log = logging.getLogger(__name__)

DEBOUNCE_S: Final = 0.05
"""Changes that come within this time are reconciled together."""

RETRY_S: Final = 1.0
"""The pause after an error of the API server or an invalid spec. A failover must not wait longer than a tick."""

UNEXPECTED_ERROR_S: Final = 10.0
"""The pause after an unexpected error, in seconds."""

TERMINATING_S: Final = 10.0
"""The time between two checks whether a resource in a terminating namespace is deleted, in addition to the watch."""

REPEAT_MS: Final = 60_000
"""An error that repeats is logged as a warning again after this time."""

FIRST_ROUNDS_MAX: Final = 8
"""First rounds of groups that run at the same time, and as many of pipelines. Each makes its calls one by one, so this
equals the threads for calls."""


class WrittenStatus(NamedTuple):
    """The status that was written last, by this process or before it."""

    status: Mapping[str, Any]
    age_ms: int
    """The time since this process wrote it; great if an earlier one did."""


class Outcome(NamedTuple):
    """The result of one round."""

    pause_s: float
    """The time until the next round, in seconds, unless an object changes before."""

    status: Mapping[str, Any] | None = None
    """The status to write; None if the status that was written last need not be replaced yet."""

    events: Sequence[Event] = ()
    """The events to record after the status is written."""


class Reconciler(Protocol):
    """The part of a loop that depends on the kind of resource."""

    async def reconcile(self, document: Object, written: WrittenStatus) -> Outcome:
        """Run one round. Raises ``ManifestError`` for an invalid spec, and leaves of ``ApiError``."""

    async def close(self) -> None:
        """Cancel the actions that are still under way."""


R = TypeVar("R", bound=Reconciler)


@dataclass(frozen=True, kw_only=True)
class LoopContext(ABC, Generic[R]):
    """The collaborators that all loops of one kind of resource share. A loop never changes them."""

    noun: ClassVar[str]
    """The name of the kind in log messages and their fields."""

    cache: Cache
    api: Kubernetes
    clock: Clock
    metrics: Metrics

    @abstractmethod
    def make_reconciler(self, key: ResourceKey, wake_now: Callable[[], None]) -> R:
        """Create the reconciler of a resource. It calls ``wake_now`` after an action: the next one need not wait."""


@final
class ErrorReporter:
    """Logs the errors of one resource's rounds: a reason that repeats in a row is a warning once every ``REPEAT_MS``.

    A namespace that is being deleted is no error. Its pods are deleted, then Services, Leases and the rest, and last
    the resource; until then every creation is refused. So the first such answer is logged, and this loop does nothing
    more: another resource of this name, in a new namespace, has a loop of its own. ``NotFound`` is logged for debugging
    only: the watch will report the deletion.
    """

    def __init__(self, noun: str, key: ResourceKey, clock: Clock) -> None:
        self.is_terminating = False
        """Whether the namespace is being deleted."""

        self._noun: Final = noun
        self._key: Final = key
        self._clock: Final = clock
        self._reason = ""
        self._reported_ms = 0

    def report(self, error: ApiError) -> float:
        """Log the error that ended a round. Return the seconds until the next round."""
        facts = {self._noun: "/".join(self._key), "reason": str(error)}
        if isinstance(error, NamespaceTerminating):
            self.is_terminating = True
            log.info("namespace of %s is terminating; nothing more is changed", self._noun, extra=facts)
            return TERMINATING_S
        now_ms = self._clock.now_ms()
        is_repeated = str(error) == self._reason and now_ms - self._reported_ms < REPEAT_MS
        if not is_repeated:
            self._reason, self._reported_ms = str(error), now_ms
        level = logging.DEBUG if is_repeated or isinstance(error, NotFound) else logging.WARNING
        log.log(level, "failed to reconcile %s; retrying", self._noun, extra=facts)
        return RETRY_S


@final
class ResourceLoop(Generic[R]):
    """The reconciliation loop of one resource. Owned by its own task."""

    def __init__(
        self, key: ResourceKey, context: LoopContext[R], first_rounds: asyncio.Semaphore | None = None
    ) -> None:
        self.key: Final = key
        self.reconciler: Final = context.make_reconciler(key, self._wake_now)
        self.reconciled_ms: int = context.clock.now_ms()
        """The time when the last round ended."""

        self.is_waiting = False
        """Whether the loop waits for its first round. Such a loop never counts as late."""

        self._context: Final = context
        self._first_rounds: Final = asyncio.Semaphore() if first_rounds is None else first_rounds
        self._errors: Final = ErrorReporter(context.noun, key, context.clock)
        self._recorder: Final = EventRecorder(context.api, context.clock)
        self._awake: Final = asyncio.Event()
        self._is_urgent = False
        self._events: list[Event] = []
        """The events that are still to be recorded."""

        self._uid = ""
        self._written: Mapping[str, Any] | None = None
        self._written_ms = 0

    def __repr__(self) -> str:
        return f"<ResourceLoop {self._context.noun} {'/'.join(self.key)} {self.reconciler!r}>"

    def wake(self) -> None:
        """Start the next round soon, because an object of the resource has changed."""
        self._awake.set()

    def _wake_now(self) -> None:
        self._is_urgent = True
        self._awake.set()

    async def run(self) -> None:
        """Reconcile until the resource is deleted, or until cancelled."""
        try:
            pause_s = await self._reconcile_first()
            while pause_s is not None:
                await self._pause(pause_s)
                pause_s = await self._reconcile_guarded()
        finally:
            await self.reconciler.close()

    async def _reconcile_first(self) -> float | None:
        document = self._context.cache.owner(self.key)
        if document is None or document.get("status"):
            return await self._reconcile_guarded()
        self.is_waiting = self._first_rounds.locked()
        async with self._first_rounds:
            self.is_waiting, self.reconciled_ms = False, self._context.clock.now_ms()
            return await self._reconcile_guarded()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
                await asyncio.sleep(0 if self._is_urgent else DEBOUNCE_S)
        except TimeoutError:
            pass
        self._awake.clear()
        self._is_urgent = False

    async def _reconcile_guarded(self) -> float | None:
        """Run one round, whose errors are reported. Return the seconds until the next one."""
        try:
            with self._context.metrics.time_reconciliation():
                return await self.reconcile_once()
        except ApiError as error:
            return self._errors.report(error)
        except Exception:
            noun = self._context.noun
            log.exception("unexpected error while reconciling %s", noun, extra={noun: "/".join(self.key)})
            self._context.metrics.record_unexpected_error()
            return UNEXPECTED_ERROR_S
        finally:
            self.reconciled_ms = self._context.clock.now_ms()

    async def reconcile_once(self) -> float | None:
        """Run one round. Return the seconds until the next one; None when the resource is deleted."""
        document, now_ms = self._context.cache.owner(self.key), self._context.clock.now_ms()
        if document is None or document["metadata"].get("deletionTimestamp") or not self._is_same(document):
            return None
        if self._errors.is_terminating:
            return TERMINATING_S
        before = (document.get("status") or {}) if self._written is None else self._written
        written = WrittenStatus(before, now_ms - self._written_ms)
        try:
            outcome = await self.reconciler.reconcile(document, written)
        except ManifestError as error:
            outcome = self._rejection(document, written, str(error))
        await self._report(document, outcome, now_ms)
        return outcome.pause_s

    def _is_same(self, document: Object) -> bool:
        """Return whether the resource still has the same uid: the state of this loop does not apply to a new one."""
        self._uid = self._uid or uid_of(document)
        return self._uid == uid_of(document)

    def _rejection(self, document: Object, written: WrittenStatus, message: str) -> Outcome:
        before, now = document.get("status") or {}, format_time(self._context.clock.wall())
        status = invalid_status(document["metadata"].get("generation", 0), "InvalidSpec", message, before, now)
        events = [Event("InvalidSpec", message, is_warning=True)]
        return Outcome(RETRY_S, status if status != written.status else None, events)

    async def _report(self, document: Object, outcome: Outcome, now_ms: int) -> None:
        """Write the status, then record the events, which are kept for the next round if the status cannot be written.

        An event that the API server does not take is logged and dropped (``EventRecorder``), and tried again if a later
        round reports it.
        """
        self._events = list(dict.fromkeys([*self._events, *outcome.events]))
        if outcome.status is not None:
            answer = await self._context.api.apply_status(ref_of(document), outcome.status)
            self._context.cache.put(answer)
            self._written, self._written_ms = outcome.status, now_ms
        while self._events:
            await self._recorder.record(document, self._events.pop(0))


@final
class LoopManager(Generic[R]):
    """Runs a loop for each resource of one kind, from its creation to its deletion.

    No loop starts before the first call of ``start_missing``, which comes after a full list: a decision about one
    resource may depend on the others. A loop that has ended although its resource exists is started again. Owned by the
    event loop.
    """

    def __init__(self, context: LoopContext[R], namespaces: Sequence[str] = ()) -> None:
        """Create a manager for the resources of these namespaces; no namespace means all."""
        self.context: Final = context
        self.namespaces: Final = tuple(namespaces) or ("",)
        self.loops: Final[dict[ResourceKey, ResourceLoop[R]]] = {}
        self._first_rounds: Final = asyncio.Semaphore(FIRST_ROUNDS_MAX)
        self._tasks: Final[dict[ResourceKey, asyncio.Task[None]]] = {}
        self._is_started = False
        self._is_closed = False
        context.cache.subscribe(self._changed)

    def __repr__(self) -> str:
        return f"<LoopManager {self.context.noun} loops={len(self.loops)}>"

    def start_missing(self) -> None:
        """Start a loop for each resource that has none, and from now on for each new resource."""
        self._is_started = True
        for key in self.context.cache.owner_keys():
            self._start(key)

    def age_ms_max(self) -> int:
        """Return the longest time since a loop's last round. Loops that wait for their first round do not count."""
        return max((self._age_ms(loop) for loop in self.loops.values()), default=0)

    def describe_stale(self, after_s: float) -> str:
        """Return a text that names the resources that were not reconciled for this time; empty if there are none."""
        late = ["/".join(key) for key, loop in self.loops.items() if self._age_ms(loop) > after_s * 1000]
        return f"{self.context.noun}s not reconciled for {after_s:g} s: {', '.join(late)}" if late else ""

    async def close(self) -> None:
        """Stop all loops, and wait until they have ended."""
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
        elif self._is_started:
            self._start(key)

    def _start(self, key: ResourceKey) -> None:
        document = self.context.cache.owner(key)
        is_ours = key[0] in self.namespaces or self.namespaces == ("",)
        if self._is_closed or key in self._tasks or document is None or not is_ours:
            return
        if document["metadata"].get("deletionTimestamp"):
            return
        loop, noun = ResourceLoop(key, self.context, self._first_rounds), self.context.noun
        task = asyncio.get_running_loop().create_task(loop.run(), name=f"gantry-{noun}-{'/'.join(key)}")
        self.loops[key], self._tasks[key] = loop, task
        task.add_done_callback(lambda task: self._ended(key, task))
        log.info("started reconciling %s", noun, extra={noun: "/".join(key)})

    def _ended(self, key: ResourceKey, task: asyncio.Task[None]) -> None:
        del self.loops[key], self._tasks[key]
        noun, facts = self.context.noun, {self.context.noun: "/".join(key)}
        if not task.cancelled() and task.exception() is not None:
            log.critical("loop of %s failed; starting a new one", noun, extra=facts, exc_info=task.exception())
        elif not task.cancelled():
            log.info("stopped reconciling %s", noun, extra=facts)
