"""How a job ends whose archive cannot be used: the error as the frame of all jobs says it, with its code.

Planning and reading happen in processes of Spark's; what they raise comes back as text in an error of the JVM.
`own_error` finds the error of ours in it, whose line says what to do.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gantry_pipelines.archive import errors as archive_errors
from gantry_pipelines.archive.errors import ArchiveError, BadDestination, NoArchive, OtherArchive, StorageFailed
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import EXIT_ABSENT, EXIT_CONFIG, EXIT_FAILED
from pyspark_rocketmq import errors as source_errors

EXIT_CODES: Final[dict[type[ArchiveError], int]] = {
    NoArchive: EXIT_ABSENT,
    OtherArchive: EXIT_CONFIG,
    BadDestination: EXIT_CONFIG,
}
"""All others are failures."""

_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(?P<name>[A-Z]\w+): (?P<text>.+)$", re.MULTILINE)
_KNOWN: Final[dict[str, type[Exception]]] = {
    name: kind
    for module in (archive_errors, source_errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, (ArchiveError, source_errors.RocketMQSourceError))
}
_PLACE: Final = {kind.__name__ for kind in (OSError, FileNotFoundError, PermissionError, TimeoutError)}
"""What a full disk, or an object store that is gone, is in a worker: the source's own troubles have names of ours."""


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


def own_error(error: BaseException) -> Exception | None:
    """The last error of ours that this text has, or the last about the archive's place; None where it is Spark's."""
    raised = list(_RAISED.finditer(str(error)))
    for match in reversed(raised):
        if match["name"] in _KNOWN:
            return _KNOWN[match["name"]](match["text"])
    for match in reversed(raised):
        if match["name"] in _PLACE:
            return StorageFailed(f"the archive cannot be read or written: {match['text']}")
    return None
