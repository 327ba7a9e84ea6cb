"""The image of pipelines is built on the local base image, and Spark works in it for an unprivileged user."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from charts_scene import ROOT
from sbom import find_faults
from test_operator_image import InContainer, buildah, run

ARCHIVE_BYTES_MAX = 1400 << 20
PROGRAM = """
from gantry_pipelines import spark_session
spark = spark_session("image", cores=1, conf={"spark.driver.memory": "512m"})
spark.range(100).mapInArrow(lambda batches: batches, "id long").write.parquet("/tmp/rows")
stream = spark.readStream.schema("id long").parquet("/tmp/rows").groupBy("id").count()
query = stream.writeStream.outputMode("complete").format("memory").queryName("counts").trigger(availableNow=True)
query.option("checkpointLocation", "/tmp/checkpoint").start().awaitTermination()
print(spark.sql("select count(*) from counts").first()[0])
"""

pytestmark = [pytest.mark.slow, pytest.mark.needs_root, pytest.mark.needs_buildah]


@pytest.fixture(scope="module")
def in_container() -> Iterator[InContainer]:
    """Run a command in a container of the image that was just built."""
    run("scripts/local-base", "java")
    run("scripts/image-pipelines", "gantry-base-java")
    container = buildah("from", "--pull-never", "gantry-pipelines").strip()
    yield lambda *words: buildah("run", "--isolation", "chroot", container, "--", *words)
    buildah("rm", container)


def test_program_runs_as_user_185(in_container: InContainer) -> None:
    """`gantry pipeline --help` works, the user is not root, and nothing is imported from the working directory."""
    assert "TopicArchive" in in_container("gantry", "pipeline", "--help")
    assert in_container("gantry", "--version").endswith(", compiled hot path)\n")
    program = "import os, sys; print(os.getuid(), sys.flags.safe_path)"
    assert in_container("python", "-c", program).split() == ["185", "True"]


def test_spark_works_without_the_removed_jars(in_container: InContainer) -> None:
    """Python workers, Parquet and a stateful stream need none of the jars that are not in the image."""
    assert in_container("python", "-c", PROGRAM).split()[-1] == "100"


def test_image_archive_is_written(in_container: InContainer) -> None:
    """A cluster without a registry imports it; it records the sources that it was made from."""
    assert 0 < (ROOT / ".image/gantry-pipelines.tar").stat().st_size < ARCHIVE_BYTES_MAX
    made_of = (ROOT / ".image/gantry-pipelines.tar.sources").read_text()
    assert made_of == run("scripts/image-sources", "pipelines")


def test_image_contains_its_sbom(in_container: InContainer) -> None:
    """It is valid, lists what this image alone contains, and is also beside the archive."""
    text = (ROOT / ".image/gantry-pipelines.tar.cdx.json").read_text()
    refs = {one["bom-ref"].partition("@")[0] for one in json.loads(text)["components"]}

    assert list(find_faults(text)) == []
    assert text == in_container("cat", "/usr/share/gantry/sbom.cdx.json")
    assert {
        "pkg:pypi/pyspark",
        "pkg:maven/org.apache.spark/spark-core_2.13",
        "pkg:deb/debian/openjdk-17-jre-headless",
    } <= refs
