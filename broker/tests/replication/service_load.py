"""Messages that a broker delivers later, or not at all, and the judge of what arrived.

    sender    delays by level and by time, recalls, transactions, tags, messages whose handler always fails, some of
              them while no broker can take them back
    reader    pulls every queue without a client library: all messages, those of two tags, the dead letters

Nothing is sent while a broker is stopped or killed, so that no client repeats a send. What a broker does on its own, to
deliver what is due, continues until that moment.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, final

from gantry_histories.consumer import pull
from gantry_histories.events import Queue

from gantry_client import BrokerRefused, ClientError, HalfMessage, Message, Producer, RetryLater, TransactionProducer
from gantry_client.messages import ReceivedMessage
from gantry_remoting import Channel
from gantry_wire import names

TOPIC: Final = "Histories"
GROUP: Final = "failing"
"""The group whose handler refuses some messages until they are dead letters."""

LEVELS_MS: Final = {1: 1_000, 2: 5_000}
TIMER_MS: Final = (500, 6_000)
RECALLED_MS: Final = 6_000
TAGS: Final = ("red", "green", "blue")
WANTED: Final = ("red", "green")
LATE_MS: Final = 3_000
"""How late a message may be while others are on time."""
ON_TIME_MS: Final = 1_000
"""How late a message is that is on time."""

OUTAGE_S: Final = 0.5
COMMIT_S: Final = 1.0
END_PATIENCE_S: Final = 60.0


class Intent(StrEnum):
    """What the sender wants to happen with a message."""

    PLAIN = "plain"
    LEVEL = "delayed"
    TIMER = "timer"
    RECALLED = "recalled"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    OPEN = "open transaction"
    FAILING = "failing"
    HELD = "failing while no broker answers"


DELIVERED: Final = frozenset({Intent.PLAIN, Intent.LEVEL, Intent.TIMER, Intent.COMMITTED, Intent.FAILING, Intent.HELD})
"""Messages that consumers must get. No others may arrive."""
DEAD: Final = frozenset({Intent.FAILING, Intent.HELD})
"""Messages that must become dead letters."""
REPEATABLE: Final = frozenset({Intent.LEVEL, Intent.TIMER})
"""Messages that a crash or a promotion may deliver twice."""


@dataclass
class Sent:
    """What the sender did with one message."""

    body: bytes
    intent: Intent
    tag: str
    due_ms: int = 0
    """Before this time it may not be delivered."""

    is_certain: bool = False
    """Whether the broker has confirmed the last request about it."""


class Copy(NamedTuple):
    """A message as a reader found it in the topic."""

    body: bytes
    stored_ms: int


@final
@dataclass
class ServiceHistory:
    """What the sender did, and what the readers found at the end."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Ends of transactions that a broker refused, although they were open."""

    copies: list[Copy] = field(default_factory=list)
    of_wanted_tags: Counter[bytes] = field(default_factory=Counter)
    dead: Counter[bytes] = field(default_factory=Counter)
    interrupted_ms: int = 0
    """When a broker was first stopped or killed; 0 if none was."""

    crashes: int = 0
    """How often a broker was killed or another one promoted."""


def judge(history: ServiceHistory) -> list[str]:
    """Return the violations, each as its kind, a colon and the message."""
    found = [f"refused: {text}" for text in history.refused]
    copies: dict[bytes, list[Copy]] = {}
    for copy in history.copies:
        copies.setdefault(copy.body, []).append(copy)
    found += [f"invented: {body!r}" for body in copies.keys() - history.sent.keys()]
    for body, sent in history.sent.items():
        own = copies.get(body, [])
        found += _judge_copies(sent, own, may_repeat=history.crashes > 0 and sent.intent in REPEATABLE)
        if sent.intent in DEAD and sent.is_certain and not history.dead[body]:
            found.append(f"not a dead letter: {body!r}")
        if sent.tag in WANTED and own and not history.of_wanted_tags[body]:
            found.append(f"filtered out: {body!r} with the tag {sent.tag}")
        if sent.tag not in WANTED and history.of_wanted_tags[body]:
            found.append(f"not wanted: {body!r} with the tag {sent.tag}")
    return [*found, *_judge_lateness(history, copies)]


def _judge_copies(sent: Sent, copies: list[Copy], *, may_repeat: bool) -> Iterable[str]:
    if not copies and sent.is_certain and sent.intent in DELIVERED:
        yield f"lost: {sent.body!r}, {sent.intent}"
    if copies and sent.intent not in DELIVERED and (sent.is_certain or sent.intent is Intent.OPEN):
        yield f"delivered: {sent.body!r}, {sent.intent}"
    if len(copies) > 1 and not may_repeat:
        yield f"twice: {sent.body!r}, {sent.intent}"
    if early := min((one.stored_ms - sent.due_ms for one in copies), default=0):
        yield from [f"early: {sent.body!r}, by {-early} ms"] if early < 0 else []


def _judge_lateness(history: ServiceHistory, copies: dict[bytes, list[Copy]]) -> Iterable[str]:
    """Yield messages that came late while others came on time. Before the first interruption only.

    A machine that is too busy delays all of them, so a message is compared with those of the second half of its wait.
    """
    first = {body: min(one.stored_ms for one in some) for body, some in copies.items()}
    delayed = [one for one in history.sent.values() if one.due_ms and one.body in first]
    on_time = [first[one.body] for one in delayed if first[one.body] - one.due_ms <= ON_TIME_MS]
    for one in delayed:
        if history.interrupted_ms and one.due_ms + LATE_MS > history.interrupted_ms:
            continue
        late_ms = first[one.body] - one.due_ms
        if late_ms > LATE_MS and any(one.due_ms + LATE_MS / 2 < other < first[one.body] for other in on_time):
            yield f"late: {one.body!r}, {one.intent}, by {late_ms} ms"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@final
