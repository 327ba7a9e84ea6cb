"""The rates of a broker, computed from its own counters, which are polled once a second while a client requests them.

    counters    t0: 1000 sends        t3: 1300 sends         100 per second, between two polls some seconds apart

The invariant: a rate is measured, or it is missing. Counters that went back belong to a restarted broker, and no rate
is computed across a restart. The time that the broker took to answer the poll is part of the result: any small request
waits as long at the moment. Callers never wait, because the polls are in the background.
"""

from __future__ import annotations

import asyncio
import logging
import math
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

POLL_INTERVAL_S: Final = 1.0
POLL_AFTER_REQUEST_S: Final = 15.0
"""For how long the broker is still polled after the last request for its rates."""
WINDOW_S: Final = 3.0
"""The time over which a rate is computed, in seconds."""
SAMPLE_AGE_S_MAX: Final = 5.0
"""The age up to which counters are used."""
BUCKETS_MAX: Final = 64
"""The most buckets of waits that are accepted from a broker."""


class Counters(NamedTuple):
    """The counters of a broker since its start."""

    at_s: float
    """When the broker was asked, by the monotonic clock."""

    boot: str
    """What identifies the run of the broker: its counters begin at zero in each."""

    puts: int
    """The number of messages that were stored."""

    put_bytes: int
    gets: int
    """The number of messages that were delivered to consumers."""

    get_bytes: int | None
    """The bytes of these messages; None if the broker does not count them."""

    waits: tuple[int, ...]
    """The number of sends by the time that they waited (``AckWaitDocument.buckets``)."""


@final
class Rates:
    """The rates of one broker. Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, connect: Connect) -> None:
        self._broker: Final = broker
        self._connect: Final = connect
        self._samples: Final[deque[Counters]] = deque(maxlen=8)
        self._requested_at_s = -math.inf
        self._answer_ms: float | None = None
        self._fault: str | None = "not requested yet"

    def __repr__(self) -> str:
        return f"<Rates {self._fault or 'known'}>"

    async def run(self) -> None:
        """Poll the counters while rates are requested, until cancelled."""
        while True:
            if self.is_requested:
                await self._poll()
            await asyncio.sleep(POLL_INTERVAL_S)

    def request(self) -> None:
        """Keep the polling active for ``POLL_AFTER_REQUEST_S``, because a client reads the rates."""
        self._requested_at_s = time.monotonic()

    @property
    def is_requested(self) -> bool:
        """Whether a client has read the rates recently, so that the broker is polled."""
        return time.monotonic() - self._requested_at_s < POLL_AFTER_REQUEST_S

    def document(self) -> RatesDocument:
        """Return the current rates. It is no request: the sidecar itself calls it each second for its durability
        ledgers."""
        now_s = time.monotonic()
        samples = [one for one in self._samples if now_s - one.at_s <= SAMPLE_AGE_S_MAX]
        age_ms = int((now_s - self._samples[-1].at_s) * 1000) if self._samples else None
        return rates_between(samples, age_ms, self._answer_ms if samples else None, self._fault)

    async def _poll(self) -> None:
        loop_state = self._broker.loop_state()
        if loop_state.state != "running":
            self._fault = loop_state.reason[:300]
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
            self._fault = "the broker's answer has no counters"
            return
        if self._samples and not _is_same_run(self._samples[-1], counters):
            self._samples.clear()
        self._samples.append(counters)


def counters_of(table: Mapping[str, str], at_s: float) -> Counters | None:
    """Return the counters of a runtime table; None if it has none. Java's brokers report no acknowledgement waits."""
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


def _is_same_run(older: Counters, newer: Counters) -> bool:
    return older.boot == newer.boot and older.puts <= newer.puts and len(older.waits) == len(newer.waits)


def rates_between(
    samples: Sequence[Counters], age_ms: int | None, answer_ms: float | None, fault: str | None
) -> RatesDocument:
    """Return the rates between the newest sample and the one about ``WINDOW_S`` before; none with fewer than two."""
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
    """Return the acknowledgement waits between two samples; None if the broker counts none.

    Sends that were acknowledged at once count as a wait of zero.
    """
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
    """Return the upper end in ms of the bucket at a quantile; None without samples. The first bucket is zero.

    The last bucket counts all longer waits and has no upper end: the result is None for a quantile in it, too.
    """
    total, seen = sum(buckets), 0
    for number, count in enumerate(buckets[:-1]):
        seen += count
        if total and seen >= share * total:
            return 0.0 if number == 0 else float(2**number) / 1000
    return None
