"""How a job ends whose archive cannot be used: the error as the frame of all jobs says it, with its code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gantry_pipelines.archive.errors import ArchiveError, BadDestination, NoArchive, OtherArchive, StorageFailed
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import EXIT_ABSENT, EXIT_CONFIG, EXIT_FAILED

EXIT_CODES: Final[dict[type[ArchiveError], int]] = {
    NoArchive: EXIT_ABSENT,
    OtherArchive: EXIT_CONFIG,
    BadDestination: EXIT_CONFIG,
}
"""All others are failures."""


def job_error(error: ArchiveError) -> JobError:
    """The same, for the frame."""
    return JobError(str(error), reason=type(error).__name__, exit_code=EXIT_CODES.get(type(error), EXIT_FAILED))


@contextmanager
def at_work(destination: str) -> Iterator[None]:
    """Whatever is wrong with the archive there, or with the place itself, ends the job in one line."""
    try:
        yield
    except ArchiveError as error:
        raise job_error(error) from error
    except OSError as error:
        text = f"the archive in {destination} cannot be read or written: {error}"
        raise job_error(StorageFailed(text.splitlines()[0])) from error
