"""Renders all objects of a group except its Secret, in the order in which to apply them: dependencies first."""

from __future__ import annotations

from gantry_operator.objects import (
    access,
    archive_server,
    certificates,
    configuration,
    gateway,
    monitoring,
    network,
    proxy,
    workloads,
)
from gantry_operator.objects.base import Object
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup


def render(group: BrokerGroup, facts: Facts) -> tuple[Object, ...]:
    """Return the desired objects. Raises ``ImpossibleResources`` if pods of this spec cannot work."""
    assert group.metadata.namespace and group.metadata.uid, "a group in a cluster has a namespace and a uid"
    shards = configuration.shard_numbers(group, facts)
    stateful_sets = [one for shard in shards for one in workloads.shard_sets(group, facts, shard)]
    name_servers = workloads.name_server_set(group, facts)
    found = network.policies(group, facts)
    found += certificates.certificate_objects(group, facts)
    for shard in shards:
        found += access.shard_account(group, shard)
        found.append(configuration.config_map(group, facts, shard))
        found += network.shard_services(group, facts, shard)
    found += network.name_server_services(group)
    found += gateway.gateway_routes(group, facts)
    found += workloads.budgets(group, facts)
    found += [name_servers] if name_servers is not None else []
    found += stateful_sets
    found += proxy.proxy_objects(group, facts)
    found += archive_server.archive_server_objects(group, facts)
    found += monitoring.monitors(group, facts)
    return tuple(found)
