"""`gantry ha promote`: observes the members, decides by ``gantry_spec.decide``, and executes the actions one by one.

    observe -> decide -> execute -> observe ...             until the request is fulfilled, or cannot be

It decides nothing itself. The record that a Lease has in a cluster is kept in memory while the command runs. Every
order is idempotent, and a new attempt takes a newer epoch, so running the command again is always safe. A master that
was drained without success takes sends again.
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
    decide_next_actions,
    observe,
    request_of,
    shard_of,
)
from gantry_cli.local.state import now_ms
from gantry_spec import actions as act
from gantry_spec.ballot import ballot_of
from gantry_spec.decide.view import ShardView
from gantry_spec.executor import ActionExecutor, Expected, promotion_check, split_lease_actions
from gantry_spec.lease import LeaseRecord
from gantry_spec.ledger import Ledger
from gantry_spec.observed import ObservedLease, PromotionRequest
from gantry_status.orders import AnyOrder, HaStatus, OrderError, OrderRefused, StatusRequest

POLL_S: Final = 0.02
"""The time between two observations, in seconds."""

TERMS_MAX: Final = 5
"""How many epochs are taken before the command gives up, since another process gives orders to the members, too."""

RETRY_REMEDY: Final = "run the same command again: it takes a newer epoch"
ORDERS: Final[Mapping[type[act.Action], str]] = {
    act.Promise: "promise",
    act.Promote: "promote",
    act.Resume: "resume",
    act.Follow: "follow",
    act.Fence: "fence",
    act.Drain: "drain",
}
"""The name of each order in the output."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionOptions:
    """The options of one `gantry ha promote`."""

    to: int | None = None
    """The number of the member to promote; None for the best one."""

    electable: frozenset[int] = frozenset()
    """The members that may become master; empty for those that the members have recorded."""

    old_master: int | None = None
    """The number of the last master, where no member that answers has recorded it."""

    may_force: bool = False
    """Whether the promotion may be forced, if it is not possible otherwise and the person confirms."""

    timeout_ms: int = 10_000
    """The time limit of draining the master, and of each other wait."""


class Step(msgspec.Struct, frozen=True):
    """One step of a promotion: an order to a member, or a wait."""

    what: str
    """The name of the order, or `wait`."""

    member: str
    """The name of the member; empty for a step of no single member."""

    took_ms: float
    note: str = ""
    """The reason of a failure, or else a detail of the order."""

    is_done: bool = True
    """Whether the step has succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDocument:
    """`gantry ha promote`: the new master. After a failure the document has only `error` and `steps`."""

    error: str | None
    """Why the promotion failed; null if it succeeded."""
    epoch: int
    master: str
    number: int
    """The master's own number in the group."""
    loss: str
    """The possible loss in words; empty if nothing can be lost."""
    is_complete: bool
    """Whether every member that answers follows the master."""
    steps: list[Step]


@final
@dataclass(slots=True, kw_only=True)
class Promoted:
    """The result of a promotion."""

    epoch: int
    master: str
    number: int
    """The master's own number in the group."""

    loss: str
    """The possible loss in words; empty if nothing can be lost."""

    is_complete: bool
    """Whether every member that answers follows the master."""

    steps: list[Step] = field(default_factory=list)


