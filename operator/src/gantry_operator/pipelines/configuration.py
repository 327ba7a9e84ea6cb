"""What the program in a pipeline's pods is told: the spec as it is written, and `here`, what is so in its pods only.

The program is `gantry pipeline`; the same document with another `here` runs on a laptop. Spark's own settings for
executors in pods are among it: the driver is a pod of ours in client mode, so there is no submission and no webhook.
"""

from __future__ import annotations

from typing import Any, Final

from gantry_operator.objects.base import json_text
from gantry_operator.pipelines.facts import PipelineFacts
from gantry_operator.pipelines.naming import BLOCKS_PORT, DRIVER_PORT
from gantry_spec.manifest.reading import plain
from gantry_spec.pipelines.kinds import Pipeline
from gantry_spec.pipelines.parts import EngineMode, Volume

CONFIGURATION: Final = "/etc/gantry/pipeline"
CONFIGURATION_FILE: Final = "pipeline.json"
EXECUTOR_FILE: Final = "executor.json"
TOKEN: Final = "/etc/gantry/group"
CREDENTIALS: Final = "/etc/gantry/credentials"
AUTHORITY: Final = "/etc/gantry/authority"
VOLUMES: Final = "/var/lib/gantry"
DESTINATION: Final = f"{VOLUMES}/destination"
CHECKPOINT: Final = f"{VOLUMES}/checkpoint"
ARCHIVE: Final = f"{VOLUMES}/archive"
API_SERVER: Final = "k8s://https://kubernetes.default.svc"


def document(pipeline: Pipeline, facts: PipelineFacts) -> dict[str, Any]:
    """The configuration."""
    spec: dict[str, Any] = plain(pipeline.spec)
    return spec | {"here": here(pipeline, facts)}


def here(pipeline: Pipeline, facts: PipelineFacts) -> dict[str, Any]:
    """What is so in its pods."""
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
    """Where a folder of a claim is seen; empty if there is no claim."""
    return "/".join(word for word in (mounted, volume.path) if word) if volume.claim_name else ""


def spark_conf(pipeline: Pipeline, facts: PipelineFacts) -> dict[str, str]:
    """Where Spark's executors run, as far as it is the same for each of the driver's pods."""
    if pipeline.spec.engine.mode is EngineMode.LOCAL:
        return {}
    name, namespace = pipeline.base, pipeline.metadata.namespace
    return {
        "spark.master": API_SERVER,
        "spark.driver.host": f"{name}.{namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",
        # By that name; Spark would give executors the address that the driver listens on.
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
        # What follows keeps the driver's rights small: it makes pods, and nothing else.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }


def text(pipeline: Pipeline, facts: PipelineFacts) -> str:
    """The file."""
    return json_text(document(pipeline, facts))
