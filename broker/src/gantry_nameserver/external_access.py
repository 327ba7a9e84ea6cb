"""Routes for clients outside the network: the same routes, with external broker addresses.

A broker may register a second address (`externalAddr`, a field that other name servers ignore). Requests on
`externalListenPort` are answered with these addresses; a broker without one is omitted, because external clients cannot
reach its internal address. The port is read-only: it accepts no registrations and no changes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_nameserver.directory import BrokerDirectory
from gantry_remoting.server import Answer, Connection, Dispatch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import TopicListing
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.nameserver import BrokerData, ClusterInfo, TopicRoute

ADDRESS_FREE_CODES: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
    }
)
"""Requests whose replies contain no address."""

TRANSLATED_CODES: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    }
)
"""Requests whose replies get external addresses. Requests in neither set are refused."""


def external_dispatch(dispatch: Dispatch, brokers: BrokerDirectory) -> Dispatch:
    """Wrap `dispatch` for the external port."""

    def answer(request: Command, connection: Connection) -> Answer:
        if request.code in ADDRESS_FREE_CODES:
            return dispatch(request, connection)
        if request.code not in TRANSLATED_CODES:
            return request.reply(
                ResponseCode.NO_PERMISSION, f"request code {request.code} is not allowed on the external port"
            )
        internal = dispatch(request, connection)
        assert isinstance(internal, Command), "requests for addresses are answered synchronously"
        if internal.code != ResponseCode.SUCCESS:
            return internal
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.reply(
                body=write_document(external_cluster(read_document(internal.body, ClusterInfo), brokers))
            )
        if request.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
            return request.reply(
                body=write_document(external_listing(read_document(internal.body, TopicListing), brokers))
            )
        route = external_route(read_document(internal.body, TopicRoute), brokers)
        if route is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no broker of this topic has an external address")
        return request.reply(body=write_document(route))

    return answer


def external_route(route: TopicRoute, brokers: BrokerDirectory) -> TopicRoute | None:
    """Return the route with the brokers that have an external address; None without such brokers."""
    reachable = [
        one for one in (_with_external_addresses(broker, brokers) for broker in route.broker_datas) if one is not None
    ]
    reachable_names = {broker.broker_name for broker in reachable}
    if not reachable:
        return None
    mappings = route.topic_queue_mapping_by_broker
    return msgspec.structs.replace(
        route,
        broker_datas=reachable,
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name in reachable_names],
        filter_server_table={},
        topic_queue_mapping_by_broker=(
            None if mappings is None else {name: one for name, one in mappings.items() if name in reachable_names}
        ),
    )


def external_cluster(info: ClusterInfo, brokers: BrokerDirectory) -> ClusterInfo:
    """Return the cluster info with the brokers that have an external address."""
    reachable = {name: _with_external_addresses(broker, brokers) for name, broker in info.broker_addr_table.items()}
    return ClusterInfo(
        broker_addr_table={name: broker for name, broker in reachable.items() if broker is not None},
        cluster_addr_table={
            cluster: [name for name in names if reachable.get(name) is not None]
            for cluster, names in info.cluster_addr_table.items()
        },
    )


def external_listing(listing: TopicListing, brokers: BrokerDirectory) -> TopicListing:
    """Return the list of system topics with the external address of a broker, or with none.

    RocketMQ's administration client asks that broker for its system topics, too; without an address it does not.
    """
    reachable = (_with_external_addresses(broker, brokers) for _, broker in sorted(brokers.names.items()))
    first = next((broker.broker_addrs for broker in reachable if broker is not None), None)
    return msgspec.structs.replace(listing, broker_addr=None if first is None else first[min(first)])


def _with_external_addresses(broker: BrokerData, brokers: BrokerDirectory) -> BrokerData | None:
    addresses = {}
    for broker_id, address in broker.broker_addrs.items():
        live = brokers.find_live(broker.cluster, address)
        if live is not None and live.external_address:
            addresses[broker_id] = live.external_address
    return msgspec.structs.replace(broker, broker_addrs=addresses) if addresses else None
