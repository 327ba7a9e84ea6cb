"""`gantry ha promote`: observes the members, has ``gantry_spec.decide`` decide, and executes its actions one by one.

    observe -> decide -> execute -> observe ...             until the person's order is done, or cannot be

It decides nothing itself. What a Lease remembers in a cluster is kept in memory for as long as the command runs; every
order is idempotent, and a new attempt takes a newer epoch, so running the command again is always a way on. A master
that was drained in vain takes sends again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, final

import msgspec

from gantry_cli.ha.group import (
    SPEC,
    CannotPromote,
    MemberClient,
    Observation,
    check_members,
    decide_by_hand,
    observe,
    request_of,
    shard_of,
)
from gantry_cli.local.state import now_ms
from gantry_spec import actions as act
from gantry_spec.ballot import ballot_of
from gantry_spec.decide.view import View
from gantry_spec.executor import ActionExecutor, Expected, in_order, promotion_check
from gantry_spec.lease import LeaseRecord
from gantry_spec.ledger import Ledger
from gantry_spec.observed import ObservedLease, PromotionRequest
from gantry_status.orders import AnyOrder, AskStatus, HaStatus, OrderError, OrderRefused

POLL_S: Final = 0.02
TERMS_MAX: Final = 5
"""How many epochs are taken before it is given up: something else gives orders to the members, too."""

AGAIN: Final = "run the same command again: it takes a newer epoch"
ORDERS: Final[Mapping[type[act.Action], str]] = {
    act.Promise: "promise",
    act.Promote: "promote",
    act.Resume: "resume",
    act.Follow: "follow",
    act.Fence: "fence",
    act.Drain: "drain",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person has typed."""

    to: int | None = None
    electable: frozenset[int] = frozenset()
    old_master: int | None = None
    may_force: bool = False
    """Whether it is to be forced, if it cannot be done otherwise and the person confirms."""

    timeout_ms: int = 10_000
    """For draining the master, and for everything that is waited for."""


class Step(msgspec.Struct, frozen=True):
    """One thing that was done."""

    what: str
    member: str
    took_ms: float
    note: str = ""
    is_done: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDocument:
    """`gantry ha promote`: who is the master now. After a failure only `error` and `steps` are there."""

    error: str | None
    epoch: int
    master: str
    number: int
    loss: str
    is_complete: bool
    steps: list[Step]


@final
@dataclass(slots=True, kw_only=True)
class Promoted:
    """What came of it."""

    epoch: int
    master: str
    number: int
    loss: str
    """What may be lost; nothing if nothing can be."""

    is_complete: bool
    """Whether every member that answers follows."""

    steps: list[Step] = field(default_factory=list)


