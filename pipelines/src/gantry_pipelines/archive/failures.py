"""What Spark says when the archive's own code has failed in another process, as the error that it was there.

Planning and reading happen in processes of Spark's; what they raise comes back as text in an error of the JVM. Whoever
ran the job wants the line that says what to do.
"""

from __future__ import annotations

import re
from typing import Final

from gantry_pipelines.archive import errors as archive_errors
from pyspark_rocketmq import errors as source_errors

_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(?P<name>[A-Z]\w+): (?P<text>.+)$", re.MULTILINE)
_KNOWN: Final[dict[str, type[Exception]]] = {
    name: kind
    for module in (archive_errors, source_errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, (archive_errors.ArchiveError, source_errors.RocketMQSourceError))
}
_PLACE: Final = {kind.__name__ for kind in (OSError, FileNotFoundError, PermissionError, TimeoutError)}
"""What a full disk, or an object store that is gone, is in a worker: the source's own troubles have names of ours."""


def own_error(error: BaseException) -> Exception | None:
    """The last error of ours that this text has, or the last about the archive's place; None where it is Spark's."""
    raised = list(_RAISED.finditer(str(error)))
    for match in reversed(raised):
        if match["name"] in _KNOWN:
            return _KNOWN[match["name"]](match["text"])
    for match in reversed(raised):
        if match["name"] in _PLACE:
            return archive_errors.StorageFailed(f"the archive cannot be read or written: {match['text']}")
    return None
