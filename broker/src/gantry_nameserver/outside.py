"""What clients outside of the network are told: the same routes, with the addresses that reach brokers from there.

A broker may register a second address beside its own (`externalAddr`, a field that other name servers ignore). Whoever
asks on `externalListenPort` is answered with those; a broker without one is left out, since its inner address would
only make a client there wait. On that port nothing can be changed and no broker registers: it is the side of strangers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_nameserver.directory import BrokerDirectory
from gantry_remoting.server import Answer, Connection, Dispatch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.nameserver import BrokerData, ClusterInfo, TopicRoute

AS_THEY_ARE: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    }
)
"""Questions whose answers name no address."""


def seen_from_outside(dispatch: Dispatch, brokers: BrokerDirectory) -> Dispatch:
    """`dispatch` for the other side."""

    def answer(request: Command, connection: Connection) -> Answer:
        if request.code in AS_THEY_ARE:
            return dispatch(request, connection)
        if request.code not in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            return request.reply(ResponseCode.NO_PERMISSION, f"request {request.code} is not answered on this side")
        inner = dispatch(request, connection)
        assert isinstance(inner, Command), "routes are answered at once"
        if inner.code != ResponseCode.SUCCESS:
            return inner
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.reply(body=write_document(outside_cluster(read_document(inner.body, ClusterInfo), brokers)))
        route = outside_route(read_document(inner.body, TopicRoute), brokers)
        if route is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no broker of this topic can be reached from outside")
        return request.reply(body=write_document(route))

    return answer


def outside_route(route: TopicRoute, brokers: BrokerDirectory) -> TopicRoute | None:
    """A topic's brokers that can be reached from outside; None if there is none."""
    seen = [one for one in (_outside(broker, brokers) for broker in route.broker_datas) if one is not None]
    known = {broker.broker_name for broker in seen}
    if not seen:
        return None
    mappings = route.topic_queue_mapping_by_broker
    return msgspec.structs.replace(
        route,
        broker_datas=seen,
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name in known],
        filter_server_table={},
        topic_queue_mapping_by_broker=(
            None if mappings is None else {name: one for name, one in mappings.items() if name in known}
        ),
    )


def outside_cluster(info: ClusterInfo, brokers: BrokerDirectory) -> ClusterInfo:
    """All brokers that can be reached from outside."""
    seen = {name: _outside(broker, brokers) for name, broker in info.broker_addr_table.items()}
    return ClusterInfo(
        broker_addr_table={name: broker for name, broker in seen.items() if broker is not None},
        cluster_addr_table={
            cluster: [name for name in names if seen.get(name) is not None]
            for cluster, names in info.cluster_addr_table.items()
        },
    )


def _outside(broker: BrokerData, brokers: BrokerDirectory) -> BrokerData | None:
    addresses = {}
    for broker_id, address in broker.broker_addrs.items():
        live = brokers.live(broker.cluster, address)
        if live is not None and live.external_address:
            addresses[broker_id] = live.external_address
    return msgspec.structs.replace(broker, broker_addrs=addresses) if addresses else None
