"""One group, again and again: observe -> decide -> act. One task for each group, and nothing that two of them share.

    woken by      a change of anything of the group's, an errand that has ended, and a tick
    the spec      read anew each time; one that cannot be read becomes a condition, and nothing is done
    a look        caches, and the sidecars asked now
    a decision    ``gantry_spec.decide``
    done          what should exist, labels, what was decided, the status, events

The first round of a new group makes everything that it has, so these rounds take turns (``TURNS``): of many that are
created at once some are made while others wait, and what groups need that run does not queue behind all of that. Groups
that somebody has looked after before never wait: one of them may need another master.

Nothing that goes wrong ends the task: what others refuse is a condition or an event, and a bug of ours is logged,
counted, and tried again later, for this group alone. There is no finalizer: a group that is gone, or whose namespace is
going, needs nothing of us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import msgspec

from gantry_operator.acting.applying import Applier
from gantry_operator.acting.group_secret import GroupSecret
from gantry_operator.acting.labels import relabel_all
from gantry_operator.acting.leases import Leases
from gantry_operator.acting.leftovers import Leftovers
from gantry_operator.acting.scheduler import ActionScheduler
from gantry_operator.api import GROUPS, Kubernetes, Object, Place, annotations_of, uid_of
from gantry_operator.cache import Cache, GroupKey
from gantry_operator.clock import Clock, moment_text
from gantry_operator.errors import ApiError
from gantry_operator.facts import facts_of, huge_pages
from gantry_operator.metrics import Metrics
from gantry_operator.objects import CannotFit, Facts, group_token
from gantry_operator.observing.look import Looker
from gantry_operator.sidecars import Sidecars
from gantry_operator.status import Facts as StatusFacts
from gantry_operator.status import broken_status, complaint_of, is_worth_a_write, status_of
from gantry_operator.telling import Teller
from gantry_operator.troubles import LEAVING_S, Troubles
from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.decide.decision import Condition, Decision
from gantry_spec.explain import explain
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.annotations import Wanted, asked
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Observed

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
BUSY_S: Final = 0.25
"""Between two looks while something is being done."""

QUIET_S: Final = 0.05
"""So many things may change at once that are looked at together."""

SAID_MS: Final = 1_000
"""While brokers are given orders, clients may wait for the next one: what is said of it waits for so long instead."""

BUG_S: Final = 10.0
TURNS: Final = 8
"""New groups at a time. Each asks one thing after the other, so that is as many as there are threads for calls."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What all groups use, and none changes."""

    cache: Cache
    api: Kubernetes
    sidecars: Sidecars
    clock: Clock
    metrics: Metrics
    base: Facts
    """The facts that are the same for all: image, which CRDs there are."""

    key: bytes = field(repr=False)
    """Of the operator: groups' tokens are derived from it."""

    render: Callable[[BrokerGroup, Facts], Sequence[Object]]
    lease_duration_ms: int = 15_000
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TURNS))


