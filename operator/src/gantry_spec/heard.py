"""From what a broker answers on its control socket to a ``Report``: names as there, and -1 becomes "not known".

The answer comes as plain values (JSON), since nothing of ours is imported here. What it does not say is given by
whoever knows it, or stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import msgspec

from gantry_spec.observed import Report, Role, SlaveAck

UNKNOWN: Final = -1


@final
class Besides(msgspec.Struct, frozen=True, kw_only=True):
    """What a report needs and the answer does not say. Whatever is not known stays so."""

    boot_id: str = ""
    disk_free_bytes: int | None = None


def report_of(status: Mapping[str, Any], *, asked_ms: int, answered_ms: int, besides: Besides | None = None) -> Report:
    """The report in an answer to ``status``. Raises ValueError when it is none."""
    more = {} if besides is None else msgspec.structs.asdict(besides)
    own = {
        "asked_ms": asked_ms,
        "answered_ms": answered_ms,
        "role": status.get("role", Role.UNASSIGNED),
        "epoch": status.get("epoch", 0),
        "promised_epoch": status.get("promised_epoch", 0),
        "identity": status.get("identity", ""),
        "last_epoch": status.get("last_epoch", 0),
        "ha_address": status.get("ha_address", ""),
        "master_address": status.get("master", ""),
        "master_id": _known(status, "master_id"),
        "electable": tuple(status.get("electable", ())),
        "acks_recorded": status.get("acks_needed"),
        "is_draining": status.get("is_draining", False),
        "is_withdrawn": status.get("is_withdrawn", False),
        "trouble": status.get("trouble", ""),
        "damaged_bytes": status.get("damaged_bytes", 0),
        "missing_bytes": _missing_bytes(status.get("missing", ())),
        "slaves": [msgspec.structs.asdict(one) for one in _slaves(status.get("slaves", ()))],
    }
    own |= {
        name: _known(status, name)
        for name in (
            "wrote",
            "committed",
            "flushed",
            "acked",
            "confirmed",
            "epoch_start",
            "heard_ms",
            "granted_ms",
            "peak_bytes_per_s",
            "is_whole",
            "is_crash_safe",
        )
    }
    try:
        return msgspec.convert(own | more, Report)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is no status of a broker: {error}") from error


def _missing_bytes(ranges: Sequence[Mapping[str, Any]]) -> int:
    try:
        return sum(int(one["end"]) - int(one["start"]) for one in ranges)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no status of a broker: its missing ranges are {ranges!r}") from error


def _slaves(slaves: Sequence[Mapping[str, Any]]) -> list[SlaveAck]:
    return [
        SlaveAck(
            number=slave.get("broker_id", UNKNOWN),
            identity=slave.get("identity", ""),
            received=_known(slave, "received"),
            flushed=_known(slave, "flushed"),
        )
        for slave in slaves
    ]


def _known(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name)
    return None if value == UNKNOWN else value
