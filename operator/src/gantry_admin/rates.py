"""What a broker does a second: its own counters, asked for once a second while anybody looks, and compared.

    counters    t0: 1000 sends        t3: 1300 sends         100 a second, between two looks some seconds apart

The rule it guards: a figure is measured or it is not there. Counters that went back belong to a broker that was started
anew, and nothing is said across that. How long the broker took to answer the question itself is part of the answer: it
is what any small request waits for now. Nobody waits here: the question is asked in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

from gantry_access import AccessFileError
from gantry_admin.broker_client import Connect
from gantry_admin.documents import AckWaitDocument, RatesDocument
from gantry_admin.errors import Problem
from gantry_admin.observed_broker import ObservedBroker
from gantry_client.errors import ClientError

log = logging.getLogger(__name__)

ASK_INTERVAL_S: Final = 1.0
LOOKED_AT_S: Final = 15.0
"""So long after somebody looked it is still asked."""
WINDOW_S: Final = 3.0
OLD_S: Final = 5.0
"""Older counters are nobody's rate now."""
BUCKETS_MAX: Final = 64


class Counters(NamedTuple):
    """What a broker has counted since its start."""

    at_s: float
    boot: str
    puts: int
    put_bytes: int
    gets: int
    get_bytes: int | None
    waits: tuple[int, ...]


@final
class Rates:
    """Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, connect: Connect) -> None:
        self._broker: Final = broker
        self._connect: Final = connect
        self._samples: Final[deque[Counters]] = deque(maxlen=8)
        self._looked_at_s = 0.0
        self._answer_ms: float | None = None
        self._fault: str | None = "it was not asked yet"

    def __repr__(self) -> str:
        return f"<Rates {self._fault or 'known'}>"

    async def run(self) -> None:
        """Ask while somebody looks, until cancelled."""
        while True:
            if time.monotonic() - self._looked_at_s < LOOKED_AT_S:
                await self._ask()
            await asyncio.sleep(ASK_INTERVAL_S)

    def shown(self) -> RatesDocument:
        """This moment's; whoever asks is somebody who looks."""
        now_s = self._looked_at_s = time.monotonic()
        samples = [one for one in self._samples if now_s - one.at_s <= OLD_S]
        age_ms = int((now_s - self._samples[-1].at_s) * 1000) if self._samples else None
        return rates_between(samples, age_ms, self._answer_ms if samples else None, self._fault)

    async def _ask(self) -> None:
        motion = self._broker.motion()
        if motion.state != "moving":
            self._fault = motion.reason[:300]
            return
        try:
            admin, address = await self._connect()
            began_s = time.monotonic()
            table = await admin.brokers.runtime(address)
        except (ClientError, AccessFileError, Problem) as error:
            self._fault = str(error)[:300]
            return
        now_s = time.monotonic()
        self._answer_ms, self._fault = round((now_s - began_s) * 1000, 3), None
        counters = counters_of(table, now_s)
        if counters is None:
            self._fault = "it answered without its counters"
            return
        if self._samples and not _go_on(self._samples[-1], counters):
            self._samples.clear()
        self._samples.append(counters)


def counters_of(table: Mapping[str, str], at_s: float) -> Counters | None:
    """From a broker's runtime table; None if it has none. Java's brokers do not say how long acknowledgements take."""
    try:
        waits = tuple(int(word) for word in table.get("ackWaitsMicros", "").split(",") if word)[:BUCKETS_MAX]
        get_bytes = table.get("getMessageSizeTotal")
        return Counters(
            at_s, table.get("bootTimestamp", ""), int(table["putMessageTimesTotal"]),
            int(table["putMessageSizeTotal"]), int(table["msgGetTotalTodayNow"]),
            None if get_bytes is None else int(get_bytes), waits,
        )  # fmt: skip
    except (KeyError, ValueError):
        return None


def _go_on(older: Counters, newer: Counters) -> bool:
    return older.boot == newer.boot and older.puts <= newer.puts and len(older.waits) == len(newer.waits)


def rates_between(
    samples: Sequence[Counters], age_ms: int | None, answer_ms: float | None, fault: str | None
) -> RatesDocument:
    """From the newest sample and the one about ``WINDOW_S`` before it; nothing with fewer than two."""
    document = RatesDocument(
        age_ms=age_ms, fault=fault, answer_ms=answer_ms, put_per_second=None, put_bytes_per_second=None,
        get_per_second=None, get_bytes_per_second=None, ack_wait=None,
    )  # fmt: skip
    if len(samples) < 2:
        return document
    newest = samples[-1]
    oldest = next((one for one in reversed(samples[:-1]) if newest.at_s - one.at_s >= WINDOW_S * 0.9), samples[0])
    took_s = newest.at_s - oldest.at_s
    if took_s <= 0:
        return document

    def rate(new: int, old: int) -> float:
        return round(max(new - old, 0) / took_s, 1)

    is_known = newest.get_bytes is not None and oldest.get_bytes is not None
    return document.model_copy(
        update={
            "put_per_second": rate(newest.puts, oldest.puts),
            "put_bytes_per_second": rate(newest.put_bytes, oldest.put_bytes),
            "get_per_second": rate(newest.gets, oldest.gets),
            "get_bytes_per_second": rate(newest.get_bytes or 0, oldest.get_bytes or 0) if is_known else None,
            "ack_wait": _ack_wait(oldest, newest),
        }
    )


def _ack_wait(oldest: Counters, newest: Counters) -> AckWaitDocument | None:
    """Those that were acknowledged at once have waited for nothing; a broker that counts no waits is not judged."""
    if not newest.waits:
        return None
    buckets = [max(new - old, 0) for new, old in zip(newest.waits, oldest.waits, strict=True)]
    waited = sum(buckets)
    at_once = max(newest.puts - oldest.puts - waited, 0)
    buckets[0] += at_once
    return AckWaitDocument(
        sends=waited + at_once, at_once=at_once, buckets=buckets,
        median_ms=upper_end_ms(buckets, 0.5), p99_ms=upper_end_ms(buckets, 0.99),
    )  # fmt: skip


def upper_end_ms(buckets: Sequence[int], share: float) -> float | None:
    """So many ms at most for this share of all; None of nobody. The first bucket is no time at all."""
    total, seen = sum(buckets), 0
    for number, count in enumerate(buckets):
        seen += count
        if total and seen >= share * total:
            return 0.0 if number == 0 else float(2**number) / 1000
    return None
