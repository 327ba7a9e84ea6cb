"""At most one leads: candidates with clocks of their own, pauses, lost answers and an API server that goes away."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import pytest
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until

from gantry_operator.api import LEASES, Place
from gantry_operator.errors import Unavailable
from gantry_operator.leader_election import Candidate, Leadership, Read, SeenLease, Sleep, Step, Terms, Write

TERMS: Final = Terms(duration_ms=1_500, renew_deadline_ms=1_000, retry_ms=200)
QUICK: Final = Terms(retry_ms=20)
"""The usual terms, for a clock that is twenty times too fast while sleeping is not."""

LOOK_MS_MAX: Final = 1_000
"""What passes at most between two looks at that clock: a renewal that is due comes before the end of a Lease."""

SEEDS: Final = range(150)
STEPS: Final = 400


@dataclass
class ModelLease:
    """The Lease in a cluster: compared and swapped by its revision."""

    revision: int = 0
    holder: str | None = None
    is_compared: bool = True

    def seen(self) -> SeenLease | None:
        return None if self.holder is None else SeenLease(str(self.revision), self.holder)

    def write(self, step: Write, name: str) -> bool:
        current = None if self.holder is None else str(self.revision)
        if self.is_compared and step.revision != current:
            return False
        self.revision += 1
        self.holder = "" if step.is_release else name
        return True


@dataclass
class Player:
    """A candidate with a clock that is off, and perhaps too fast or too slow."""

    candidate: Candidate
    offset_ms: int
    rate: float
    paused_until_ms: int = 0
    cut_until_ms: int = 0
    under_way: list[tuple[Step, int, int]] = field(default_factory=list)
    """What was decided, its sending time on the own clock, and when it goes on in the world's time."""

    believed: bool = False

    def own_ms(self, world_ms: int) -> int:
        return self.offset_ms + int(world_ms * self.rate)

    def is_leader(self, world_ms: int) -> bool:
        return self.candidate.is_leader(self.own_ms(world_ms))


class Game:
    """Time passes; everybody does a step, is paused, or is cut off; a request and its answer may be lost or late."""

    def __init__(self, seed: int, *, is_compared: bool = True, terms: Terms = TERMS) -> None:
        self.random = random.Random(seed)
        self.lease = ModelLease(is_compared=is_compared)
        self.now_ms = 10_000
        self.terms = terms
        self.reigns = 0
        self.names = 0
        self.players = [self.player() for _ in range(3)]

    def player(self) -> Player:
        self.names += 1
        rate = self.random.uniform(0.95, 1.05)
        return Player(Candidate(f"operator-{self.names}", self.terms), self.random.randrange(10**9), rate)

    def step(self) -> None:
        self.now_ms += self.random.choice([1, 20, 100, 300])
        for index, player in enumerate(self.players):
            self.trouble(player)
            if player.paused_until_ms > self.now_ms:
                continue
            if player.candidate.is_lost(player.own_ms(self.now_ms)):
                self.players[index] = self.player()  # its process has ended; another one starts
                continue
            self.act(player)
        leaders = [one.candidate.name for one in self.players if one.is_leader(self.now_ms)]
        assert len(leaders) <= 1, f"{leaders} all believe at {self.now_ms}"
        for player in self.players:
            is_leader = player.is_leader(self.now_ms)
            self.reigns += is_leader and not player.believed
            player.believed = is_leader

    def trouble(self, player: Player) -> None:
        dice = self.random.random()
        if dice < 0.01:
            player.paused_until_ms = self.now_ms + self.random.randrange(5_000)
        elif dice < 0.02:
            player.cut_until_ms = self.now_ms + self.random.randrange(5_000)

    def act(self, player: Player) -> None:
        own_ms = player.own_ms(self.now_ms)
        ready = [one for one in player.under_way if one[2] <= self.now_ms]
        for one in ready:
            player.under_way.remove(one)
            self.arrive(player, one[0], one[1])
        if not player.under_way:
            step = player.candidate.next(own_ms)
            if not isinstance(step, Sleep):
                player.under_way.append((step, own_ms, self.now_ms + self.random.choice([0, 0, 10, 500])))

    def arrive(self, player: Player, step: Step, sent_ms: int) -> None:
        """At the API server; the answer is lost sometimes."""
        candidate, answered_ms = player.candidate, player.own_ms(self.now_ms)
        is_cut = player.cut_until_ms > self.now_ms
        is_lost = self.random.random() < 0.05
        if isinstance(step, Read):
            if not is_cut and not is_lost:
                candidate.read(self.lease.seen(), answered_ms)
            return
        assert isinstance(step, Write), step
        if is_cut or not self.lease.write(step, candidate.name) or is_lost:
            candidate.failed()
            return
        seen = self.lease.seen()
        assert seen is not None, "it was just written"
        candidate.written(seen, sent_ms, answered_ms)


def play(seed: int, *, is_compared: bool = True) -> Game:
    game = Game(seed, is_compared=is_compared)
    for _ in range(STEPS):
        game.step()
    return game


def test_two_never_lead_at_the_same_time() -> None:
    """Many histories of three: pauses, cuts, late and lost answers, clocks 5 % apart; and somebody does lead."""
    reigns = sum(play(seed).reigns for seed in SEEDS)

    assert reigns > len(SEEDS)


def test_without_the_comparison_two_do() -> None:
    """The twin: a Lease that anybody may overwrite has two leaders in some history, so the game can tell."""
    with pytest.raises(AssertionError, match="all believe"):
        for seed in SEEDS:
            play(seed, is_compared=False)


