"""Calls about the client itself: its settings, its heartbeats, and its end."""

import asyncio
import logging
from dataclasses import replace
from typing import Final

from gantry_access.permissions import consume_need, metadata_need
from gantry_client.errors import ClientError
from gantry_proxy.clients import CommandStream, ProxyClient
from gantry_proxy.context import CallContext, require_client_id
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError
from gantry_proxy.translation.checks import group_name, topic_name
from gantry_proxy.translation.client_settings import check_client_settings, kept_settings, merge_settings
from gantry_wire.commands.admin import SubscriptionGroupConfig

log = logging.getLogger(__name__)

CONFIRMED_PER_TURN: Final = 200
"""How many clients are checked in one turn of the event loop: that takes less than a millisecond."""
GROUP_TOPICS_MAX: Final = 8
"""How many topics of a client are tried for the configuration of its group: each that does not exist costs a query."""
_UNKNOWN_CLIENT = "the client has sent no settings: open the Telemetry stream first"


async def accept_settings(
    core: ProxyCore, context: CallContext, settings: pb.Settings, stream: CommandStream
) -> pb.TelemetryCommand:
    """Register a client with its settings, and return those that it gets. Raises ProxyError."""
    client_id = require_client_id(context)
    check_client_settings(settings)
    _require_permissions(core, context, settings)
    client = core.clients.register(client_id, kept_settings(settings), stream, context)
    merged = merge_settings(settings, await group_of(core, client), core.limits)
    return pb.TelemetryCommand(status=OK, settings=merged)


def _require_permissions(core: ProxyCore, context: CallContext, settings: pb.Settings) -> None:
    """Raise ProxyError unless the account of a client may use its topics, or its group."""
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            core.guard.require(context, metadata_need(topic_name(topic)))
    else:
        core.guard.require(context, consume_need(group_name(settings.subscription.group)))


async def disconnect_revoked(core: ProxyCore) -> None:
    """Disconnect clients whose account was revoked, or may not use their topics or group any more.

    Each call is checked by itself. A stream may last for days, and a producer gets half messages on it. While no broker
    answers, streams stay open.
    """
    for number, client in enumerate(core.clients.connected()):
        if number % CONFIRMED_PER_TURN == 0:
            await asyncio.sleep(0)
        if client.context is not None and client.context.account is not None:
            await _confirm(core, client, client.context)


async def _confirm(core: ProxyCore, client: ProxyClient, context: CallContext) -> None:
    try:
        account = await core.guard.confirm(context.account, context.peer)
        if account is not context.account and client.context is context:
            present = replace(context, account=account)
            _require_permissions(core, present, client.settings)
            client.context = present
    except ProxyError as error:
        if error.code not in (pb.UNAUTHORIZED, pb.FORBIDDEN) or client.context is not context:
            return  # the account is unknown now, or the client has connected again meanwhile
        log.info("disconnecting client", extra={"client": client.client_id, "reason": error.text})
        core.clients.remove(client.client_id)
        await core.renewals.return_messages(client.client_id)


async def group_of(core: ProxyCore, client: ProxyClient, topic: str = "") -> SubscriptionGroupConfig | None:
    """Return the configuration of a client's group; None without one, or while no broker answers.

    ``topic`` is that of a call. Not every client names its topics in its settings: the SDK for Rust does not.
    """
    subscribed = [entry.topic.name for entry in client.settings.subscription.subscriptions[:GROUP_TOPICS_MAX]]
    for name in dict.fromkeys([topic, *subscribed] if topic else subscribed):
        try:
            return await core.topics.group(client.group, name)
        except ClientError:
            continue  # the brokers of another topic may answer; else the client gets the defaults
    return None


async def heartbeat(core: ProxyCore, context: CallContext, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    """Record that a client lives."""
    client = core.clients.touch(require_client_id(context))
    if client is None:
        raise ProxyError(pb.UNRECOGNIZED_CLIENT_TYPE, _UNKNOWN_CLIENT)
    if not client.is_producer:
        group_name(request.group)
        core.guard.require(context, consume_need(client.group))
    return pb.HeartbeatResponse(status=OK)


async def notify_client_termination(
    core: ProxyCore, context: CallContext, request: pb.NotifyClientTerminationRequest
) -> pb.NotifyClientTerminationResponse:
    """Forget a client, and return its messages to their groups."""
    client_id = require_client_id(context)
    if core.clients.leave(client_id) is None:
        raise ProxyError(pb.UNRECOGNIZED_CLIENT_TYPE, _UNKNOWN_CLIENT)
    await core.renewals.return_messages(client_id)
    return pb.NotifyClientTerminationResponse(status=OK)


async def sync_lite_subscription(
    core: ProxyCore, context: CallContext, request: pb.SyncLiteSubscriptionRequest
) -> pb.SyncLiteSubscriptionResponse:
    """Refuse a subscription to lite topics, which brokers keep in RocksDB."""
    raise ProxyError(pb.UNSUPPORTED, "lite topics are not supported: subscribe to ordinary topics")
