"""End half messages: each by a request that is answered, in the order of the rows, many requests at once.

open                           committed now: stored in its topic
committed before               nothing more is stored, and the response is the same
abandoned, expired             it was open for longer than its broker keeps messages: a loss, which is raised
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
from pyspark_rocketmq.sink import crash_points
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, HalfMessageRef
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.requests import call_with_retries, map_concurrently

log = logging.getLogger(__name__)
GONE_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.ILLEGAL_OPERATION})
"""Response codes of a broker for a half message that can no longer be ended in this way."""

GONE_TRIES: Final = 5
"""How often a broker must return code 1 before it is believed: it also stands for other failures."""


class TransactionEnder(Protocol):
    """Ends half messages by commit or rollback."""

    async def commit(self, halves: HalfMessageList) -> None:
        """Commit all; returns when all are answered. Raises NotStored, Refused, and BatchTorn if some were lost."""
        ...

    async def roll_back(self, halves: HalfMessageList) -> int:
        """Roll back those whose broker answers, and return how many. Open ones are never delivered."""
        ...


class _HalfMessageGone(RocketMQSourceError):
    """One half message can no longer be committed."""


@final
class BrokerTransactionEnder:
    """Ends half messages on brokers. Belongs to one event loop."""

    def __init__(self, producer: TransactionProducer, options: SinkOptions) -> None:
        self._producer: Final = producer
        self._settings: Final = options.connection
        self._one_attempt: Final = replace(options.connection, patience_ms=0)
        self._window: Final = 128 * options.in_flight

    async def commit(self, halves: HalfMessageList) -> None:
        """Commit all half messages; see `TransactionEnder`."""
        gone: list[str] = []

        async def commit_one(ref: HalfMessageRef) -> None:
            try:
                await self._end(ref, is_commit=True)
                crash_points.hit("one-ended")
            except _HalfMessageGone as error:
                gone.append(f"{ref.broker}/{ref.half_offset}: {error}")

        # The first request to each broker is sent alone: requests may overtake each other while a connection is opened.
        firsts = {ref.broker: ref for ref in reversed(halves.refs)}
        for first in firsts.values():
            await commit_one(first)
        await map_concurrently(
            (ref for ref in halves if ref is not firsts[ref.broker]), commit_one, window=self._window
        )
        if gone:
            raise BatchTorn(
                f"{len(gone)} of {len(halves)} messages of a decided batch are lost; half "
                f"messages expire with their broker's log files (fileReservedTime). The first: {gone[0]}"
            )

    async def roll_back(self, halves: HalfMessageList) -> int:
        """Roll back half messages; see `TransactionEnder`."""
        ended = Counter[bool]()

        async def roll_back_one(ref: HalfMessageRef) -> None:
            try:
                await self._end(ref, is_commit=False)
                ended[True] += 1
            except RocketMQSourceError as error:
                ended[False] += 1
                log.info("failed to roll back half message", extra={"broker": ref.broker, "reason": str(error)})

        await map_concurrently(halves, roll_back_one, window=self._window)
        if ended[False]:
            log.warning(
                "half messages not rolled back; they stay open and are never delivered", extra={"count": ended[False]}
            )
        return ended[True]

    async def _end(self, ref: HalfMessageRef, *, is_commit: bool) -> None:
        half, tries = _message(ref), count(1)
        end = self._producer.commit if is_commit else self._producer.roll_back

        async def attempt(timeout_ms: int) -> None:
            try:
                await end(half, timeout_ms=timeout_ms)
            except BrokerRefused as error:
                if error.code not in GONE_CODES:
                    raise
                if error.code == ResponseCode.ILLEGAL_OPERATION or next(tries) >= GONE_TRIES:
                    raise _HalfMessageGone(error.remark or "no remark") from error
                raise Unavailable(str(error)) from error

        what = f"a message of {ref.topic} on {ref.broker} was not {'committed' if is_commit else 'rolled back'}"
        settings = self._settings if is_commit else self._one_attempt
        await call_with_retries(attempt, what, settings, refresh=partial(self._producer.refresh, ref.topic))


def _message(ref: HalfMessageRef) -> HalfMessage:
    queue = MessageQueue(topic=ref.topic, broker_name=ref.broker, queue_id=0)
    return HalfMessage(
        topic=ref.topic, queue=queue, message_id="", half_offset=ref.half_offset,
        physical_offset=ref.physical_offset,
    )  # fmt: skip
