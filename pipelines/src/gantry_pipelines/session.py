"""A Spark session as the pipelines want it: on this machine, without a network, and quiet.

```python
from gantry_pipelines import spark_session

spark = spark_session()
spark.read.format("rocketmq").option("nameServers", "127.0.0.1:9876").option("subscribe", "orders").load().show()
```

Spark runs on a Java virtual machine. Where there is none, PySpark ends with a traceback about a gateway; here it is one
line that names the package to install.
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
JAVA_ANSWER_TIMEOUT_S: Final = 30
REMEDY: Final = (
    "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless;"
    " macOS: brew install openjdk@21; or set JAVA_HOME to where a Java is"
)

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


@final
class NoJava(SystemExit):
    """There is no Java that Spark can run on. Not caught, it ends the program with its one line and code 1."""


def spark_session(
    name: str = "gantry",
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
    progress: bool = False,
) -> SparkSession:
    """A session on `cores` of this machine, by default on all of them; `conf` wins over everything else.

    Raises NoJava.
    """
    problem = explain_missing_java()
    if problem:
        raise NoJava(problem)
    settings = {**session_conf(cores, progress=progress), **(conf or {})}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers would be whatever `python3` is on PATH
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it looks for its own name, and warns
        settings.setdefault("spark.python.unix.domain.socket.enabled", "true")  # a task costs less than over TCP
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not finds_installed_sources(os.environ):
        session.dataSource.register(DefaultSource)
    return session


def finds_installed_sources(environment: Mapping[str, str]) -> bool:
    """Return whether Spark discovers installed data sources.

    Spark runs `command -v` with the unquoted path of Python, so it finds none if that path has a space, and `rocketmq`
    must be registered.
    """
    python = environment.get("PYSPARK_DRIVER_PYTHON") or environment["PYSPARK_PYTHON"]
    asked = subprocess.run(["/bin/sh", "-c", f"command -v {python}"], capture_output=True, check=False)
    return asked.returncode == 0


def session_conf(cores: int | None = None, *, progress: bool = False) -> dict[str, str]:
    """Spark's settings, each for a reason."""
    count = cores or os.cpu_count() or 1
    return {
        "spark.master": f"local[{cores or '*'}]",
        "spark.driver.host": "127.0.0.1",  # a machine without a network need not know its own name
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(progress).lower(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(count),  # 200 by default, each with its own 50 ms
        "spark.sql.python.filterPushdown.enabled": "true",  # for those who ask with pushdown=true
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def explain_missing_java() -> str | None:
    """One line that says what to install; None when there is a Java that will do."""
    program = java_program()
    needed = f"Spark needs Java {JAVA_VERSION_MIN} or 21"
    if program is None:
        where = "JAVA_HOME has no bin/java" if os.environ.get("JAVA_HOME") else "there is no java on PATH"
        return f"{needed}, and {where} -- {REMEDY}"
    try:
        said = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{needed}, and {program} does not start ({error}) -- {REMEDY}"
    version = java_version(said.stderr + said.stdout)
    if version is None or said.returncode != 0:
        return f"{needed}, and {program} does not say its version -- {REMEDY}"
    if version < JAVA_VERSION_MIN:
        return f"{needed}, and {program} is Java {version} -- {REMEDY}"
    return None


def java_program() -> str | None:
    """The one that Spark will start: that of JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        return str(program) if os.access(program, os.X_OK) else None
    return shutil.which("java")


def java_version(said: str) -> int | None:
    """The feature release in what `java -version` prints: 17 of "17.0.21", 8 of "1.8.0_392"."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None
