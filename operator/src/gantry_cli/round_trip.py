"""The self-check of a group: send one message, and read it back from the offset in its receipt.

The topic of the check is created if brokers create none on the first use.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError
from gantry_client import (
    Admin,
    ClientError,
    ClientSettings,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
)
from gantry_spec.observed import CHECK_TOPIC

READER_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools; it never commits an offset."""
READ_WAIT_MS: Final = 5_000
CHECK_QUEUES: Final = 4
"""The number of queues that a topic gets on its first use, too."""
ROUTE_TIMEOUT_S: Final = 10.0
ROUTE_POLL_S: Final = 0.02

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A message that was sent and read back."""

    queue: MessageQueue
    queue_offset: int
    elapsed_ms: float
    """The time from the send until the message was read."""


async def round_trip(name_server: str, settings: ClientSettings | None = None) -> RoundTrip:
    """Send one message and read it back. Raises ClientError, or CliError if the message cannot be read at its offset.

    ``settings`` default to the account and the TLS options of this command.
    """
    body = f"gantry up {secrets.token_hex(8)}".encode()
    settings = client_settings() if settings is None else settings
    async with (
        Producer(name_server, client_settings=settings) as producer,
        PullConsumer(name_server, READER_GROUP, client_settings=settings) as reader,
        Admin(name_server, client_settings=settings) as admin,
    ):
        started = time.perf_counter()
        receipt = await _retry_until_routed(lambda: producer.send(Message(CHECK_TOPIC, body, tags="check")), admin)
        result = await _retry_until_routed(
            lambda: reader.fetch(receipt.queue, receipt.queue_offset, messages_max=1, wait_ms=READ_WAIT_MS), admin
        )
        elapsed_ms = (time.perf_counter() - started) * 1000
    if not result.messages or result.messages[0].body != body:
        raise CliError(
            f"a message was sent to {receipt.queue.broker_name} (queue {receipt.queue.queue_id}, "
            f"offset {receipt.queue_offset}) but could not be read back",
            "check the broker's log",
        )
    return RoundTrip(receipt.queue, receipt.queue_offset, elapsed_ms)


async def _retry_until_routed(work: Callable[[], Awaitable[Result]], admin: Admin) -> Result:
    """Repeat ``work`` until the name server has a route for it, for at most ROUTE_TIMEOUT_S.

    Without a route the topic is created at the registered masters, of which there may be none yet.

    The name server learns of a new topic, and of a broker that has just started, with a delay. Repeating is safe:
    without a route nothing is sent or read.
    """
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    while True:
        try:
            return await work()
        except NoRoute:
            if time.monotonic() > deadline:
                raise
        with suppress(ClientError):
            await admin.topics.create(CHECK_TOPIC, queues=CHECK_QUEUES)
        await asyncio.sleep(ROUTE_POLL_S)
