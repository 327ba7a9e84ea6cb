"""Renders all objects of a pipeline, in the order in which they are to be applied. Pure.

    with a schedule             a CronJob, with one run at a time
    without one                 a StatefulSet of one pod, which runs continuously: Kubernetes creates no second pod
                                before it knows that the first has ended, which a Deployment does not guarantee
    an audit without one        a Job, once for each spec: a changed spec results in another Job

A failed pod of a Job is replaced after it has ended (``podReplacementPolicy: Failed``), not while it terminates: as far
as Kubernetes knows, there is one writer at any time. The lock of the archive covers the other cases.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_operator.objects.base import Object, hash_of
from gantry_operator.objects.names import NAMESPACE_LABEL
from gantry_operator.pipelines import configuration
from gantry_operator.pipelines.facts import PipelineFacts
from gantry_operator.pipelines.naming import (
    BLOCKS_PORT,
    DRIVER,
    DRIVER_PORT,
    PAGE_PORT,
    labels,
    make_object,
    selector,
)
from gantry_operator.pipelines.pods import driver_template, executor_template
from gantry_spec.pipelines.kinds import AUDIT, Pipeline
from gantry_spec.pipelines.parts import EngineMode

RBAC: Final = "rbac.authorization.k8s.io"
BACKOFF_LIMIT: Final = 6
"""How often a failed run is tried again."""

STARTING_DEADLINE_SECONDS: Final = 600
"""A run that could not start within this time is skipped; the next run does its work."""
EXIT_CODES_FINAL: Final = (2, 3, 5)
"""Exit codes for an invalid configuration, a missing object and lost messages: a retry would fail again."""
AUDIT_CODES_FINAL: Final = (1, *EXIT_CODES_FINAL)
"""The final exit codes of an audit. Code 1 reports a finding, which a retry would find again."""


def render(pipeline: Pipeline, facts: PipelineFacts) -> tuple[Object, ...]:
    """Return the desired objects of a pipeline; the workload is the last one."""
    assert pipeline.metadata.namespace and pipeline.metadata.uid, "a pipeline in a cluster has a namespace and a uid"
    found = [
        _policy(pipeline, facts),
        make_object(pipeline, ("v1", "ServiceAccount"), {"automountServiceAccountToken": False}),
    ]
    if pipeline.spec.engine.mode is EngineMode.KUBERNETES:
        found += [_binding(pipeline, facts)]
    found += [_config_map(pipeline, facts), _service(pipeline)]
    return (*found, _workload(pipeline, facts))


def job_name(pipeline: Pipeline) -> str:
    """Return the name of an audit's Job. It changes with the spec, except for ``spec.suspend``."""
    spec = {name: value for name, value in configuration.stable_values(pipeline).items() if name != "suspend"}
    return f"{pipeline.base}-{hash_of(spec)[:8]}"


def _workload(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    if pipeline.spec.schedule:
        return _cron_job(pipeline, facts)
    return _stateful_set(pipeline, facts) if pipeline.is_continuous else _job(pipeline, facts)


def _cron_job(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    body = {
        "schedule": pipeline.spec.schedule,
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": STARTING_DEADLINE_SECONDS,
        "suspend": pipeline.spec.suspend,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 2,
        "jobTemplate": {
            "metadata": {"labels": labels(pipeline, DRIVER)},
            "spec": _job_spec(pipeline, facts),
        },
    }
    return make_object(pipeline, ("batch/v1", "CronJob"), {"spec": body})


def _job(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    body = _job_spec(pipeline, facts) | {"suspend": pipeline.spec.suspend}
    return make_object(pipeline, ("batch/v1", "Job"), {"spec": body}, name=job_name(pipeline))


def _job_spec(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    codes = AUDIT_CODES_FINAL if pipeline.kind is AUDIT else EXIT_CODES_FINAL
    on_codes = {"containerName": DRIVER, "operator": "In", "values": list(codes)}
    return {
        "backoffLimit": BACKOFF_LIMIT,
        "completions": 1,
        "parallelism": 1,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": on_codes},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": driver_template(pipeline, facts, restart="Never"),
    }


def _stateful_set(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    body = {
        "replicas": 0 if pipeline.spec.suspend else 1,
        "serviceName": pipeline.base,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(pipeline, DRIVER)},
        "template": driver_template(pipeline, facts, restart="Always"),
    }
    return make_object(pipeline, ("apps/v1", "StatefulSet"), {"spec": body})


def _config_map(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    data = {configuration.CONFIGURATION_FILE: configuration.pipeline_text(pipeline, facts)}
    if pipeline.spec.engine.mode is EngineMode.KUBERNETES:
        data[configuration.EXECUTOR_FILE] = _json(executor_template(pipeline, facts))
    return make_object(pipeline, ("v1", "ConfigMap"), {"data": data})


def _service(pipeline: Pipeline) -> Object:
    """Return the headless Service through which executors reach the driver, whether it is ready or not."""
    ports = [("page", PAGE_PORT)]
    if pipeline.spec.engine.mode is EngineMode.KUBERNETES:
        ports += [("driver", DRIVER_PORT), ("blocks", BLOCKS_PORT)]
    body = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(pipeline, DRIVER),
        "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
    }
    return make_object(pipeline, ("v1", "Service"), {"spec": body})


def _binding(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    """Return the RoleBinding with which the driver creates pods. The operator itself does not need these rights."""
    kind, name = facts.engine.executors_role
    subject = {"kind": "ServiceAccount", "name": pipeline.base, "namespace": pipeline.metadata.namespace}
    body = {"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": [subject]}
    return make_object(pipeline, (f"{RBAC}/v1", "RoleBinding"), body)


def _policy(pipeline: Pipeline, facts: PipelineFacts) -> Object:
    """Return the network policy: the operator and Prometheus reach the page, driver and executors each other."""
    engine = facts.engine
    operator = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: engine.operator_namespace}},
        "podSelector": {"matchLabels": dict(engine.operator_labels)},
    }
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(engine.prometheus_labels)}}
    ingress: list[Object] = [{"ports": [{"protocol": "TCP", "port": PAGE_PORT}], "from": [operator, prometheus]}]
    if pipeline.spec.engine.mode is EngineMode.KUBERNETES:
        ports = [{"protocol": "TCP", "port": port} for port in (DRIVER_PORT, BLOCKS_PORT)]
        ingress.append({"ports": ports, "from": [{"podSelector": {"matchLabels": selector(pipeline)}}]})
    body = {"podSelector": {"matchLabels": selector(pipeline)}, "policyTypes": ["Ingress"], "ingress": ingress}
    return make_object(pipeline, ("networking.k8s.io/v1", "NetworkPolicy"), {"spec": body})


def _json(value: Object) -> str:
    """Return the same text for equal values: a ConfigMap must not change with the order of keys in a resource."""
    return msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=1).decode() + "\n"
