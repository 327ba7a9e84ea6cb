"""Several name servers, any one of which knows everything.

A question goes to the one that answered last; when it fails, to the next, until all were asked. An error code is an
answer like any other: `17` means that the topic is unknown, not that the name server is broken.
"""

from collections.abc import Sequence
from typing import final

from gantry_client.calls import Calls, document_of, succeeded
from gantry_client.errors import RequestFailed, Unavailable
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import TopicListing
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.nameserver import ClusterInfo, KeyValueAddress, QueryRoute, TopicRoute


@final
class NameServers:
    """Questions to the name servers. Belongs to one event loop."""

    def __init__(self, addresses: Sequence[str], calls: Calls) -> None:
        self.addresses = tuple(addresses)
        self._calls = calls
        self._current = 0

    def __repr__(self) -> str:
        return f"<NameServers {';'.join(self.addresses)} current={self.current}>"

    @property
    def current(self) -> str:
        """The one that is asked first."""
        return self.addresses[self._current]

    async def route(self, topic: str) -> TopicRoute | None:
        """Where `topic` is, or None when no broker has registered it."""
        question = QueryRoute(topic=topic, accept_standard_json_only=True)
        reply = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, question)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return document_of(succeeded(reply, self.current), TopicRoute, self.current)

    async def cluster(self) -> ClusterInfo:
        """Every broker that is registered."""
        reply = succeeded(await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO), self.current)
        return document_of(reply, ClusterInfo, self.current)

    async def topics(self) -> list[str]:
        """Every topic that is registered."""
        reply = succeeded(await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), self.current)
        return document_of(reply, TopicListing, self.current).topic_list

    async def value(self, namespace: str, key: str) -> str | None:
        """A value of their key-value table, as one of them has it; None if there is none."""
        reply = await self._ask(RequestCode.GET_KV_CONFIG, KeyValueAddress(namespace=namespace, key=key))
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return succeeded(reply, self.current).ext.get("value", "")

    async def tell_all(self, code: RequestCode, header: Fields) -> None:
        """Have every name server do something; they do not speak to each other. Raises on the first that does not."""
        for address in self.addresses:
            await self._calls.demand(address, code, header)

    async def _ask(self, code: RequestCode, header: Fields | None = None) -> Command:
        failures: list[str] = []
        for _ in self.addresses:
            try:
                return await self._calls.ask(self.current, code, header)
            except RequestFailed as error:
                failures.append(str(error))
                self._current = (self._current + 1) % len(self.addresses)
        raise Unavailable(f"no name server answers: {'; '.join(failures)}")
