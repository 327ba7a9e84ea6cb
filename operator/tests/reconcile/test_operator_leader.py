"""There is at most one leader: candidates with their own clocks, pauses, lost answers and an unreachable API server.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import pytest
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until

from gantry_operator.api import LEASES, ObjectRef
from gantry_operator.errors import Unavailable
from gantry_operator.leader_election import Candidate, LeaderLease, Leadership, LeaseTimings, Read, Sleep, Step, Write

TIMINGS: Final = LeaseTimings(duration_ms=1_500, renew_deadline_ms=1_000, retry_ms=200)
QUICK: Final = LeaseTimings(retry_ms=20)
"""The default timings but for retries, for a clock that runs twenty times too fast, while sleeping does not."""

READ_STEP_MS_MAX: Final = 1_000
"""The largest step between two reads of that clock, so that a due renewal comes before a Lease expires."""

SEEDS: Final = range(150)
STEPS: Final = 400


@dataclass
class ModelLease:
    """The Lease in a cluster, compared and swapped by its revision."""

    revision: int = 0
    holder: str | None = None
    is_revision_checked: bool = True

    def read(self) -> LeaderLease | None:
        return None if self.holder is None else LeaderLease(str(self.revision), self.holder)

    def write(self, step: Write, name: str) -> bool:
        current = None if self.holder is None else str(self.revision)
        if self.is_revision_checked and step.revision != current:
            return False
        self.revision += 1
        self.holder = "" if step.is_release else name
        return True


@dataclass
class ModelCandidate:
    """A candidate for leadership with a clock of its own, which is off, and may run too fast or too slow."""

    candidate: Candidate
    offset_ms: int
    rate: float
    """How fast its clock runs; 1 for the time of the history."""

    paused_until_ms: int = 0
    unreachable_until_ms: int = 0
    pending_steps: list[tuple[Step, int, int]] = field(default_factory=list)
    """The pending step, its sending time on the candidate's clock, and its arrival in the time of the history."""

    was_leader: bool = False

    def own_ms(self, world_ms: int) -> int:
        return self.offset_ms + int(world_ms * self.rate)

    def is_leader(self, world_ms: int) -> bool:
        return self.candidate.is_leader(self.own_ms(world_ms))


class ElectionHistory:
    """A random history of an election: candidates do steps, are paused, or do not reach the API server.

    Requests and answers may be lost or late.
    """

    def __init__(self, seed: int, *, is_revision_checked: bool = True, timings: LeaseTimings = TIMINGS) -> None:
        self.random = random.Random(seed)
        self.lease = ModelLease(is_revision_checked=is_revision_checked)
        self.now_ms = 10_000
        self.timings = timings
        self.terms = 0
        """How often a candidate became the leader."""

        self.names_count = 0
        self.candidates = [self.new_candidate() for _ in range(3)]

    def new_candidate(self) -> ModelCandidate:
        self.names_count += 1
        rate = self.random.uniform(0.95, 1.05)
        return ModelCandidate(
            Candidate(f"operator-{self.names_count}", self.timings), self.random.randrange(10**9), rate
        )

    def step(self) -> None:
        self.now_ms += self.random.choice([1, 20, 100, 300])
        for index, contender in enumerate(self.candidates):
            self.inject_fault(contender)
            if contender.paused_until_ms > self.now_ms:
                continue
            if contender.candidate.is_lost(contender.own_ms(self.now_ms)):
                self.candidates[index] = self.new_candidate()  # its process has ended; another one starts
                continue
            self.act(contender)
        leaders = [one.candidate.name for one in self.candidates if one.is_leader(self.now_ms)]
        assert len(leaders) <= 1, f"{leaders} are leaders at {self.now_ms}"
        for contender in self.candidates:
            is_leader = contender.is_leader(self.now_ms)
            self.terms += is_leader and not contender.was_leader
            contender.was_leader = is_leader

    def inject_fault(self, contender: ModelCandidate) -> None:
        chance = self.random.random()
        if chance < 0.01:
            contender.paused_until_ms = self.now_ms + self.random.randrange(5_000)
        elif chance < 0.02:
            contender.unreachable_until_ms = self.now_ms + self.random.randrange(5_000)

    def act(self, contender: ModelCandidate) -> None:
        own_ms = contender.own_ms(self.now_ms)
        ready = [one for one in contender.pending_steps if one[2] <= self.now_ms]
        for one in ready:
            contender.pending_steps.remove(one)
            self.arrive(contender, one[0], one[1])
        if not contender.pending_steps:
            step = contender.candidate.next_step(own_ms)
            if not isinstance(step, Sleep):
                contender.pending_steps.append((step, own_ms, self.now_ms + self.random.choice([0, 0, 10, 500])))

    def arrive(self, contender: ModelCandidate, step: Step, sent_ms: int) -> None:
        """Execute a step at the API server; its answer is lost sometimes."""
        candidate, answered_ms = contender.candidate, contender.own_ms(self.now_ms)
        is_unreachable = contender.unreachable_until_ms > self.now_ms
        is_lost = self.random.random() < 0.05
        if isinstance(step, Read):
            if not is_unreachable and not is_lost:
                candidate.handle_read(self.lease.read(), answered_ms)
            return
        assert isinstance(step, Write), step
        if is_unreachable or not self.lease.write(step, candidate.name) or is_lost:
            candidate.handle_failure()
            return
        seen = self.lease.read()
        assert seen is not None, "the Lease is missing after a write"
        candidate.handle_write(seen, sent_ms, answered_ms)


