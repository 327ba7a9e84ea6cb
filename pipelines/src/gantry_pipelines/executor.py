"""What runs in an executor's pod: Spark's backend for Kubernetes, started with what the driver has put into the pod.

Spark's own images have a shell script for that. Here it is one step: this process becomes the JVM, so that signals and
exit codes are the JVM's alone. Spark gives the pod the argument `executor` and these variables.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

MAIN: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTION: Final = re.compile(r"SPARK_JAVA_OPT_([0-9]+)")
ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def executor_command(environment: Mapping[str, str], java: str, spark_home: str) -> list[str]:
    """The words to start it with. Raises KeyError for a variable that the driver has not given."""
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    numbered = ((int(match[1]), value) for name, value in environment.items() if (match := OPTION.fullmatch(name)))
    options = [value for _, value in sorted(numbered)]
    path = os.pathsep.join(one for one in (environment.get("SPARK_CLASSPATH", ""), f"{spark_home}/jars/*") if one)
    words = [java, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", path, MAIN]
    return [*words, *(word for option, name in ARGUMENTS.items() for word in (option, environment[name]))]


def main() -> NoReturn:
    """Become the JVM."""
    import pyspark

    home = os.environ.get("JAVA_HOME", "")
    java = f"{home}/bin/java" if home else "java"
    try:
        command = executor_command(os.environ, java, str(Path(pyspark.__file__).parent))
    except KeyError as error:
        print(f"gantry: Spark gives an executor's pod {error.args[0]}, and this is none", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.stdout.flush()
    os.execvp(command[0], command)
