"""The pods of a pipeline: one driver, and in mode `kubernetes` executors, for which Spark gets a template.

Both satisfy the Pod Security Standard `restricted`, and run as user 185, as is usual for Spark. Root file systems are
read-only; Spark's scratch space and `/tmp` are volumes with the lifetime of the pod. Only a driver that creates
executors has a token for the API server, which is valid for an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.objects.base import Object, hash_of
from gantry_operator.objects.names import ARCHIVE_SERVER, COMPONENT_LABEL, GROUP_LABEL, reads_label
from gantry_operator.objects.pod_parts import (
    PIPELINE_USER,
    api_access_sources,
    container_security,
    field_variable,
    mount,
    placement,
    pod_security,
    prefer_same_node,
    without_reserved,
)
from gantry_operator.pipelines import configuration
from gantry_operator.pipelines.facts import PipelineFacts
from gantry_operator.pipelines.naming import (
    BLOCKS_PORT,
    DRIVER,
    DRIVER_PORT,
    EXECUTOR,
    PAGE_PORT,
    RESERVED,
    TEMPLATE_ANNOTATION,
    labels,
)
from gantry_spec.manifest.quantities import size_text
from gantry_spec.pipelines.kinds import Pipeline
from gantry_spec.pipelines.parts import EngineMode

GRACE_SECONDS: Final = 180
"""The termination grace period, in which a driver can finish and commit its present batch."""
PYTHON_BYTES: Final = 1 << 30
"""The default memory of the driver in addition to its heap."""
SCRATCH: Final = "/var/lib/spark"
SCRATCH_VOLUME: Final = "spark-local-dir-1"
"""A name by which Spark recognizes the scratch volume; else it adds one of its own, at the same path."""
SCRATCH_BYTES: Final = "8Gi"
TEMPORARY_BYTES: Final = "1Gi"
ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder in which Spark's Kubernetes client expects the credentials."""


def driver_template(pipeline: Pipeline, facts: PipelineFacts, *, restart: str) -> Object:
    """Return the template of the driver's pods. Its annotation is a hash of the template and the configuration."""
    body: Object = {
        **_common(pipeline, facts),
        "restartPolicy": restart,
        "serviceAccountName": pipeline.base,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [_driver(pipeline, facts)],
        "volumes": [*_volumes(pipeline, facts), *_driver_volumes(pipeline)],
    }
    template_hash = hash_of([body, configuration.pipeline_text(pipeline, facts)])
    return {"metadata": _metadata(pipeline, facts, DRIVER, {TEMPLATE_ANNOTATION: template_hash}), "spec": body}