def run_history(seed: int, *, is_revision_checked: bool = True) -> ElectionHistory:
    history = ElectionHistory(seed, is_revision_checked=is_revision_checked)
    for _ in range(STEPS):
        history.step()
    return history


def test_there_are_never_two_leaders() -> None:
    """Random histories of three candidates: pauses, cuts, late and lost answers, clocks up to 5 % too fast or slow."""
    terms = sum(run_history(seed).terms for seed in SEEDS)

    assert terms > len(SEEDS)


def test_without_the_comparison_there_are_two_leaders() -> None:
    """The twin: a Lease that any candidate may overwrite has two leaders in some history."""
    with pytest.raises(AssertionError, match="are leaders"):
        for seed in SEEDS:
            run_history(seed, is_revision_checked=False)


def test_renew_deadline_must_be_below_the_duration() -> None:
    """Safety rests on the margin between both."""
    with pytest.raises(AssertionError, match="margin"):
        Candidate("one", LeaseTimings(duration_ms=1_000, renew_deadline_ms=1_000, retry_ms=100))


def test_challenger_waits_a_whole_duration_of_one_revision_on_its_own_clock() -> None:
    """Each change starts the wait again; the times in the Lease are ignored."""
    taker = Candidate("taker", TIMINGS)
    taker.handle_read(LeaderLease("1", "holder"), 0)

    assert taker.next_step(TIMINGS.duration_ms - 1) == Read()
    taker.handle_read(LeaderLease("2", "holder"), TIMINGS.duration_ms - 1)
    assert taker.next_step(2 * TIMINGS.duration_ms - 2) == Read()
    taker.handle_read(LeaderLease("2", "holder"), 2 * TIMINGS.duration_ms - 2)
    assert taker.next_step(2 * TIMINGS.duration_ms + 500) == Write("2")


def test_leadership_counts_from_the_sending_of_the_renewal() -> None:
    """A slow answer shortens it, and an answer after the deadline grants none."""
    slow = Candidate("slow", TIMINGS)
    slow.handle_write(LeaderLease("1", "slow"), 0, 900)

    assert slow.is_leader(999) and not slow.is_leader(1_000)
    assert slow.is_lost(1_000)
    late = Candidate("late", TIMINGS)
    late.handle_write(LeaderLease("1", "late"), 0, 1_001)
    assert not late.is_leader(1_001)


def test_released_lease_is_acquired_at_once() -> None:
    """An orderly shutdown makes no candidate wait."""
    taker, holder = Candidate("taker", TIMINGS), Candidate("holder", TIMINGS)
    holder.handle_write(LeaderLease("1", "holder"), 0, 1)

    assert taker.next_step(0) == Read()
    taker.handle_read(LeaderLease("1", "holder"), 1)
    assert holder.release_step() == Write("1", is_release=True)
    assert taker.next_step(TIMINGS.retry_ms) == Read()
    taker.handle_read(LeaderLease("2", ""), TIMINGS.retry_ms + 5)
    assert taker.next_step(TIMINGS.retry_ms + 6) == Write("2")
    taker.handle_failure()
    assert taker.next_step(TIMINGS.retry_ms + 7) == Sleep(2 * TIMINGS.retry_ms + 6), "a failed write is retried at once"


