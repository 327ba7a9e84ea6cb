"""Requests to several name servers, each of which has all routes.

A request goes to the name server that replied last; if that fails, to the next, until all were tried. An error code is
a reply like any other: `17` means that the topic is unknown, not that the name server failed.
"""

from collections.abc import Sequence
from typing import final

from gantry_client.calls import Calls, parse_document, require_success
from gantry_client.errors import RequestFailed, Unavailable
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import TopicListing
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.nameserver import ClusterInfo, KeyValueAddress, QueryRoute, TopicRoute


@final
class NameServers:
    """Requests to the name servers. Belongs to one event loop."""

    def __init__(self, addresses: Sequence[str], calls: Calls) -> None:
        self.addresses = tuple(addresses)
        self._calls = calls
        self._current = 0

    def __repr__(self) -> str:
        return f"<NameServers {';'.join(self.addresses)} current={self.current}>"

    @property
    def current(self) -> str:
        """The address of the name server that is tried first."""
        return self.addresses[self._current]

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of `topic`, or None if no broker has registered it."""
        request = QueryRoute(topic=topic, accept_standard_json_only=True)
        reply = await self._request(RequestCode.GET_ROUTEINFO_BY_TOPIC, request)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return parse_document(require_success(reply, self.current), TopicRoute, self.current)

    async def cluster(self) -> ClusterInfo:
        """Return every registered broker and cluster."""
        reply = require_success(await self._request(RequestCode.GET_BROKER_CLUSTER_INFO), self.current)
        return parse_document(reply, ClusterInfo, self.current)

    async def topics(self) -> list[str]:
        """Return the names of all registered topics."""
        reply = require_success(await self._request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), self.current)
        return parse_document(reply, TopicListing, self.current).topic_list

    async def value(self, namespace: str, key: str) -> str | None:
        """Return a value of the key-value table of one name server; None if it has none."""
        reply = await self._request(RequestCode.GET_KV_CONFIG, KeyValueAddress(namespace=namespace, key=key))
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return require_success(reply, self.current).ext.get("value", "")

    async def send_to_all(self, code: RequestCode, header: Fields) -> None:
        """Send a request to every name server, because they share no state. Raises at the first failure."""
        for address in self.addresses:
            await self._calls.request_success(address, code, header)

    async def _request(self, code: RequestCode, header: Fields | None = None) -> Command:
        failures: list[str] = []
        for _ in self.addresses:
            try:
                return await self._calls.request(self.current, code, header)
            except RequestFailed as error:
                failures.append(str(error))
                self._current = (self._current + 1) % len(self.addresses)
        raise Unavailable(f"no name server answers: {'; '.join(failures)}")
