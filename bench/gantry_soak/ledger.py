"""The ledger of a soak: what was sent, acknowledged and received, with one byte for each message.

A message belongs to a *stream*, and has a number in it. Its body contains both, the time of its send and a digest, so
that its receiver notices a changed body. A stream is judged like the histories of `gantry_histories`:

    acknowledged    must be received, once at least
    answered otherwise, or not at all   may be received
    forbidden       must not be received: rolled back, recalled, or excluded by a filter
    never sent      must not be received

In a stream with keys, the first deliveries of each key must be in the order of the sends, as far as these were
acknowledged in one attempt each (``Stream.note_order``).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, final

from gantry_histories.bodies import make_body, read_key

SENT, ACKNOWLEDGED, RECEIVED, FORBIDDEN = 1, 2, 4, 8
EXAMPLES_MAX: Final = 5
"""How many messages of a finding are named."""
PADDING: Final = b"x" * 1024


def body_of(stream: str, number: int, *, padding_bytes: int = 200) -> bytes:
    """Return the body of a message that is sent now."""
    return make_body(f"{stream} {number} {time.time_ns()}", PADDING[:padding_bytes])


@final
class Stream:
    """The messages of one topic and group. Owned by one loop."""

    def __init__(self, name: str, note_latency: Callable[[str, float], None]) -> None:
        self.name: Final = name
        self.states: Final = bytearray()
        self.copies = 0
        """Deliveries, with repeated ones."""
        self.problems: Final[list[str]] = []
        self.problems_count = 0
        self._note_latency: Final = note_latency
        self._newest: Final[dict[str, int]] = {}
        """The newest number that was delivered for the first time, by key."""

    def __repr__(self) -> str:
        return f"<Stream {self.name} messages={len(self.states)} copies={self.copies}>"

    def begin(self, *, padding_bytes: int = 200, is_forbidden: bool = False) -> tuple[int, bytes]:
        """Return the number and the body of the next message, which counts as sent from now on."""
        number = len(self.states)
        self.states.append(SENT | (FORBIDDEN if is_forbidden else 0))
        return number, body_of(self.name, number, padding_bytes=padding_bytes)

    def acknowledge(self, number: int) -> None:
        """Note that the message must arrive."""
        self.states[number] |= ACKNOWLEDGED

    def release(self, number: int) -> None:
        """Note that the message may arrive or not: it is unknown whether it was recalled."""
        self.states[number] &= ~ACKNOWLEDGED

    def forbid(self, number: int) -> None:
        """Note that the message must not arrive."""
        self.states[number] |= FORBIDDEN
        if self.states[number] & RECEIVED:
            self.add_problem(f"message {number} arrived before it was forbidden")

    def receive(self, body: bytes, *, key: str = "", is_timed: bool = True, delay_ms: float = 0.0) -> int | None:
        """Note a delivery; return the number of the message, or None for a body that is wrong.

        ``key`` checks the order of first deliveries. ``delay_ms`` is how long after its send the message may arrive.
        """
        self.copies += 1
        number, sent_ns = self._read(body)
        if number is None:
            return None
        state = self.states[number]
        age_ms = (time.time_ns() - sent_ns) / 1e6
        if age_ms < delay_ms:
            self.add_problem(f"message {number} arrived {delay_ms - age_ms:.0f} ms too early")
        if state & FORBIDDEN:
            self.add_problem(f"message {number} arrived, but must not")
        if not state & RECEIVED:
            self.states[number] = state | RECEIVED
            if is_timed:
                self._note_latency("delivery" if delay_ms == 0 else "delayed delivery", max(0.0, age_ms - delay_ms))
            if key:
                self._note_order(key, number)
        return number

    def _note_order(self, key: str, number: int) -> None:
        newest = self._newest.get(key, -1)
        if number < newest and self.states[number] & ACKNOWLEDGED:
            self.add_problem(f"message {number} of key {key} arrived for the first time after {newest}")
        self._newest[key] = max(newest, number)

    def _read(self, body: bytes) -> tuple[int, int] | tuple[None, int]:
        key = read_key(body)
        if key is None:
            self.add_problem("a body has changed")
            return None, 0
        stream, number_text, sent_text = key.split(" ")
        number = int(number_text)
        if stream != self.name or number >= len(self.states):
            self.add_problem(f"message {number} of stream {stream} arrived here, but was never sent here")
            return None, 0
        return number, int(sent_text)

    def add_problem(self, text: str) -> None:
        """Note a violation; the first ones are kept as text."""
        self.problems_count += 1
        if len(self.problems) < EXAMPLES_MAX:
            self.problems.append(text)

    def missing(self) -> Iterator[int]:
        """Return the acknowledged messages that have not arrived and are not forbidden."""
        wanted, mask = ACKNOWLEDGED, ACKNOWLEDGED | RECEIVED | FORBIDDEN
        return (number for number, state in enumerate(self.states) if state & mask == wanted)

    @property
    def is_complete(self) -> bool:
        """Whether every message that must arrive has arrived."""
        return next(self.missing(), None) is None

    def findings(self) -> list[str]:
        """Return the violations of what is guaranteed."""
        found = [f"{self.name}: {text}" for text in self.problems]
        if self.problems_count > len(self.problems):
            found.append(f"{self.name}: {self.problems_count - len(self.problems)} further problems")
        lost = list(self.missing())
        if lost:
            examples = ", ".join(map(str, lost[:EXAMPLES_MAX]))
            found.append(f"{self.name}: {len(lost)} acknowledged messages never arrived: {examples}")
        return found

    def count(self, flag: int) -> int:
        """Return how many messages have a flag."""
        return sum(1 for state in self.states if state & flag)


@final
class Latencies:
    """The latencies since the last sample, by operation. Owned by one loop."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def note(self, name: str, milliseconds: float) -> None:
        """Note how long one operation took."""
        self._values.setdefault(name, []).append(milliseconds)

    def take(self) -> dict[str, list[float]]:
        """Return the values since the last call, sorted."""
        values, self._values = self._values, {}
        return {name: sorted(found) for name, found in sorted(values.items())}


@final
class Ledger:
    """All streams, the failed operations, and the latencies. Owned by one loop."""

    def __init__(self) -> None:
        self.latencies: Final = Latencies()
        self.streams: Final[dict[str, Stream]] = {}
        self.failures: Final[Counter[str]] = Counter()
        """Failed operations by feature and error. A fault may cause them; they are no findings."""
        self.problems: Final[Counter[str]] = Counter()
        """Violations that belong to no stream, and how often."""
        self.done: Final[Counter[str]] = Counter()
        """Completed operations of each feature."""

    def stream(self, name: str) -> Stream:
        """Return a stream, which exists from now on. Its name has no spaces."""
        if name not in self.streams:
            self.streams[name] = Stream(name, self.latencies.note)
        return self.streams[name]

    def findings(self) -> list[str]:
        """Return the violations of all streams."""
        own = [f"{text} ({count} times)" if count > 1 else text for text, count in self.problems.items()]
        return [*own, *itertools.chain.from_iterable(one.findings() for one in self.streams.values())]

    @property
    def incomplete(self) -> list[str]:
        """The names of the streams of which messages have yet to arrive."""
        return [name for name, stream in self.streams.items() if not stream.is_complete]

    def totals(self) -> tuple[int, int, int]:
        """Return how many messages were sent, acknowledged and received."""
        streams = self.streams.values()
        return tuple(sum(one.count(flag) for one in streams) for flag in (SENT, ACKNOWLEDGED, RECEIVED))  # type: ignore[return-value]
