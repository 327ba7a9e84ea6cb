"""Renews the invisible time of messages that push consumers are working on.

A push consumer lets the proxy choose the invisible time. Its messages are invisible for `RENEWED_MS` at first. As long
as the client is connected, the proxy prolongs that before it ends, by growing steps, until the message is acknowledged,
or `WORK_MS_MAX` is over: then the message returns to the group after the delay of its retry policy. When the client is
gone its messages return at once.

A renewal gives a message a new receipt. The client keeps the first one, and this module the newest: an ack that comes
to this replica is made with the newest. If the replica is gone, an ack with the first receipt is accepted by the broker
without effect after a renewal, so the message is delivered a second time.

Each broker has workers of its own for renewals, and others for returns, and what waits for one that does not answer is
left until the next round. So a broker that is gone delays neither the messages of others nor the calls of clients.

One request at a time changes the receipt of a message, so that none is made with one that is about to be replaced:

    idle -> renewing -> idle                       an ack that comes meanwhile waits for the new receipt
    idle -> settling -> forgotten                  the broker has accepted an ack, a new invisible time, a dead letter
                     -> idle, not renewed again    it has not: the client may repeat it with its first receipt
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, final

from gantry_client.background import BackgroundTasks
from gantry_client.errors import ClientError, NoMaster, RequestTimeout, Unavailable, is_transient
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.topics import Topics
from gantry_proxy.translation.client_settings import retry_delay_ms
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
RETURN_MS: Final = 1_000
"""After which time the messages of a client that is gone are delivered to another one."""
CONCURRENT_MAX: Final = 32
"""How many renewals, and how many returns, run at once at each broker, so that they never delay the requests of
clients."""


@final
@dataclass(slots=True, eq=False)
class InFlight:
    """One message that a push consumer is working on."""

    client_id: str
    first_receipt: str
    """The one that the client has."""

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
    running: asyncio.Future[None] | None = None
    """Done when the request ends that changes the receipt now; None without one."""

    is_renewed: bool = True
    """Whether its time is prolonged: not after the client has tried to settle it, nor after it was forgotten."""

    is_settled: bool = False

    @property
    def is_changing(self) -> bool:
        return self.running is not None

    def begin_change(self) -> None:
        assert self.running is None, "one request at a time changes a receipt"
        self.running = asyncio.get_running_loop().create_future()

    def end_change(self) -> None:
        assert self.running is not None, "no request changes the receipt"
        self.running.set_result(None)
        self.running = None

    async def wait_until_idle(self) -> None:
        """Wait until no request changes the receipt."""
        while self.running is not None:
            await asyncio.wait((self.running,))  # which does not cancel it if the waiting call is cancelled


@final
class _Lane:
    """What waits for one broker, and the workers that make one request after the other."""

    def __init__(self, tasks: BackgroundTasks, change: Callable[[InFlight], Awaitable[None]], task_name: str) -> None:
        """``change`` raises ClientError if other requests to the broker would fail as well."""
        self._tasks: Final = tasks
        self._change: Final = change
        self._task_name: Final = task_name
        self._waiting: Final[deque[InFlight]] = deque()
        self.unreached: list[InFlight] = []
        """What was left because the broker does not answer."""
        self.workers = 0

    def add(self, messages: Iterable[InFlight]) -> None:
        """Begin the requests for more messages, with as many workers as they need."""
        self._waiting.extend(messages)
        while self.workers < min(CONCURRENT_MAX, len(self._waiting)):
            self.workers += 1
            self._tasks.start(self._work(), self._task_name)

    async def _work(self) -> None:
        try:
            while self._waiting:
                message = self._waiting.popleft()
                try:
                    await self._change(message)
                except ClientError:
                    self.unreached += [message, *self._waiting]
                    self._waiting.clear()
        finally:
            self.workers -= 1


@final
class Renewals:
    """The messages in flight of all clients. Owned by one event loop."""

    def __init__(
        self, brokers: BrokerPort, topics: Topics, now_ms: Callable[[], int], messages_per_client_max: int,
        tasks: BackgroundTasks,
    ) -> None:  # fmt: skip
        self._brokers: Final = brokers
        self._topics: Final = topics
        self._now_ms: Final = now_ms
        self._messages_max: Final = messages_per_client_max
        self._tasks: Final = tasks
        """The owner of the workers."""
        self._in_flight: Final[dict[str, dict[str, InFlight]]] = {}
        """By client id, and by the first receipt."""
        self._renewing: Final[dict[str, _Lane]] = {}
        """By the name of the broker."""
        self._returning: Final[dict[str, _Lane]] = {}
        self.renewed = 0
        """The number of renewals that succeeded."""
        self.failed = 0

    def __repr__(self) -> str:
        return f"<Renewals clients={len(self._in_flight)} messages={self.message_count} workers={self.worker_count}>"

    @property
    def message_count(self) -> int:
        return sum(len(one) for one in self._in_flight.values())

    @property
    def worker_count(self) -> int:
        """How many renewals and returns are in progress."""
        return sum(lane.workers for lanes in (self._renewing, self._returning) for lane in lanes.values())

    def add(self, client_id: str, topic: str, group: str, received: Iterable[tuple[str, int]]) -> None:
        """Renew messages, each with its receipt and the number of its deliveries before, from their pop on.

        They are invisible for `RENEWED_MS`. Messages beyond the limit of the client are not renewed.
        """
        messages, now_ms = self._in_flight.setdefault(client_id, {}), self._now_ms()
        for receipt, reconsume_times in received:
            if len(messages) >= self._messages_max:
                return
            messages[receipt] = InFlight(
                client_id, receipt, topic, group, receipt, now_ms, now_ms + RENEWED_MS, reconsume_times
            )

    def find(self, client_id: str, receipt: str) -> InFlight | None:
        """Return a message by the receipt that its client has; None if it is not in flight here."""
        messages = self._in_flight.get(client_id)
        return None if messages is None else messages.get(receipt)

    def begin_settling(self, message: InFlight) -> None:
        """Begin a request of the client about a message that is not changing: it is not renewed any more."""
        message.begin_change()
        message.is_renewed = False

    def end_settling(self, message: InFlight, *, is_settled: bool) -> None:
        """End it: a settled message is forgotten, and the client may settle another one again."""
        message.is_settled = is_settled
        message.end_change()
        if is_settled:
            self._forget(message)

    @asynccontextmanager
    async def settling(self, client_id: str, receipt: str) -> AsyncIterator[str]:
        """Settle a message within the context, and forget it if no error leaves the context.

        The value is its newest receipt, which is ``receipt`` if it is not in flight here.
        """
        while (message := self.find(client_id, receipt)) is not None and message.is_changing:
            await message.wait_until_idle()
        if message is None:
            yield receipt
            return
        self.begin_settling(message)
        is_settled = False
        try:
            yield message.receipt
            is_settled = True
        finally:
            self.end_settling(message, is_settled=is_settled)

    def _forget(self, message: InFlight) -> None:
        message.is_renewed = False
        messages = self._in_flight.get(message.client_id)
        if messages is not None and messages.get(message.first_receipt) is message:
            del messages[message.first_receipt]
            if not messages:
                del self._in_flight[message.client_id]

    # ------- renewals

    def renew_due(self) -> None:
        """Begin to renew the messages that need it. Called every few seconds."""
        now_ms = self._now_ms()
        due: list[InFlight] = []
        for message in [one for messages in self._in_flight.values() for one in messages.values()]:
            if message.visible_at_ms <= now_ms and not message.is_renewed and not message.is_changing:
                self._forget(message)  # it is delivered again
            elif message.visible_at_ms - now_ms <= RENEW_AHEAD_MS and message.is_renewed:
                due.append(message)
        for broker_name, found in _by_broker(due).items():
            lane = self._renewing.get(broker_name) or _Lane(self._tasks, self._renew, "renew-message")
            self._renewing[broker_name] = lane
            if not lane.workers:  # the last round has ended
                lane.unreached.clear()
                lane.add(found)

    async def _renew(self, message: InFlight) -> None:
        if message.is_changing or not message.is_renewed:
            return
        message.begin_change()
        try:
            if self._now_ms() - message.since_ms >= WORK_MS_MAX:
                await self._give_up(message)
                return
            invisible_ms = RENEW_STEPS_MS[min(message.renewals, len(RENEW_STEPS_MS) - 1)]
            await self._change(message, invisible_ms)
            message.renewals += 1
            self.renewed += 1
        except ClientError as error:
            self._on_failure(message, error)
            if _is_out_of_reach(error):
                raise
        finally:
            message.end_change()

    async def _give_up(self, message: InFlight) -> None:
        log.warning(
            "consumer has not acknowledged a message for too long; it is delivered again",
            extra={"client": message.client_id, "topic": message.topic, "group": message.group},
        )
        self._forget(message)
        try:
            config = await self._topics.group(message.group, message.topic)
        except ClientError:
            config = None  # the default delay is better than none
        await self._change(message, retry_delay_ms(config, message.reconsume_times))

    def _on_failure(self, message: InFlight, error: ClientError) -> None:
        """Leave a message to the next round, unless that cannot succeed either."""
        self.failed += 1
        is_final = not is_transient(error) or self._now_ms() >= message.visible_at_ms
        log.info(
            "failed to renew invisible time",
            extra={"client": message.client_id, "topic": message.topic, "reason": str(error), "final": is_final},
        )
        if is_final:
            self._forget(message)

    # ------- returns

    def return_messages(self, client_id: str) -> None:
        """Begin to return the messages of a client that is gone to their groups."""
        messages = list(self._in_flight.pop(client_id, {}).values())
        for message in messages:
            message.is_renewed = False
        for broker_name, found in _by_broker(messages).items():
            lane = self._returning.get(broker_name) or _Lane(self._tasks, self._return, "return-message")
            self._returning[broker_name] = lane
            lane.add(found)

    def return_of_unknown(self, is_known: Callable[[str], bool]) -> None:
        """Begin to return the messages of all clients that are not known, and those that could not be returned before.

        Called every few seconds.
        """
        for client_id in [one for one in self._in_flight if not is_known(one)]:
            self.return_messages(client_id)
        for lane in self._returning.values():
            if not lane.workers:
                unreached, lane.unreached = lane.unreached, []
                lane.add(unreached)

    async def _return(self, message: InFlight) -> None:
        await message.wait_until_idle()
        if message.is_settled or message.visible_at_ms <= self._now_ms():
            return
        message.begin_change()
        try:
            await self._change(message, RETURN_MS)
        except ClientError as error:
            log.info("failed to return message", extra={"topic": message.topic, "reason": str(error)})
            if _is_out_of_reach(error):
                raise
        finally:
            message.end_change()

    async def _change(self, message: InFlight, invisible_ms: int) -> None:
        old = read_receipt(message.receipt, now_ms=0)
        address = await self._topics.master(message.topic, old.receipt.broker_name)
        new = await self._brokers.change_invisible(address, message.topic, message.group, old.text, invisible_ms)
        message.receipt = with_physical_offset(new, old.physical_offset)
        message.visible_at_ms = self._now_ms() + invisible_ms


def _by_broker(messages: Iterable[InFlight]) -> dict[str, list[InFlight]]:
    found: dict[str, list[InFlight]] = {}
    for message in messages:
        found.setdefault(read_receipt(message.receipt, now_ms=0).receipt.broker_name, []).append(message)
    return found


def _is_out_of_reach(error: ClientError) -> bool:
    """Return whether other requests to the same broker would fail as well, after seconds."""
    return isinstance(error, Unavailable | RequestTimeout | NoMaster)
