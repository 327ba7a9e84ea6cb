"""One group, again and again: observe -> decide -> act. One task for each group, and nothing that two of them share.

    woken by      a change of anything of the group's, an errand that has ended, and a tick
    the spec      read anew each time; one that cannot be read becomes a condition, and nothing is done
    a look        caches, and the sidecars asked now
    a decision    ``gantry_spec.decide``
    done          what should exist, labels, what was decided, the status, events

Nothing that goes wrong ends the task: what others refuse is a condition or an event, and a bug of ours is logged,
counted, and tried again later, for this group alone. There is no finalizer: a group that is gone needs nothing of us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, final

import msgspec

from gantry_operator.acting.applying import AGAIN_MS, Applier
from gantry_operator.acting.hands import Hands
from gantry_operator.acting.labels import relabel
from gantry_operator.acting.leases import Leases
from gantry_operator.acting.leftovers import Leftovers
from gantry_operator.api import GROUPS, Kubernetes, Object, Place, annotations_of
from gantry_operator.cache import Cache, GroupKey
from gantry_operator.clock import Clock, moment_text
from gantry_operator.errors import ApiError, Conflict
from gantry_operator.facts import facts_of
from gantry_operator.metrics import Metrics
from gantry_operator.objects import CannotFit, Facts, group_token, hugepages_shortage, secret
from gantry_operator.observing.look import Looker
from gantry_operator.sidecars import Sidecars
from gantry_operator.status import Facts as StatusFacts
from gantry_operator.status import broken_status, is_worth_a_write, status_of
from gantry_operator.telling import Teller
from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.decide.decision import Condition, Decision
from gantry_spec.explain import explain
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.annotations import Wanted, standing, wanted
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

BUG_S: Final = 10.0
DENIED_MS: Final = 10_000
"""Between two tries to make a Secret whose token a sidecar does not know."""


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


@final
class GroupLoop:
    """Owned by its own task."""

    def __init__(self, key: GroupKey, parts: Parts) -> None:
        self.key: Final = key
        self.looked_ms: int = parts.clock.now_ms()
        """When it came round last: how alive it is."""

        self.decision: Decision = Decision()
        self.observed: Observed = Observed()
        self._parts: Final = parts
        self._awake: Final = asyncio.Event()
        self._looker: Final = Looker(key, parts.cache, parts.api, parts.sidecars, parts.clock)
        self._leases: Final = Leases(parts.api, parts.clock, parts.cache.put)
        self._applier: Final = Applier(key, parts.cache, parts.api, parts.clock)
        self._leftovers: Final = Leftovers(key, parts.cache, parts.api, parts.clock)
        self._teller: Final = Teller(parts.api, parts.clock)
        self._hands: Final = Hands(
            self._looker.objects,
            parts.api,
            parts.sidecars,
            self._leases,
            told=self._told,
            wake=self.wake,
            empty_end=lambda shard: self._looker.memory.shard(shard).empty_end,
        )
        self._secret_ms: int | None = None
        self._rendered: tuple[BrokerGroup, Facts, Sequence[Object]] | None = None
        self._ledgers: Mapping[int, Ledger] = {}
        self._written: Mapping[str, Any] | None = None
        self._written_ms = 0
        self._to_tell: Final[list[act.Action]] = []

    def __repr__(self) -> str:
        return f"<GroupLoop {'/'.join(self.key)} {self._hands!r}>"

    def wake(self) -> None:
        """Something has changed."""
        self._awake.set()

    async def run(self) -> None:
        """Until the group is gone, or cancelled."""
        try:
            while True:
                pause_s = await self._guarded_step()
                if pause_s is None:
                    return
                await self._rest(pause_s)
        finally:
            await self._hands.close()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
                await asyncio.sleep(QUIET_S)
        except TimeoutError:
            pass
        self._awake.clear()

    async def _guarded_step(self) -> float | None:
        try:
            with self._parts.metrics.reconcile():
                return await self.step()
        except ApiError as error:
            log.warning("a look has failed", extra={"group": "/".join(self.key), "reason": str(error)})
            return TICK_S
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
        if document is None or document["metadata"].get("deletionTimestamp"):
            return None
        try:
            group = group_of({key: value for key, value in document.items() if key != "status"})
        except ManifestError as error:
            await self._broken(document, "InvalidSpec", str(error))
            return TICK_S
        orders, complaint = _wanted(document)
        token = await self._secret(group)
        problem = "" if orders.is_paused else await self._apply(group, orders)
        observed = await self._looker.look(group, orders, token)
        self.observed = msgspec.structs.replace(observed, lease_duration_ms=self._parts.lease_duration_ms)
        now_ms = self._parts.clock.now_ms()
        self.decision = decide(group.spec, self.observed, now_ms, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in self.decision.ledgers}
        if not orders.is_paused:
            self._hands.do(self.decision.actions, group, token)
            await self._label()
            await self._keep_words(group)
        await self._publish(document, group, now_ms, [_complaint("Applied", problem), _complaint("Orders", complaint)])
        await self._tell(document, problem, complaint)
        is_doing = any(not isinstance(action, act.Wait) for action in self.decision.actions)
        return BUSY_S if is_doing or self._hands.is_busy else TICK_S

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        await self._hands.settle()

    def _document(self) -> Object | None:
        return self._parts.cache.get(Place(GROUPS, *self.key))

    # -- what should exist ---------------------------------------------------------------------------------------------

    async def _secret(self, group: BrokerGroup) -> str:
        """What is shown to the group's sidecars. The Secret with it is made if it is not there, and never read."""
        token, now_ms = group_token(self._parts.key, group), self._parts.clock.now_ms()
        again_ms = DENIED_MS if self._looker.is_denied else AGAIN_MS
        if self._secret_ms is None or now_ms - self._secret_ms >= again_ms:
            self._secret_ms = now_ms
            with suppress(Conflict):
                await self._parts.api.create(secret(group, token))
        return token

    async def _apply(self, group: BrokerGroup, orders: Wanted) -> str:
        """Why something could not be applied; empty if all is."""
        parts = self._parts
        facts = facts_of(parts.base, group, self._looker.objects, self._ledgers, is_hibernated=orders.is_hibernated)
        if self._rendered is None or self._rendered[:2] != (group, facts):
            try:
                self._rendered = group, facts, parts.render(group, facts)
            except CannotFit as error:
                return str(error)
        await self._applier.apply(self._rendered[2])
        await self._applier.grow(int(group.spec.storage.size))
        kept = {shard.number for shard in facts.shards}
        if not orders.is_hibernated:
            await self._applier.wake()
        await self._applier.sweep(lambda number: number >= group.spec.shards and number not in kept)
        await self._leftovers.clear(self._rendered[2], group.metadata.uid)
        return "; ".join(sorted(self._applier.problems.values()))

    async def _label(self) -> None:
        for shard in self.observed.shards:
            pods = {one.number: self._looker.objects.pod(shard.number, one.number) for one in shard.members}
            there = {number: pod for number, pod in pods.items() if pod is not None}
            await relabel(self._parts.api, self._parts.cache, shard, there)

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
        conditions = [one for one in (*more, self._huge_pages(group)) if one is not None]
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

    def _huge_pages(self, group: BrokerGroup) -> Condition:
        nodes = facts_of(self._parts.base, group, self._looker.objects, {}).nodes
        shortage = hugepages_shortage(group.spec, nodes)
        if shortage is None:
            return Condition(type="HugePagesReady", is_so=True, reason="EnoughOrNotAsked")
        return Condition(type="HugePagesReady", is_so=False, reason="TooFew", message=shortage)

    async def _broken(self, document: Object, reason: str, message: str) -> None:
        before = document.get("status") or {}
        now = moment_text(self._parts.clock.wall())
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


def _wanted(document: Object) -> tuple[Wanted, str]:
    """What people ask for. Orders that cannot be understood are not obeyed; what stands goes on standing."""
    annotations = annotations_of(document)
    try:
        return wanted(annotations), ""
    except ManifestError as error:
        return standing(annotations), str(error)


def _complaint(kind: str, text: str) -> Condition | None:
    return Condition(type=kind, is_so=False, reason="Refused", message=text) if text else None
