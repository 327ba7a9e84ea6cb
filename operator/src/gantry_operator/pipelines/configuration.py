"""The configuration of the program in a pipeline's pods: the spec, and the key `runtime` with settings for these pods.

The program is `gantry pipeline`; the same document with another `runtime` runs on a laptop. It includes Spark's own
settings for executors in pods: the driver runs in client mode in a pod of its workload, without submission or webhook.
"""

from __future__ import annotations

from typing import Any, Final

from gantry_operator.objects.base import json_text
from gantry_operator.pipelines.facts import PipelineFacts
from gantry_operator.pipelines.naming import BLOCKS_PORT, DRIVER_PORT
from gantry_spec.manifest.reading import plain_values
from gantry_spec.pipelines.kinds import Pipeline
from gantry_spec.pipelines.parts import EngineMode, PartitionUnit, Tables, Volume

CONFIGURATION: Final = "/etc/gantry/pipeline"
CONFIGURATION_FILE: Final = "pipeline.json"
EXECUTOR_FILE: Final = "executor.json"
TOKEN: Final = "/etc/gantry/group"
"""The folder with the group's token for reading. The following paths are those in a pod, too."""

CREDENTIALS: Final = "/etc/gantry/credentials"
AUTHORITY: Final = "/etc/gantry/authority"
VOLUMES: Final = "/var/lib/gantry"
DESTINATION: Final = f"{VOLUMES}/destination"
CHECKPOINT: Final = f"{VOLUMES}/checkpoint"
ARCHIVE: Final = f"{VOLUMES}/archive"
API_SERVER: Final = "k8s://https://kubernetes.default.svc"
"""The address of the API server, as Spark expects it."""

LATER_FIELDS: Final = {
    "engine.podTemplate.runtimeClassName": "",
    "tables": plain_values(Tables()),
    "schemas": [],
    "layout.partitionBy": PartitionUnit.DAY.value,
}
"""The fields of the kinds' specs that were added after pipelines were in use, and their defaults."""


def pipeline_document(pipeline: Pipeline, facts: PipelineFacts) -> dict[str, Any]:
    """Return the configuration document of a pipeline."""
    return stable_values(pipeline) | {"runtime": pod_settings(pipeline, facts)}


def stable_values(pipeline: Pipeline) -> dict[str, Any]:
    """Return the spec as plain values, which an upgrade of the operator does not change.

    The configuration and the name of an audit's Job follow from them: with a new field in each spec, an upgrade would
    restart all drivers, which refuse unknown fields with an older image, and would run audits again that are done. So a
    field that was added later is left out while it has its default.
    """
    spec: dict[str, Any] = plain_values(pipeline.spec)
    for path, default in LATER_FIELDS.items():
        *parents, name = path.split(".")
        part = spec
        for parent in parents:
            part = part.get(parent, {})  # a kind of pipeline may lack it
        if part.get(name) == default:
            del part[name]
    return spec


def pod_settings(pipeline: Pipeline, facts: PipelineFacts) -> dict[str, Any]:
    """Return the settings for the pods of a pipeline, which are the key `runtime` of its configuration."""
    source = facts.source
    found: dict[str, Any] = {
        "nameServers": list(source.name_servers),
        "sidecars": list(source.sidecars),
        "destination": folder(DESTINATION, pipeline.destination.pvc),
        "checkpoint": folder(CHECKPOINT, pipeline.checkpoint.pvc),
        "archive": "" if facts.archive is None else folder(ARCHIVE, facts.archive),
        "once": not pipeline.is_continuous,
        "sparkConf": spark_conf(pipeline, facts),
    }
    if source.token_secret:
        found["tokenFiles"] = {"*": f"{TOKEN}/read-token"}
    if source.credentials_secret:
        found["accessFile"] = f"{CREDENTIALS}/credentials"
    if source.ca_secret:
        found |= {"caFile": f"{AUTHORITY}/ca.crt", "hostNamesChecked": False}
    return found


def folder(mounted: str, volume: Volume) -> str:
    """Return the path of a claim's folder in the pods; empty if there is no claim."""
    return "/".join(word for word in (mounted, volume.path) if word) if volume.claim_name else ""


def spark_conf(pipeline: Pipeline, facts: PipelineFacts) -> dict[str, str]:
    """Return Spark's settings for executors, except those that differ between the driver's pods."""
    if pipeline.spec.engine.mode is EngineMode.LOCAL:
        return {}
    name, namespace = pipeline.base, pipeline.metadata.namespace
    return {
        "spark.master": API_SERVER,
        "spark.driver.host": f"{name}.{namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",
        # Executors connect to spark.driver.host; else Spark would pass them the address that the driver binds.
        "spark.kubernetes.executor.useDriverPodIP": "false",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        "spark.blockManager.port": str(BLOCKS_PORT),
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": pipeline.spec.engine.image or facts.engine.image,
        "spark.kubernetes.container.image.pullPolicy": facts.engine.pull_policy,
        "spark.kubernetes.executor.podNamePrefix": name,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIGURATION}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "default",
        # The following settings minimize the driver's rights: it only needs to create pods.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }


def pipeline_text(pipeline: Pipeline, facts: PipelineFacts) -> str:
    """Return the configuration file as JSON text."""
    return json_text(pipeline_document(pipeline, facts))
