"""From a run's document, which may say anything, to the status' parts. Pure; what is no number or text is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.pipelines.seen import Ended
from gantry_spec.pipelines.status import Lag, LastRun, QueueStatus

QUEUES_MAX: Final = 50
FACTS_MAX: Final = 20
TEXT_MAX: Final = 1_000
NUMBER_MAX: Final = (1 << 63) - 1


def run_of(document: Mapping[str, Any], ended: Ended | None = None) -> LastRun:
    """A run that says this of itself; of one that has ended its container's exit code is the right one."""
    facts = document.get("facts")
    pairs = list(facts.items())[:FACTS_MAX] if isinstance(facts, Mapping) else []
    return LastRun(
        start=text(document, "start"),
        end=text(document, "end") or ("" if ended is None else ended.at),
        rows=number(document, "rows"),
        bytes=number(document, "bytes"),
        files=number(document, "files"),
        rows_lost=number(document, "rowsLost"),
        exit_code=number(document, "exitCode") if ended is None else ended.exit_code,
        reason=text(document, "reason"),
        message=text(document, "text"),
        facts={str(name)[:100]: str(value)[:TEXT_MAX] for name, value in pairs},
    )


def killed_run(ended: Ended) -> LastRun:
    """One that could say nothing any more."""
    return LastRun(
        end=ended.at, exit_code=ended.exit_code, reason=ended.reason or "Killed", message=ended.text[-TEXT_MAX:]
    )


def lag_of(document: Mapping[str, Any]) -> Lag:
    """How far it is behind."""
    return Lag(rows=number(document, "lagRows"), seconds=number(document, "lagSeconds"))


def queues_of(document: Mapping[str, Any]) -> list[QueueStatus]:
    """`[topic, broker, queue, done, latest, lagSeconds]` each."""
    found, rows = [], document.get("queues")
    for row in rows[:QUEUES_MAX] if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == 6 and isinstance(row[0], str) and isinstance(row[1], str):
            queue, done, latest, seconds = (_integer(one) for one in row[2:])
            found.append(
                QueueStatus(
                    topic=row[0][:200],
                    broker=row[1][:200],
                    queue=queue,
                    done=done,
                    latest=latest,
                    lag_seconds=seconds,
                )
            )
    return found


def number(document: Mapping[str, Any], name: str) -> int:
    """A whole number, 0 for anything else."""
    return _integer(document.get(name))


def text(document: Mapping[str, Any], name: str) -> str:
    """A short text, empty for anything else."""
    value = document.get(name)
    return value[:TEXT_MAX] if isinstance(value, str) else ""


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return max(-1, min(int(min(max(value, -1), NUMBER_MAX)), NUMBER_MAX))
