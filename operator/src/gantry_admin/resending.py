"""Dead letters sent again on somebody's order, with the project's client: a bounded number for each order.

It is what ``gantry group resend`` does, with the same memory of how far it has come, which lies on the brokers. The
name servers are those that the broker itself registers at; nobody who asks can name others. One order at a time: two
would send the same messages twice.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, final

from gantry_access import AccessFileError
from gantry_admin.broker_client import BrokerClient
from gantry_admin.errors import Problem
from gantry_admin.observed_broker import ObservedBroker
from gantry_client import Producer, PullConsumer
from gantry_client.dead_letters import DeadLetters, Resend, Tally, reader_fault
from gantry_client.errors import ClientError, InvalidMessage, NoRoute

PRODUCER_GROUP: Final = "GANTRY_RESEND"
TIMEOUT_S: Final = 60.0


class OneLetter(NamedTuple):
    """Where a dead letter lies; on this broker if none is named."""

    queue_id: int
    offset: int
    broker_name: str | None = None


@final
class Resending:
    """Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, client: BrokerClient) -> None:
        self._broker: Final = broker
        self._client: Final = client
        self._running: Final = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Resending {'now' if self._running.locked() else 'nothing'}>"

    async def run(self, wish: Resend, one: OneLetter | None = None) -> Tally:
        """Do it. Raises ``Problem``; what was acknowledged until then is not sent again by the next order."""
        if reader_fault(wish.group) is not None:
            raise Problem(404, "no group can be called so")
        self._broker.check_moving("nobody would send them")
        if self._running.locked():
            raise Problem(429, "dead letters are being sent again already", headers={"Retry-After": "2"})
        async with self._running:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return await self._run(wish, one)
            except TimeoutError as error:
                text = f"it took longer than {TIMEOUT_S:g} s; the same order goes on where this one has stopped"
                raise Problem(504, text) from error
            except NoRoute as error:
                raise Problem(404, f"there are no dead letters of {wish.group} here: {error}"[:500]) from error
            except InvalidMessage as error:
                raise Problem(409, str(error)[:500]) from error
            except (ClientError, AccessFileError) as error:
                raise Problem(502, str(error)[:500]) from error

    async def _run(self, wish: Resend, one: OneLetter | None) -> Tally:
        name_servers = (await self._client.broker_settings()).get("namesrvAddr", "")
        if not name_servers:
            raise Problem(409, "the broker registers at no name server, and without one nobody knows where topics are")
        settings = await self._client.settings()
        async with (
            PullConsumer(name_servers, wish.reader, client_settings=settings) as reader,
            Producer(name_servers, PRODUCER_GROUP, client_settings=settings) as producer,
        ):
            letters = DeadLetters(wish, reader, producer, said=lambda message, topic: None)
            if one is None:
                return await letters.run()
            reading = self._broker.reading
            assert reading is not None, "a broker that moves has a page"
            tally = await letters.run_one(one.broker_name or reading.origin.broker_name, one.queue_id, one.offset)
            if not tally.looked_at:
                raise Problem(404, "there is no such dead letter here")
            return tally
