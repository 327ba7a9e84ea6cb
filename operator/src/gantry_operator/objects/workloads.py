"""StatefulSets of a shard and of the name servers, what their volumes are, and which pods a drain may evict.

``Parallel`` and ``OnDelete``: Kubernetes makes pods and starts them again, and never decides which broker goes down
next. With its own order, a pod that cannot become ready would also hold back the template that mends it.

Claims are owned by nobody, and a StatefulSet deletes them only where the group says so. A pod that was rendered with
another hash than its StatefulSet's template has is started with something old.
"""

from __future__ import annotations

import copy

from gantry_operator.objects import configuration, names, pod_parts
from gantry_operator.objects.base import Object, hash_of, labels, made, selector
from gantry_operator.objects.broker_pod import broker_template
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType, Retain
from gantry_spec.manifest.quantities import size_text

STATEFUL_SET = ("apps/v1", "StatefulSet")
NAME_SERVER_DATA = "/var/lib/gantry"


def shard_sets(group: BrokerGroup, facts: Facts, shard: int) -> list[Object]:
    """The master's and the slaves' home. Raises ``CannotFit``."""
    template = broker_template(group, facts, shard)
    twin = copy.deepcopy(template)  # so that whoever changes one object does not change another
    slaves = configuration.slaves_of(group, facts, shard)
    name = group.metadata.name
    wanted = facts.shard(shard).pods if facts.is_hibernated else (1, slaves)
    sets = [
        _broker_set(group, shard, names.master_set(name, shard), wanted[0], template),
        _broker_set(group, shard, names.slave_set(name, shard), wanted[1], twin),
    ]
    for one in sets:
        if facts.is_hibernated:  # or the volumes of pods that sleep would be taken for those that were scaled away
            one["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] = "Retain"
    return sets


def _broker_set(group: BrokerGroup, shard: int, name: str, replicas: int, template: Object) -> Object:
    """Both have the same template, so a pod is told apart from its twin by the label of its home."""
    home = {names.HOME_LABEL: name}
    marked = labels(group, names.BROKER, shard) | home
    metadata = template["metadata"]
    own = template | {"metadata": metadata | {"labels": metadata["labels"] | home | _member_label(group, shard, name)}}
    retained = "Retain" if group.spec.storage.retain is Retain.ALWAYS else "Delete"
    body = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": retained, "whenScaled": retained},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(group, names.BROKER, shard) | home},
        "template": own,
        "volumeClaimTemplates": [_claim(group, shard, home)],
    }
    return made(group, STATEFUL_SET, name, marked, {"spec": body})


def _member_label(group: BrokerGroup, shard: int, name: str) -> dict[str, str]:
    return {names.MEMBER_LABEL: "1"} if name == names.master_set(group.metadata.name, shard) else {}


def _claim(group: BrokerGroup, shard: int, home: dict[str, str]) -> Object:
    storage = group.spec.storage
    body: Object = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": size_text(storage.size)}},
    }
    if storage.storage_class_name:
        body["storageClassName"] = storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": labels(group, names.BROKER, shard) | home},
        "spec": body,
    }


def name_server_set(group: BrokerGroup, facts: Facts) -> Object | None:
    """The group's own name servers, if it has some."""
    count = group.spec.name_servers.count
    if not count:
        return None
    name = names.name_server_set(group.metadata.name)
    marked = labels(group, names.NAME_SERVER)
    pod = pod_parts.pod_spec(
        facts,
        [_name_server(group, facts)],
        [{"name": "data", "emptyDir": {"sizeLimit": "64Mi"}}, *_name_server_volumes(group)],
        terminationGracePeriodSeconds=30,
        affinity=pod_parts.apart(group, names.NAME_SERVER, None, is_demanded=False),
        topologySpreadConstraints=[pod_parts.over_zones(group, names.NAME_SERVER, None)],
    )
    template = {"metadata": {"labels": marked, "annotations": {}}, "spec": pod}
    template = template | {
        "metadata": {"labels": marked, "annotations": {names.TEMPLATE_ANNOTATION: hash_of(template)}}
    }
    body = {
        "replicas": 0 if facts.is_hibernated and not any(sum(one.pods) for one in facts.shards) else count,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(group, names.NAME_SERVER)},
        "template": template,
    }
    return made(group, STATEFUL_SET, name, marked, {"spec": body})


def _name_server(group: BrokerGroup, facts: Facts) -> Object:
    access = group.spec.access
    lines = [f"listenPort={names.NAME_SERVER_PORT}"]
    mounts = [pod_parts.mount("data", NAME_SERVER_DATA), pod_parts.temporary()]
    if access.external.type is not ExternalType.NONE:
        lines.append(f"externalListenPort={names.OUTER_NAME_SERVER_PORT}")
    if access.acl_secret:
        lines += ["aclEnable=true", f"aclFile={configuration.ACCOUNTS}/plain_acl.yml"]
        mounts.append(pod_parts.mount("accounts", configuration.ACCOUNTS, is_read_only=True))
    if access.tls_secret:
        lines += [f"{key}={value}" for key, value in configuration.tls_keys()]
        mounts.append(pod_parts.mount("certificates", configuration.CERTIFICATES, is_read_only=True))
    return pod_parts.container(
        group,
        facts,
        names.NAME_SERVER,
        ["pod", "nameserver", "--data", NAME_SERVER_DATA],
        env=[{"name": "GANTRY_NAMESERVER_CONF", "value": "\n".join([*lines, ""])}],
        ports=[{"name": names.NAME_SERVER, "containerPort": names.NAME_SERVER_PORT, "protocol": "TCP"}],
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        volumeMounts=mounts,
        livenessProbe=pod_parts.tcp_probe(names.ALIVE_PORT, period_s=10, failures=6),
        readinessProbe=pod_parts.tcp_probe(names.NAME_SERVER_PORT, period_s=2, failures=2),
    )


def _name_server_volumes(group: BrokerGroup) -> list[Object]:
    access, found = group.spec.access, []
    if access.acl_secret:
        found.append(pod_parts.secret_volume("accounts", access.acl_secret, "plain_acl.yml"))
    if access.tls_secret:
        found.append(pod_parts.secret_volume("certificates", access.tls_secret))
    return found


# -- disruption --------------------------------------------------------------------------------------------------------

BUDGET = ("policy/v1", "PodDisruptionBudget")


def budgets(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Which pods a drain may evict, so that no role and no acknowledgement is lost by it.

        masters of the group     none: the operator sees the cordon, moves the role, and the pod is a slave then
        slaves of a shard        one at a time, or none where sync would lose its last acknowledgement
        name servers             one at a time

    A pod has one role label or none, so no pod is in two budgets: with two, evicting it would be an error for ever. The
    budget of slaves counts with ``minAvailable``. ``maxUnavailable`` is worked out from the sizes of all StatefulSets
    that a selected pod belongs to; after the role has moved, slaves are in both of a shard, the sum is one too large,
    and no slave could be evicted again. For masters that only makes "none" more so.

    Pods that are not healthy may always be evicted: a broker that does not serve protects nothing, and would only hold
    up drains.
    """
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
