"""The current brokers of one shard, as a name server reports them.

A host name may resolve to several name servers, and one of them may run on a failed machine. So after an error the
connection is closed and the next request connects to a random address: otherwise a connection to a dead server would
be trusted for minutes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from typing import Final, final

from gantry_histories.connector import ClientConnector
from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.nameserver import QueryRoute, TopicRoute

MASTER_ID: Final = 0
ROUTE_TTL_S: Final = 0.25
"""How long an answer is cached, in seconds. It is short so that clients notice a new master soon."""
TIMEOUT_MS: Final = 1_000


@final
class Routes:
    """The route cache that the clients of one loop share. If the name server does not answer, the last route is
    kept."""

    def __init__(
        self, name_server: str, topic: str, broker_name: str = "", connector: ClientConnector | None = None
    ) -> None:
        self._name_server: Final = name_server
        self._topic: Final = topic
        self._broker_name: Final = broker_name
        """The name of the shard; empty if there is only one."""

        self.connector: Final = connector or ClientConnector()

        self._channel: Channel | None = None
        self._brokers: dict[int, str] = {}
        self._refreshed_at = -ROUTE_TTL_S

    def __repr__(self) -> str:
        return f"<Routes {self._topic} {self._brokers}>"

    async def brokers(self) -> dict[int, str]:
        """Return the addresses by broker id. The master, if there is one, has id 0."""
        if time.monotonic() - self._refreshed_at >= ROUTE_TTL_S:
            self._refreshed_at = time.monotonic()
            await self._refresh()
        return self._brokers

    async def master(self) -> str | None:
        return (await self.brokers()).get(MASTER_ID)

    async def _refresh(self) -> None:
        try:
            if self._channel is None or not self._channel.is_open:
                self._channel = await self._connect()
            question = QueryRoute(topic=self._topic, accept_standard_json_only=True)
            command = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=question.write())
            reply = await self._channel.request(command, TIMEOUT_MS)
        except RemotingError:
            await self.close()
            return
        if reply.code == ResponseCode.SUCCESS:
            route = read_document(reply.body, TopicRoute)
            self._brokers = {
                number: address
                for data in route.broker_datas
                if self._broker_name in ("", data.broker_name)
                for number, address in data.broker_addrs.items()
            }
        elif reply.code == ResponseCode.TOPIC_NOT_EXIST:
            self._brokers = {}

    async def _connect(self) -> Channel:
        """Connect to a random address of the name server. Raises ``RemotingError``."""
        name, _, port = self._name_server.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise CannotConnect(f"{self._name_server}: {error}") from error
        family, _, _, _, place = random.choice(found)
        text = str(place[0])
        host = f"[{text}]" if family == socket.AF_INET6 else text
        return await self.connector.connect(f"{host}:{port}", timeout_ms=TIMEOUT_MS)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
