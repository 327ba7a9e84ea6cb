"""The live tail of a topic: new messages of all its queues on this broker, as they become visible.

    queue 0   [....... position)[ new )          each poll examines the units from the position of each queue up to
    queue 1   [.. position)[  new   )            the readable end of the log, and moves the positions there

Positions move by what was examined, also if it did not match. A tail never falls behind: what is more than it may
examine in one poll is skipped, and matching messages beyond the rate are left out; both are counted. So its cost is
bounded, and what it shows is new. The messages of one poll are shown in the order of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_admin.search.topic_scan import adjacent_runs
from gantry_admin.store_files import QUEUE_ID_MAX, StoreFiles
from gantry_store_files import EXTENSION_CODE_MAX, UNIT, Unit
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, StoredMessage, decode_record
from gantry_wire.search import MessageMatcher

QUEUES_MAX: Final = 256
"""The most queues of a topic that are followed; the id of each event has the position of every queue."""

EXAMINED_MAX: Final = 500
"""The most messages that one poll decodes: at ten polls a second, as many as a tenth of a core can decode."""

UNITS_MAX: Final = 10_000
"""The most queue units of a queue that one poll reads; those before are skipped."""

BYTES_MAX: Final = 8 << 20
"""The most bytes of records that one poll reads; the newest message is read regardless of its size."""

POSITION_DIGITS_MAX: Final = 16
"""The digits of the largest queue offset that the API accepts, 2 to the power of 53."""

Positions = dict[int, int]
"""The next queue offset of each queue."""


class TailedMessage(NamedTuple):
    """One message, and the positions with which the tail continues after it."""

    message: StoredMessage
    positions: Positions


class TailPoll(NamedTuple):
    """The result of one poll."""

    messages: list[TailedMessage]
    matched: int
    """The messages that match, with those that were left out."""

    read_bytes: int


@final
class TopicTail:
    """One tail. Owned by one task; ``poll`` blocks, so it is called in a thread."""

    def __init__(
        self, files: StoreFiles, topic: str, matcher: MessageMatcher, rate: int, *,
        positions: Positions | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Follow a topic from ``positions`` on, or from its end at the first poll.

        ``rate`` is the most messages per second; one second's messages may come at once.
        """
        self.examined = self.sent = self.left_out = self.skipped = 0
        """Messages that were compared with the conditions, that were sent, that matched beyond the rate, and that were
        not examined. Messages of the last two kinds are not sent later either."""

        self.positions: Positions = dict(positions or {})
        self._files: Final = files
        self._topic: Final = topic
        self._matcher: Final = matcher
        self._rate: Final = rate
        self._clock: Final = clock
        self._allowance = float(rate)
        self._allowance_s = clock()
        self._starts_at_end = positions is None

    def __repr__(self) -> str:
        return f"<TopicTail {self._topic} examined={self.examined} sent={self.sent}>"

    def poll(self, span: Span) -> TailPoll:
        """Examine what has become readable since the last poll. Raises ``Problem``, such as 404 without the topic."""
        self._renew_allowance()
        queues = self._files.queue_ids(self._topic)
        if not queues:
            raise Problem(404, "topic not found")
        units: list[tuple[Unit, int, int]] = []
        for queue_id in queues[:QUEUES_MAX]:
            units += self._new_units(queue_id, span)
        self._starts_at_end = False
        units.sort()
        self.examined += len(units)
        return self._read(self._select(units), span)

    def _new_units(self, queue_id: int, span: Span) -> list[tuple[Unit, int, int]]:
        """Return the units after the position of a queue, each with its queue and offset, and move the position."""
        try:
            bounds = self._files.bounds(self._topic, queue_id, span.begin, span.end)
            # A queue that appears later is followed from its first message.
            position = self.positions.get(queue_id, bounds.end if self._starts_at_end else bounds.begin)
            position = min(
                position, bounds.end
            )  # the topic was deleted and created again, or the id is not of this store
            start = max(position, bounds.begin, bounds.end - UNITS_MAX)
            data = self._files.units(self._topic, queue_id, start, bounds.end) if start < bounds.end else b""
        except Problem:
            return []  # deleted meanwhile; if the queue remains, the next poll continues behind it
        self.skipped += start - position
        self.positions[queue_id] = bounds.end
        found = list(UNIT.iter_unpack(data))
        return [(unit, queue_id, start + index) for index, unit in enumerate(found)]

    def _select(self, units: list[tuple[Unit, int, int]]) -> list[tuple[Unit, int, int]]:
        """Return the newest units that may match, at most as many as a poll may decode; the others are skipped."""
        codes = self._matcher.unit_codes(self._topic)
        wanted = [
            one for one in units
            if RECORD_BYTES_MIN <= one[0][1] <= RECORD_BYTES_MAX
            and (not codes or one[0][2] in codes or one[0][2] <= EXTENSION_CODE_MAX)
        ]  # fmt: skip
        kept, total = 0, 0
        for unit, _, _ in reversed(wanted[-EXAMINED_MAX:]):
            total += unit[1]
            if kept and total > BYTES_MAX:
                break
            kept += 1
        if not self._matcher.needs_record:
            kept = min(kept, int(self._allowance))  # every message matches, so no other one need be read
        passed = len(wanted) - kept
        if self._matcher.needs_record:
            self.skipped += passed
            self.examined -= passed
        else:
            self.left_out += passed
        return wanted[passed:]

    def _read(self, wanted: list[tuple[Unit, int, int]], span: Span) -> TailPoll:
        """Read the records of units, and return those that match and are within the rate."""
        places = {unit[0]: (queue_id, offset) for unit, queue_id, offset in wanted}
        matching: list[tuple[StoredMessage, int, int]] = []
        read_bytes = 0
        for run in reversed(list(adjacent_runs([unit for unit, _, _ in wanted]))):
            for message in self._messages_of(run, span):
                read_bytes += message.size
                if self._matcher.accepts(message):
                    matching.append((message, *places[message.physical_offset]))
        allowed = min(len(matching), int(self._allowance))
        self._allowance -= allowed
        # The newest are kept: what is left out lies before what is shown.
        shown = matching[len(matching) - allowed :]
        self.left_out += len(matching) - allowed
        self.sent += allowed
        return TailPoll(self._with_positions(shown), len(matching), read_bytes)

    def _messages_of(self, run: list[Unit], span: Span) -> Iterator[StoredMessage]:
        """Yield the messages of adjacent records, without those that were deleted or cannot be read."""
        start, end = run[0][0], run[-1][0] + run[-1][1]
        if start < span.begin or end > span.end:
            return
        try:
            data = self._files.read(start, end)
        except Problem:
            return
        for physical, size, _ in run:
            with suppress(RemoteProtocolError):
                message = decode_record(data, physical - start)
                if (message.physical_offset, message.size) == (physical, size):
                    yield message

    def _with_positions(self, shown: list[tuple[StoredMessage, int, int]]) -> list[TailedMessage]:
        """Return messages with the positions after each, which do not include messages that are shown later."""
        found: list[TailedMessage] = []
        later: Positions = {}
        for message, queue_id, offset in reversed(shown):
            found.append(TailedMessage(message, {**self.positions, **later}))
            later[queue_id] = offset
        return found[::-1]

    def _renew_allowance(self) -> None:
        """Add what the time since the last poll allows, up to the messages of one second."""
        now_s = self._clock()
        self._allowance = min(self._allowance + (now_s - self._allowance_s) * self._rate, self._rate)
        self._allowance_s = now_s


def format_positions(positions: Mapping[int, int]) -> str:
    """Return positions as the id of an event: `QUEUE:OFFSET,...`."""
    return ",".join(f"{queue_id}:{offset}" for queue_id, offset in sorted(positions.items()))


def parse_positions(text: str) -> Positions:
    """Return the positions in the id of an event. Raises ``Problem`` 400."""
    positions: Positions = {}
    for pair in text.split(","):
        queue_id, _, offset = pair.partition(":")
        is_number = (queue_id + offset).isascii() and queue_id.isdigit() and offset.isdigit()
        is_short = len(queue_id) <= len(str(QUEUE_ID_MAX)) and len(offset) <= POSITION_DIGITS_MAX
        if not (is_number and is_short) or int(queue_id) > QUEUE_ID_MAX or len(positions) == QUEUES_MAX:
            raise Problem(400, f"Last-Event-ID {text[:64]!r}: expected QUEUE:OFFSET pairs, as the events have them")
        positions[int(queue_id)] = int(offset)
    return positions
