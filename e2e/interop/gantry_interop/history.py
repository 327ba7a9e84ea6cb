"""Checks the records of Java clients during a failover against the logs. Pure except for reading files.

    ok                   the broker answered 0: it must be in the new master's log at that place, and be consumed
    deferred             the same for a message that is stored in its topic later, because it is delayed or in a
                         transaction: it must be consumed
    rolled_back          its transaction is rolled back: it must never be consumed
    rolled_back_unknown  the same if the result of the attempt is unknown
    failed               the listener failed it the first time, and it must be redelivered
    unknown              any other result of an attempt: it may or may not be stored
    seen                 delivered to the listener
    again                delivered as the copy of a popped message, which has a place of its own

    [...... both masters have it ......)[...... only the old master had it: its tail ......)
                                        ^ where the new epoch begins

In a synchronous group no message that was answered 0 or seen is only in the tail. In an asynchronous one it may be, but
no other message may be missing: what a slave had received is never lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from gantry_interop.broker_group import LOG_FILE_BYTES
from gantry_wire.message import RecordFault, StoredMessage, check_record, decode_record

Place = tuple[int, int]
"""A queue and an offset in it."""


class Answered(NamedTuple):
    """One attempt that was answered 0."""

    number: int
    place: Place
    began_us: int
    ended_us: int


class Seen(NamedTuple):
    """One delivery to the listener."""

    number: int
    place: Place
    at_us: int


@final
class ClientHistory:
    """A history that grows while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.answered: list[Answered] = []
        self.seen: list[Seen] = []
        self.repeated: set[int] = set()
        """Messages that were delivered as copies, because they were popped and not acked in time."""

        self.deferred: list[Answered] = []
        """Their places are those of half messages, and of delayed messages in the queue of their delay level."""

        self.rolled_back: set[int] = set()
        self.failed: set[int] = set()
        self.unknown: dict[str, int] = {}
        self.attempts: int | None = None
        """The number of attempts, once all senders have ended."""

    def read(self) -> ClientHistory:
        """Read the lines that were added since the last call."""
        if not self._path.exists():
            return self
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode().splitlines():
            self._add_line(line.split())
        return self

    def _add_line(self, words: list[str]) -> None:
        match words:
            case ["ok", number, queue, offset, began, ended]:
                self.answered.append(Answered(int(number), (int(queue), int(offset)), int(began), int(ended)))
            case ["deferred", number, queue, offset, began, ended]:
                self.deferred.append(Answered(int(number), (int(queue), int(offset)), int(began), int(ended)))
            case ["rolled_back", number, *_] | ["rolled_back_unknown", number, *_]:
                self.rolled_back.add(int(number))
            case ["failed", number, _]:
                self.failed.add(int(number))
            case ["seen", number, queue, offset, at]:
                self.seen.append(Seen(int(number), (int(queue), int(offset)), int(at)))
            case ["again", number, _]:
                self.repeated.add(int(number))
            case ["unknown", _, why, _, _]:
                self.unknown[why] = self.unknown.get(why, 0) + 1
            case ["sent", attempts]:
                self.attempts = int(attempts)
            case _:
                raise ValueError(f"invalid line of a history: {words}")

    @property
    def delivered(self) -> set[int]:
        """All messages that were delivered."""
        return {one.number for one in self.seen} | self.repeated

    def first_answer(self, after_us: int) -> int | None:
        """Return when the first send that began after this moment was answered 0."""
        return min((one.ended_us for one in self.answered if one.began_us > after_us), default=None)

    def first_delivery(self, after_us: int) -> int | None:
        """Return when the first message whose send began after this moment was delivered."""
        new = {one.number for one in self.answered if one.began_us > after_us}
        return min((one.at_us for one in self.seen if one.number in new), default=None)


