"""What rendering needs to know, from what the caches have: who has to stay, who is in sync, what machines have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gantry_operator.api import NODES, SERVICES, Object
from gantry_operator.cache import Cache
from gantry_operator.objects import Facts, NodeFacts, ShardFacts, hugepages_shortage
from gantry_operator.objects.memory import HUGEPAGES
from gantry_operator.objects.outside import outside_address
from gantry_operator.observing.group_objects import GroupObjects, replicas_meant, replicas_of
from gantry_spec.decide.decision import Condition
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.quantities import parse_size


def facts_of(
    base: Facts,
    group: BrokerGroup,
    objects: GroupObjects,
    ledgers: Mapping[int, Ledger],
    *,
    is_hibernated: bool = False,
) -> Facts:
    """For one rendering.

    A StatefulSet never shrinks by being rendered: as many slaves as it has have to stay until an action removes one. A
    shard that is scaled away stays as long as its first member does.
    """
    shards = []
    for number in sorted(objects.shards()):
        sets = objects.sets(number)
        if number >= group.spec.shards and not replicas_meant(sets.master):
            continue
        ledger = ledgers.get(number)
        is_known = ledger is not None and ledger.is_fresh
        shards.append(
            ShardFacts(
                number=number,
                slaves=replicas_meant(sets.slave),
                master_pod=objects.master_pod(number),
                pods=(replicas_of(sets.master), replicas_of(sets.slave)) if is_hibernated else (0, 0),
                slaves_in_sync=len(ledger.in_sync) if ledger is not None and is_known else None,
            )
        )
    nodes = tuple(node_facts(objects.cache))
    outside = outside_of(objects)
    return msgspec.structs.replace(
        base, shards=tuple(shards), nodes=nodes, outside=outside, is_hibernated=is_hibernated
    )


def outside_of(objects: GroupObjects) -> dict[str, str]:
    """Addresses that the cluster has given to Services for clients outside of it, by name."""
    nodes, found = objects.cache.of_kind(NODES), {}
    for service in objects.cache.of_group(SERVICES, objects.key):
        if (service.get("spec") or {}).get("type") in ("LoadBalancer", "NodePort"):
            address = outside_address(service, nodes)
            if address is not None:
                found[service["metadata"]["name"]] = address
    return found


def node_facts(cache: Cache) -> Iterable[NodeFacts]:
    """Of every machine."""
    for node in cache.of_kind(NODES):
        yield _node(node)


def huge_pages(spec: Spec, cache: Cache) -> Condition:
    """Whether some machine could take a broker."""
    shortage = hugepages_shortage(spec, node_facts(cache))
    if shortage is None:
        return Condition(type="HugePagesReady", is_so=True, reason="EnoughOrNotAsked")
    return Condition(type="HugePagesReady", is_so=False, reason="TooFew", message=shortage)


def _node(node: Object) -> NodeFacts:
    room = (node.get("status") or {}).get("allocatable") or {}
    return NodeFacts(
        name=node["metadata"]["name"],
        memory_bytes=_size(room.get("memory", "0")),
        hugepages_bytes=_size(room.get(HUGEPAGES, "0")),
    )


def _size(text: object) -> int:
    try:
        return parse_size(text)
    except ValueError:
        return 0