@final
class GroupLoop:
    """Owned by its own task."""

    def __init__(self, key: GroupKey, parts: Parts) -> None:
        self.key: Final = key
        self.looked_ms: int = parts.clock.now_ms()
        """When it came round last: how alive it is."""

        self.is_waiting = False
        """For its turn, which is the doing of those whose turn it is."""

        self.decision: Decision = Decision()
        self.observed: Observed = Observed()
        self._parts: Final = parts
        self._awake: Final = asyncio.Event()
        self._is_in_a_hurry = False
        self._looker: Final = Looker(key, parts.cache, parts.api, parts.sidecars, parts.clock)
        self._leases: Final = Leases(parts.api, parts.clock, parts.cache.put)
        self._applier: Final = Applier(key, parts.cache, parts.api, parts.clock)
        self._leftovers: Final = Leftovers(key, parts.cache, parts.api, parts.clock)
        self._secret: Final = GroupSecret(self._looker.objects, parts.api, parts.clock)
        self._teller: Final = Teller(parts.api, parts.clock)
        self._hands: Final = ActionScheduler(
            self._looker.objects,
            parts.api,
            parts.sidecars,
            self._leases,
            told=self._told,
            wake=self._hurry,
            empty_end=lambda shard: self._looker.memory.shard(shard).empty_end,
        )
        self._uid = ""
        self._troubles: Final = Troubles(key, parts.clock)
        self._rendered: tuple[BrokerGroup, Facts, Sequence[Object]] | None = None
        self._ledgers: Mapping[int, Ledger] = {}
        self._written: Mapping[str, Any] | None = None
        self._written_ms = 0
        self._said_ms: int | None = None
        self._to_tell: Final[list[act.Action]] = []

    def __repr__(self) -> str:
        return f"<GroupLoop {'/'.join(self.key)} {self._hands!r}>"

    def wake(self) -> None:
        """Something has changed."""
        self._awake.set()

    def _hurry(self) -> None:
        """What was ordered is done: the next order need not wait for others who may have changed something, too."""
        self._is_in_a_hurry = True
        self._awake.set()

    async def run(self) -> None:
        """Until the group is gone, or cancelled."""
        try:
            pause_s = await self._first_step()
            while pause_s is not None:
                await self._rest(pause_s)
                pause_s = await self._guarded_step()
        finally:
            await self._hands.close()

    async def _first_step(self) -> float | None:
        document = self._document()
        if document is None or document.get("status"):
            return await self._guarded_step()
        self.is_waiting = self._parts.turns.locked()
        async with self._parts.turns:
            self.is_waiting, self.looked_ms = False, self._parts.clock.now_ms()
            return await self._guarded_step()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
                await asyncio.sleep(0 if self._is_in_a_hurry else QUIET_S)
        except TimeoutError:
            pass
        self._awake.clear()
        self._is_in_a_hurry = False

    async def _guarded_step(self) -> float | None:
        try:
            with self._parts.metrics.reconcile():
                return await self.step()
        except ApiError as error:
            return self._troubles.failed(error, TICK_S)
        except Exception:
            log.exception("a look has a bug", extra={"group": "/".join(self.key)})
            self._parts.metrics.bug()
            return BUG_S
        finally:
            self.looked_ms = self._parts.clock.now_ms()

    # -- one round -----------------------------------------------------------------------------------------------------

    async def step(self) -> float | None:
        """Come round once. In how many seconds again; None when the group is gone."""
        document = self._document()
        if document is None or document["metadata"].get("deletionTimestamp") or not self._is_ours(document):
            return None
        if self._troubles.is_leaving:
            return LEAVING_S
        try:
            group = group_of({key: value for key, value in document.items() if key != "status"})
        except ManifestError as error:
            await self._broken(document, "InvalidSpec", str(error))
            return TICK_S
        orders, complaint = asked(annotations_of(document))
        token = group_token(self._parts.key, group)
        await self._secret.keep(group, token, is_denied=self._looker.is_denied)
        problem = "" if orders.is_paused else await self._apply(document, group, orders)
        observed = await self._looker.look(group, orders, token)
        self.observed = msgspec.structs.replace(observed, lease_duration_ms=self._parts.lease_duration_ms)
        now_ms = self._parts.clock.now_ms()
        self.decision = decide(group.spec, self.observed, now_ms, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in self.decision.ledgers}
        if not orders.is_paused:
            self._hands.do(self.decision.actions, group, token)
            if await relabel_all(self._parts.api, self._looker.objects, self.observed.shards):
                self._hurry()  # clients are led to the new master by what is applied next
            await self._keep_words(group)
        is_doing = any(not isinstance(action, act.Wait) for action in self.decision.actions) or self._hands.is_busy
        if not is_doing or self._said_ms is None or now_ms - self._said_ms >= SAID_MS:
            self._said_ms = now_ms
            complaints = [complaint_of("Applied", problem), complaint_of("Orders", complaint)]
            await self._publish(document, group, now_ms, complaints)
            await self._tell(document, problem, complaint)
        return BUSY_S if is_doing else TICK_S

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        await self._hands.settle()

    def _document(self) -> Object | None:
        return self._parts.cache.get(Place(GROUPS, *self.key))

    def _is_ours(self, document: Object) -> bool:
        """Not of another group that has the name by now: nothing that is remembered here is true of that."""
        self._uid = self._uid or uid_of(document)
        return self._uid == uid_of(document)

    # -- what should exist ---------------------------------------------------------------------------------------------

    async def _apply(self, document: Object, group: BrokerGroup, orders: Wanted) -> str:
        """Why something could not be applied; empty if all is."""
        parts = self._parts
        facts = facts_of(parts.base, group, self._looker.objects, self._ledgers, is_hibernated=orders.is_hibernated)
        if self._rendered is None or self._rendered[:2] != (group, facts):
            try:
                self._rendered = group, facts, parts.render(group, facts)
            except CannotFit as error:
                return str(error)
        await self._applier.apply(self._rendered[2])
        await self._applier.adopt()
        await self._applier.grow(int(group.spec.storage.size))
        kept = {shard.number for shard in facts.shards}
        if not orders.is_hibernated:
            await self._applier.wake()
        await self._applier.sweep(lambda number: number >= group.spec.shards and number not in kept)
        self._leftovers.begin(self._rendered[2], document)
        await self._leftovers.clear(self._rendered[2], group.metadata.uid)
        return "; ".join(sorted(self._applier.problems.values()))

    async def _keep_words(self, group: BrokerGroup) -> None:
        for shard in self.observed.shards:
            record = None if shard.lease is None else shard.lease.record
            if record is not None and record.newest is not None and record.newest.acks_needed == 0:
                lease = self._looker.objects.lease(shard.number)
                await self._leases.keep_word(group, shard.number, lease, shard.last_word)

    # -- what is said --------------------------------------------------------------------------------------------------

    async def _publish(
        self, document: Object, group: BrokerGroup, now_ms: int, more: Sequence[Condition | None]
    ) -> None:
        conditions = [one for one in (*more, huge_pages(group.spec, self._parts.cache)) if one is not None]
        before = document.get("status") or {}
        now = moment_text(self._parts.clock.wall())
        outlooks = explain(group.spec, self.observed, now_ms)
        facts = StatusFacts(group, self.observed, self.decision, outlooks, conditions)
        await self._write(msgspec.to_builtins(status_of(facts, before, now)), before, now_ms)

    async def _write(self, status: Mapping[str, Any], before: Mapping[str, Any], now_ms: int) -> None:
        written = before if self._written is None else self._written
        if not is_worth_a_write(status, written, now_ms - self._written_ms):
            return
        self._parts.cache.put(await self._parts.api.apply_status(Place(GROUPS, *self.key), status))
        self._written, self._written_ms = status, now_ms

    async def _broken(self, document: Object, reason: str, message: str) -> None:
        before, now = document.get("status") or {}, moment_text(self._parts.clock.wall())
        generation = document["metadata"].get("generation", 0)
        status = broken_status(generation, reason, message, before, now)
        if self._written != status:
            self._parts.cache.put(await self._parts.api.apply_status(Place(GROUPS, *self.key), status))
            self._written = status
        await self._teller.tell(document, reason, message, is_warning=True)

    def _told(self, action: act.Action, refusal: str) -> None:
        self._parts.metrics.acted(type(action).__name__, is_done=not refusal)
        if not refusal:
            self._to_tell.append(action)

    async def _tell(self, document: Object, problem: str, complaint: str) -> None:
        if problem:
            await self._teller.tell(document, "NotApplied", problem, is_warning=True)
        if complaint:
            await self._teller.tell(document, "BadOrder", complaint, is_warning=True)
        while self._to_tell:
            await self._teller.done(document, self._to_tell.pop(0))
