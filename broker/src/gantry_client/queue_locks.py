"""The locks by which an ordered group has one reader per queue, even while its members disagree about the division.

A broker grants a queue to one client for 60 s. We renew every 20 s and believe a grant for 30 s: whoever has not been
able to renew stops consuming well before the broker gives the queue to somebody else.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, final

from gantry_client.calls import document_of, succeeded
from gantry_client.clock import wall_ms
from gantry_client.errors import ClientError
from gantry_client.session import Session
from gantry_wire.codes import RequestCode
from gantry_wire.commands.clients import LockBatch, LockBatchResult, MessageQueue

log = logging.getLogger(__name__)

BELIEVED_S: Final = 30.0
LOCK_TIMEOUT_MS: Final = 1000


@final
class QueueLocks:
    """The locks of one member. Belongs to one event loop."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._held_since: dict[MessageQueue, float] = {}

    def __repr__(self) -> str:
        return f"<QueueLocks {self._group} held={len(self._held_since)}>"

    def is_held(self, queue: MessageQueue) -> bool:
        """Whether `queue` is ours beyond doubt."""
        since = self._held_since.get(queue)
        return since is not None and asyncio.get_running_loop().time() - since < BELIEVED_S

    def asked_at_ms(self, queue: MessageQueue) -> int:
        """When `queue` was last granted to us, by the wall clock; 0 for one that is not ours."""
        since = self._held_since.get(queue)
        if since is None:
            return 0
        return wall_ms() - int((asyncio.get_running_loop().time() - since) * 1000)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Ask for `queues`, or renew them; those that are ours now."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        results = await asyncio.gather(*(self._lock_at(same_broker) for same_broker in by_broker.values()))
        return set[MessageQueue]().union(*results)

    async def unlock(self, queue: MessageQueue) -> None:
        """Give `queue` back. A broker that does not hear it lets the lock run out."""
        self._held_since.pop(queue, None)
        try:
            address = await self._master_of(queue)
            await self._session.calls.demand(
                address, RequestCode.UNLOCK_BATCH_MQ, body=self._request([queue]), timeout_ms=LOCK_TIMEOUT_MS
            )
        except ClientError as error:
            log.warning("a queue is not unlocked", extra={"queue": repr(queue), "reason": str(error)})

    async def _lock_at(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        asked_at = asyncio.get_running_loop().time()
        try:
            address = await self._master_of(queues[0])
            reply = await self._session.calls.ask(
                address, RequestCode.LOCK_BATCH_MQ, body=self._request(queues), timeout_ms=LOCK_TIMEOUT_MS
            )
            granted = set(document_of(succeeded(reply, address), LockBatchResult, address).lock_ok_mq_set)
        except ClientError as error:
            log.warning("queues are not locked", extra={"broker": queues[0].broker_name, "reason": str(error)})
            return set()
        for queue in queues:
            if queue in granted:
                self._held_since[queue] = asked_at
            else:
                self._held_since.pop(queue, None)
        return granted.intersection(queues)

    async def _master_of(self, queue: MessageQueue) -> str:
        route = await self._session.routes.get(queue.topic)
        return route.demand_master(queue.broker_name)

    def _request(self, queues: list[MessageQueue]) -> LockBatch:
        return LockBatch(consumer_group=self._group, client_id=self._session.client_id, mq_set=queues)
