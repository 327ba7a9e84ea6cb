"""The needs of a request from an account with stored policies.

They are those of `needs`, where in addition the action Get suffices to read state, and Update to commit an offset, as
in RocketMQ. Some requests that otherwise need an administrator need an action on a topic, a group or the cluster:

    create or change a topic, delete it         Create, Delete on the topic
    delete a group, reset or forbid its reads   Delete, Update on the group, and Update on the topic
    read queue entries and a consumer's state   Get on the topic, Get on the group
    accounts and policies                       Get or Update on the cluster

RocketMQ takes requests without such an annotation from every account, for example changes of a broker's settings. Here
they need a Super user.
"""

from collections.abc import Callable
from typing import Final

from gantry_access.needs import needs_of
from gantry_access.permissions import Kind, Need, Needs, Permission, consume_need, read_need
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import CreateTopic, GroupForbidden, GroupName, TopicName
from gantry_wire.commands.consumers import QueryConsumeQueue, ResetOffsets, RunningInfoRequest

_GET_SUFFICES: Final = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
    }
)
"""Requests for which Get suffices beside the permissions in `needs`."""

_CLUSTER_GET: Final = (
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.VIEW_BROKER_STATS_DATA,
)
"""Requests that need Get on the cluster."""

_CLUSTER_UPDATE: Final = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.RESET_MASTER_FLUSH_OFFSET,
    RequestCode.EXCHANGE_BROKER_HA_INFO,
)
"""Requests that need Update on the cluster."""


def policy_needs_of(command: Command) -> Needs:
    """Return the needs of a request from an account with policies. Raises FieldError like `needs_of`."""
    reader = _ADMINISTRATION.get(command.code)
    if reader is not None:
        return reader(command)
    needs = needs_of(command)
    if command.code in _GET_SUFFICES:
        return _or(needs, Permission.GET)
    return _or(needs, Permission.UPDATE) if command.code == RequestCode.UPDATE_CONSUMER_OFFSET else needs


def _or(needs: Needs, permission: Permission) -> Needs:
    """Return the needs, for each of which ``permission`` suffices, too; requests for administrators stay theirs."""
    return tuple(
        need if need.kind is Kind.ADMIN else need._replace(permission=need.permission | permission) for need in needs
    )


def _topic(name: str, permission: Permission) -> Need:
    """Return the need for an action on a topic; a retry topic belongs to its group."""
    return read_need(name)._replace(permission=permission)


def _group(name: str, permission: Permission) -> Need:
    return consume_need(name)._replace(permission=permission)


def _queue_entries(command: Command) -> Needs:
    request = QueryConsumeQueue.read(command.ext)
    topic = _topic(request.topic, Permission.GET)
    return (topic, _group(request.consumer_group, Permission.GET)) if request.consumer_group else (topic,)


def _reset(command: Command) -> Needs:
    request = ResetOffsets.read(command.ext)
    return _group(request.group, Permission.UPDATE), _topic(request.topic, Permission.UPDATE)


def _forbid(command: Command) -> Needs:
    request = GroupForbidden.read(command.ext)
    return _group(request.group, Permission.UPDATE), _topic(request.topic, Permission.UPDATE)


def _cluster(permission: Permission) -> Callable[[Command], Needs]:
    needs = (Need(Kind.CLUSTER, "", permission),)
    return lambda command: needs


_ADMINISTRATION: Final[dict[int, Callable[[Command], Needs]]] = {
    **dict.fromkeys(_CLUSTER_GET, _cluster(Permission.GET)),
    **dict.fromkeys(_CLUSTER_UPDATE, _cluster(Permission.UPDATE)),
    RequestCode.UPDATE_AND_CREATE_TOPIC: lambda command: (
        _topic(CreateTopic.read(command.ext).topic, Permission.CREATE),
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: lambda command: (_topic(TopicName.read(command.ext).topic, Permission.DELETE),),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: lambda command: (
        _group(GroupName.read(command.ext).group_name, Permission.DELETE),
    ),
    RequestCode.QUERY_CONSUME_QUEUE: _queue_entries,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _reset,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _forbid,
    RequestCode.GET_CONSUMER_RUNNING_INFO: lambda command: (
        _group(RunningInfoRequest.read(command.ext).consumer_group, Permission.GET),
    ),
}
"""Requests for administrators that a policy can permit to other accounts."""