def test_lost_answer_makes_no_leader() -> None:
    """The write may have succeeded: the Lease is read, found to be held by the candidate, and written again."""
    one = Candidate("one", TIMINGS)
    one.handle_read(None, 0)
    assert one.next_step(0) == Write(None)
    one.handle_failure()

    assert not one.is_leader(1)
    assert one.next_step(300) == Read()
    one.handle_read(LeaderLease("7", "one"), 301)
    assert one.next_step(600) == Write("7")
    one.handle_write(LeaderLease("8", "one"), 600, 610)
    assert one.is_leader(611)


# -- with the fake API -------------------------------------------------------------------------------------------------


class TestClock:
    """Real time, twenty times faster, for several users; it stops while the machine is stalled."""

    __test__ = False

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._last_read_s = asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        now = asyncio.get_running_loop().time()
        self._now_ms += min((now - self._last_read_s) * 20_000, READ_STEP_MS_MAX)
        self._last_read_s = now
        return int(self._now_ms)

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


async def test_partitioned_leader_exits_before_the_next_one_acts() -> None:
    """Its API calls fail, its deadline passes, ``on_lost`` is called; only then the other candidate takes over."""
    fake, ref = FakeKubernetes(), ObjectRef(LEASES, "gantry-system", "gantry-operator")
    cut: set[str] = set()
    ended: list[str] = []
    parts: dict[str, Leadership] = {}
    clock = TestClock()

    class Cuttable:
        """The API as one operator reaches it, which can be cut off."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, verb: str) -> object:
            if self.name in cut:
                raise Unavailable(verb, "cut off")
            return getattr(fake, verb)

    async with asyncio.TaskGroup() as tasks:
        running = []
        for name in ("one", "two"):
            candidate = Candidate(name, QUICK)
            part = Leadership(Cuttable(name), ref, candidate, clock, lambda name=name: ended.append(name))  # type: ignore[arg-type, misc]
            parts[name] = part
            running.append(tasks.create_task(part.run()))
            await asyncio.sleep(0.005)
        await until(lambda: parts["one"].is_leader())
        assert not parts["two"].is_leader()
        cut.add("one")
        await until(lambda: ended == ["one"])
        assert not parts["one"].is_leader()
        await until(lambda: parts["two"].is_leader())
        for task in running:
            task.cancel()

    assert ended == ["one"]
    await parts["two"].release()
    lease = fake.found(LEASES, "gantry-system", "gantry-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("is_renewed", [False, True], ids=["as known", "renewed meanwhile"])
async def test_lease_is_released_after_an_unanswered_renewal(is_renewed: bool) -> None:
    """A renewal that was pending at the end may have made a newer revision: it is read, and that one is released."""
    fake, ref = FakeKubernetes(), ObjectRef(LEASES, "gantry-system", "gantry-operator")
    leadership = Leadership(fake, ref, Candidate("one", QUICK), TestClock())
    task = asyncio.create_task(leadership.run())
    await until(leadership.is_leader)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if is_renewed:
        await fake.patch(ref, {"spec": {"renewTime": "2026-01-01T00:00:01.000000Z"}})

    await leadership.release()
    await leadership.release()

    lease = fake.found(LEASES, "gantry-system", "gantry-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == ""


async def test_lease_of_another_holder_is_not_released() -> None:
    """The Lease is read before the release is tried a second time."""
    fake, ref = FakeKubernetes(), ObjectRef(LEASES, "gantry-system", "gantry-operator")
    leadership = Leadership(fake, ref, Candidate("one", QUICK), TestClock())
    task = asyncio.create_task(leadership.run())
    await until(leadership.is_leader)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await fake.patch(ref, {"spec": {"holderIdentity": "two"}})

    await leadership.release()

    lease = fake.found(LEASES, "gantry-system", "gantry-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == "two"


async def test_losing_candidate_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A conflict is normal when two candidates start at once.

    It is a warning for a leader whose Lease was overwritten.
    """
    fake, ref = FakeKubernetes(), ObjectRef(LEASES, "gantry-system", "gantry-operator")
    caplog.set_level("DEBUG")
    parts = [Leadership(fake, ref, Candidate(name, LeaseTimings()), TestClock()) for name in ("one", "two")]

    for part in parts:
        await part._do(Write(None))

    assert [part.is_leader() for part in parts] == [True, False]
    [slower] = [one for one in caplog.records if one.message == "leader Lease request failed; retrying"]
    assert slower.levelname == "DEBUG"

    await parts[0]._do(Write("0"))
    assert caplog.records[-1].levelname == "WARNING"
