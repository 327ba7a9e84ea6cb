"""The StatefulSets of a shard and of the name servers, their volumes, and the disruption budgets.

The policies of brokers are ``Parallel`` and ``OnDelete``: Kubernetes creates and restarts pods, but never chooses the
next broker to stop. With ordered updates, a pod that cannot become ready would also block the template that fixes it.
Name servers use ``RollingUpdate``.

Claims have no owner, and a StatefulSet deletes them only if the group's spec says so. A pod whose template hash differs
from that of its StatefulSet runs with an outdated template.
"""

from __future__ import annotations

import copy

from gantry_operator.objects import certificates, configuration, names, pod_parts
from gantry_operator.objects.base import Object, hash_of, labels, make_object, selector
from gantry_operator.objects.broker_pod import broker_template
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType, Retain
from gantry_spec.manifest.quantities import size_text

STATEFUL_SET = ("apps/v1", "StatefulSet")
NAME_SERVER_DATA = "/var/lib/gantry"


def shard_sets(group: BrokerGroup, facts: Facts, shard: int) -> list[Object]:
    """Return the StatefulSets of the master and the slaves. Raises ``ImpossibleResources``."""
    template = broker_template(group, facts, shard)
    slave_template = copy.deepcopy(template)  # a change of one object must not change the other
    slaves = configuration.slaves_of(group, facts, shard)
    name = group.metadata.name
    wanted = facts.shard(shard).replicas if facts.is_hibernated else (1, slaves)
    sets = [
        _broker_set(group, shard, names.master_set(name, shard), wanted[0], template),
        _broker_set(group, shard, names.slave_set(name, shard), wanted[1], slave_template),
    ]
    for one in sets:
        if facts.is_hibernated:  # the volumes of hibernated pods must not be deleted as those of removed ones
            one["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] = "Retain"
    return sets


def _broker_set(group: BrokerGroup, shard: int, name: str, replicas: int, template: Object) -> Object:
    """Return one StatefulSet. Both of a shard have the same template; a label with its name (``HOME_LABEL``) separates
    their pods."""
    home = {names.HOME_LABEL: name}
    own_labels = labels(group, names.BROKER, shard) | home
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
    return make_object(group, STATEFUL_SET, name, own_labels, {"spec": body})


def _member_label(group: BrokerGroup, shard: int, name: str) -> dict[str, str]:
    """Return the label with the number of the member in the master's StatefulSet; none for that of slaves."""
    return {names.MEMBER_LABEL: "1"} if name == names.master_set(group.metadata.name, shard) else {}


def _claim(group: BrokerGroup, shard: int, home: dict[str, str]) -> Object:
    """Return the claim template of a broker's volume."""
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
    """Return the StatefulSet of the group's own name servers; None if it has none."""
    count = group.spec.name_servers.count
    if not count:
        return None
    name = names.name_server_set(group.metadata.name)
    own_labels = labels(group, names.NAME_SERVER)
    pod = pod_parts.pod_spec(
        facts,
        [_name_server(group, facts)],
        [{"name": "data", "emptyDir": {"sizeLimit": "64Mi"}}, *_name_server_volumes(group)],
        terminationGracePeriodSeconds=30,
        affinity=pod_parts.anti_affinity(group, names.NAME_SERVER, None, is_required=False),
        topologySpreadConstraints=[pod_parts.zone_spread(group, names.NAME_SERVER, None)],
    )
    template = {"metadata": {"labels": own_labels, "annotations": {}}, "spec": pod}
    template = template | {
        "metadata": {"labels": own_labels, "annotations": {names.TEMPLATE_ANNOTATION: hash_of(template)}}
    }
    body = {
        "replicas": 0 if facts.is_hibernated and not any(sum(one.replicas) for one in facts.shards) else count,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(group, names.NAME_SERVER)},
        "template": template,
    }
    return make_object(group, STATEFUL_SET, name, own_labels, {"spec": body})