class ServiceLoad:
    """The sender, the failing handler and the readers of one run. Owned by one loop."""

    def __init__(
        self, producer: Producer, transactions: TransactionProducer, address: Callable[[], str], *, seed: int
    ) -> None:
        """``address`` returns the address of the present master."""
        self.history: Final = ServiceHistory()
        self._producer: Final = producer
        self._transactions: Final = transactions
        self._address: Final = address
        self._random: Final = random.Random(f"{seed}/services")
        self._open: list[tuple[Sent, HalfMessage]] = []
        self._outage = asyncio.Event()
        """Set while the master is away, and afterwards until more messages are sent."""

    async def send(self, count: int, intents: Iterable[Intent] = Intent) -> None:
        """Send ``count`` messages of each kind."""
        self._outage.clear()
        await asyncio.gather(*(self._send(intent) for intent in intents for _ in range(count)))

    async def begin_outage(self) -> None:
        """Let the handlers fail that wait for it, and give them time to find no broker that takes a message back."""
        self._outage.set()
        await asyncio.sleep(OUTAGE_S)

    async def end_outage(self) -> None:
        """Wait until clients find a master, and give the consumer time to commit, but not to handle messages again."""
        await self._send(Intent.PLAIN)
        await asyncio.sleep(COMMIT_S)

    async def commit_open(self, count: int) -> None:
        """Commit some transactions that earlier calls have left open."""
        chosen, self._open = self._open[:count], self._open[count:]
        for sent, half in chosen:
            sent.intent = Intent.COMMITTED
            await self._end(sent, half)

    async def handle(self, message: ReceivedMessage) -> None:
        """Handle a message as the consumer: refuse it if it is to fail."""
        sent = self.history.sent.get(message.body)
        if sent is not None and sent.intent is Intent.HELD:
            await self._outage.wait()
        if sent is not None and sent.intent in DEAD:
            raise RetryLater(1)

    async def read(self) -> list[str]:
        """Read everything that the master shows, and return the violations."""
        history = self.history
        channel = await Channel.connect(self._address())
        try:
            history.copies = await self._read_topic(channel, TOPIC, "*")
            wanted = await self._read_topic(channel, TOPIC, " || ".join(WANTED))
            history.of_wanted_tags = Counter(copy.body for copy in wanted)
            dead = await self._read_topic(channel, names.dead_letter_topic(GROUP), "*")
            history.dead = Counter(copy.body for copy in dead)
        finally:
            await channel.close()
        return judge(history)

    async def finish(self) -> list[str]:
        """Read until nothing is missing or the patience ends, and return the violations."""
        last_due_ms = max((one.due_ms for one in self.history.sent.values()), default=0)
        await asyncio.sleep(max(0, last_due_ms + LATE_MS - now_ms()) / 1000)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + END_PATIENCE_S
        while True:
            found = await self.read()
            if not any(text.startswith(("lost", "not a dead")) for text in found) or loop.time() > ends_at:
                return found
            await asyncio.sleep(0.2)

    async def _read_topic(self, channel: Channel, topic: str, subscription: str) -> list[Copy]:
        copies: list[Copy] = []
        for number in range(3 if topic == TOPIC else 1):
            offset = 0
            while True:
                pulled = await pull(channel, "readers", Queue(topic, number), offset, 30_000, subscription=subscription)
                copies += [Copy(one.body, one.store_timestamp_ms) for one in pulled.messages]
                if pulled.next_offset <= offset:
                    break
                offset = pulled.next_offset
        return copies

    async def _send(self, intent: Intent) -> None:
        sent = Sent(b"%d" % len(self.history.sent), intent, self._random.choice(TAGS))
        self.history.sent[sent.body] = sent
        message = Message(TOPIC, sent.body, tags=sent.tag)
        if intent in (Intent.COMMITTED, Intent.ROLLED_BACK, Intent.OPEN):
            half = await self._transactions.begin(message)
            if intent is Intent.OPEN:
                self._open.append((sent, half))
            else:
                await self._end(sent, half)
            return
        if intent is Intent.LEVEL:
            message.delay_level = self._random.choice(list(LEVELS_MS))
            sent.due_ms = now_ms() + LEVELS_MS[message.delay_level]
        elif intent in (Intent.TIMER, Intent.RECALLED):
            message.delay_ms = RECALLED_MS if intent is Intent.RECALLED else self._random.randint(*TIMER_MS)
            sent.due_ms = now_ms() + message.delay_ms
        receipt = await self._producer.send(message)
        if intent is Intent.RECALLED:
            assert receipt.recall_handle is not None
            await self._producer.recall(receipt.recall_handle)
        sent.is_certain = receipt.is_acknowledged

    async def _end(self, sent: Sent, half: HalfMessage) -> None:
        """End a transaction twice at once, as a client does whose first answer is late."""
        end = self._transactions.roll_back if sent.intent is Intent.ROLLED_BACK else self._transactions.commit
        results = await asyncio.gather(end(half), end(half), return_exceptions=True)
        sent.is_certain = None in results
        refusals = [one for one in results if isinstance(one, BrokerRefused)]
        if len(refusals) == len(results):
            self.history.refused.append(f"{sent.body!r}, {sent.intent}: {refusals[0]}")
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, ClientError):
                raise error
