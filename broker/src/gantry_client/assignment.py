"""Which queues a member of a group should read now, asked of the cluster.

An answer may be incomplete: a topic that nobody has created yet, a broker that does not answer, a broker that does not
know us yet. Then what is known is acted upon, what is unknown stays as it is, and the question is asked again soon.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from gantry_client.allocation import allocate_averagely
from gantry_client.calls import document_of
from gantry_client.documents import ConsumerIds
from gantry_client.errors import ClientError, Unavailable
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_client.settings import MessageModel
from gantry_wire.codes import RequestCode
from gantry_wire.commands.clients import ConsumerGroup, MessageQueue

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class Assignment:
    """The queues that one member should read, as far as that is known."""

    queues: set[MessageQueue] = field(default_factory=set)
    unknown_topics: set[str] = field(default_factory=set)
    """Topics whose division could not be found out; queues of theirs are neither taken nor given up."""


@final
class Assigner:
    """Works out assignments for one member. Belongs to one event loop."""

    def __init__(self, session: Session, group: str, model: MessageModel) -> None:
        self._session = session
        self._group = group
        self._model = model

    async def assign(self, topics: Iterable[str]) -> Assignment:
        """What this member should read of `topics` now."""
        assignment = Assignment()
        for topic in topics:
            try:
                assignment.queues.update(await self._share(topic))
            except ClientError as error:
                log.info("a topic is not divided", extra={"topic": topic, "reason": str(error)})
                assignment.unknown_topics.add(topic)
        return assignment

    async def _share(self, topic: str) -> Sequence[MessageQueue]:
        route = await self._session.routes.get(topic)
        if self._model is MessageModel.BROADCASTING:
            return route.read_queues
        client_ids = await self._members(route)
        if self._session.client_id not in client_ids:
            await self._session.heartbeat_all()
            raise Unavailable("the broker does not count us among its consumers yet")
        return allocate_averagely(route.read_queues, client_ids, self._session.client_id)

    async def _members(self, route: Route) -> list[str]:
        """Who is in the group, by the first broker of the topic that answers."""
        question = ConsumerGroup(consumer_group=self._group)
        failures: list[str] = []
        for broker_name in route.brokers:
            address = route.read_address(broker_name)
            if address is None:
                continue
            try:
                reply = await self._session.calls.demand(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, question)
                return document_of(reply, ConsumerIds, address).consumer_id_list
            except ClientError as error:
                failures.append(str(error))
        await self._session.heartbeat_all()
        raise Unavailable(f"no broker says who is in the group: {'; '.join(failures)}")
