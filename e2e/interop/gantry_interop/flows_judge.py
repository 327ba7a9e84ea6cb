"""Checks the records of Java clients about delays, retries and ordered consumption. Pure except for reading files.

Rules for a delayed or failed message:
- it is delivered at or after its time: that of the end of its delay, counted from before its send, or from its failure;
- its failure count is in the message: a retry has failed one time more than an earlier delivery;
- in the end it is consumed. Duplicates are counted.
In pop mode the broker also counts a delivery that no listener got, because its reply was lost with the broker: such
deliveries are counted as `lapsed`.

Rules for a queue that is consumed in order:
- offsets are delivered in order: after each one the next, or one that was delivered already (a consumer that takes
  a queue over begins at the last offset that was committed);
- no consumer receives a message of it while another consumer is still processing one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self, final

DELAY_SECONDS: Final = (1, 2, 3, 4, 5)
"""The delays of levels 1 to 5; there are no more levels."""

FIRST_RETRY_LEVEL: Final = 3
SHOWN_MAX: Final = 3


class FlowHistory(Protocol):
    """The interface of a scenario's history: the lines that its Java clients wrote, and the checks of them."""

    @property
    def deliveries(self) -> int: ...

    is_sent: bool
    """Whether the sender has ended."""

    def read(self) -> Self: ...
    def is_complete(self) -> bool: ...
    def broken(self) -> list[str]: ...
    def counts(self) -> dict[str, int]: ...


def delay_us(level: int) -> int:
    """Return the delay of a level; levels beyond the last have the delay of the last."""
    return DELAY_SECONDS[min(level, len(DELAY_SECONDS)) - 1] * 1_000_000 if level else 0


def failures_of(number: int) -> int:
    """Return how often a message fails; `Delays.java` has the same rule."""
    return max(0, number % 7 - 3)


def _lines(path: Path) -> list[list[str]]:
    """Return the complete lines of a file, split into words."""
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


def _broken_rule(rule: str, violations: list[object]) -> list[str]:
    """Return the text of a rule with a few of its violations; nothing if it has none."""
    return [f"{rule} ({len(violations)} violations: {violations[:SHOWN_MAX]})"] if violations else []


class AcknowledgedSend(NamedTuple):
    """A send that was acknowledged with code 0."""

    level: int
    began_us: int


class Delivery(NamedTuple):
    """One delivery to a listener."""

    times: int
    """The failure count in the message (`reconsumeTimes`)."""
    is_retry: bool
    at_us: int
    physical: int
    """The offset of its record in the log."""
    is_consumed: bool
    """Whether the listener consumed it; otherwise it failed."""


@dataclass
class RetryFaults:
    """Deliveries that do not fit the failures before them."""

    restarted_counts: list[object] = field(default_factory=list)
    wrong_counts: list[object] = field(default_factory=list)
    early: list[object] = field(default_factory=list)
    extra_failures: list[object] = field(default_factory=list)


