"""Moving the master role of a group by hand, as one procedure that says each step and how long it took.

    the master answers     drain it -> let the target catch up -> fence it -> promises -> promote -> the others follow
    it does not            promises of S-k+1 slaves -> promote the furthest of them -> the others follow

In both, nobody is promoted who lacks something that any asked member has, or that a covered promise may rest on, unless
the loss was said and forced. A master that answers hands over: what it has written when it is fenced is the measure,
so then one slave that has it all is enough, though others are away. Where that fails the master is put back. Every
order is idempotent, and every new attempt takes a newer epoch, so running the command again is always a way on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_cli.ha_group import CannotMove, Group, Reached, group_of
from gantry_cli.ha_steps import LOOK_TIMEOUT_S, Caller, Moved, Step, Steps, Wish, look
from gantry_spec.election import Candidate, elect
from gantry_status.orders import (
    AskPromise,
    AskStatus,
    Drain,
    Fence,
    Follow,
    HaStatus,
    OrderError,
    Promised,
    Promote,
)

CATCH_UP_POLL_S: Final = 0.02
AGAIN: Final = "run the same command again: it takes a newer epoch"


@final
class Move:
    """One move. Owned by one event loop; ``run`` once."""

    def __init__(
        self,
        clients: Sequence[Caller],
        wish: Wish,
        *,
        tell: Callable[[Step], None],
        confirm: Callable[[str], bool],
    ) -> None:
        """``tell`` hears of each step as it ends; ``confirm`` is asked before something is lost."""
        self._clients: Final = {client.path: client for client in clients}
        self._wish: Final = wish
        self._confirm: Final = confirm
        self._steps: Final = Steps(tell)

    async def run(self) -> Moved:
        """Move the role. Raises ``CannotMove``, or what an order raises that had to be done."""
        members = await look(tuple(self._clients.values()))
        wish = self._wish
        group = group_of(members, wish.named, wish.old_master, is_forced=wish.is_forced)
        if group.master is not None and self._wish.to == group.master.number:
            return await self._stay(group, group.master)
        if group.master is not None:
            return await self._hand_over(group, group.master)
        return await self._take_over(group)

    # -- the master answers --------------------------------------------------------------------------------------------

    async def _stay(self, group: Group, master: Reached) -> Moved:
        """It is the master already. The order ends a drain that somebody has begun; the others are gathered."""
        recorded = sorted(set(master.status.electable) - {master.number})
        wanted = group.electable_after(master.number) if self._wish.named else recorded
        if wanted != recorded:
            return await self._widen(group, master, recorded, wanted)
        async with self._steps.step("promote", master, "is the master already"):
            await self._clients[master.path].call(Promote(epoch=group.epoch, electable=recorded))
        return await self._followed(group, master, group.epoch, "")

    async def _widen(self, group: Group, master: Reached, recorded: list[int], wanted: list[int]) -> Moved:
        """Have more slaves that may be promoted, in a new epoch of the same master.

        Without acks it asks them for grants, too, so no second master is made possible. Where acks count, one would be.
        """
        if group.acks_needed or not set(recorded) < set(wanted):
            reason = f"{recorded} may be promoted after {master.name}, and {wanted} only after an election"
            raise CannotMove(reason, "move the role to another member, with the same --electable")
        return await self._finish(group, master, group.next_epoch(master.number), "")

    async def _hand_over(self, group: Group, master: Reached) -> Moved:
        target = self._successor(group, master)
        self._check_acks(group, target.number)
        epoch, client = group.next_epoch(target.number), self._clients[master.path]
        try:
            async with self._steps.step("drain", master):
                drained = await client.call(Drain(timeout_ms=self._wish.drain_timeout_ms))
            await self._catch_up(target, drained)
        except (OrderError, CannotMove):
            await self._resume(group, master)
            raise
        async with self._steps.step("fence", master):
            fenced = await client.call(Fence(epoch=epoch))
        promises = await self._gather_promises([one for one in group.reached if one != master], epoch)
        won = next((promise for promise in promises if promise.broker_id == target.number), None)
        if won is None or (won.last_epoch, won.end) < fenced.place:
            why = "has not promised" if won is None else f"ends at {won.end}, the master at {fenced.wrote}"
            again = group.next_epoch(master.number, epoch)
            await self._promote(group, master, again, "the role goes back", is_forced=False)
            await self._follow(group, master, again)
            raise CannotMove(f"{target.name} {why}; {master.name} is the master again, in epoch {again}", AGAIN)
        return await self._finish(group, target, epoch, "")

    def _successor(self, group: Group, master: Reached) -> Reached:
        if self._wish.to is not None:
            return self._wanted(group)
        targets = [one for one in group.voters if one.number != master.number]
        if not targets:
            raise CannotMove("no slave that may be promoted answers", "start one; the master stays as it is")
        return max(targets, key=lambda one: (one.place, -one.number))

    async def _catch_up(self, target: Reached, drained: HaStatus) -> None:
        """Wait until the target has all that the master had written when it was drained."""
        deadline = time.monotonic() + self._wish.drain_timeout_ms / 1000
        async with self._steps.step("catch up", target, f"to {drained.wrote}"):
            while True:
                status = await self._clients[target.path].call(AskStatus(), timeout_s=LOOK_TIMEOUT_S)
                if status.place >= drained.place:
                    return
                if time.monotonic() > deadline:
                    here, there = (f"{one.wrote} of epoch {one.last_epoch}" for one in (status, drained))
                    reason = f"{target.name} ends at {here}, the master at {there}"
                    raise CannotMove(reason, "look at what holds it up, or choose another with --to")
                await asyncio.sleep(CATCH_UP_POLL_S)

    async def _resume(self, group: Group, master: Reached) -> None:
        """Nothing was moved: let the master take sends again."""
        async with self._steps.step("resume", master, "it stays the master"):
            electable = sorted(group.electable - {master.number})
            await self._clients[master.path].call(Promote(epoch=group.epoch, electable=electable))

    # -- it does not ---------------------------------------------------------------------------------------------------

    async def _take_over(self, group: Group) -> Moved:
        self._check_voters(group)
        asked = [one for one in group.reached if one.number in group.members]
        target = max(asked, key=lambda one: (one.place, -one.number)) if self._wish.to is None else self._wanted(group)
        epoch = 0
        for _ in range(2):  # whoever turns out to be further is promoted in an epoch of its own
            epoch = group.next_epoch(target.number, epoch)
            promises = await self._gather_promises(asked, epoch)
            winner = self._elected(group, promises, epoch)
            if winner.broker_id == target.number:
                break
            target = group.find(winner.broker_id)
        else:
            raise CannotMove("the logs still move, though they were promised to stand still", AGAIN)
        self._check_acks(group, target.number)
        loss = self._loss(group, winner)
        await self._end_of_grants(promises, target)
        return await self._finish(group, target, epoch, loss)

    def _check_voters(self, group: Group) -> None:
        """Before anybody is asked for a promise, which stops it from following: can it succeed?"""
        if self._wish.to is not None:
            self._wanted(group)
        here = len(group.voters)
        if here >= group.needed and not group.is_unasked:
            return
        away = sorted(group.electable - {one.number for one in group.voters})
        reason = f"{group.needed} of the slaves {sorted(group.electable)} must promise, and {away} do not answer"
        if not group.electable or group.is_unasked:
            reason = "nobody has recorded which slaves may be promoted"
        if not self._wish.is_forced:
            raise CannotMove(reason, "start one of them; --force gives up what only they may have")
        if not any(one.number in group.members for one in group.reached):
            raise CannotMove("nobody who answers may be the master", "name it with --electable")
        ends = ", ".join(f"{one.name} at {one.status.wrote}" for one in group.reached)
        question = f"{reason}. Here are {ends}; messages beyond the winner's end may have been acknowledged."
        if not self._confirm(question):
            raise CannotMove("nothing was done", "the group stays without a master")

    def _wanted(self, group: Group) -> Reached:
        assert self._wish.to is not None, "asked only if somebody is wanted"
        target = group.find(self._wish.to)
        if target.number not in group.members:
            remedy = f"these may: {sorted(group.members)}; name others with --electable"
            raise CannotMove(f"{target.name} may not be the master", remedy)
        return target

    def _elected(self, group: Group, promises: Sequence[Promised], epoch: int) -> Promised:
        """The furthest of all that have promised, provided that enough of S have."""
        voices = [_candidate(one) for one in promises if one.broker_id in group.electable]
        electable, acks = [str(number) for number in sorted(group.electable)], group.acks_needed
        election = elect(electable, acks, epoch, voices)
        if election.winner is None and not self._wish.is_forced:
            raise CannotMove(f"nobody is elected in epoch {epoch}: {election.reason}", AGAIN)
        if not promises:
            raise CannotMove("nobody has promised anything", AGAIN)
        furthest = max(promises, key=lambda one: (_place(one), -one.broker_id))
        if self._wish.to is None:
            return furthest
        wanted = next((one for one in promises if one.broker_id == self._wish.to), None)
        if wanted is None:
            raise CannotMove(f"member {self._wish.to} has not promised", AGAIN)
        # With acks, whoever is as far as the elected one has all that was acknowledged; without, only the furthest has.
        bar = furthest if group.acks_needed == 0 or election.winner is None else election.winner
        if _place(wanted) < _place(bar) and not self._wish.is_forced:
            reason = f"member {wanted.broker_id} ends at {wanted.end} of epoch {wanted.last_epoch}"
            further = f"member {furthest.broker_id} at {furthest.end} of epoch {furthest.last_epoch}"
            raise CannotMove(f"{reason}, {further}", f"promote --to {furthest.broker_id} first, then move on")
        return wanted

    def _loss(self, group: Group, winner: Promised) -> str:
        """What of the log is given up, in words."""
        epoch, end = group.place
        if winner.last_epoch < epoch:
            return f"what another member has of epoch {epoch}: the winner has only epoch {winner.last_epoch}"
        if winner.end < end:
            known = "" if self._wish.is_forced or group.acks_needed == 0 else "; none of them was acknowledged"
            return f"{end - winner.end} bytes, from {winner.end} on, that another member has{known}"
        if len(group.voters) < group.needed:
            return f"whatever was acknowledged beyond {winner.end} by members that do not answer"
        if group.acks_needed == 0 and group.members - {one.number for one in group.reached}:
            return f"what the old master wrote beyond {winner.end}: in an asynchronous group nobody else has that"
        return ""

    async def _end_of_grants(self, promises: Sequence[Promised], target: Reached) -> None:
        """The old master may acknowledge until a grant has run out. One would do; the last to end is sure to have."""
        rest_ms = max(one.granted_ms for one in promises)
        if rest_ms > 0:
            async with self._steps.step("wait", target, "for the end of the old master's grants"):
                await asyncio.sleep(rest_ms / 1000)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _check_acks(self, group: Group, winner: int) -> None:
        """Whether the next epoch could ever acknowledge anything."""
        after = group.electable_after(winner)
        if len(after) < group.acks_needed and not self._wish.is_forced:
            reason = f"code 0 needs {group.acks_needed} ack(s), and only {after} could give them to member {winner}"
            raise CannotMove(reason, "name all that may be the master, those that are away, too: --electable")

    async def _gather_promises(self, asked: Sequence[Reached], epoch: int) -> list[Promised]:
        """From all, side by side. Who refuses has no voice."""

        async def one(member: Reached) -> Promised | None:
            try:
                async with self._steps.step("promise", member, f"epoch {epoch}"):
                    return await self._clients[member.path].call(AskPromise(epoch=epoch, to="gantry ha promote"))
            except OrderError:
                return None  # the step says why

        return [promised for promised in await asyncio.gather(*map(one, asked)) if promised is not None]

    async def _finish(self, group: Group, target: Reached, epoch: int, loss: str) -> Moved:
        await self._promote(group, target, epoch, "", is_forced=self._wish.is_forced)
        return await self._followed(group, target, epoch, loss)

    async def _followed(self, group: Group, target: Reached, epoch: int, loss: str) -> Moved:
        is_complete = await self._follow(group, target, epoch)
        return Moved(
            epoch=epoch,
            master=target.name,
            number=target.number,
            loss=loss,
            is_complete=is_complete,
            steps=self._steps.all,
        )

    async def _promote(self, group: Group, target: Reached, epoch: int, note: str, *, is_forced: bool) -> None:
        order = Promote(epoch=epoch, electable=group.electable_after(target.number), force=is_forced)
        note = note or f"epoch {epoch}, after it {order.electable}"
        if group.left_out:
            note += f", without {sorted(group.left_out)} until named with --electable"
        async with self._steps.step("promote", target, note):
            await self._clients[target.path].call(order)

    async def _follow(self, group: Group, target: Reached, epoch: int) -> bool:
        """Have everybody else follow. Whether all do."""

        async def one(member: Reached) -> bool:
            try:
                async with self._steps.step("follow", member, target.status.ha_address):
                    if not target.status.ha_address:
                        raise CannotMove(f"{target.name} does not say where slaves find it", "see its haListenPort")
                    order = Follow(epoch=epoch, master=target.status.ha_address)
                    await self._clients[member.path].call(order)
                return True
            except (OrderError, CannotMove):
                return False  # the step says why

        others = [one for one in group.reached if one != target]
        return all(await asyncio.gather(*map(one, others)))


def _place(one: Promised | Candidate) -> tuple[int, int]:
    return (one.epoch if isinstance(one, Candidate) else one.last_epoch), one.end


def _candidate(promised: Promised) -> Candidate:
    return Candidate(str(promised.broker_id), promised.last_epoch, promised.end, promised.epoch)
