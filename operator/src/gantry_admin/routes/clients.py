"""The consumers of a group that are connected to this broker. Only the broker itself knows them, so it must run."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request

from gantry_access import AccessFileError
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.progress_documents import GroupClientDocument, GroupClientsDocument, SubscriptionDocument
from gantry_admin.relay import Shard, relay_to_shard
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_admin.routes.messages import BROKER_TIMEOUT_S, Group
from gantry_client.documents import ConsumerConnections
from gantry_client.errors import ClientError
from gantry_wire.names import group_fault

CLIENTS_MAX: Final = 500
"""The most clients of one answer; further clients are only counted. A page with more could not be read by people."""

TEXT_CHARACTERS_MAX: Final = 1_000
"""The length at which a text of a client is cut: clients choose their ids and expressions themselves."""

router = APIRouter(tags=["topics and groups"], dependencies=[needs(Scope.VIEW)])


@router.get("/v1/groups/{group}/clients", responses=refusals(401, 403, 404, 422, 502, 503, 504))
async def group_clients(
    request: Request, sidecar: TheSidecar, group: Group, shard: Shard = None
) -> GroupClientsDocument:
    """Return the consumers of a group that are connected to this broker now; none if no consumer is connected."""
    if (relayed := await relay_to_shard(request, sidecar, shard, GroupClientsDocument)) is not None:
        return relayed
    if group_fault(group) is not None:
        raise Problem(404, "invalid group name")
    sidecar.broker.check_running("only the broker knows its clients")
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            admin, address = await sidecar.client.connect()
            found = await admin.brokers.connections(address, group)
    except TimeoutError as error:
        raise Problem(504, "the broker did not answer in time") from error
    except (ClientError, AccessFileError) as error:
        raise Problem(502, str(error)[:300]) from error
    return _document(group, found or ConsumerConnections())


def _document(group: str, found: ConsumerConnections) -> GroupClientsDocument:
    clients = sorted(found.connection_set, key=lambda one: one.client_id)
    return GroupClientsDocument(
        group=group,
        clients=[
            GroupClientDocument(
                client_id=one.client_id[:TEXT_CHARACTERS_MAX], address=one.client_addr[:TEXT_CHARACTERS_MAX],
                language=one.language, version=one.version,
            )
            for one in clients[:CLIENTS_MAX]
        ],
        left_out=max(len(clients) - CLIENTS_MAX, 0),
        consume_type=found.consume_type,
        message_model=found.message_model,
        subscriptions=[
            SubscriptionDocument(
                topic=topic, expression=(one.sub_string or "")[:TEXT_CHARACTERS_MAX] or None,
                expression_type=one.expression_type,
            )
            for topic, one in sorted(found.subscription_table.items())
        ],
    )  # fmt: skip
