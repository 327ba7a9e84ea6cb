"""The end of an archive run after a stop request, with a query in memory and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from gantry_pipelines.archive.errors import FencedOut
from gantry_pipelines.archive.job import ArchiveRun
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.object_storage import ObjectStorage
from gantry_pipelines.archive.settings import ArchiveParameters
from gantry_pipelines.errors import JobError
from gantry_pipelines.reporting import Reporter


class EmptyFrame:
    """The DataFrame of a batch without files."""

    def select(self, *_: str) -> EmptyFrame:
        return self

    def sortWithinPartitions(self, *_: str) -> EmptyFrame:
        return self

    def collect(self) -> list[Any]:
        return []


class Writer:
    """A writer that may have lost the archive's lock to another one."""

    manifest = Manifest()
    storage = ObjectStorage("s3://bucket/archive")

    def __init__(self, *, is_fenced: bool) -> None:
        self.is_fenced = is_fenced

    def commit(self, _query_id: str, _batch: int, _files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
        if self.is_fenced:
            raise FencedOut("the archive has been taken over by another writer")
        return []


class StoppedQuery:
    """A query that commits its batch after a stop request, and fails then, or ends silently."""

    id = "query"
    lastProgress = None

    def __init__(self, run: ArchiveRun, *, is_failing: bool) -> None:
        self.run = run
        self.is_failing = is_failing
        run._query = cast(Any, self)
        run._query_started.set()

    def awaitTermination(self, _seconds: int) -> bool:
        try:
            self.run._commit_batch(cast(Any, EmptyFrame()), 0)
        except JobError as error:
            if self.is_failing:
                raise PySparkException(f"batch failed: {error}") from error
        if self.is_failing:
            raise PySparkException("the query was stopped")
        return True


def stopped_run(*, is_fenced: bool) -> ArchiveRun:
    reporter = Reporter("archive")
    reporter.stop.request()
    settings = ArchiveParameters("/archive", is_continuous=True)
    return ArchiveRun(settings, cast(Any, Writer(is_fenced=is_fenced)), reporter)


@pytest.mark.parametrize("is_failing", [True, False], ids=["query fails", "query ends"])
def test_failed_commit_after_a_stop_request_fails_the_run(is_failing: bool) -> None:
    """A run whose last batch could not be committed has failed, also if a stop was requested."""
    run = stopped_run(is_fenced=True)
    query = cast(Any, StoppedQuery(run, is_failing=is_failing))

    with pytest.raises(JobError, match="taken over by another writer") as caught:
        run._wait_for_end(query, is_last=True)

    assert caught.value.reason == "FencedOut"


@pytest.mark.parametrize("is_failing", [True, False], ids=["query fails", "query ends"])
def test_query_that_a_stop_request_has_ended_is_no_failure(is_failing: bool) -> None:
    """Stopping a query makes it fail; the run has its result if its last batch was committed."""
    run = stopped_run(is_fenced=False)

    assert run._wait_for_end(cast(Any, StoppedQuery(run, is_failing=is_failing)), is_last=True)
