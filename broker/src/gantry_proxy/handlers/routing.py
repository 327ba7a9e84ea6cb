"""Calls about queues: which queues a topic has, and which of them a push consumer polls."""

from gantry_access.permissions import consume_need, metadata_need, read_need
from gantry_proxy.context import CallContext
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError
from gantry_proxy.translation.checks import group_name, namespace_of, topic_name
from gantry_proxy.translation.routes import check_endpoints, write_assignments, write_route


async def query_route(core: ProxyCore, context: CallContext, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
    """Return all queues of a topic."""
    topic, endpoints = topic_name(request.topic), check_endpoints(request.endpoints)
    core.guard.require(context, metadata_need(topic))
    known = await core.topics.get(topic)
    kind = await core.topics.kind(topic)
    queues = write_route(known.data, _resource(request.topic), endpoints, kind)
    return pb.QueryRouteResponse(status=OK, message_queues=queues)


async def query_assignment(
    core: ProxyCore, context: CallContext, request: pb.QueryAssignmentRequest
) -> pb.QueryAssignmentResponse:
    """Return what a push consumer polls. All consumers of a group poll all brokers, which divide the messages."""
    topic, group = topic_name(request.topic), group_name(request.group)
    endpoints = check_endpoints(request.endpoints)
    core.guard.require(context, read_need(topic), consume_need(group))
    known = await core.topics.get(topic)
    config = await core.topics.group(group, topic)
    is_fifo = config is not None and config.consume_message_orderly
    assignments = write_assignments(known.data, _resource(request.topic), endpoints, is_fifo=is_fifo)
    if not assignments:
        raise ProxyError(pb.FORBIDDEN, f"topic {topic!r} has no queue that can be read")
    return pb.QueryAssignmentResponse(status=OK, assignments=assignments)


def _resource(topic: pb.Resource) -> pb.Resource:
    """Return the topic as replies repeat it, without anything else that the client may have sent in it."""
    return pb.Resource(resource_namespace=namespace_of(topic), name=topic.name)
