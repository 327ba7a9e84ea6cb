"""The objects of a group's archive server, named `g-archive-server`; none if the spec names no archive.

    ConfigMap        the spec of the TopicArchive, with the settings of the server; its hash is in the pod template
    Deployment       the pods of `gantry pipeline serve`, of the image of pipelines. They only read the archive
    Service          the address for brokers, with the pods that can read the archive
    ServiceAccount   has no rights, and its token is mounted nowhere
    budget, policy   evictions one at a time, and the connections that the network admits: from brokers, to nowhere

    volume           mounted from                      what the server reads there
    configuration    the ConfigMap                     its settings
    credentials      the Secret of the same name       its certificate and key, and the secret that brokers know
    archive          the claim of the TopicArchive     the archive, read-only

Pods of brokers depend only on the Secret: they start, and serve what their log has, without a server.

A claim that only one Node can mount at a time is mounted by the archive's job, too. So the pods of server and job
prefer the same Node, and a server is stopped before its successor is started.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gantry_operator.objects import configuration, names, pod_parts
from gantry_operator.objects.base import Object, hash_of, json_text, labels, make_object, selector
from gantry_operator.objects.facts import ArchiveFacts, Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.quantities import size_text
from gantry_spec.manifest.retention import ArchiveServer

DEPLOYMENT: Final = ("apps/v1", "Deployment")
SETTINGS_FILE: Final = "archive.json"
FOLDER: Final = "/etc/gantry/archive-server"
"""The folder where the ConfigMap is mounted. The following path is one in the pod, too."""

ARCHIVE: Final = "/var/lib/gantry/archive"
SERVER: Final = "server"
"""The name of the container."""

BASE_BYTES: Final = 768 << 20
"""The memory of a server besides its cache: 90 MiB for Python with Arrow, 8 MiB for each of 64 open files, and two
chunks that are being read."""

CPU_DEFAULT: Final = "100m"
GRACE_SECONDS: Final = 30


def archive_server_objects(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return all objects of the archive server, dependencies first; none without an archive."""
    archive = facts.archive
    if group.spec.retention.archive is None or archive is None:
        return []
    found = [
        _policy(group, facts),
        _object(group, ("v1", "ServiceAccount"), {"automountServiceAccountToken": False}),
        _object(group, ("v1", "ConfigMap"), {"data": {SETTINGS_FILE: settings_text(group, archive)}}),
        _service(group),
        _deployment(group, facts, archive),
    ]
    return found + ([_budget(group)] if group.spec.retention.server.replicas > 1 else [])


def settings_text(group: BrokerGroup, archive: ArchiveFacts) -> str:
    """Return the configuration of `gantry pipeline serve`."""
    secret = configuration.ARCHIVE_SECRET
    serving = {
        "listen": f"[::]:{names.ARCHIVE_PORT}",
        "secretFile": f"{secret}/secret",
        "tls": {"certificateFile": f"{secret}/tls.crt", "keyFile": f"{secret}/tls.key"},
        "cache": str(group.spec.retention.server.cache),
    }
    destination = "/".join(word for word in (ARCHIVE, archive.path) if word)
    return json_text({**archive.spec, "serving": serving, "runtime": {"destination": destination}})


# -- pods --------------------------------------------------------------------------------------------------------------


def _deployment(group: BrokerGroup, facts: Facts, archive: ArchiveFacts) -> Object:
    is_stopped = facts.is_hibernated and not any(sum(shard.replicas) for shard in facts.shards)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    body = {
        "replicas": 0 if is_stopped else group.spec.retention.server.replicas,
        "strategy": {"type": "Recreate"} if archive.is_on_one_node else rolling,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(group, names.ARCHIVE_SERVER)},
        "template": _template(group, facts, archive),
    }
    return _object(group, DEPLOYMENT, {"spec": body})


