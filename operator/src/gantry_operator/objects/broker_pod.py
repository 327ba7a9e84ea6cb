"""The pod of a broker: the broker, and the sidecar, which starts before it and stops after it.

    container broker     PID 1 `gantry pod broker`: restarts a crashed broker, at first at once, and drains at SIGTERM
    container sidecar    `gantry pod sidecar`, a native sidecar: kubelet stops it after the broker has drained

    volume       broker   sidecar
    data         write    read       the store
    buffers      write    -          hugetlbfs or tmpfs; the sidecar has no pages of its own, and would get SIGBUS
    run          write    write      status page and control socket
    group        read     read       the shard's ConfigMap
    replication  read     -          the secret with which brokers authenticate each other
    archive      read     -          the CA and the secret of the archive server, if the group names an archive
    sidecar      -        read       the tokens that the sidecar accepts
    api          -        read       the token for the shard's Lease, which allows nothing else
    accounts     read     read       the Secret of ``access.aclSecret``, if it is set
    certificates read     read       the certificate, if the group has TLS; see ``certificates`` for its volumes. A
                                     group's own certificates are issued by the sidecar, which therefore can write here
    tmp          write    write      temporary files

Probes: the pod is ready when its sidecar reports so. The liveness probe of the broker's container uses a port of its
supervisor, which is open while the broker recovers, however long that takes. The startup probe of the sidecar is
`/livez`: kubelet starts the broker only after the sidecar has started, so a startup probe that needs the broker would
wait for ever.

The user's template is applied last, and cannot override any of this.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from gantry_operator.objects import certificates, configuration, memory, names, pod_parts
from gantry_operator.objects.base import Object, hash_of, labels
from gantry_operator.objects.facts import Facts
from gantry_spec.cluster_objects import BROKER_CONTAINER
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import Medium
from gantry_spec.manifest.quantities import size_text

SIDECAR_CONTAINER = "sidecar"
API_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def broker_template(group: BrokerGroup, facts: Facts, shard: int) -> Object:
    """Return the pod template of both StatefulSets of a shard, with its hash. Raises ``ImpossibleResources``."""
    given, broker = group.spec.template, _broker(group, facts, shard)
    pod = pod_parts.pod_spec(
        facts,
        [broker],
        _volumes(group, shard),
        initContainers=[_sidecar(group, facts, shard)],
        serviceAccountName=names.shard_name(group.metadata.name, shard),
        terminationGracePeriodSeconds=max(1, -(-int(given.termination_grace_period) // 1000)),
        topologySpreadConstraints=[
            pod_parts.zone_spread(group, names.BROKER, shard),
            *given.topology_spread_constraints,
        ],
    )
    pod |= pod_parts.placement(given, _affinity(group, shard))
    metadata: dict[str, Any] = {"labels": pod_parts.without_reserved(given.labels) | labels(group, names.BROKER, shard)}
    annotations = {"kubectl.kubernetes.io/default-container": BROKER_CONTAINER}
    annotations |= pod_parts.without_reserved(given.annotations)
    template = {"metadata": metadata | {"annotations": annotations}, "spec": pod}
    annotations |= {
        names.TEMPLATE_ANNOTATION: _mark_of(template),
        names.RESOURCES_ANNOTATION: json.dumps(memory.resizable(broker["resources"]), sort_keys=True),
    }
    metadata = metadata | {"annotations": annotations}
    return template | {"metadata": metadata}


def _mark_of(template: Object) -> str:
    """Return the hash of a template, except for the resources of the broker that can change while it runs."""
    containers = [
        one | {"resources": memory.without_resizable(one["resources"])} if one["name"] == BROKER_CONTAINER else one
        for one in template["spec"]["containers"]
    ]
    return hash_of(template | {"spec": template["spec"] | {"containers": containers}})


def _broker(group: BrokerGroup, facts: Facts, shard: int) -> Object:
    variables = [
        *pod_parts.identity_variables(),
        pod_parts.field_variable("POD_UID", "metadata.uid"),
        {"name": "GANTRY_BROKER_CONF", "value": configuration.startup_conf(group, shard)},
    ]
    mounts = [
        pod_parts.mount("data", configuration.STORE_FOLDER),
        pod_parts.mount("run", configuration.RUN),
        pod_parts.mount("group", configuration.CONFIGURATION, is_read_only=True),
        pod_parts.mount("replication", configuration.REPLICATION_SECRET, is_read_only=True),
        pod_parts.tmp_mount(),
        *_access_mounts(group),
    ]
    if group.spec.retention.archive is not None:
        mounts.append(pod_parts.mount("archive", configuration.ARCHIVE_SECRET, is_read_only=True))
    if group.spec.write_buffer.medium is not Medium.OFF:
        mounts.append(pod_parts.mount("buffers", configuration.BUFFERS))
    ports = (("broker", names.BROKER_PORT), ("fast", names.FAST_PORT), ("replication", names.REPLICATION_PORT))
    return pod_parts.container(
        group,
        facts,
        BROKER_CONTAINER,
        ["pod", "broker"],
        env=variables,
        ports=[{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        resources=memory.broker_resources(group.spec),
        volumeMounts=mounts,
        livenessProbe=pod_parts.tcp_probe(names.ALIVE_PORT, period_s=10, failures=6),
    )


def _sidecar(group: BrokerGroup, facts: Facts, shard: int) -> Object:
    access = group.spec.access
    arguments = [
        *("pod", "sidecar", *certificates.issue_arguments(group, certificates.broker_hosts(group, shard)), "--"),
        *("--page", configuration.STATUS_PAGE, "--control", configuration.CONTROL),
        *("--store", configuration.STORE, "--broker", f"127.0.0.1:{names.BROKER_PORT}"),
        *("--listen", f"[::]:{names.SIDECAR_PORT}", "--log-listen", f"[::]:{names.LOG_PORT}"),
        *("--token-file", f"{configuration.SIDECAR_SECRET}/tokens"),
        *("--read-token-file", f"{configuration.SIDECAR_SECRET}/read-tokens"),
        *("--max-lag", str(int(group.spec.replication.max_lag))),
        *("--topics-file", f"{configuration.CONFIGURATION}/{configuration.TOPICS_FILE}"),
        *("--lease", f"{group.metadata.namespace}/{names.shard_name(group.metadata.name, shard)}", "--regain"),
    ]
    if access.acl_secret:
        arguments += ["--broker-credentials", f"{configuration.ACCOUNTS}/credentials"]
    if access.has_tls:
        authority, chain = f"{configuration.CERTIFICATES}/ca.crt", f"{configuration.CERTIFICATES}/tls"
        arguments += ["--broker-tls-ca", authority, "--broker-tls-verify", "authority"]
        arguments += ["--tls-cert", f"{chain}.crt", "--tls-key", f"{chain}.key"]
        arguments += ["--peer-ca", authority, "--peer-verify", "authority"]
    mounts = [
        pod_parts.mount("data", configuration.STORE_FOLDER, is_read_only=True),
        pod_parts.mount("run", configuration.RUN),
        pod_parts.mount("group", configuration.CONFIGURATION, is_read_only=True),
        pod_parts.mount("sidecar", configuration.SIDECAR_SECRET, is_read_only=True),
        pod_parts.mount("api", API_FOLDER, is_read_only=True),
        pod_parts.tmp_mount(),
        *_access_mounts(group, is_issuing=True),
    ]
    ports = (("http", names.SIDECAR_PORT), ("log", names.LOG_PORT))
    probe = partial(pod_parts.http_probe, is_tls=access.has_tls)
    return pod_parts.container(
        group,
        facts,
        SIDECAR_CONTAINER,
        arguments,
        restartPolicy="Always",
        env=[*pod_parts.identity_variables(), *certificates.variables(group)],
        ports=[{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        resources=memory.sidecar_resources(),
        volumeMounts=mounts,
        startupProbe=probe("/livez", period_s=1, failures=60),
        livenessProbe=probe("/livez", period_s=10, failures=3),
        readinessProbe=probe("/readyz", period_s=2, failures=1),
    )


def _access_mounts(group: BrokerGroup, *, is_issuing: bool = False) -> list[Object]:
    found = certificates.mounts(group, is_issuing=is_issuing)
    if group.spec.access.acl_secret:
        found.insert(0, pod_parts.mount("accounts", configuration.ACCOUNTS, is_read_only=True))
    return found


def _volumes(group: BrokerGroup, shard: int) -> list[Object]:
    """Return all volumes except the data, which comes from a claim template."""
    name, access, buffer = group.metadata.name, group.spec.access, group.spec.write_buffer
    run_bytes = size_text(memory.RUN_BYTES)
    volumes: list[Object] = [
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": run_bytes}},
        {"name": "group", "configMap": {"name": names.shard_name(name, shard), "defaultMode": 0o444}},
        {
            "name": "replication",
            "secret": {
                "secretName": names.secret_name(name),
                "defaultMode": 0o440,
                "items": [{"key": "replication", "path": "secret"}],
            },
        },
        pod_parts.secret_volume("sidecar", names.secret_name(name), "tokens", "read-tokens"),
        {"name": "api", "projected": {"defaultMode": 0o440, "sources": pod_parts.api_access_sources()}},
    ]
    if buffer.medium is Medium.HUGE_PAGES:
        volumes.append({"name": "buffers", "emptyDir": {"medium": str(buffer.medium)}})
    if buffer.medium is Medium.MEMORY:
        room = size_text(memory.buffer_bytes(group.spec) + memory.RUN_BYTES)
        volumes.append({"name": "buffers", "emptyDir": {"medium": str(buffer.medium), "sizeLimit": room}})
    if group.spec.retention.archive is not None:
        volumes.append(pod_parts.secret_volume("archive", names.archive_server_name(name), "ca.crt", "secret"))
    if access.acl_secret:
        volumes.append(pod_parts.secret_volume("accounts", access.acl_secret))
    return volumes + certificates.volumes(group)


def _affinity(group: BrokerGroup, shard: int) -> Object:
    """Return the operator's affinity together with the user's: a pod must satisfy both."""
    ours = pod_parts.anti_affinity(group, names.BROKER, shard, is_required=True)["podAntiAffinity"]
    given = group.spec.template.affinity
    anti = dict(given.get("podAntiAffinity", {}))
    for name, terms in ours.items():
        anti[name] = [*terms, *anti.get(name, [])]
    return {**given, "podAntiAffinity": anti}
