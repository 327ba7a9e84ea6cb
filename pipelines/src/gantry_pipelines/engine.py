"""Convert a configuration's `engine` to Spark settings: memory, and where executors run.

    local         driver and workers are one process tree on this machine
    kubernetes    this process is the driver (client mode), in a pod that may create pods; Spark creates executor pods
                  from the template beside the configuration; the driver's pod owns them, so they end with it

An executor's pod runs Spark's Kubernetes backend with the settings that the driver put into the pod. Spark's own images
have a shell script for that. Here it is one step (`executor_command`): the process becomes the JVM, so that signals and
exit codes are the JVM's. Spark gives the pod the argument `executor` and the environment variables named here.

`sparkConf` overrides the defaults of this module, but never the settings that the fields of `engine` determine: a
configuration in which it has one of these is refused (``config_of``).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Final

from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError
from gantry_spec.pipelines.parts import EngineMode, PipelineSpec

MEBIBYTE: Final = 1 << 20
POD_NAMES: Final = "spark.kubernetes.executor.podNamePrefix"
"""The setting of Spark with the prefix of the executor pods' names."""

EXECUTOR_MAIN: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
"""The main class of Spark's executors in Kubernetes."""

JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_([0-9]+)")
"""The name of a variable in which Spark passes an option of the JVM."""

EXECUTOR_ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""The arguments of the main class, and the variables that have their values."""


def spark_conf(config: PipelineConfig[PipelineSpec], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the Spark settings for `spark_session`.

    Raises ``ConfigError`` for mode `kubernetes` outside of a pod that the operator created.
    """
    engine, variables = config.spec.engine, os.environ if environment is None else environment
    found = {"spark.driver.memory": _megabytes(engine.driver.heap)}
    if engine.mode is EngineMode.KUBERNETES:
        pod = variables.get("POD_NAME", "")
        if not pod or "spark.master" not in config.runtime.spark_conf:
            words = "engine.mode: kubernetes runs only in a pod of the operator; use --set engine.mode=local here"
            raise ConfigError([words])
        executor = engine.executor
        found |= {
            "spark.kubernetes.driver.pod.name": pod,
            "spark.executor.instances": str(executor.instances),
            "spark.executor.cores": str(executor.cores),
            "spark.executor.memory": _megabytes(executor.heap),
            "spark.executor.memoryOverhead": _megabytes(executor.memory_overhead),
            "spark.sql.shuffle.partitions": str(executor.instances * executor.cores),
            # Without these a query starts on the first executor alone, before the others have registered.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        }
    found |= {**engine.spark_conf, **config.runtime.spark_conf}
    if engine.mode is EngineMode.KUBERNETES:
        # A killed driver leaves its executors' pods behind, and Spark numbers new ones from 1: names need a new prefix.
        found[POD_NAMES] = f"{found.get(POD_NAMES) or found['spark.kubernetes.driver.pod.name']}-{int(time.time()):x}"
    return found


def executor_command(environment: Mapping[str, str], java: str, spark_home: str) -> list[str]:
    """Return the command line of an executor's JVM. Raises KeyError for a variable that the driver did not set."""
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    numbered = ((int(match[1]), value) for name, value in environment.items() if (match := JAVA_OPTION.fullmatch(name)))
    options = [value for _, value in sorted(numbered)]
    path = os.pathsep.join(one for one in (environment.get("SPARK_CLASSPATH", ""), f"{spark_home}/jars/*") if one)
    words = [java, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", path, EXECUTOR_MAIN]
    return [*words, *(word for option, name in EXECUTOR_ARGUMENTS.items() for word in (option, environment[name]))]


def _megabytes(size: int) -> str:
    return f"{max(1, int(size) // MEBIBYTE)}m"
