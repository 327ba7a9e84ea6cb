"""What Java clients wrote down about delays, retries and ordered consumption, and what that says. Pure but for files.

Of a delayed or failed message
- it is delivered at or after its time: that of the end of its delay, counted from before its send, or from its failure;
- how often it failed is in the message: a retry has failed once more than a delivery before it;
- in the end it is taken. It may come twice, which is counted.

Of a queue that is consumed in order
- offsets are delivered as they stand: after each one the next, or one that was delivered already (a consumer that takes
  a queue over begins at the last offset that was committed);
- nobody is delivered anything of it while somebody else still has something of it in hands.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self, final

DELAY_SECONDS: Final = (1, 2, 3, 4, 5)
"""Of levels 1 to 5; there are no more."""

FIRST_RETRY_LEVEL: Final = 3
SHOWN_MAX: Final = 3


class FlowLedger(Protocol):
    """What a story asks of its ledgers."""

    @property
    def deliveries(self) -> int: ...

    is_sent: bool

    def read(self) -> Self: ...
    def is_complete(self) -> bool: ...
    def broken(self) -> list[str]: ...
    def counts(self) -> dict[str, int]: ...


def delay_us(level: int) -> int:
    """Of a delay level; of one beyond the last, that of the last."""
    return DELAY_SECONDS[min(level, len(DELAY_SECONDS)) - 1] * 1_000_000 if level else 0


def failures_of(number: int) -> int:
    """How often a message fails, as `Delays.java` has it."""
    return max(0, number % 7 - 3)


def _lines(path: Path) -> list[list[str]]:
    """Whole lines, as words."""
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


def _said(promise: str, wrong: list[object]) -> list[str]:
    """A promise that does not hold, with a few of those that broke it."""
    return [f"{promise} ({len(wrong)} do not: {wrong[:SHOWN_MAX]})"] if wrong else []


class Put(NamedTuple):
    """A send that was answered 0."""

    level: int
    began_us: int


class Got(NamedTuple):
    """One delivery."""

    times: int
    is_retry: bool
    at_us: int
    physical: int
    is_taken: bool


@final
class DelayLedger:
    """Of the story `delays`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ledger.txt"
        self.put: dict[int, Put] = {}
        self.got: dict[int, list[Got]] = {}
        self.unsure = 0
        self.is_sent = False

    @property
    def deliveries(self) -> int:
        return sum(len(found) for found in self.got.values())

    def read(self) -> DelayLedger:
        self.put, self.got, self.unsure = {}, defaultdict(list), 0
        for words in _lines(self._path):
            match words:
                case ["put", number, level, began, _]:
                    self.put[int(number)] = Put(int(level), int(began))
                case ["got", number, times, is_retry, at, physical, is_taken]:
                    one = Got(int(times), is_retry == "1", int(at), int(physical), is_taken == "1")
                    self.got[int(number)].append(one)
                case ["unsure", *_]:
                    self.unsure += 1
                case ["sent", _]:
                    self.is_sent = True
                case _:
                    raise ValueError(f"no line of a ledger: {words}")
        return self

    def _lost(self) -> list[object]:
        return [number for number in self.put if not any(one.is_taken for one in self.got.get(number, ()))]

    def is_complete(self) -> bool:
        return not self._lost()

    def counts(self) -> dict[str, int]:
        wanted = sum(1 + failures_of(number) for number in self.got)
        return {
            "acknowledged": len(self.put),
            "unsure": self.unsure,
            "delayed": sum(one.level > 0 for one in self.put.values()),
            "retries": sum(one.is_retry for found in self.got.values() for one in found),
            "twice": self.deliveries - wanted,
            "latest_delay_ms": max((late for late in self._lateness()), default=0) // 1000,
        }

    def _lateness(self) -> list[int]:
        """How long after its time each delayed message came the first time; negative ones were early."""
        return [
            min(one.at_us for one in self.got[number]) - put.began_us - delay_us(put.level)
            for number, put in self.put.items()
            if put.level and number in self.got
        ]

    def broken(self) -> list[str]:
        early = [late for late in self._lateness() if late < 0]
        strange = [-1] if -1 in self.got else []
        anew: list[object] = []
        leaps: list[object] = []
        hasty: list[object] = []
        beyond: list[object] = []
        for number, found in self.got.items():
            first: dict[int, int] = {}
            for one in sorted(found, key=lambda one: one.at_us):
                if one.is_retry and one.times == 0:
                    anew.append((number, one))
                if one.times > failures_of(number):
                    beyond.append((number, one))
                if one.times > 0:
                    failed_us = first.get(one.times - 1)
                    if failed_us is None:
                        leaps.append((number, one))
                    elif one.at_us < failed_us + delay_us(FIRST_RETRY_LEVEL + one.times - 1):
                        hasty.append((number, one))
                first.setdefault(one.times, one.at_us)
        return [
            *_said("every message that was acknowledged is taken in the end", self._lost()),
            *_said("what is delivered was sent", list(strange)),
            *_said("no delayed message comes before its time", list(early)),
            *_said("no retry comes before its time", hasty),
            *_said("a retry does not begin to count anew", anew),
            *_said("a retry has failed once more than a delivery before it", leaps),
            *_said("what was taken is not failed again", beyond),
        ]


