"""Create a Spark session for the pipelines: on this machine, without network access, and with little log output.

```python
from gantry_pipelines import spark_session

spark = spark_session()
spark.read.format("rocketmq").option("nameServers", "127.0.0.1:9876").option("subscribe", "orders").load().show()
```

Spark needs a Java virtual machine. Without one PySpark fails with a traceback about a gateway; `spark_session` fails
with one line that names the package to install.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from pyspark.sql import SparkSession

from pyspark_rocketmq import DefaultSource

JAVA_VERSION_MIN: Final = 17
"""The oldest feature release of Java on which this Spark runs."""

JAVA_ANSWER_TIMEOUT_S: Final = 30
REMEDY: Final = (
    "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless;"
    " macOS: brew install openjdk@21; or set JAVA_HOME to a Java installation"
)
"""How Java is installed, for the error without it."""

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
"""The settings file for the logs of the JVM."""


@final
class NoJava(SystemExit):
    """No Java was found that Spark can run on. If it is not caught, the program prints its line and exits with 1."""


def spark_session(
    name: str = "gantry",
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
    progress: bool = False,
) -> SparkSession:
    """Return a session on `cores` of this machine, by default all of them; `conf` overrides all other settings.

    Raises NoJava.
    """
    problem = explain_missing_java()
    if problem:
        raise NoJava(problem)
    settings = {**session_conf(cores, progress=progress), **(conf or {})}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # without it workers run the first `python3` on PATH
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # without it Spark resolves the host name, and warns
        settings.setdefault("spark.python.unix.domain.socket.enabled", "true")  # a task costs less than over TCP
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not discovers_installed_sources(os.environ):
        session.dataSource.register(DefaultSource)
    return session


def discovers_installed_sources(environment: Mapping[str, str]) -> bool:
    """Return whether Spark discovers installed data sources.

    Spark runs `command -v` with the unquoted path of Python, so it finds none if that path has a space, and `rocketmq`
    must be registered.
    """
    python = environment.get("PYSPARK_DRIVER_PYTHON") or environment["PYSPARK_PYTHON"]
    completed = subprocess.run(["/bin/sh", "-c", f"command -v {python}"], capture_output=True, check=False)
    return completed.returncode == 0


def session_conf(cores: int | None = None, *, progress: bool = False) -> dict[str, str]:
    """Return the default settings of a session."""
    count = cores or os.cpu_count() or 1
    return {
        "spark.master": f"local[{cores or '*'}]",
        "spark.driver.host": "127.0.0.1",  # the host name need not resolve
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(progress).lower(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(count),  # Spark's default is 200, and each partition costs 50 ms
        "spark.sql.python.filterPushdown.enabled": "true",  # for queries with pushdown=true
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def explain_missing_java() -> str | None:
    """Return one line that names what to install; None if a suitable Java was found."""
    program = java_program()
    needed = f"Spark needs Java {JAVA_VERSION_MIN} or 21"
    if program is None:
        where = "JAVA_HOME has no bin/java" if os.environ.get("JAVA_HOME") else "java was not found on PATH"
        return f"{needed}, but {where} -- {REMEDY}"
    try:
        completed = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{needed}, but {program} does not start ({error}) -- {REMEDY}"
    version = java_version(completed.stderr + completed.stdout)
    if version is None or completed.returncode != 0:
        return f"{needed}, but {program} -version did not print a version -- {REMEDY}"
    if version < JAVA_VERSION_MIN:
        return f"{needed}, but {program} is Java {version} -- {REMEDY}"
    return None


def java_program() -> str | None:
    """Return the java program that Spark will start: that of JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        return str(program) if os.access(program, os.X_OK) else None
    return shutil.which("java")


def java_version(output: str) -> int | None:
    """Return the feature release in the output of `java -version`: 17 for "17.0.21", 8 for "1.8.0_392"."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None
