"""Resending dead letters on an order over HTTP, with the project's client, up to a maximum number per order.

It does the same as ``gantry group resend`` and uses the same progress, which is stored on the brokers. It uses the name
servers that the broker itself registers at; a caller cannot name others. An order is refused while another one is
executed, because two would send the same messages twice.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, final

from gantry_access import AccessFileError
from gantry_admin.broker_client import BrokerClient
from gantry_admin.errors import Problem
from gantry_admin.observed_broker import ObservedBroker
from gantry_client import Producer, PullConsumer
from gantry_client.dead_letters import ResendRequest, ResendResult, ResendRun, reader_fault
from gantry_client.errors import ClientError, InvalidMessage, NoRoute

PRODUCER_GROUP: Final = "GANTRY_RESEND"
"""The producer group that sends dead letters again."""

TIMEOUT_S: Final = 60.0
"""How long a resend order may take, in seconds."""


class DeadLetterPosition(NamedTuple):
    """The position of a dead letter; on this broker if no broker is named."""

    queue_id: int
    offset: int
    broker_name: str | None = None


@final
class DeadLetterResender:
    """Executes resend orders, and refuses an order while another one is executed. Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, client: BrokerClient) -> None:
        self._broker: Final = broker
        self._client: Final = client
        self._running: Final = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<DeadLetterResender {'resending' if self._running.locked() else 'idle'}>"

    async def run(self, order: ResendRequest, position: DeadLetterPosition | None = None) -> ResendResult:
        """Execute an order, or resend only the dead letter at ``position``. Raises ``Problem``.

        The next order does not resend what was acknowledged until then. A single dead letter is always resent, and does
        not change the progress.
        """
        if reader_fault(order.group) is not None:
            raise Problem(404, "invalid group name")
        self._broker.check_running("dead letters cannot be resent")
        if self._running.locked():
            raise Problem(429, "another resend is in progress", headers={"Retry-After": "2"})
        async with self._running:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return await self._run(order, position)
            except TimeoutError as error:
                text = f"timed out after {TIMEOUT_S:g} s; send the same order again to continue"
                raise Problem(504, text) from error
            except NoRoute as error:
                raise Problem(404, f"there are no dead letters of {order.group} here: {error}"[:500]) from error
            except InvalidMessage as error:
                raise Problem(409, str(error)[:500]) from error
            except (ClientError, AccessFileError) as error:
                raise Problem(502, str(error)[:500]) from error

    async def _run(self, order: ResendRequest, position: DeadLetterPosition | None) -> ResendResult:
        name_servers = (await self._client.broker_settings()).get("namesrvAddr", "")
        if not name_servers:
            raise Problem(409, "the broker registers with no name server, so the routes of topics are unknown")
        settings = await self._client.settings()
        async with (
            PullConsumer(name_servers, order.reader, client_settings=settings) as reader,
            Producer(name_servers, PRODUCER_GROUP, client_settings=settings) as producer,
        ):
            letters = ResendRun(order, reader, producer, on_sent=lambda message, topic: None)
            if position is None:
                return await letters.run()
            reading = self._broker.reading
            assert reading is not None, "a broker whose loop runs has a page"
            result = await letters.run_one(
                position.broker_name or reading.origin.broker_name, position.queue_id, position.offset
            )
            if not result.examined:
                raise Problem(404, "dead letter not found")
            return result
