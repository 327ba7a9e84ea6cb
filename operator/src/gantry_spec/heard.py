"""From what a broker answers on its control socket to a ``Report``.

The answer comes as plain values (JSON) from another process, so it is decoded as a whole or refused. What only the
observer knows is added beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import msgspec

from gantry_spec.observed import Report, Role


@final
class Besides(msgspec.Struct, frozen=True, kw_only=True):
    """What a report needs and the answer does not hold. Whatever is not known stays so."""

    boot_id: str = ""
    disk_free_bytes: int | None = None


def report_of(status: Mapping[str, Any], *, asked_ms: int, answered_ms: int, besides: Besides | None = None) -> Report:
    """The report in an answer to ``status``. Raises ValueError when it is none."""
    more = msgspec.structs.asdict(besides or Besides())
    times = {"asked_ms": asked_ms, "answered_ms": answered_ms}
    try:
        return msgspec.convert({"role": Role.UNASSIGNED, **status, **times, **more}, Report)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is no status of a broker: {error}") from error
