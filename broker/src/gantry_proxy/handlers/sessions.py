"""Calls about the client itself: its settings, its heartbeats, and its end."""

from gantry_access.permissions import consume_need, metadata_need
from gantry_client.errors import ClientError
from gantry_proxy.clients import CommandStream, ProxyClient
from gantry_proxy.context import CallContext, require_client_id
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError
from gantry_proxy.translation.checks import group_name, topic_name
from gantry_proxy.translation.client_settings import check_client_settings, merge_settings
from gantry_wire.commands.admin import SubscriptionGroupConfig

_UNKNOWN_CLIENT = "the client has sent no settings: open the Telemetry stream first"


async def accept_settings(
    core: ProxyCore, context: CallContext, settings: pb.Settings, stream: CommandStream
) -> pb.TelemetryCommand:
    """Register a client with its settings, and return those that it gets. Raises ProxyError."""
    client_id = require_client_id(context)
    check_client_settings(settings)
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            core.guard.require(context, metadata_need(topic_name(topic)))
    else:
        core.guard.require(context, consume_need(group_name(settings.subscription.group)))
    client = core.clients.register(client_id, settings, stream)
    merged = merge_settings(settings, await group_of(core, client), core.limits)
    return pb.TelemetryCommand(status=OK, settings=merged)


async def group_of(core: ProxyCore, client: ProxyClient, topic: str = "") -> SubscriptionGroupConfig | None:
    """Return the configuration of a client's group; None without one, or while no broker answers.

    ``topic`` is that of a call. Not every client names its topics in its settings: the SDK for Rust does not.
    """
    subscribed = [entry.topic.name for entry in client.settings.subscription.subscriptions]
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
