"""The locks that give an ordered group one reader per queue, even while its consumers disagree on the assignment.

A broker locks a queue for one client for 60 s. The client renews its lock every 20 s and trusts it for 30 s: a client
that could not renew it stops consuming well before the broker locks the queue for another client.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, final

from gantry_client.calls import parse_document, require_success
from gantry_client.clock import wall_ms
from gantry_client.errors import ClientError
from gantry_client.session import Session
from gantry_wire.codes import RequestCode
from gantry_wire.commands.clients import LockBatch, LockBatchResult, MessageQueue

log = logging.getLogger(__name__)

LOCK_TRUSTED_S: Final = 30.0
"""How long a lock is trusted after the request for it."""
LOCK_TIMEOUT_MS: Final = 1000
"""The timeout of a request to lock queues."""


@final
class QueueLocks:
    """The queue locks of one consumer. Belongs to one event loop."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._locked_at: dict[MessageQueue, float] = {}

    def __repr__(self) -> str:
        return f"<QueueLocks {self._group} held={len(self._locked_at)}>"

    def is_held(self, queue: MessageQueue) -> bool:
        """Return whether this consumer certainly holds the lock of `queue`."""
        since = self._locked_at.get(queue)
        return since is not None and asyncio.get_running_loop().time() - since < LOCK_TRUSTED_S

    def locked_at_ms(self, queue: MessageQueue) -> int:
        """Return the wall time at which `queue` was last locked or its lock renewed; 0 without a lock."""
        since = self._locked_at.get(queue)
        if since is None:
            return 0
        return wall_ms() - int((asyncio.get_running_loop().time() - since) * 1000)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock `queues`, or renew their locks; return the queues that are locked now."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        results = await asyncio.gather(*(self._lock_at(broker_queues) for broker_queues in by_broker.values()))
        return set[MessageQueue]().union(*results)

    async def unlock(self, queue: MessageQueue) -> None:
        """Unlock `queue`. If the request fails, the lock expires on the broker."""
        self._locked_at.pop(queue, None)
        try:
            address = await self._master_of(queue)
            await self._session.calls.request_success(
                address, RequestCode.UNLOCK_BATCH_MQ, body=self._request([queue]), timeout_ms=LOCK_TIMEOUT_MS
            )
        except ClientError as error:
            log.warning(
                "failed to unlock queue; its lock expires on the broker",
                extra={"queue": repr(queue), "reason": str(error)},
            )

    async def _lock_at(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        requested_at = asyncio.get_running_loop().time()
        try:
            address = await self._master_of(queues[0])
            reply = await self._session.calls.request(
                address, RequestCode.LOCK_BATCH_MQ, body=self._request(queues), timeout_ms=LOCK_TIMEOUT_MS
            )
            locked = set(parse_document(require_success(reply, address), LockBatchResult, address).lock_ok_mq_set)
        except ClientError as error:
            log.warning("failed to lock queues", extra={"broker": queues[0].broker_name, "reason": str(error)})
            return set()
        for queue in queues:
            if queue in locked:
                self._locked_at[queue] = requested_at
            else:
                self._locked_at.pop(queue, None)
        return locked.intersection(queues)

    async def _master_of(self, queue: MessageQueue) -> str:
        route = await self._session.routes.get(queue.topic)
        return route.require_master(queue.broker_name)

    def _request(self, queues: list[MessageQueue]) -> LockBatch:
        return LockBatch(consumer_group=self._group, client_id=self._session.client_id, mq_set=queues)
