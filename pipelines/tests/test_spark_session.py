"""The Spark session of the pipelines, and the error if Spark cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantry_pipelines.session import discovers_installed_sources, explain_missing_java, java_version, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREE_LINES = """
from gantry_pipelines import spark_session
spark = spark_session()
spark.read.format("rocketmq").option("nameServers", "127.0.0.1:9876").option("subscribe", "orders").load().show()
"""


def program(folder: Path, text: str) -> Path:
    """Write a fake `java` with this script, and return its JAVA_HOME."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{text}\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(("folder", "finds"), [("plain", True), ("é", True), ("with a space", False)])
def test_spark_discovers_no_installed_source_if_its_shell_finds_no_python(
    tmp_path: Path, folder: str, finds: bool
) -> None:
    """Only then the session registers the source itself: Spark refuses a second source of the same name."""
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)

    assert discovers_installed_sources({"PYSPARK_PYTHON": str(python)}) is finds
    assert discovers_installed_sources({"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": "sh"})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.21.1" 2026-11-17\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not understood", None),
    ],
)
def test_feature_release_is_parsed_from_java_version(text: str, version: int | None) -> None:
    """Version numbers up to Java 8 begin with `1.`."""
    assert java_version(text) == version


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11"),
        ("exit 1", "did not print a version"),
        ("echo 'openjdk version \"21.0.1\"' >&2", None),
    ],
    ids=["too old", "broken", "good"],
)
def test_java_is_checked_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str | None
) -> None:
    """The checked program is the one that Spark would start: that of JAVA_HOME, else the one on PATH."""
    monkeypatch.setenv("JAVA_HOME", str(program(tmp_path, text)))

    line = explain_missing_java()
    assert line is None if problem is None else line is not None and problem in line and "apt-get install" in line


@pytest.mark.parametrize("home", ["", "/nonexistent"])
def test_missing_java_is_reported_in_one_line_that_names_the_package(tmp_path: Path, home: str) -> None:
    """Without Java the program prints one line instead of a traceback, and exits with 1."""
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    if home:
        environment["JAVA_HOME"] = home
    run = subprocess.run(
        [sys.executable, "-c", THREE_LINES], capture_output=True, text=True, check=False, timeout=120, env=environment
    )

    assert run.returncode == 1 and run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("Spark needs Java 17 or 21, but ") and "apt-get install openjdk-17-jre-headless" in line


def test_session_needs_no_network() -> None:
    """The session runs on this machine, and its host name need not resolve."""
    conf = session_conf(3)

    assert conf["spark.master"] == "local[3]" and conf["spark.driver.host"] == "127.0.0.1"
    assert session_conf()["spark.master"] == "local[*]"


@pytest.mark.verify
def test_worker_freezes_loaded_objects_once() -> None:
    """PySpark runs the garbage collector after each task: objects loaded before the first one are frozen, once."""
    program = (
        "import gc, pyarrow.compute, pandas, pyspark_rocketmq.reading\n"
        "from pyspark_rocketmq.worker import prepare_worker\n"
        "before = len(gc.get_objects()); prepare_worker(); frozen = gc.get_freeze_count(); prepare_worker()\n"
        "print(before, len(gc.get_objects()), frozen == gc.get_freeze_count())"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    before, after, is_once = output.split()

    assert int(before) > 50_000 > 20 * int(after) and is_once == "True"


@pytest.mark.needs_spark
def test_local_workers_use_unix_domain_sockets(spark: SparkSession) -> None:
    """Unix domain sockets are enabled, with which a task costs about half as much as over TCP."""
    assert spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled") == "true"