def _name_server(group: BrokerGroup, facts: Facts) -> Object:
    access, hosts = group.spec.access, certificates.name_server_hosts(group)
    own = certificates.issue_arguments(group, hosts)
    lines = [f"listenPort={names.NAME_SERVER_PORT}", "bindAddress=::"]
    mounts = [pod_parts.mount("data", NAME_SERVER_DATA), pod_parts.tmp_mount()]
    if access.external.type is not ExternalType.NONE:
        lines.append(f"externalListenPort={names.EXTERNAL_NAME_SERVER_PORT}")
    if access.acl_secret:
        lines += ["aclEnable=true", f"aclFile={configuration.ACCOUNTS}/plain_acl.yml"]
        mounts.append(pod_parts.mount("accounts", configuration.ACCOUNTS, is_read_only=True))
    if access.has_tls:
        lines += [f"{key}={value}" for key, value in configuration.tls_keys()]
        mounts += certificates.mounts(group, is_issuing=True)
    return pod_parts.container(
        group,
        facts,
        names.NAME_SERVER,
        ["pod", "nameserver", "--data", NAME_SERVER_DATA, *own],
        env=[
            {"name": "GANTRY_NAMESERVER_CONF", "value": "\n".join([*lines, ""])},
            *certificates.variables(group),
        ],
        ports=[{"name": names.NAME_SERVER, "containerPort": names.NAME_SERVER_PORT, "protocol": "TCP"}],
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        volumeMounts=mounts,
        livenessProbe=pod_parts.tcp_probe(names.ALIVE_PORT, period_s=10, failures=6),
        readinessProbe=pod_parts.tcp_probe(names.NAME_SERVER_PORT, period_s=2, failures=2),
    )


def _name_server_volumes(group: BrokerGroup) -> list[Object]:
    secret, found = group.spec.access.acl_secret, certificates.volumes(group)
    return [pod_parts.secret_volume("accounts", secret, "plain_acl.yml"), *found] if secret else found


# -- disruption --------------------------------------------------------------------------------------------------------

BUDGET = ("policy/v1", "PodDisruptionBudget")


def budgets(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return the disruption budgets: they limit which pods a drain may evict, so that sends continue meanwhile.

        masters of the group     none: the operator notices the cordon and moves the role; then the pod is a slave
        slaves of a shard        one at a time, or none where sync replication would lack acknowledgements
        name servers             one at a time

    A pod has at most one role label, so no pod is in two budgets: the eviction of a pod in two budgets always fails.
    The budget of slaves uses ``minAvailable``. Kubernetes computes ``maxUnavailable`` from the sizes of all
    StatefulSets of the selected pods. After a switchover the slaves are in both StatefulSets of a shard, the sum is one
    too large, and no slave could be evicted. For masters this makes no difference, because none may be evicted.

    Unhealthy pods may always be evicted: a broker that does not serve protects nothing, and would only block drains.
    """
    name = group.metadata.name
    masters = selector(group, names.BROKER) | {names.ROLE_LABEL: names.MASTER_ROLE}
    found = [_budget(group, f"{name}-masters", labels(group, names.BROKER), masters, {"maxUnavailable": 0})]
    for shard in configuration.shard_numbers(group, facts):
        slaves = configuration.slaves_of(group, facts, shard)
        if slaves:
            chosen = selector(group, names.BROKER, shard) | {names.ROLE_LABEL: names.SLAVE_ROLE}
            least = slaves - (1 if can_lose_slave(group, facts, shard) else 0)
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
        own_labels = labels(group, names.NAME_SERVER)
        found.append(_budget(group, names.name_server_set(name), own_labels, chosen, {"maxUnavailable": 1}))
    return found


def can_lose_slave(group: BrokerGroup, facts: Facts, shard: int) -> bool:
    """Return whether enough slaves could still acknowledge with one slave less."""
    needed = group.spec.replication.acks_needed
    if not needed:
        return True
    known = facts.shard(shard).slaves_acknowledging
    able = configuration.slaves_of(group, facts, shard) if known is None else known
    return able - 1 >= needed


def _budget(
    group: BrokerGroup, name: str, own_labels: dict[str, str], chosen: dict[str, str], allowed: dict[str, int]
) -> Object:
    """Return a disruption budget for the pods with the labels ``chosen``; ``allowed`` is its limit."""
    body = {"selector": {"matchLabels": chosen}, "unhealthyPodEvictionPolicy": "AlwaysAllow"} | allowed
    return make_object(group, BUDGET, name, own_labels, {"spec": body})