def test_a_deadline_beyond_the_duration_is_refused() -> None:
    """The margin between both is what everything rests on."""
    with pytest.raises(AssertionError, match="margin"):
        Candidate("one", Terms(duration_ms=1_000, renew_deadline_ms=1_000, retry_ms=100))


def test_a_taker_waits_out_a_whole_duration_of_one_revision_on_its_own_clock() -> None:
    """Each change begins the wait anew, whatever time stands in the Lease."""
    taker = Candidate("taker", TERMS)
    taker.read(SeenLease("1", "holder"), 0)

    assert taker.next(TERMS.duration_ms - 1) == Read()
    taker.read(SeenLease("2", "holder"), TERMS.duration_ms - 1)
    assert taker.next(2 * TERMS.duration_ms - 2) == Read()
    taker.read(SeenLease("2", "holder"), 2 * TERMS.duration_ms - 2)
    assert taker.next(2 * TERMS.duration_ms + 500) == Write("2")


def test_belief_counts_from_the_sending() -> None:
    """A slow answer makes belief shorter, and an answer that comes after the deadline makes none."""
    slow = Candidate("slow", TERMS)
    slow.written(SeenLease("1", "slow"), 0, 900)

    assert slow.is_leader(999) and not slow.is_leader(1_000)
    assert slow.is_lost(1_000)


def test_what_was_given_back_is_taken_at_once() -> None:
    """A holder that ends in peace leaves nobody waiting."""
    taker, holder = Candidate("taker", TERMS), Candidate("holder", TERMS)
    holder.written(SeenLease("1", "holder"), 0, 1)

    assert taker.next(0) == Read()
    taker.read(SeenLease("1", "holder"), 1)
    assert holder.release() == Write("1", is_release=True)
    assert taker.next(TERMS.retry_ms) == Read()
    taker.read(SeenLease("2", ""), TERMS.retry_ms + 5)
    assert taker.next(TERMS.retry_ms + 6) == Write("2")
    taker.failed()
    assert taker.next(TERMS.retry_ms + 7) == Sleep(2 * TERMS.retry_ms + 6), "a write that failed is not tried at once"


def test_an_answer_that_was_lost_makes_nobody_the_leader() -> None:
    """It may have been done: it is read, found to be ours, and written again before anybody believes."""
    one = Candidate("one", TERMS)
    one.read(None, 0)
    assert one.next(0) == Write(None)
    one.failed()

    assert not one.is_leader(1)
    assert one.next(300) == Read()
    one.read(SeenLease("7", "one"), 301)
    assert one.next(600) == Write("7")
    one.written(SeenLease("8", "one"), 600, 610)
    assert one.is_leader(611)


# -- with the fake API -------------------------------------------------------------------------------------------------


class TestClock:
    """Real time, twenty times faster, for those who share it; while the machine stands still it does, too."""

    __test__ = False

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._looked_at = asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        now = asyncio.get_running_loop().time()
        self._now_ms += min((now - self._looked_at) * 20_000, LOOK_MS_MAX)
        self._looked_at = now
        return int(self._now_ms)

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_leader_that_is_cut_off_ends_its_process_before_the_next_one_acts() -> None:
    """Its API calls fail, its belief runs out, ``on_lost`` is called; only then does the other one win."""
    fake, place = FakeKubernetes(), Place(LEASES, "gantry-system", "gantry-operator")
    cut: set[str] = set()
    ended: list[str] = []
    parts: dict[str, Leadership] = {}
    clock = TestClock()

    class Cuttable:
        """The API as one operator reaches it."""

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
            part = Leadership(Cuttable(name), place, candidate, clock, lambda name=name: ended.append(name))  # type: ignore[arg-type, misc]
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
async def test_a_lease_is_given_back_though_its_last_renewal_was_not_answered(is_renewed: bool) -> None:
    """A renewal that was under way at the end has made a newer revision: it is read, and that one is given back."""
    fake, place = FakeKubernetes(), Place(LEASES, "gantry-system", "gantry-operator")
    leadership = Leadership(fake, place, Candidate("one", QUICK), TestClock())
    task = asyncio.create_task(leadership.run())
    await until(leadership.is_leader)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if is_renewed:
        await fake.patch(place, {"spec": {"renewTime": "2026-01-01T00:00:01.000000Z"}})

    await leadership.release()
    await leadership.release()

    lease = fake.found(LEASES, "gantry-system", "gantry-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == ""


async def test_a_lease_that_another_one_has_taken_is_left_to_it() -> None:
    """It is read before it is given back a second time."""
    fake, place = FakeKubernetes(), Place(LEASES, "gantry-system", "gantry-operator")
    leadership = Leadership(fake, place, Candidate("one", QUICK), TestClock())
    task = asyncio.create_task(leadership.run())
    await until(leadership.is_leader)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await fake.patch(place, {"spec": {"holderIdentity": "two"}})

    await leadership.release()

    lease = fake.found(LEASES, "gantry-system", "gantry-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == "two"


async def test_of_two_that_start_at_once_the_slower_one_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """That is how it should be. A leader whose Lease was written by somebody else has reason to."""
    fake, place = FakeKubernetes(), Place(LEASES, "gantry-system", "gantry-operator")
    caplog.set_level("DEBUG")
    parts = [Leadership(fake, place, Candidate(name, Terms()), TestClock()) for name in ("one", "two")]

    for part in parts:
        await part._do(Write(None))

    assert [part.is_leader() for part in parts] == [True, False]
    [slower] = [one for one in caplog.records if one.message == "leader Lease request failed"]
    assert slower.levelname == "DEBUG"

    await parts[0]._do(Write("0"))
    assert caplog.records[-1].levelname == "WARNING"