def _template(group: BrokerGroup, facts: Facts, archive: ArchiveFacts) -> Object:
    """Return the pod template, with its hash, which contains that of the settings."""
    given, name = archive.template, names.archive_server_name(group.metadata.name)
    pod = pod_parts.pod_spec(
        facts,
        [_container(group, archive)],
        [
            {"name": "configuration", "configMap": {"name": name, "defaultMode": 0o444}},
            pod_parts.secret_volume("credentials", name, "secret", "tls.crt", "tls.key"),
            {"name": "archive", "persistentVolumeClaim": {"claimName": archive.claim}},
        ],
        securityContext=pod_parts.pod_security(pod_parts.PIPELINE_USER),
        serviceAccountName=name,
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    pod |= pod_parts.placement(given, _affinity(group, archive))
    annotations = pod_parts.without_reserved(given.annotations)
    annotations |= {names.CONFIGURATION_ANNOTATION: hash_of(settings_text(group, archive))}
    own_labels = pod_parts.without_reserved(given.labels) | labels(group, names.ARCHIVE_SERVER)
    metadata: dict[str, Any] = {"labels": own_labels}
    mark = hash_of({"metadata": metadata | {"annotations": annotations}, "spec": pod})
    return {"metadata": metadata | {"annotations": annotations | {names.TEMPLATE_ANNOTATION: mark}}, "spec": pod}


def _container(group: BrokerGroup, archive: ArchiveFacts) -> Object:
    ports = (("archive", names.ARCHIVE_PORT), ("page", names.ARCHIVE_PAGE_PORT))
    probe = partial(pod_parts.http_probe, port=names.ARCHIVE_PAGE_PORT)
    return {
        "name": SERVER,
        "image": archive.image,
        "imagePullPolicy": archive.pull_policy,
        "args": ["serve", "--pod", "--conf", f"{FOLDER}/{SETTINGS_FILE}"],
        "securityContext": pod_parts.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": pod_parts.identity_variables(),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        "resources": server_resources(group.spec.retention.server),
        "volumeMounts": [
            pod_parts.mount("configuration", FOLDER, is_read_only=True),
            pod_parts.mount("credentials", configuration.ARCHIVE_SECRET, is_read_only=True),
            pod_parts.mount("archive", ARCHIVE, is_read_only=True),
            pod_parts.tmp_mount(),
        ],
        "startupProbe": probe("/livez", period_s=1, failures=60),
        "livenessProbe": probe("/livez", period_s=10, failures=3),
        "readinessProbe": probe("/readyz", period_s=2, failures=1),
    }


def _affinity(group: BrokerGroup, archive: ArchiveFacts) -> Object:
    """Return the user's affinity, and a preference: different Nodes, or the one of all pods that mount the claim."""
    given, key = archive.template.affinity, "preferredDuringSchedulingIgnoredDuringExecution"
    if archive.is_on_one_node:
        beside_each_other = pod_parts.prefer_same_node(given, selector(group, names.ARCHIVE_SERVER))
        return pod_parts.prefer_same_node(beside_each_other, {names.PIPELINE_LABEL: archive.pipeline})
    ours = pod_parts.anti_affinity(group, names.ARCHIVE_SERVER, None, is_required=False)["podAntiAffinity"][key]
    anti = dict(given.get("podAntiAffinity") or {})
    return {**given, "podAntiAffinity": anti | {key: [*ours, *(anti.get(key) or [])]}}


def server_resources(server: ArchiveServer) -> Object:
    """Return the resources of the container. Memory that the spec does not set follows from the cache."""
    memory = size_text(-(-(BASE_BYTES + 2 * int(server.cache)) // (1 << 20)) << 20)
    return pod_parts.with_defaults(server.resources, memory, CPU_DEFAULT)


# -- network and disruption --------------------------------------------------------------------------------------------


def _service(group: BrokerGroup) -> Object:
    """Return the Service. It has only servers that can read the archive."""
    port = {"name": "archive", "port": names.ARCHIVE_PORT, "targetPort": names.ARCHIVE_PORT, "protocol": "TCP"}
    body = {"type": "ClusterIP", "selector": selector(group, names.ARCHIVE_SERVER), "ports": [port]}
    return _object(group, ("v1", "Service"), {"spec": body})


def _policy(group: BrokerGroup, facts: Facts) -> Object:
    """Return the network policy: brokers of the group, and for the report the operator; no connection from a server.

    There is no list of admitted destinations: the API server drops an empty one, and each apply would be a change.
    """
    brokers = {"podSelector": {"matchLabels": selector(group, names.BROKER)}}
    operator = {
        "namespaceSelector": {"matchLabels": {names.NAMESPACE_LABEL: facts.operator_namespace}},
        "podSelector": {"matchLabels": dict(facts.operator_labels)},
    }
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(facts.prometheus_labels)}}
    body = {
        "podSelector": {"matchLabels": selector(group, names.ARCHIVE_SERVER)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"ports": [{"protocol": "TCP", "port": names.ARCHIVE_PORT}], "from": [brokers]},
            {"ports": [{"protocol": "TCP", "port": names.ARCHIVE_PAGE_PORT}], "from": [operator, prometheus]},
        ],
    }
    return _object(group, ("networking.k8s.io/v1", "NetworkPolicy"), {"spec": body})


def _budget(group: BrokerGroup) -> Object:
    body = {
        "selector": {"matchLabels": selector(group, names.ARCHIVE_SERVER)},
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _object(group, ("policy/v1", "PodDisruptionBudget"), {"spec": body})


def _object(group: BrokerGroup, kind: tuple[str, str], body: Object) -> Object:
    """Return an object of the archive server."""
    name = names.archive_server_name(group.metadata.name)
    return make_object(group, kind, name, labels(group, names.ARCHIVE_SERVER), body)
