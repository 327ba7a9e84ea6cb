"""Pipelines and facts to render, reports of their pods, and a cluster with the controllers that pipelines need."""

from __future__ import annotations

import json
from typing import Any

from objects_scene import group
from operator_world.fake_kubernetes import FakeKubernetes

from gantry_operator.api import CRON_JOBS, JOBS, PODS, Kind, Object, ObjectRef, uid_of
from gantry_operator.pipelines.facts import EngineFacts, PipelineFacts, source_of
from gantry_operator.pipelines.rendering import render
from gantry_spec.pipelines import Pipeline, pipeline_of

ROLE = ("ClusterRole", "gantry-operator-executors")
"""The role that the operator binds to the accounts of drivers."""

REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "TopicArchive": {"brokerGroups": ["prod"], "destination": {"pvc": {"claimName": "archive"}}},
    "LogAudit": {"brokerGroups": ["prod"]},
    "TopicAnalytics": {"nameServers": ["ns.example:9876"], "destination": {"pvc": {"claimName": "figures"}}},
}
"""The required fields of each kind, and no others."""

EVERYTHING: dict[str, Any] = {
    "brokerGroups": ["prod"],
    "topics": {"include": ["orders.*"], "exclude": [".*-test"]},
    "access": {"credentialsSecret": "archiver", "tlsSecret": "authority"},
    "schedule": "*/10 * * * *",
    "destination": {"pvc": {"claimName": "archive", "path": "prod/orders"}},
    "checkpoint": {"pvc": {"claimName": "state", "path": "orders"}},
    "engine": {
        "mode": "kubernetes",
        "executor": {"instances": 2, "cores": 2, "heap": "2Gi", "memoryOverhead": "1536Mi"},
        "sparkConf": {"spark.sql.shuffle.partitions": "4"},
        "podTemplate": {
            "labels": {"example.com/team": "orders", "gantry.dev/pipeline": "mine", "spark-role": "mine"},
            "annotations": {"example.com/team": "orders", "gantry.dev/template": "mine"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "priorityClassName": "low",
            "runtimeClassName": "sandboxed",
        },
    },
}
"""The spec of a TopicArchive that uses many features: access, a schedule, volumes, executors and a pod template."""


def resource(kind: str = "TopicArchive", name: str = "orders", **spec: Any) -> Object:
    """Return a resource as a user writes it: the required fields and these."""
    return {
        "apiVersion": "gantry.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "shop"},
        "spec": REQUIRED_FIELDS[kind] | spec,
    }


def pipeline(kind: str = "TopicArchive", name: str = "orders", *, created: str = "", **spec: Any) -> Pipeline:
    """Return a pipeline as an API server has accepted it."""
    document = resource(kind, name, **spec)
    document["metadata"] |= {"uid": f"uid-of-{name}", "generation": 1, "creationTimestamp": created}
    return pipeline_of(document)


def facts(one: Pipeline, *, archive: Any = None, **group_spec: Any) -> PipelineFacts:
    """Return the facts about a pipeline; the group that it names has this spec."""
    engine = EngineFacts(image="example.com/pipelines@sha256:1234", executors_role=ROLE)
    read = group(one.spec.broker_groups[0], **group_spec) if one.spec.broker_groups else None
    return PipelineFacts(engine=engine, source=source_of(one, read), archive=archive)


def rendered(one: Pipeline, **group_spec: Any) -> tuple[Object, ...]:
    """Return all objects that are rendered for a pipeline."""
    return render(one, facts(one, **group_spec))


def driver_report(**changes: Any) -> dict[str, Any]:
    """Return the report of a driver about its run, with changes."""
    return {"v": 1, "job": "archive", "phase": "done", "start": "2026-01-01T00:00:00Z"} | changes


def pod_status(*, phase: str = "Running", **state: Any) -> dict[str, Any]:
    """Return the status of a driver's pod."""
    container = {"name": "driver", "restartCount": state.pop("restarts", 0)}
    return {"phase": phase, "podIP": "10.0.0.7", "containerStatuses": [container | state]}


def ended(code: int, at: str = "2026-01-01T00:05:00Z", text: str = "", reason: str = "") -> dict[str, Any]:
    """Return the state of a container that has ended."""
    reason = reason or ("Completed" if code == 0 else "Error")
    return {"terminated": {"exitCode": code, "finishedAt": at, "message": text, "reason": reason}}


class Cluster:
    """Creates Jobs and pods of applied workloads, as controllers do; the test sets their status."""

    def __init__(self, api: FakeKubernetes) -> None:
        self.api = api
        self.pages: dict[str, dict[str, Any]] = {}
        """The status documents of drivers, by address."""

    async def fetch(self, address: str) -> dict[str, Any] | None:
        """Return the status document of the driver at an address; None without one."""
        return self.pages.get(address)

    def workload(self, kind: Kind, name: str) -> Object | None:
        """Return the workload as it is now."""
        return self.api.found(kind, "shop", name)

    def begin_job(self, cron: str, name: str) -> Object:
        """Create a Job of a CronJob, as when its time has come."""
        parent = self.workload(CRON_JOBS, cron)
        assert parent is not None
        template = parent["spec"]["jobTemplate"]
        return self.api.put(self._owned(JOBS, name, parent, template["metadata"]["labels"], template["spec"]))

    def begin_pod(self, kind: Kind, of: str, name: str, **status: Any) -> Object:
        """Create a pod of a StatefulSet or a Job; without a status its driver runs."""
        parent = self.workload(kind, of)
        assert parent is not None, f"there is no {kind.name} {of}"
        template = parent["spec"]["template"]
        pod = self._owned(PODS, name, parent, template["metadata"]["labels"], template["spec"])
        return self.api.put(pod | {"status": status or pod_status(state={"running": {}})})

    def set_status(self, kind: Kind, name: str, **status: Any) -> None:
        """Set the status as the controller of the workload would."""
        document = self.api.found(kind, "shop", name)
        assert document is not None
        self.api.put(document | {"status": status})

    def end_pod(self, name: str) -> None:
        """Remove a pod that has ended."""
        self.api.remove(ObjectRef(PODS, "shop", name))

    @staticmethod
    def _owned(kind: Kind, name: str, parent: Object, labels: dict[str, str], spec: Object) -> Object:
        owner = {"kind": parent["kind"], "name": parent["metadata"]["name"], "uid": uid_of(parent), "controller": True}
        head = {"name": name, "namespace": "shop", "labels": labels, "ownerReferences": [owner]}
        head["creationTimestamp"] = "2026-01-01T00:00:00Z"
        return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": head, "spec": spec}


def report_text(document: dict[str, Any]) -> str:
    """Return a report as a driver writes it into its pod's status."""
    return json.dumps(document)