def executor_template(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    """Return the template of the executors' pods. Spark fills in image, arguments, CPU, memory and the owner."""
    executor: Object = {
        "name": EXECUTOR,
        "securityContext": container_security(),
        "env": _variables(),
        "volumeMounts": [*_mounts(pipeline, facts), *_scratch_mounts()],
    }
    body = {**_common(pipeline, facts), "containers": [executor], "volumes": _volumes(pipeline, facts)}
    metadata = _metadata(pipeline, facts, EXECUTOR, {})
    metadata["labels"].pop("app.kubernetes.io/part-of")  # the driver watches these pods, not the operator
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _common(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    given, secrets = pipeline.spec.engine.pod_template, facts.engine.pull_secrets
    found: Object = {
        "securityContext": pod_security(PIPELINE_USER),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    found |= {"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}
    return found | placement(given, _affinity(given.affinity, facts))


def _affinity(given: Mapping[str, Any], facts: PipelineFacts) -> Mapping[str, Any]:
    """Return the user's affinity, for an archive that a group reads with a preference for the Node of its server."""
    if not facts.served_group:
        return given
    chosen = {GROUP_LABEL: facts.served_group, COMPONENT_LABEL: ARCHIVE_SERVER}
    return prefer_same_node(given, chosen)


def _driver(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    engine = pipeline.spec.engine
    ports = [("page", PAGE_PORT)]
    if engine.mode is EngineMode.KUBERNETES:
        ports += [("driver", DRIVER_PORT), ("blocks", BLOCKS_PORT)]
    mounts = [mount("configuration", configuration.CONFIGURATION, is_read_only=True)]
    if engine.mode is EngineMode.KUBERNETES:
        mounts.append(mount("account", ACCOUNT_FOLDER, is_read_only=True))
    found: Object = {
        "name": DRIVER,
        "image": engine.image or facts.engine.image,
        "imagePullPolicy": facts.engine.pull_policy,
        "args": [
            *(pipeline.kind.job, "--pod", "--conf"),
            f"{configuration.CONFIGURATION}/{configuration.CONFIGURATION_FILE}",
        ],
        "env": [
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_NAMESPACE", "metadata.namespace"),
            field_variable("POD_IP", "status.podIP"),
            *_variables(),
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        "resources": engine.driver.resources or driver_resources(pipeline),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *_mounts(pipeline, facts), *_scratch_mounts()],
    }
    if pipeline.is_continuous:
        probe = {"httpGet": {"path": "/livez", "port": PAGE_PORT}, "timeoutSeconds": 5}
        found["startupProbe"] = probe | {"periodSeconds": 5, "failureThreshold": 60}
        found["livenessProbe"] = probe | {"periodSeconds": 30, "failureThreshold": 3}
    return found


def driver_resources(pipeline: Pipeline) -> Object:
    """Return the default resources of the driver: half a core, and memory for the heap and Python."""
    memory = size_text(int(pipeline.spec.engine.driver.heap) + PYTHON_BYTES)
    return {"requests": {"cpu": "500m", "memory": memory}, "limits": {"memory": memory}}


def _variables() -> list[Object]:
    return [{"name": "SPARK_LOCAL_DIRS", "value": SCRATCH}, {"name": "HOME", "value": "/tmp"}]


def _scratch_mounts() -> list[Object]:
    return [mount(SCRATCH_VOLUME, SCRATCH), mount("tmp", "/tmp")]


def _claims(pipeline: Pipeline, facts: PipelineFacts) -> list[tuple[str, str, bool]]:
    """Return the claims with their mount paths, and whether they are mounted read-only."""
    found = [
        (pipeline.destination.pvc.claim_name, configuration.DESTINATION, False),
        (pipeline.checkpoint.pvc.claim_name, configuration.CHECKPOINT, False),
    ]
    if facts.archive is not None:
        found.append((facts.archive.claim_name, configuration.ARCHIVE, True))
    return [one for one in found if one[0]]


def _mounts(pipeline: Pipeline, facts: PipelineFacts) -> list[Object]:
    """Return the mounts of driver and executors: both read from brokers and write files."""
    claims = sorted({claim for claim, _, _ in _claims(pipeline, facts)})
    found = [
        mount(f"claim-{claims.index(claim)}", path, is_read_only=is_read_only)
        for claim, path, is_read_only in _claims(pipeline, facts)
    ]
    source = facts.source
    for volume, secret, path in (
        ("group-token", source.token_secret, configuration.TOKEN),
        ("credentials", source.credentials_secret, configuration.CREDENTIALS),
        ("authority", source.ca_secret, configuration.AUTHORITY),
    ):
        found += [mount(volume, path, is_read_only=True)] if secret else []
    return found


def _volumes(pipeline: Pipeline, facts: PipelineFacts) -> list[Object]:
    """Return the volumes of driver and executors."""
    claims = sorted({claim for claim, _, _ in _claims(pipeline, facts)})
    found: list[Object] = [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    source = facts.source
    for volume, secret, key in (
        ("group-token", source.token_secret, "read-token"),
        ("credentials", source.credentials_secret, "credentials"),
        ("authority", source.ca_secret, "ca.crt"),
    ):
        if secret:
            body = {"secretName": secret, "defaultMode": 0o440, "items": [{"key": key, "path": key}]}
            found.append({"name": volume, "secret": body})
    return [
        *found,
        {"name": SCRATCH_VOLUME, "emptyDir": {"sizeLimit": SCRATCH_BYTES}},
        {"name": "tmp", "emptyDir": {"sizeLimit": TEMPORARY_BYTES}},
    ]


def _driver_volumes(pipeline: Pipeline) -> list[Object]:
    found: list[Object] = [{"name": "configuration", "configMap": {"name": pipeline.base, "defaultMode": 0o444}}]
    if pipeline.spec.engine.mode is EngineMode.KUBERNETES:
        sources: list[Object] = [
            *api_access_sources(),
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ]
        found.append({"name": "account", "projected": {"defaultMode": 0o440, "sources": sources}})
    return found


def _metadata(pipeline: Pipeline, facts: PipelineFacts, component: str, ours: dict[str, str]) -> Object:
    given = pipeline.spec.engine.pod_template
    own_labels = without_reserved(given.labels, RESERVED) | labels(pipeline, component)
    if facts.source.group:
        own_labels[reads_label(facts.source.group)] = "true"
    annotations = without_reserved(given.annotations, RESERVED) | ours
    return {"labels": own_labels} | ({"annotations": annotations} if annotations else {})