def read_log(store: Path, begin: int = 0) -> Iterator[StoredMessage]:
    """Yield every record of a log from ``begin`` on, the offset of a record, up to the first data that is no record."""
    for path in sorted((store / "commitlog").iterdir()):
        base = int(path.name)
        if base + LOG_FILE_BYTES <= begin:
            continue
        data = path.read_bytes()
        position = max(0, begin - base)
        while True:
            check = check_record(data, position, physical_offset=base + position)
            if check.fault is RecordFault.BLANK:
                break
            if not check.is_good:
                return
            yield decode_record(data, position, verify_crc=False)
            position += check.size


def numbers_by_place(store: Path, topic: str, begin: int = 0) -> dict[Place, int]:
    """Return the message at each place of the log from ``begin`` on. Its number is in its flag, for any body."""
    return {(one.queue_id, one.queue_offset): one.flag for one in read_log(store, begin) if one.topic == topic}


@dataclass(frozen=True)
class Judgement:
    """The outcome of every message; lists hold numbers of messages."""

    lost: list[int]
    """Answered 0, and not at the place of the answer."""

    lost_outside_tail: list[int]
    """The lost messages that were not in the old master's tail, which no mode allows."""

    unseen: list[int]
    """Answered 0, in the log, and never delivered."""

    vanished: list[int]
    """Delivered, and no longer in the log."""

    vanished_outside_tail: list[int]
    never_sent: int
    """Deliveries of messages that were never sent."""

    undelivered: list[int]
    """Deferred, answered 0 and never delivered; or failed once by the listener and not redelivered."""

    rolled_back_delivered: list[int]
    """Rolled back, and delivered all the same."""

    acknowledged_without_master: list[int]
    """Answered 0 between the end of the old master and the order to promote another."""

    redelivered: int = 0

    def broken(self, *, may_lose_tail: bool) -> list[str]:
        """Return every broken guarantee as text."""
        claims = {
            "acknowledged messages that a slave had are lost": self.lost_outside_tail,
            "acknowledged messages are never consumed": self.unseen,
            "consumed messages that a slave had have vanished": self.vanished_outside_tail,
            "messages of transactions that were rolled back are delivered": self.rolled_back_delivered,
            "messages are acknowledged while there is no master": self.acknowledged_without_master,
        }
        if not may_lose_tail:
            claims["acknowledged messages are lost"] = self.lost
            claims["messages that are delayed, committed or failed once are never consumed"] = self.undelivered
            claims["consumed messages have vanished"] = self.vanished
        found = [f"{len(numbers)} {claim}, first {numbers[0]}" for claim, numbers in claims.items() if numbers]
        return found + ([f"{self.never_sent} deliveries are of no message that was sent"] if self.never_sent else [])


def judge(
    history: ClientHistory,
    final: Mapping[Place, int],
    tail: Mapping[Place, int],
    *,
    killed_us: int,
    ordered_us: int,
) -> Judgement:
    """Compare the history with the logs.

    ``final`` is the content of the group; ``tail`` is the old master's log from the start of the new epoch.
    """
    in_tail = set(tail.values())
    seen = history.delivered
    lost = sorted(one.number for one in history.answered if final.get(one.place) != one.number)
    # Messages that failed once are delivered from the retry topic, at another place.
    checked = [one for one in history.seen if one.number >= 0 and one.number not in history.failed]
    vanished = sorted({one.number for one in checked if final.get(one.place) != one.number})
    unseen = sorted({one.number for one in history.answered} - seen - set(lost))
    retried = {one.number for one in history.seen if one.number in history.failed} | history.repeated
    return Judgement(
        lost=lost,
        lost_outside_tail=[number for number in lost if number not in in_tail],
        unseen=unseen,
        vanished=vanished,
        vanished_outside_tail=[number for number in vanished if number not in in_tail],
        never_sent=sum(one.number < 0 for one in history.seen) + (-1 in history.repeated),
        undelivered=sorted(({one.number for one in history.deferred} - seen) | (history.failed - retried - in_tail)),
        rolled_back_delivered=sorted(history.rolled_back & seen),
        acknowledged_without_master=[
            one.number for one in history.answered if one.began_us > killed_us and one.ended_us < ordered_us
        ],
        redelivered=len(history.seen) - len({(one.number, one.place) for one in history.seen}),
    )
