"""Map the errors of an archive to job errors with an exit code.

Planning and reading run in Python processes of Spark; their errors come back as text in an error of the JVM.
`extract_known_error` finds the original error in that text, whose message names the remedy.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gantry_pipelines.archive import errors as archive_errors
from gantry_pipelines.archive.errors import (
    ArchiveError,
    BadDestination,
    NoArchive,
    OtherArchive,
    SchemaConflict,
    StorageFailed,
)
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import EXIT_ABSENT, EXIT_CONFIG, EXIT_FAILED
from pyspark_rocketmq import errors as source_errors

EXIT_CODES: Final[dict[type[ArchiveError], int]] = {
    NoArchive: EXIT_ABSENT,
    OtherArchive: EXIT_CONFIG,
    BadDestination: EXIT_CONFIG,
    SchemaConflict: EXIT_CONFIG,
}
"""Exit codes by error type; all other errors have EXIT_FAILED."""

_RAISED_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?(?P<name>[A-Z]\w+): (?P<text>.+)$", re.MULTILINE)
_ERROR_TYPES: Final[dict[str, type[Exception]]] = {
    name: kind
    for module in (archive_errors, source_errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, (ArchiveError, source_errors.RocketMQSourceError))
}
_STORAGE_ERRORS: Final = {kind.__name__ for kind in (OSError, FileNotFoundError, PermissionError, TimeoutError)}
"""Errors of a full disk or an unavailable object store in a worker; errors of the source have types of their own."""


def to_job_error(error: ArchiveError) -> JobError:
    """Convert an archive error to a job error with its reason and exit code."""
    return JobError(str(error), reason=type(error).__name__, exit_code=EXIT_CODES.get(type(error), EXIT_FAILED))


@contextmanager
def map_archive_errors(destination: str) -> Iterator[None]:
    """Convert errors of the archive or of its storage to job errors inside of the `with` block."""
    try:
        yield
    except ArchiveError as error:
        raise to_job_error(error) from error
    except OSError as error:
        text = f"cannot read or write the archive in {destination}: {error}"
        raise to_job_error(StorageFailed(text.splitlines()[0])) from error


def extract_known_error(error: BaseException) -> Exception | None:
    """Return the last known error in an error's text, else the last storage error; None if the text has neither."""
    raised = list(_RAISED_ERROR.finditer(str(error)))
    for match in reversed(raised):
        if match["name"] in _ERROR_TYPES:
            return _ERROR_TYPES[match["name"]](match["text"])
    for match in reversed(raised):
        if match["name"] in _STORAGE_ERRORS:
            return StorageFailed(f"cannot read or write the archive: {match['text']}")
    return None
