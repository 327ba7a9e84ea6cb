"""Calls about the client itself: its settings, its heartbeats, and its end."""

import asyncio
import logging
from typing import Final

import msgspec

from gantry_access.permissions import consume_need, publish_need, read_need
from gantry_client.errors import ClientError, NoMaster, NoRoute
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
) -> pb.TelemetryCommand | None:
    """Register a client with its settings, and return those that it gets. Raises ProxyError.

    Return None if they are unknown now, for a client that has got them before on this stream.
    """
    client_id = require_client_id(context)
    check_client_settings(settings)
    _require_permissions(core, context, settings)
    config, failure = None, None
    try:
        config = await group_of(core, settings)
    except ProxyError as error:
        failure = error
    known = core.clients.find(client_id)
    if known is not None:
        require_owner(core, context, known)
    if failure is not None and (known is None or known.stream is not stream):
        raise failure  # SDKs read only once whether messages have an order
    core.clients.register(client_id, kept_settings(settings), stream, context)
    if failure is not None:
        return None
    return pb.TelemetryCommand(status=OK, settings=merge_settings(settings, config, core.limits))


def _require_permissions(core: ProxyCore, context: CallContext, settings: pb.Settings) -> None:
    """Raise ProxyError unless the account of a client may publish to its topics, or read them as its group.

    Permission to read a topic does not suffice for a producer: a producer is asked about transactions, and the question
    has the message, which may never be committed.
    """
    if settings.HasField("publishing"):
        core.guard.require(context, *(publish_need(topic_name(topic)) for topic in settings.publishing.topics))
        return
    core.guard.require(context, consume_need(group_name(settings.subscription.group)))
    for entry in settings.subscription.subscriptions:
        core.guard.require(context, read_need(topic_name(entry.topic)))


def require_owner(core: ProxyCore, context: CallContext, client: ProxyClient) -> None:
    """Raise ProxyError unless a call may act for a client that is known.

    A client id is chosen by the caller, and shown to administrators and other members of a group. So another account
    than that of the client must have the same address and all permissions of the client, as a client has whose key was
    replaced: it opens its stream with the old key, and sends heartbeats with the new one.
    """
    account, owner = context.account, client.context
    if account is None or account.is_admin or owner is None or owner.account is None:
        return
    if account.access_key == owner.account.access_key:
        return
    if context.peer != owner.peer:
        raise ProxyError(pb.FORBIDDEN, "the client id is used by another account: give each client an id of its own")
    _require_permissions(core, context, client.settings)


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
            present = msgspec.structs.replace(context, account=account)
            _require_permissions(core, present, client.settings)
            client.context = present
    except ProxyError as error:
        if error.code not in (pb.UNAUTHORIZED, pb.FORBIDDEN) or client.context is not context:
            return  # the account is unknown now, or the client has connected again meanwhile
        log.info("disconnecting client", extra={"client": client.client_id, "reason": error.text})
        core.clients.remove(client.client_id)
        core.renewals.return_messages(client.client_id)


async def group_of(core: ProxyCore, settings: pb.Settings, topic: str = "") -> SubscriptionGroupConfig | None:
    """Return the configuration of the group in a client's settings; None if no broker has one, or for a producer.

    Raises ProxyError with HA_NOT_AVAILABLE while it is unknown: the messages of a group with an order must not be
    consumed without it. ``topic`` is that of a call. Not every client names its topics in its settings: the SDK for
    Rust does not.
    """
    group = settings.subscription.group.name
    subscribed = [entry.topic.name for entry in settings.subscription.subscriptions[:GROUP_TOPICS_MAX]]
    failure: ClientError | None = None
    for name in dict.fromkeys([topic, *subscribed] if topic else subscribed):
        try:
            return await core.topics.group(group, name)
        except ClientError as error:  # the brokers of another topic may answer
            if isinstance(error, NoMaster) or not isinstance(error, NoRoute):
                failure = failure or error
    if failure is None:
        return None
    raise ProxyError(
        pb.HA_NOT_AVAILABLE, f"no broker answers whether group {group!r} consumes in order: {failure}"
    ) from failure


async def heartbeat(core: ProxyCore, context: CallContext, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    """Record that a client lives."""
    client = _find_own(core, context)
    core.clients.record_life(client)
    if not client.is_producer:
        group_name(request.group)
        core.guard.require(context, consume_need(client.group))
    return pb.HeartbeatResponse(status=OK)


async def notify_client_termination(
    core: ProxyCore, context: CallContext, request: pb.NotifyClientTerminationRequest
) -> pb.NotifyClientTerminationResponse:
    """Forget a client, and return its messages to their groups."""
    client_id = _find_own(core, context).client_id
    core.clients.leave(client_id)
    core.renewals.return_messages(client_id)
    return pb.NotifyClientTerminationResponse(status=OK)


def _find_own(core: ProxyCore, context: CallContext) -> ProxyClient:
    """Return the client that calls. Raises ProxyError if it is unknown, or belongs to another account."""
    client = core.clients.find(require_client_id(context))
    if client is None:
        raise ProxyError(pb.UNRECOGNIZED_CLIENT_TYPE, _UNKNOWN_CLIENT)
    require_owner(core, context, client)
    return client


async def sync_lite_subscription(
    core: ProxyCore, context: CallContext, request: pb.SyncLiteSubscriptionRequest
) -> pb.SyncLiteSubscriptionResponse:
    """Refuse a subscription to lite topics, which brokers keep in RocksDB."""
    raise ProxyError(pb.UNSUPPORTED, "lite topics are not supported: subscribe to ordinary topics")
