"""The facts about the cluster for rendering the objects of a group, from the caches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gantry_operator.api import NODES, SERVICES, Object
from gantry_operator.cache import Cache
from gantry_operator.objects import Facts, NodeFacts, ShardFacts, external_address, hugepages_shortage
from gantry_operator.objects.memory import HUGEPAGES
from gantry_operator.observe.group_objects import GroupObjects, intended_replicas, replicas_of
from gantry_spec.decide.decision import Condition
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.parts import Medium
from gantry_spec.manifest.quantities import quantity_bytes


def facts_of(
    base: Facts,
    group: BrokerGroup,
    objects: GroupObjects,
    ledgers: Mapping[int, Ledger],
    *,
    is_hibernated: bool = False,
) -> Facts:
    """Return the facts for rendering the objects of a group.

    Rendering never shrinks a StatefulSet: its slaves stay until an action removes one. A shard that is scaled away
    stays as long as its first member does.
    """
    shards = []
    for number in sorted(objects.shards()):
        stateful_sets = objects.stateful_sets(number)
        if number >= group.spec.shards and not intended_replicas(stateful_sets.master):
            continue
        ledger = ledgers.get(number)
        is_known = ledger is not None and ledger.is_fresh
        shards.append(
            ShardFacts(
                number=number,
                slaves=intended_replicas(stateful_sets.slave),
                master_pod=objects.master_pod(number),
                replicas=(replicas_of(stateful_sets.master), replicas_of(stateful_sets.slave))
                if is_hibernated
                else (0, 0),
                slaves_acknowledging=len(ledger.acknowledging) if ledger is not None and is_known else None,
            )
        )
    nodes = tuple(node_facts(objects.cache))
    addresses = external_addresses_of(objects)
    return msgspec.structs.replace(
        base, shards=tuple(shards), nodes=nodes, external_addresses=addresses, is_hibernated=is_hibernated
    )


def external_addresses_of(objects: GroupObjects) -> dict[str, str]:
    """Return the addresses that the cluster has assigned to Services for external clients, by Service name."""
    nodes, found = objects.cache.of_kind(NODES), {}
    for service in objects.cache.of_group(SERVICES, objects.key):
        if (service.get("spec") or {}).get("type") in ("LoadBalancer", "NodePort"):
            address = external_address(service, nodes)
            if address is not None:
                found[service["metadata"]["name"]] = address
    return found


def node_facts(cache: Cache) -> Iterable[NodeFacts]:
    """Yield the facts of every Node."""
    for node in cache.of_kind(NODES):
        yield _node(node)


def huge_pages_condition(spec: Spec, cache: Cache) -> Condition:
    """Return the condition whether at least one Node has enough huge pages for a broker.

    It is unknown where a broker needs some and no Node is known, since the operator may not read Nodes.
    """
    nodes = list(node_facts(cache))
    if spec.write_buffer.medium is Medium.HUGE_PAGES and not nodes:
        return Condition(type="HugePagesReady", is_true=None, reason="NodesUnknown", message="no Node can be read")
    shortage = hugepages_shortage(spec, nodes)
    if shortage is None:
        return Condition(type="HugePagesReady", is_true=True, reason="EnoughOrNotRequested")
    return Condition(type="HugePagesReady", is_true=False, reason="TooFew", message=shortage)


def _node(node: Object) -> NodeFacts:
    room = (node.get("status") or {}).get("allocatable") or {}
    return NodeFacts(
        name=node["metadata"]["name"],
        memory_bytes=_size(room.get("memory", "0")),
        hugepages_bytes=_size(room.get(HUGEPAGES, "0")),
    )


def _size(text: object) -> int:
    return quantity_bytes(str(text)) or 0
