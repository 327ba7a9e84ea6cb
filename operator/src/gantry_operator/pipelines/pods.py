"""The pods of a pipeline: one driver, and in mode `kubernetes` executors, of which Spark gets a template.

Both pass the level `restricted` of pod security, as user 185, which is Spark's by custom. Root file systems are
read-only; Spark's scratch space and `/tmp` are volumes that end with the pod. The only token of the API server is the
driver's, where it makes executors, and it lasts an hour.
"""

from __future__ import annotations

from typing import Final

from gantry_operator.objects.base import Object, hash_of
from gantry_operator.objects.names import reads_label
from gantry_operator.objects.pod_parts import (
    api_access_sources,
    container_security,
    from_field,
    mount,
    placement,
    pod_security,
    unreserved,
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

USER: Final = 185
GRACE_SECONDS: Final = 180
"""A batch that is under way may end, and be written down, before the driver is killed."""
PYTHON_BYTES: Final = 1 << 30
"""Of memory beside the driver's heap, where nothing else is said."""
SCRATCH: Final = "/var/lib/spark"
SCRATCH_VOLUME: Final = "spark-local-dir-1"
"""A name by which Spark sees that executors have their scratch room; else it adds a volume of its own, at one place."""
SCRATCH_BYTES: Final = "8Gi"
TEMPORARY_BYTES: Final = "1Gi"
ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the client of Kubernetes in Spark looks for it."""


def driver_template(pipeline: Pipeline, facts: PipelineFacts, *, restart: str) -> Object:
    """Of the driver's pods. Its annotation says what they were started with."""
    body: Object = {
        **_common(pipeline, facts),
        "restartPolicy": restart,
        "serviceAccountName": pipeline.base,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [_driver(pipeline, facts)],
        "volumes": [*_volumes(pipeline, facts), *_driver_volumes(pipeline)],
    }
    told = hash_of([body, configuration.text(pipeline, facts)])
    return {"metadata": _metadata(pipeline, facts, DRIVER, {TEMPLATE_ANNOTATION: told}), "spec": body}


def executor_template(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    """Of the executors' pods: Spark fills in image, arguments, CPU and memory, and who owns them."""
    executor: Object = {
        "name": EXECUTOR,
        "securityContext": container_security(),
        "env": _variables(),
        "volumeMounts": [*_mounts(pipeline, facts), *_scratch_mounts()],
    }
    body = {**_common(pipeline, facts), "containers": [executor], "volumes": _volumes(pipeline, facts)}
    metadata = _metadata(pipeline, facts, EXECUTOR, {})
    metadata["labels"].pop("app.kubernetes.io/part-of")  # nobody watches them: the driver does
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _common(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    given, secrets = pipeline.spec.engine.pod_template, facts.engine.pull_secrets
    found: Object = {
        "securityContext": pod_security(USER),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    found |= {"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}
    return found | placement(given, given.affinity)


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
            from_field("POD_NAME", "metadata.name"),
            from_field("POD_NAMESPACE", "metadata.namespace"),
            from_field("POD_IP", "status.podIP"),
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
    """Where nothing is said: half a core, and the heap with what Python needs."""
    memory = size_text(int(pipeline.spec.engine.driver.heap) + PYTHON_BYTES)
    return {"requests": {"cpu": "500m", "memory": memory}, "limits": {"memory": memory}}


def _variables() -> list[Object]:
    return [{"name": "SPARK_LOCAL_DIRS", "value": SCRATCH}, {"name": "HOME", "value": "/tmp"}]


def _scratch_mounts() -> list[Object]:
    return [mount(SCRATCH_VOLUME, SCRATCH), mount("tmp", "/tmp")]


def _claims(pipeline: Pipeline, facts: PipelineFacts) -> list[tuple[str, str, bool]]:
    """Claim, where it is mounted, and whether only for reading."""
    found = [
        (pipeline.destination.pvc.claim_name, configuration.DESTINATION, False),
        (pipeline.checkpoint.pvc.claim_name, configuration.CHECKPOINT, False),
    ]
    if facts.archive is not None:
        found.append((facts.archive.claim_name, configuration.ARCHIVE, True))
    return [one for one in found if one[0]]


def _mounts(pipeline: Pipeline, facts: PipelineFacts) -> list[Object]:
    """Of driver and executors: both read brokers and write files."""
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
    """Of driver and executors."""
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
    marked = unreserved(given.labels, RESERVED) | labels(pipeline, component)
    if facts.source.group:
        marked[reads_label(facts.source.group)] = "true"
    annotations = unreserved(given.annotations, RESERVED) | ours
    return {"labels": marked} | ({"annotations": annotations} if annotations else {})
