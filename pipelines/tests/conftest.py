"""Fixtures of the pipelines' tests: one Spark session and one group of brokers for each test process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from spark_kit.object_store import KEYS
from spark_kit.processes import Group, group

from gantry_testing.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session on two cores, started once. Mark tests that use it with `needs_spark`; no test may stop it."""
    from gantry_pipelines import spark_session
    from gantry_pipelines.session import session_conf

    usual = session_conf()["spark.driver.extraJavaOptions"]

    folder = tmp_path_factory.mktemp("spark")
    os.environ.update(KEYS)  # Spark's workers have the environment that Spark was started in
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{usual} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
    }
    session = spark_session("tests", cores=2, conf=conf)
    # The first job of a session takes seconds, which would count as those of the test that happens to come first.
    session.range(2).mapInArrow(lambda batches: batches, "id long").write.format("noop").mode("overwrite").save()
    yield session
    session.stop()


@pytest.fixture
def free_address() -> Callable[[], str]:
    """A function that returns an address without a listener."""
    return lambda: f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A name server, a master with a slave, and their sidecars, as processes. Each test sends to its own topics."""
    with group(tmp_path_factory.mktemp("brokers")) as running:
        yield running