@final
class Promotion:
    """One promotion, with both ports of its executor. Owned by one event loop; ``run`` once."""

    def __init__(
        self,
        clients: Sequence[MemberClient],
        wanted: Wanted,
        *,
        report: Callable[[Step], None],
        confirm: Callable[[str], bool],
    ) -> None:
        """``report`` is called with each step as it ends; ``confirm`` before something may be lost."""
        self._clients: Final = {client.path: client for client in clients}
        self._wanted: Final = wanted
        self._report: Final = report
        self._confirm: Final = confirm
        self._executor: Final = ActionExecutor(self, self, name="gantry ha promote")
        self._observed = Observation()
        self._request = PromotionRequest(id="")
        self._lease = ObservedLease()
        self._ledgers: Mapping[int, Ledger] = {}
        self._steps: Final[list[Step]] = []
        self._given: Final[list[act.OrderAction]] = []
        """Orders that were given. None is given twice: what it has not achieved by then, it does not."""
        self._is_done = False
        self._loss = ""
        self._terms = 0

    async def run(self) -> Promoted:
        """Promote. Raises ``CannotPromote``, or what an order raises that had to be carried out."""
        self._observed = await observe(tuple(self._clients.values()))
        check_members(self._observed.members)
        wanted = self._wanted
        self._request = request_of(
            self._observed.members,
            to=wanted.to,
            electable=wanted.electable,
            old_master=wanted.old_master,
            drain_timeout_ms=wanted.timeout_ms,
        )
        try:
            await self._carry_out()
        except (OrderError, CannotPromote):
            await self._resume()
            raise
        return self._result()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _carry_out(self) -> None:
        actions = await self._decide()
        while True:
            refusal = next((one for one in actions if isinstance(one, act.Refuse)), None)
            if refusal is not None:
                self._force(refusal)
            elif news := self._news(actions):
                await self._execute(news)
            elif self._is_done:
                return
            else:
                actions = await self._wait(actions)
                continue
            actions = await self._decide()

    async def _decide(self) -> Sequence[act.Action]:
        self._observed = await observe(tuple(self._clients.values()))
        decision = decide_by_hand(self._observed, self._lease, self._request, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in decision.ledgers}
        return decision.actions

    def _news(self, actions: Sequence[act.Action]) -> list[act.Action]:
        """What is to be executed; once the request is done, only what members are ordered."""
        orders = [one for one in actions if isinstance(one, act.OrderAction) and one not in self._given]
        if self._is_done:
            return list(orders)
        return [*orders, *(one for one in actions if isinstance(one, act.LeaseAction | act.ClearRequest))]

    async def _wait(self, actions: Sequence[act.Action]) -> Sequence[act.Action]:
        """Observe again until something is to be done, or the time is over."""
        deadline_ms = now_ms() + self._wanted.timeout_ms
        why = _reason(actions)
        async with self._step("wait", self._observed.group_name, why):
            while True:
                await asyncio.sleep(POLL_S)
                actions = await self._decide()
                if self._news(actions) or any(isinstance(one, act.Refuse) for one in actions):
                    return actions
                until_ms = max((one.until_ms or 0 for one in actions if isinstance(one, act.Wait)), default=0)
                if now_ms() > max(deadline_ms, until_ms + self._wanted.timeout_ms):
                    reason = _reason(actions) or "the members do not do what they were ordered"
                    raise CannotPromote(reason, "see what holds it up, choose another with --to, or " + AGAIN)

    def _force(self, refusal: act.Refuse) -> None:
        """Force what was refused, if the person wants that. Raises ``CannotPromote``."""
        if self._request.is_forced or not (self._wanted.may_force and refusal.can_be_forced):
            raise CannotPromote(refusal.why, refusal.remedy)
        self._confirm_loss(refusal.why)

    def _confirm_loss(self, reason: str) -> None:
        ends = ", ".join(
            f"{one.name} at {one.status.wrote}" for one in self._observed.members if one.status is not None
        )
        question = f"{reason}. Here are {ends}; messages beyond the winner's end may have been acknowledged."
        if not self._confirm(question):
            raise CannotPromote("nothing was done", "the group stays without a master")
        self._request = msgspec.structs.replace(self._request, is_forced=True)

    async def _resume(self) -> None:
        """Have a master that was drained in vain take sends again."""
        record = self._lease.record
        if record is None or not record.is_settled or record.newest is None:
            return
        self._request = msgspec.structs.replace(self._request, to=record.newest.master, electable=())
        actions = [one for one in await self._decide() if isinstance(one, act.Resume)]
        await self._execute(actions)

    # -- executing -----------------------------------------------------------------------------------------------------

    async def _execute(self, actions: Sequence[act.Action]) -> None:
        """The Lease first, then all orders side by side. Raises for an order without which nothing goes on."""
        first, others = in_order(actions)
        for action in first:
            await self._executor.execute(action)
        failures = await asyncio.gather(*map(self._one, others))
        for failure in failures:
            if failure is not None:
                raise failure

    async def _one(self, action: act.Action) -> OrderError | None:
        """Execute one action. A member that does not promise or follow has failed for good; the step says why."""
        if not isinstance(action, act.OrderAction):
            await self._executor.execute(action)
            return None
        self._given.append(action)
        try:
            async with self._step(ORDERS[type(action)], self._observed.name(action.member), self._note(action)):
                await self._executor.execute(action)
        except OrderError as error:
            if isinstance(action, act.Promote) and isinstance(error, OrderRefused):
                return self._refused_promotion(action, error)
            return None if isinstance(action, act.Promise | act.Follow | act.Fence) else error
        return None

    def _refused_promotion(self, action: act.Promote, error: OrderRefused) -> OrderError | None:
        if action.force or not self._wanted.may_force:
            return error
        self._confirm_loss(str(error))
        return None

    # -- ports of the executor -----------------------------------------------------------------------------------------

    async def status(self, shard: int, member: int) -> HaStatus | None:
        return await self._client(member).call(AskStatus())

    async def give(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        await self._client(member).call_checked(order, promotion_check(order, expected))

    async def replace_lease(self, action: act.LeaseAction) -> None:
        version = "" if self._lease.record is None else self._lease.record.version
        if (action.expected or "") != version:
            raise AssertionError("nothing else writes this Lease")
        if isinstance(action, act.TakeLease):
            self._terms += 1
            if self._terms > TERMS_MAX:
                raise CannotPromote("the members are given other orders meanwhile", AGAIN)
        if isinstance(action, act.Crown) and action.expected is not None:
            self._loss = self._loss_of(action.record)
        record = msgspec.structs.replace(action.record, version=str(int(version or "0") + 1))
        self._lease = ObservedLease(record=record, seen_ms=now_ms())

    async def clear_request(self, action: act.ClearRequest) -> None:
        self._is_done = True

    async def change_process(self, action: act.ProcessAction | act.Sleep) -> None:
        raise AssertionError("a person runs the processes")

    def empty_end(self, shard: int) -> int | None:
        return None

    def closed(self, shard: int) -> None:
        raise AssertionError("a person runs the processes")

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _client(self, number: int) -> MemberClient:
        member = self._observed.member(number)
        if member is None:
            raise OrderRefused(f"member {number} does not answer")
        return self._clients[member.path]

    def _note(self, action: act.OrderAction) -> str:
        match action:
            case act.Promise(epoch=epoch):
                return f"epoch {epoch}"
            case act.Promote(epoch=epoch, electable=electable):
                out = self._record.members - {*electable, action.member}
                left_out = f", without {sorted(out)} until named with --electable" if out else ""
                return f"epoch {epoch}, after it {list(electable)}{'' if self._request.electable else left_out}"
            case act.Resume():
                return "it stays the master"
            case act.Follow(master=master):
                return master
            case _:
                return ""

    @property
    def _record(self) -> LeaseRecord:
        assert self._lease.record is not None, "what is ordered was decided about a record"
        return self._lease.record

    def _loss_of(self, record: LeaseRecord) -> str:
        """What of the log is given up with the newest term of ``record``, in words."""
        term = record.newest
        assert term is not None, "its master was named"
        view = View(SPEC, shard_of(self._observed, self._lease, self._request), now_ms())
        ballots = [ballot_of(member, report) for member, report in view.reports()]
        epoch, end = max((one.place for one in ballots), default=(0, 0))
        past = record.terms[:-1]
        has_acks = all(one.acks_needed for one in past)
        if term.last_epoch < epoch:
            return f"what another member has of epoch {epoch}: the winner has only epoch {term.last_epoch}"
        if term.end < end:
            known = "; none of them was acknowledged" if has_acks and not self._request.is_forced else ""
            return f"{end - term.end} bytes, from {term.end} on, that another member has{known}"
        if any(view.missing(one, ballots) for one in past):
            return f"whatever was acknowledged beyond {term.end} by members that do not answer"
        if not has_acks and view.electable_members - {one.number for one in ballots}:
            return f"what the old master wrote beyond {term.end}: in an asynchronous group nobody else has that"
        return ""

    def _result(self) -> Promoted:
        term = self._record.newest
        assert term is not None, "it is done"
        name, to = self._observed.name(term.master), self._request.to
        if to not in (None, term.master):
            raise CannotPromote(f"member {to} could not be elected; {name} is the master in epoch {term.epoch}", AGAIN)
        if to is None and name in [one.member for one in self._steps if one.what == "drain"]:
            reason = f"no slave could be elected; {name} is the master again, in epoch {term.epoch}"
            raise CannotPromote(reason, AGAIN)
        return Promoted(
            epoch=term.epoch,
            master=name,
            number=term.master,
            loss=self._loss,
            is_complete=self._observed.follows(term.master),
            steps=self._steps,
        )

    @asynccontextmanager
    async def _step(self, what: str, member: str, note: str = "") -> AsyncIterator[None]:
        """Record what is done inside, how long it takes, and why it fails if it does."""
        began = time.perf_counter()
        failure = ""
        try:
            yield
        except (OrderError, CannotPromote) as error:
            failure = str(error)
            raise
        finally:
            took_ms = (time.perf_counter() - began) * 1000
            step = Step(what, member, round(took_ms, 1), failure or note, not failure)
            self._steps.append(step)
            self._report(step)


def _reason(actions: Sequence[act.Action]) -> str:
    return "; ".join(one.why for one in actions if isinstance(one, act.Wait))
