"""Half messages are ended: each by a request that is answered, in the order of the rows, many under way at once.

open                           committed now: stored in its topic
committed before               nothing more is stored, and the answer is the same
given up, expired              it was open for longer than its broker keeps messages: that is a loss, and said
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final, Protocol, final

from gantry_client import BrokerRefused, HalfMessage, MessageQueue, TransactionProducer, Unavailable
from gantry_wire.codes import ResponseCode
from pyspark_rocketmq.errors import BatchTorn, RocketMQSourceError
from pyspark_rocketmq.sink import points
from pyspark_rocketmq.sink.halves import HalfPlace, Halves
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.requests import flow, patiently

log = logging.getLogger(__name__)
GONE_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.ILLEGAL_OPERATION})
"""What a broker says about a half message that cannot be ended in this way any more."""

GONE_TRIES: Final = 5
"""How often it has to say so before that is believed: code 1 is also what a broker in trouble says."""


class Ends(Protocol):
    """Ends half messages."""

    async def commit(self, halves: Halves) -> None:
        """All of them; returns when all are answered. Raises BatchTorn when some cannot be, and NotStored."""
        ...

    async def roll_back(self, halves: Halves) -> int:
        """As many as answer; how many did. What stays open is never delivered."""
        ...


class _Gone(RocketMQSourceError):
    """One half message cannot be committed any more."""


@final
class HalfEnds:
    """Against brokers. Belongs to one event loop."""

    def __init__(self, producer: TransactionProducer, options: SinkOptions) -> None:
        self._producer: Final = producer
        self._settings: Final = options.connection
        self._one_attempt: Final = replace(options.connection, patience_ms=0)
        self._window: Final = 128 * options.in_flight

    async def commit(self, halves: Halves) -> None:
        """See `Ends`."""
        gone: list[str] = []

        async def one(place: HalfPlace) -> None:
            try:
                await self._end(place, is_commit=True)
                points.reach("one-ended")
            except _Gone as error:
                gone.append(f"{place.broker}/{place.half_offset}: {error}")

        # The first of each broker alone: while a route or a connection comes into being requests overtake each other.
        firsts = {place.broker: place for place in reversed(halves.places)}
        for first in firsts.values():
            await one(first)
        await flow((place for place in halves if place is not firsts[place.broker]), one, window=self._window)
        if gone:
            raise BatchTorn(
                f"{len(gone)} of {len(halves)} messages of a batch that was decided can be delivered no more; half "
                f"messages live as long as their broker keeps messages (fileReservedTime). The first: {gone[0]}"
            )

    async def roll_back(self, halves: Halves) -> int:
        """See `Ends`."""
        ended = Counter[bool]()

        async def one(place: HalfPlace) -> None:
            try:
                await self._end(place, is_commit=False)
                ended[True] += 1
            except RocketMQSourceError as error:
                ended[False] += 1
                log.info("a half message stays open", extra={"broker": place.broker, "reason": str(error)})

        await flow(halves, one, window=self._window)
        if ended[False]:
            log.warning("half messages stay open, and are never delivered", extra={"count": ended[False]})
        return ended[True]

    async def _end(self, place: HalfPlace, *, is_commit: bool) -> None:
        half, tries = _message(place), count(1)
        end = self._producer.commit if is_commit else self._producer.roll_back

        async def attempt(timeout_ms: int) -> None:
            try:
                await end(half, timeout_ms=timeout_ms)
            except BrokerRefused as error:
                if error.code not in GONE_CODES:
                    raise
                if error.code == ResponseCode.ILLEGAL_OPERATION or next(tries) >= GONE_TRIES:
                    raise _Gone(error.remark or "no remark") from error
                raise Unavailable(str(error)) from error

        what = f"a message of {place.topic} on {place.broker} was not {'committed' if is_commit else 'rolled back'}"
        settings = self._settings if is_commit else self._one_attempt
        await patiently(attempt, what, settings, refresh=partial(self._producer.refresh, place.topic))


def _message(place: HalfPlace) -> HalfMessage:
    queue = MessageQueue(topic=place.topic, broker_name=place.broker, queue_id=0)
    return HalfMessage(
        topic=place.topic, queue=queue, message_id="", half_offset=place.half_offset,
        physical_offset=place.physical_offset,
    )  # fmt: skip
