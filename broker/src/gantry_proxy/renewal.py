"""Renews the invisible time of messages that push consumers are working on.

A push consumer lets the proxy choose the invisible time. Its messages are invisible for `RENEWED_MS` at first. As long
as the client is connected, the proxy prolongs that before it ends, by growing steps, until the message is acknowledged,
or `WORK_MS_MAX` is over: then the message returns to the group after the delay of its retry policy. When the client is
gone its messages return at once.

A renewal gives a message a new receipt. The client keeps the first one, and this module the newest: an ack that comes
to this replica is made with the newest. If the replica is gone, an ack with the first receipt is accepted by the broker
without effect after a renewal, so the message is delivered a second time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, final

from gantry_client.errors import BrokerRefused, ClientError, NoRoute
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.topics import Topics
from gantry_proxy.translation.handles import read_receipt, with_physical_offset

log = logging.getLogger(__name__)

RENEWED_MS: Final = 60_000
"""How long a message of a push consumer is invisible at first; RocketMQ's value, as those that follow."""
RENEW_AHEAD_MS: Final = 10_000
"""A message is renewed when less than this is left."""
RENEW_STEPS_MS: Final = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
"""The invisible times of the renewals of one message."""
WORK_MS_MAX: Final = 3 * 3_600_000
"""How long a consumer may work on a message."""
RETRIES_MAX: Final = 3
"""How often the renewal of a message may fail in a row before it is given up."""
RETURN_MS: Final = 1_000
"""After which time the messages of a client that is gone are delivered to another one."""
CONCURRENT_MAX: Final = 64
"""How many renewals run at once, so that they never delay the requests of clients."""


@final
@dataclass(slots=True)
class InFlight:
    """One message that a push consumer is working on."""

    topic: str
    group: str
    receipt: str
    """The newest receipt."""

    since_ms: int
    """When the message was received, on the monotonic clock."""

    visible_at_ms: int
    """When the message would return to the group, on the monotonic clock."""

    reconsume_times: int
    renewals: int = 0
    failures: int = 0
    is_renewing: bool = False


RetryDelay = Callable[[InFlight], Awaitable[int]]
"""Returns the delay in milliseconds before a message is delivered again, by the policy of its group."""


@final
class Renewals:
    """The messages in flight of all clients. Owned by one event loop."""

    def __init__(
        self, brokers: BrokerPort, topics: Topics, now_ms: Callable[[], int], messages_per_client_max: int,
        retry_delay: RetryDelay,
    ) -> None:  # fmt: skip
        self._brokers: Final = brokers
        self._topics: Final = topics
        self._now_ms: Final = now_ms
        self._messages_max: Final = messages_per_client_max
        self._retry_delay: Final = retry_delay
        self._in_flight: Final[dict[str, dict[str, InFlight]]] = {}
        """By client id, and by the first receipt."""
        self._slots: Final = asyncio.Semaphore(CONCURRENT_MAX)
        self.renewed = 0
        """The number of renewals that succeeded."""
        self.failed = 0

    def __repr__(self) -> str:
        return f"<Renewals clients={len(self._in_flight)} messages={self.message_count}>"

    @property
    def message_count(self) -> int:
        return sum(len(one) for one in self._in_flight.values())

    def add(self, client_id: str, topic: str, group: str, received: Iterable[tuple[str, int]]) -> None:
        """Renew messages, each with its receipt and the number of its deliveries before, from their pop on.

        They are invisible for `RENEWED_MS`. Messages beyond the limit of the client are not renewed.
        """
        messages, now_ms = self._in_flight.setdefault(client_id, {}), self._now_ms()
        for receipt, reconsume_times in received:
            if len(messages) >= self._messages_max:
                return
            messages[receipt] = InFlight(topic, group, receipt, now_ms, now_ms + RENEWED_MS, reconsume_times)

    def newest(self, client_id: str, receipt: str) -> str:
        """Return the newest receipt of a message, which is ``receipt`` if it was not renewed."""
        messages = self._in_flight.get(client_id)
        found = None if messages is None else messages.get(receipt)
        return receipt if found is None else found.receipt

    def take(self, client_id: str, receipt: str) -> str:
        """Stop renewing a message, and return its newest receipt, which is ``receipt`` if it was not renewed."""
        messages = self._in_flight.get(client_id)
        found = None if messages is None else messages.pop(receipt, None)
        if messages is not None and not messages:
            del self._in_flight[client_id]
        return receipt if found is None else found.receipt

    async def renew_due(self) -> None:
        """Renew the messages that need it. Called every few seconds."""
        now_ms = self._now_ms()
        due = [
            self._renew(client_id, first, message)
            for client_id, messages in self._in_flight.items()
            for first, message in messages.items()
            if message.visible_at_ms - now_ms <= RENEW_AHEAD_MS and not message.is_renewing
        ]
        await asyncio.gather(*due)

    async def return_messages(self, client_id: str) -> None:
        """Return the messages of a client that is gone to their groups."""
        messages = self._in_flight.pop(client_id, {})
        await asyncio.gather(*(self._return(message, RETURN_MS) for message in messages.values()))

    async def _renew(self, client_id: str, first: str, message: InFlight) -> None:
        message.is_renewing = True
        try:
            async with self._slots:
                if self._now_ms() - message.since_ms >= WORK_MS_MAX:
                    log.warning(
                        "consumer has not acknowledged a message for too long; it is delivered again",
                        extra={"client": client_id, "topic": message.topic, "group": message.group},
                    )
                    self.take(client_id, first)
                    await self._return(message, await self._retry_delay(message), has_slot=True)
                    return
                invisible_ms = RENEW_STEPS_MS[min(message.renewals, len(RENEW_STEPS_MS) - 1)]
                await self._change(message, invisible_ms)
            message.renewals += 1
            message.failures = 0
            self.renewed += 1
        except ClientError as error:
            self._on_failure(client_id, first, message, error)
        finally:
            message.is_renewing = False

    def _on_failure(self, client_id: str, first: str, message: InFlight, error: ClientError) -> None:
        self.failed += 1
        message.failures += 1
        is_final = isinstance(error, BrokerRefused | NoRoute) or message.failures >= RETRIES_MAX
        log.info(
            "failed to renew invisible time",
            extra={"client": client_id, "topic": message.topic, "reason": str(error), "final": is_final},
        )
        if is_final:
            self.take(client_id, first)

    async def _return(self, message: InFlight, delay_ms: int, *, has_slot: bool = False) -> None:
        try:
            if has_slot:
                await self._change(message, delay_ms)
            else:
                async with self._slots:
                    await self._change(message, delay_ms)
        except ClientError as error:
            log.info("failed to return message", extra={"topic": message.topic, "reason": str(error)})

    async def _change(self, message: InFlight, invisible_ms: int) -> None:
        old = read_receipt(message.receipt, now_ms=0)
        address = await self._topics.master(message.topic, old.receipt.broker_name)
        new = await self._brokers.change_invisible(address, message.topic, message.group, old.text, invisible_ms)
        message.receipt = with_physical_offset(new, old.physical_offset)
        message.visible_at_ms = self._now_ms() + invisible_ms
