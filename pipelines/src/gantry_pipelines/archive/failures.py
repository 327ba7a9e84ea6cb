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


def own_error(error: BaseException) -> Exception | None:
    """The last error of ours that this text has; None where it is Spark's own."""
    found = [match for match in _RAISED.finditer(str(error)) if match["name"] in _KNOWN]
    return _KNOWN[found[-1]["name"]](found[-1]["text"]) if found else None