@final
class DelayHistory:
    """The history of the scenario `delays`."""

    def __init__(self, directory: Path, *, is_popping: bool = False) -> None:
        self._path = directory / "history.txt"
        self._is_popping = is_popping
        self.acknowledged: dict[int, AcknowledgedSend] = {}
        """The acknowledged send of each message, by its number."""
        self.delivered: dict[int, list[Delivery]] = {}
        """The deliveries of each message, by its number; -1 is a message that was never sent."""
        self.unknown_results = 0
        """The number of sends whose result is unknown."""
        self.is_sent = False

    @property
    def deliveries(self) -> int:
        return sum(len(found) for found in self.delivered.values())

    def read(self) -> DelayHistory:
        self.acknowledged, self.delivered, self.unknown_results = {}, defaultdict(list), 0
        for words in _lines(self._path):
            match words:
                case ["ok", number, level, began, _]:
                    self.acknowledged[int(number)] = AcknowledgedSend(int(level), int(began))
                case ["seen", number, times, is_retry, at, physical, is_consumed]:
                    one = Delivery(int(times), is_retry == "1", int(at), int(physical), is_consumed == "1")
                    self.delivered[int(number)].append(one)
                case ["unknown", *_]:
                    self.unknown_results += 1
                case ["sent", _]:
                    self.is_sent = True
                case _:
                    raise ValueError(f"invalid line of a history: {words}")
        return self

    def _lost(self) -> list[object]:
        return [
            number for number in self.acknowledged if not any(one.is_consumed for one in self.delivered.get(number, ()))
        ]

    def is_complete(self) -> bool:
        return not self._lost()

    def counts(self) -> dict[str, int]:
        wanted = sum(1 + failures_of(number) for number in self.delivered)
        return {
            "acknowledged": len(self.acknowledged),
            "unknown": self.unknown_results,
            "delayed": sum(one.level > 0 for one in self.acknowledged.values()),
            "retries": sum(one.is_retry for found in self.delivered.values() for one in found),
            "twice": self.deliveries - wanted,
            **({"lapsed": self._lapsed()} if self._is_popping else {}),
            "latest_delay_ms": max((late for late in self._lateness()), default=0) // 1000,
        }

    def _lateness(self) -> list[int]:
        """Return how late each delayed message was delivered first; negative values were early."""
        return [
            min(one.at_us for one in self.delivered[number]) - sent.began_us - delay_us(sent.level)
            for number, sent in self.acknowledged.items()
            if sent.level and number in self.delivered
        ]

    def _lapsed(self) -> int:
        """Return the number of deliveries whose failure count includes deliveries that no listener got."""
        faults = self._retry_faults()
        return len(faults.wrong_counts) + len(faults.extra_failures)

    def _retry_faults(self) -> RetryFaults:
        faults = RetryFaults()
        for number, found in self.delivered.items():
            first: dict[int, int] = {}
            for one in sorted(found, key=lambda one: one.at_us):
                if one.is_retry and one.times == 0:
                    faults.restarted_counts.append((number, one))
                if one.times > failures_of(number):
                    faults.extra_failures.append((number, one))
                if one.times > 0:
                    failed_us = first.get(one.times - 1)
                    if failed_us is None:
                        faults.wrong_counts.append((number, one))
                    elif one.at_us < failed_us + delay_us(FIRST_RETRY_LEVEL + one.times - 1):
                        faults.early.append((number, one))
                first.setdefault(one.times, one.at_us)
        return faults

    def broken(self) -> list[str]:
        early = [late for late in self._lateness() if late < 0]
        never_sent = [-1] if -1 in self.delivered else []
        faults = self._retry_faults()
        counts = [] if self._is_popping else [
            *_broken_rule("a retry has failed one time more than a delivery before it", faults.wrong_counts),
            *_broken_rule("no message fails more often than planned", faults.extra_failures),
        ]  # fmt: skip
        return [
            *_broken_rule("every message that was acknowledged is consumed in the end", self._lost()),
            *_broken_rule("every delivered message was sent", list(never_sent)),
            *_broken_rule("no delayed message comes before its time", list(early)),
            *_broken_rule("no retry comes before its time", faults.early),
            *_broken_rule("a retry does not restart the failure count", faults.restarted_counts),
            *counts,
        ]


class OrderedDelivery(NamedTuple):
    """One call of an ordered listener."""

    number: int
    offset: int
    began_us: int
    ended_us: int
    consumer: str


@final
class LockHistory:
    """The history of the scenario `locks`: one file of the sender, one of each consumer."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.acknowledged: dict[tuple[int, int], int] = {}
        """The number of the message, by (queue, offset)."""

        self.taken: dict[int, list[OrderedDelivery]] = {}
        """The deliveries of each queue, by their time."""
        self.is_sent = False

    @property
    def deliveries(self) -> int:
        return sum(len(found) for found in self.taken.values())

    def read(self) -> LockHistory:
        self.acknowledged, self.taken = {}, defaultdict(list)
        for path in self._directory.glob("*-*.txt"):
            consumer = path.stem.partition("-")[2]
            for words in _lines(path):
                match words:
                    case ["ok", number, queue, offset]:
                        self.acknowledged[int(queue), int(offset)] = int(number)
                    case ["taken", number, queue, offset, began, ended]:
                        one = OrderedDelivery(int(number), int(offset), int(began), int(ended), consumer)
                        self.taken[int(queue)].append(one)
                    case ["sent", _]:
                        self.is_sent = True
                    case _:
                        raise ValueError(f"invalid line of a history: {words}")
        for found in self.taken.values():
            found.sort(key=lambda one: one.began_us)
        return self

    def consumers(self) -> set[str]:
        """Return the consumers that have received messages."""
        return {one.consumer for found in self.taken.values() for one in found}

    def queues_served_last_by(self, consumer: str) -> int:
        """Count the queues whose last delivery went to this consumer."""
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
            "longest_rest_ms": max((self._idle_us(found) for found in self.taken.values()), default=0) // 1000,
        }

    @staticmethod
    def _idle_us(found: list[OrderedDelivery]) -> int:
        """Return the longest time in which no message of a queue was delivered."""
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
            *_broken_rule("every message that was acknowledged is consumed, at its acknowledged offset", self._lost()),
            *_broken_rule("offsets are delivered in order, and none is skipped", skips),
            *_broken_rule("messages of a queue come as they were sent", disorder),
            *_broken_rule("a queue has one consumer at a time", shared),
        ]