@final
class Promotion:
    """One promotion, with both ports of its executor. Owned by one event loop; ``run`` once."""

    def __init__(
        self,
        clients: Sequence[MemberClient],
        options: PromotionOptions,
        *,
        report: Callable[[Step], None],
        confirm: Callable[[str], bool],
    ) -> None:
        """``report`` is called with each step when it ends; ``confirm`` before messages may be lost."""
        self._clients: Final = {client.path: client for client in clients}
        self._options: Final = options
        self._report: Final = report
        self._confirm: Final = confirm
        self._executor: Final = ActionExecutor(self, self, name="gantry ha promote")
        self._observed = Observation()
        self._request = PromotionRequest(id="")
        self._lease = ObservedLease()
        self._ledgers: Mapping[int, Ledger] = {}
        self._steps: Final[list[Step]] = []
        self._given_orders: Final[list[act.OrderAction]] = []
        """Orders that were sent. None is sent twice: an order without effect would fail again."""
        self._is_done = False
        self._loss = ""
        self._terms = 0

    async def run(self) -> Promoted:
        """Promote a member. Raises ``CannotPromote``, or the ``OrderError`` of a required order."""
        self._observed = await observe(tuple(self._clients.values()))
        check_members(self._observed.members)
        options = self._options
        self._request = request_of(
            self._observed.members,
            to=options.to,
            electable=options.electable,
            old_master=options.old_master,
            drain_timeout_ms=options.timeout_ms,
        )
        try:
            await self._run_decisions()
        except (OrderError, CannotPromote):
            await self._resume()
            raise
        return self._result()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _run_decisions(self) -> None:
        """Observe, decide and execute until the request is fulfilled."""
        actions = await self._decide()
        while True:
            refusal = next((one for one in actions if isinstance(one, act.Refuse)), None)
            if refusal is not None:
                self._force(refusal)
            elif new_actions := self._new_actions(actions):
                await self._execute(new_actions)
            elif self._is_done:
                return
            else:
                actions = await self._wait(actions)
                continue
            actions = await self._decide()

    async def _decide(self) -> Sequence[act.Action]:
        self._observed = await observe(tuple(self._clients.values()))
        decision = decide_next_actions(self._observed, self._lease, self._request, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in decision.ledgers}
        return decision.actions

    def _new_actions(self, actions: Sequence[act.Action]) -> list[act.Action]:
        """Return the actions that are to be executed; after the request is fulfilled, only orders to members."""
        orders = [one for one in actions if isinstance(one, act.OrderAction) and one not in self._given_orders]
        if self._is_done:
            return list(orders)
        return [*orders, *(one for one in actions if isinstance(one, act.LeaseAction | act.ClearRequest))]

    async def _wait(self, actions: Sequence[act.Action]) -> Sequence[act.Action]:
        """Observe until there is an action to execute. Raises ``CannotPromote`` after the time limit."""
        deadline_ms = now_ms() + self._options.timeout_ms
        why = _reason(actions)
        async with self._step("wait", self._observed.group_name, why):
            while True:
                await asyncio.sleep(POLL_S)
                actions = await self._decide()
                if self._new_actions(actions) or any(isinstance(one, act.Refuse) for one in actions):
                    return actions
                until_ms = max((one.until_ms or 0 for one in actions if isinstance(one, act.Wait)), default=0)
                if now_ms() > max(deadline_ms, until_ms + self._options.timeout_ms):
                    reason = _reason(actions) or "timed out: the members do not execute their orders"
                    raise CannotPromote(reason, "remove the cause, choose another with --to, or " + RETRY_REMEDY)

    def _force(self, refusal: act.Refuse) -> None:
        """Force a refused promotion, if the person permits and confirms it. Raises ``CannotPromote`` otherwise."""
        if self._request.is_forced or not (self._options.may_force and refusal.can_be_forced):
            raise CannotPromote(refusal.why, refusal.remedy)
        self._confirm_loss(refusal.why)

    def _confirm_loss(self, reason: str) -> None:
        ends = ", ".join(
            f"{one.name} at {one.status.wrote}" for one in self._observed.members if one.status is not None
        )
        question = f"{reason}. Members that answer: {ends}. Acknowledged messages beyond the new master's end are lost."
        if not self._confirm(question):
            raise CannotPromote("not confirmed; no member was promoted", "run `gantry ha status`")
        self._request = msgspec.structs.replace(self._request, is_forced=True)

    async def _resume(self) -> None:
        """Resume a master that was drained without a promotion, so that it takes sends again."""
        record = self._lease.record
        if record is None or not record.is_settled or record.newest is None:
            return
        self._request = msgspec.structs.replace(self._request, to=record.newest.master, electable=())
        actions = [one for one in await self._decide() if isinstance(one, act.Resume)]
        await self._execute(actions)

    # -- executing -----------------------------------------------------------------------------------------------------

    async def _execute(self, actions: Sequence[act.Action]) -> None:
        """Execute the Lease actions first, then all orders in parallel. Raises the error of a required order."""
        first, others = split_lease_actions(actions)
        for action in first:
            await self._executor.execute(action)
        failures = await asyncio.gather(*map(self._execute_one, others))
        for failure in failures:
            if failure is not None:
                raise failure

    async def _execute_one(self, action: act.Action) -> OrderError | None:
        """Execute one action. Return the error of a required order; a failed promise, follow or fence is reported."""
        if not isinstance(action, act.OrderAction):
            await self._executor.execute(action)
            return None
        self._given_orders.append(action)
        try:
            async with self._step(ORDERS[type(action)], self._observed.name(action.member), self._note(action)):
                await self._executor.execute(action)
        except OrderError as error:
            if isinstance(action, act.Promote) and isinstance(error, OrderRefused):
                return self._refused_promotion(action, error)
            return None if isinstance(action, act.Promise | act.Follow | act.Fence) else error
        return None

    def _refused_promotion(self, action: act.Promote, error: OrderRefused) -> OrderError | None:
        if action.force or not self._options.may_force:
            return error
        self._confirm_loss(str(error))
        return None

    # -- ports of the executor -----------------------------------------------------------------------------------------

    async def status(self, shard: int, member: int) -> HaStatus | None:
        return await self._client(member).call(StatusRequest())

    async def send_order(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        await self._client(member).call_checked(order, promotion_check(order, expected))

    async def replace_lease(self, action: act.LeaseAction) -> None:
        version = "" if self._lease.record is None else self._lease.record.version
        if (action.expected or "") != version:
            raise AssertionError("no other process writes this Lease")
        if isinstance(action, act.TakeEpoch):
            self._terms += 1
            if self._terms > TERMS_MAX:
                raise CannotPromote("another process gives orders to the members", RETRY_REMEDY)
        if isinstance(action, act.RecordMaster) and action.expected is not None:
            self._loss = self._loss_of(action.record)
        record = msgspec.structs.replace(action.record, version=str(int(version or "0") + 1))
        self._lease = ObservedLease(record=record, seen_ms=now_ms())

    async def clear_request(self, action: act.ClearRequest) -> None:
        self._is_done = True

    async def change_process(self, action: act.ProcessAction | act.Hibernate) -> None:
        raise AssertionError("a person runs the processes")

    def empty_log_end(self, shard: int) -> int | None:
        return None

    def note_shard_closed(self, shard: int) -> None:
        raise AssertionError("a person runs the processes")

    # -- output --------------------------------------------------------------------------------------------------------

    def _client(self, number: int) -> MemberClient:
        member = self._observed.member(number)
        if member is None:
            raise OrderRefused(f"member {number} does not answer")
        return self._clients[member.path]

    def _note(self, action: act.OrderAction) -> str:
        """Return the detail of an order, for its step."""
        match action:
            case act.Promise(epoch=epoch):
                return f"epoch {epoch}"
            case act.Promote(epoch=epoch, electable=electable):
                out = self._record.members - {*electable, action.member}
                left_out = f", without {sorted(out)} until named with --electable" if out else ""
                return f"epoch {epoch}, electable {list(electable)}{'' if self._request.electable else left_out}"
            case act.Resume():
                return "stays the master"
            case act.Follow(master=master):
                return master
            case _:
                return ""

    @property
    def _record(self) -> LeaseRecord:
        assert self._lease.record is not None, "every order was decided about a record"
        return self._lease.record

    def _loss_of(self, record: LeaseRecord) -> str:
        """Return the part of the log that the newest term of ``record`` gives up, in words."""
        term = record.newest
        assert term is not None, "the record names a master"
        view = ShardView(SPEC, shard_of(self._observed, self._lease, self._request), now_ms())
        ballots = [ballot_of(member, report) for member, report in view.reports()]
        epoch, end = max((one.log_position for one in ballots), default=(0, 0))
        past = record.terms[:-1]
        has_acks = all(one.acks_needed for one in past)
        if term.last_epoch < epoch:
            return f"another member's records of epoch {epoch}: the new master has only epoch {term.last_epoch}"
        if term.end < end:
            known = ", and none of them was acknowledged" if has_acks and not self._request.is_forced else ""
            return f"{end - term.end} bytes, from {term.end} on, that another member has{known}"
        if any(view.missing_votes(one, ballots) for one in past):
            return f"acknowledged messages beyond {term.end} that only unreachable members have"
        if term.is_loss_unknown:
            return "acknowledged messages, how many is unknown: too few members are known to have all that they had"
        if not has_acks and view.electable_members - {one.number for one in ballots}:
            return f"the old master's records beyond {term.end}: an asynchronous group has no other copy of them"
        return ""

    def _result(self) -> Promoted:
        """Return the result after the request is fulfilled. Raises ``CannotPromote`` for another master."""
        term = self._record.newest
        assert term is not None, "the promotion is done"
        name, to = self._observed.name(term.master), self._request.to
        if to not in (None, term.master):
            raise CannotPromote(
                f"member {to} could not be elected; {name} is the master in epoch {term.epoch}", RETRY_REMEDY
            )
        if to is None and name in [one.member for one in self._steps if one.what == "drain"]:
            reason = f"no slave could be elected; {name} is the master again, in epoch {term.epoch}"
            raise CannotPromote(reason, RETRY_REMEDY)
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
        """Record the enclosed work as a step, with its duration and the reason of a failure."""
        began_s = time.perf_counter()
        failure = ""
        try:
            yield
        except (OrderError, CannotPromote) as error:
            failure = str(error)
            raise
        finally:
            took_ms = (time.perf_counter() - began_s) * 1000
            step = Step(what, member, round(took_ms, 1), failure or note, not failure)
            self._steps.append(step)
            self._report(step)


def _reason(actions: Sequence[act.Action]) -> str:
    return "; ".join(one.why for one in actions if isinstance(one, act.Wait))
