"""PodDisruptionBudgets: which pods a drain may evict, so that nobody loses a role or an acknowledgement by it.

    masters of the group     none: the operator sees the cordon, moves the role, and the pod is a slave then
    slaves of a shard        one at a time, or none where sync would lose its last acknowledgement
    name servers             one at a time

A pod has one role label or none, so no pod is in two budgets: with two, evicting it would be an error for ever. The
budget of slaves counts with ``minAvailable``. ``maxUnavailable`` is worked out from the sizes of all StatefulSets that
a selected pod belongs to; after the role has moved, slaves are in both of a shard, the sum is one too large, and no
slave could be evicted again. For masters that only makes "none" more so.

Pods that are not healthy may always be evicted: a broker that does not serve protects nothing, and would only hold up
drains.
"""

from __future__ import annotations

from gantry_operator.objects import configuration, names
from gantry_operator.objects.base import Object, labels, made, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup

BUDGET = ("policy/v1", "PodDisruptionBudget")


def budgets(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Of the whole group."""
    name = group.metadata.name
    masters = selector(group, names.BROKER) | {names.ROLE_LABEL: names.MASTER_ROLE}
    found = [_budget(group, f"{name}-masters", labels(group, names.BROKER), masters, {"maxUnavailable": 0})]
    for shard in configuration.shard_numbers(group, facts):
        slaves = configuration.slaves_of(group, facts, shard)
        if slaves:
            chosen = selector(group, names.BROKER, shard) | {names.ROLE_LABEL: names.SLAVE_ROLE}
            least = slaves - (1 if may_lose_a_slave(group, facts, shard) else 0)
            found.append(
                _budget(
                    group,
                    f"{names.shard_name(name, shard)}-slaves",
                    labels(group, names.BROKER, shard),
                    chosen,
                    {"minAvailable": least},
                )
            )
    if group.spec.name_servers.count > 1:
        chosen = selector(group, names.NAME_SERVER)
        marked = labels(group, names.NAME_SERVER)
        found.append(_budget(group, names.name_server_set(name), marked, chosen, {"maxUnavailable": 1}))
    return found


def may_lose_a_slave(group: BrokerGroup, facts: Facts, shard: int) -> bool:
    """Whether enough could still acknowledge with one slave less."""
    needed = group.spec.replication.acks_needed
    if not needed:
        return True
    known = facts.shard(shard).slaves_in_sync
    able = configuration.slaves_of(group, facts, shard) if known is None else known
    return able - 1 >= needed


def _budget(
    group: BrokerGroup, name: str, marked: dict[str, str], chosen: dict[str, str], allowed: dict[str, int]
) -> Object:
    body = {"selector": {"matchLabels": chosen}, "unhealthyPodEvictionPolicy": "AlwaysAllow"} | allowed
    return made(group, BUDGET, name, marked, {"spec": body})
