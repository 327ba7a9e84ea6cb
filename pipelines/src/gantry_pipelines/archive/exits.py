"""How a job ends whose archive cannot be used: the error as the frame of all jobs says it, with its code."""

from typing import Final

from gantry_pipelines.archive.errors import ArchiveError, NoArchive, OtherArchive
from gantry_pipelines.errors import JobError
from gantry_pipelines.job import EXIT_ABSENT, EXIT_CONFIG, EXIT_FAILED

EXIT_CODES: Final[dict[type[ArchiveError], int]] = {NoArchive: EXIT_ABSENT, OtherArchive: EXIT_CONFIG}
"""All others are failures."""


def job_error(error: ArchiveError) -> JobError:
    """The same, for the frame."""
    return JobError(str(error), reason=type(error).__name__, exit_code=EXIT_CODES.get(type(error), EXIT_FAILED))
