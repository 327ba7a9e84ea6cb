"""StatefulSets of a shard and of the name servers, and what their volumes are.

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