class Taken(NamedTuple):
    """One call of an ordered listener."""

    number: int
    offset: int
    began_us: int
    ended_us: int
    consumer: str


@final
class LockLedger:
    """Of the story `locks`; one file of the sender, one of each consumer."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.acknowledged: dict[tuple[int, int], int] = {}
        """(queue, offset) -> number."""

        self.taken: dict[int, list[Taken]] = {}
        self.is_sent = False

    @property
    def deliveries(self) -> int:
        return sum(len(found) for found in self.taken.values())

    def read(self) -> LockLedger:
        self.acknowledged, self.taken = {}, defaultdict(list)
        for path in self._directory.glob("*-*.txt"):
            consumer = path.stem.partition("-")[2]
            for words in _lines(path):
                match words:
                    case ["ok", number, queue, offset]:
                        self.acknowledged[int(queue), int(offset)] = int(number)
                    case ["taken", number, queue, offset, began, ended]:
                        one = Taken(int(number), int(offset), int(began), int(ended), consumer)
                        self.taken[int(queue)].append(one)
                    case ["sent", _]:
                        self.is_sent = True
                    case _:
                        raise ValueError(f"no line of a ledger: {words}")
        for found in self.taken.values():
            found.sort(key=lambda one: one.began_us)
        return self

    def consumers(self) -> set[str]:
        """Who has been delivered something."""
        return {one.consumer for found in self.taken.values() for one in found}

    def queues_since_last_of_others(self, consumer: str) -> int:
        """How many queues the last delivery of was to this one."""
        return sum(found[-1].consumer == consumer for found in self.taken.values())

    def _lost(self) -> list[object]:
        there = {(queue, one.offset, one.number) for queue, found in self.taken.items() for one in found}
        return [place for place, number in self.acknowledged.items() if (*place, number) not in there]

    def is_complete(self) -> bool:
        return not self._lost()

    def counts(self) -> dict[str, int]:
        distinct = {(queue, one.offset) for queue, found in self.taken.items() for one in found}
        return {
            "acknowledged": len(self.acknowledged),
            "delivered": len(distinct),
            "twice": self.deliveries - len(distinct),
            "longest_rest_ms": max((self._rest_us(found) for found in self.taken.values()), default=0) // 1000,
        }

    @staticmethod
    def _rest_us(found: list[Taken]) -> int:
        """How long nothing of a queue was delivered."""
        return max((after.began_us - before.ended_us for before, after in pairwise(found)), default=0)

    def broken(self) -> list[str]:
        skips: list[object] = []
        shared: list[object] = []
        disorder: list[object] = []
        for queue, found in self.taken.items():
            next_offset = 0
            last_number = -1
            for one in found:
                if one.offset > next_offset:
                    skips.append((queue, next_offset, one.offset))
                if one.offset >= next_offset:
                    if one.number <= last_number:
                        disorder.append((queue, one))
                    last_number = one.number
                next_offset = max(next_offset, one.offset + 1)
            for before, after in pairwise(found):
                if after.began_us < before.ended_us:
                    shared.append((queue, before, after))
        return [
            *_said("every message that was acknowledged is consumed, where it stands", self._lost()),
            *_said("offsets are delivered in order, and none is skipped", skips),
            *_said("messages of a queue come as they were sent", disorder),
            *_said("a queue has one consumer at a time", shared),
        ]
