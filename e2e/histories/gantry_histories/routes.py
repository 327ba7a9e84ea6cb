"""Where the brokers of one shard are now, as a name server says it.

A name may stand for several name servers, and one of them may be on a machine that is gone: whoever does not answer is
left, and any other is asked next, since a connection to nobody would otherwise be believed for minutes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from typing import Final, final

from gantry_histories.door import Door
from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.nameserver import QueryRoute, TopicRoute

MASTER_ID: Final = 0
FRESH_S: Final = 0.25
"""How long an answer is believed: clients are to notice a new master soon."""
TIMEOUT_MS: Final = 1_000


@final
class Routes:
    """Shared by the clients of one loop. Silence of the name server leaves what is known as it is."""

    def __init__(self, name_server: str, topic: str, broker_name: str = "", door: Door | None = None) -> None:
        self._name_server: Final = name_server
        self._topic: Final = topic
        self._broker_name: Final = broker_name
        """Of the shard that is meant; empty where there is only one."""

        self.door: Final = door or Door()

        self._channel: Channel | None = None
        self._brokers: dict[int, str] = {}
        self._asked_at = -FRESH_S

    def __repr__(self) -> str:
        return f"<Routes {self._topic} {self._brokers}>"

    async def brokers(self) -> dict[int, str]:
        """Addresses by broker id; the master is 0, if there is one."""
        if time.monotonic() - self._asked_at >= FRESH_S:
            self._asked_at = time.monotonic()
            await self._ask()
        return self._brokers

    async def master(self) -> str | None:
        return (await self.brokers()).get(MASTER_ID)

    async def _ask(self) -> None:
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
        """To any of them. Raises ``RemotingError``."""
        name, _, port = self._name_server.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise CannotConnect(f"{self._name_server}: {error}") from error
        family, _, _, _, place = random.choice(found)
        text = str(place[0])
        host = f"[{text}]" if family == socket.AF_INET6 else text
        return await self.door.connect(f"{host}:{port}", timeout_ms=TIMEOUT_MS)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
