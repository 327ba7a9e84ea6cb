"""What a run says while it works and when it ends: lines to people, JSON to programs, a document to the operator.

A job only tells totals; how they are shown is decided here. On a terminal that is a line now and then on standard error
and the result on standard output. In a pod each line is JSON, the state can be asked for at any moment
(``status_page``), and the result is the container's last words, which Kubernetes keeps when the pod's logs are gone and
of which it keeps 4096 bytes: so queues are left out from the end until the rest fits, and how many is said.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TextIO, final

from gantry_pipelines.outcome import Outcome, QueueProgress, Totals
from gantry_pipelines.stopping import Stop

LAST_WORDS_BYTES_MAX: Final = 4096
QUEUES_MAX: Final = 50
"""In a document; those that are farthest behind come first."""
LINE_INTERVAL_SECONDS: Final = 5.0
"""Between two lines about progress; a change of state is said at once."""
VERSION: Final = 1
"""Of the document."""


class Form(StrEnum):
    """For whom lines are."""

    TEXT = "text"
    JSON = "json"


class Phase(StrEnum):
    """Where a run is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Output:
    """Where lines go, and by which clock. ``now`` gives seconds since 1970."""

    form: Form = Form.TEXT
    lines: TextIO = field(default_factory=lambda: sys.stderr)
    result: TextIO = field(default_factory=lambda: sys.stdout)
    last_words: Path | None = None
    now: Callable[[], float] = field(default=lambda: datetime.now(UTC).timestamp())


@final
class Reporter:
    """One run's voice. Its methods may be called from any thread."""

    def __init__(self, job: str, stop: Stop | None = None, output: Output | None = None) -> None:
        self.job = job
        self.stop = Stop() if stop is None else stop
        self._output = Output() if output is None else output
        self._lock = threading.RLock()
        self._begun = self._moved = self._output.now()
        self._said = 0.0
        self._phase = Phase.STARTING
        self._totals = Totals()
        self._outcome: Outcome | None = None
        self._warning: tuple[str, str] = ("", "")

    def __repr__(self) -> str:
        return f"<Reporter {self.job} {self._phase} rows={self._totals.rows}>"

    @property
    def totals(self) -> Totals:
        """What was told last."""
        return self._totals

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has moved: a run that hangs is told by it."""
        return self._output.now() - self._moved

    def say(self, text: str, **facts: Any) -> None:
        """One line, at once: a step that a person wants to know of."""
        with self._lock:
            self._moved = self._output.now()
            self._line("step", text, facts)

    def warn(self, reason: str, text: str, **facts: Any) -> None:
        """Something is wrong and the run goes on: it is kept in the document until the run ends."""
        with self._lock:
            self._warning = (reason, text)
            self._line("warning", text, {"reason": reason, **facts})

    def alive(self) -> None:
        """Nothing to tell, and nothing hangs: an empty batch, a wait for brokers."""
        with self._lock:
            self._moved = self._output.now()

    def progress(self, **totals: Any) -> None:
        """New totals of this run (fields of ``Totals``); what is not named stays as it was."""
        with self._lock:
            self._phase = Phase.STOPPING if self.stop.is_asked else Phase.RUNNING
            self._totals = replace(self._totals, **totals)
            now = self._moved = self._output.now()
            if now - self._said >= LINE_INTERVAL_SECONDS:
                self._said = now
                self._line("progress", self._sentence(now), self._numbers())

    def finish(self, outcome: Outcome) -> Outcome:
        """Say how it ended, to everybody who listens. Returns the same outcome."""
        with self._lock:
            self._outcome = outcome
            self._phase = Phase.DONE if outcome.exit_code == 0 else Phase.FAILED
            self._moved = self._output.now()
            document = self.document()
            if self._output.form is Form.JSON:
                self._print(self._output.result, json.dumps({"event": "result", **document}))
            elif outcome.exit_code == 0:
                self._print(self._output.result, outcome.text or self._sentence(self._moved))
            if self._output.last_words is not None:
                with contextlib.suppress(OSError):  # the exit code says the rest
                    self._output.last_words.write_text(last_words(document), encoding="utf-8")
            return outcome

    def document(self) -> dict[str, Any]:
        """The state of this run, for programs."""
        with self._lock:
            outcome = self._outcome
            totals = self._totals if outcome is None else outcome.over(self._totals)
            document: dict[str, Any] = {
                "v": VERSION,
                "job": self.job,
                "phase": str(self._phase),
                "start": utc_text(self._begun),
                "moved": utc_text(self._moved),
                "rows": totals.rows,
                "bytes": totals.bytes,
                "files": totals.files,
                "rowsLost": totals.rows_lost,
                "batch": totals.batch,
                "checkpoint": totals.checkpoint,
                "lagRows": totals.rows_behind,
                "lagSeconds": totals.seconds_behind,
                "warning": {"reason": self._warning[0], "text": self._warning[1]},
                "queuesTotal": len(totals.queues),
                "queues": _queues(totals.queues),
            }
            if outcome is not None:
                document |= {
                    "end": utc_text(self._moved),
                    "exitCode": outcome.exit_code,
                    "reason": outcome.reason,
                    "text": outcome.text,
                    "facts": outcome.facts,
                }
            return document

    def _line(self, event: str, text: str, facts: dict[str, Any]) -> None:
        if self._output.form is Form.JSON:
            line = {"event": event, "time": utc_text(self._output.now()), "job": self.job, "text": text, **facts}
            self._print(self._output.lines, json.dumps(line, default=str))
        else:
            self._print(self._output.lines, f"{self.job}: {text}")

    def _numbers(self) -> dict[str, Any]:
        totals = self._totals
        return {
            "rows": totals.rows,
            "bytes": totals.bytes,
            "files": totals.files,
            "batch": totals.batch,
            "lagRows": totals.rows_behind,
            "lagSeconds": totals.seconds_behind,
        }

    def _sentence(self, now: float) -> str:
        totals, seconds = self._totals, max(now - self._begun, 0.001)
        words = f"{totals.rows:,} messages, {_bytes_text(totals.bytes)} in {seconds:,.0f} s"
        words += f" ({totals.rows / seconds:,.0f} a second)" if seconds >= 1 else ""
        words += f", {totals.files:,} files" if totals.files else ""
        words += f", {totals.rows_behind:,} to go" if totals.queues else ""
        words += f", {totals.rows_lost:,} LOST before they were read" if totals.rows_lost else ""
        return words

    @staticmethod
    def _print(stream: TextIO, text: str) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # whoever listened has gone
            print(text, file=stream, flush=True)


def last_words(document: dict[str, Any]) -> str:
    """The document as short as Kubernetes keeps it: fewer queues, then no facts, then a shorter text."""
    short = {**document, "queues": list(document["queues"])}
    while len(text := _compact(short)) > LAST_WORDS_BYTES_MAX:
        if short["queues"]:
            short["queues"] = short["queues"][: len(short["queues"]) * 3 // 4]
        elif short.get("facts"):
            short["facts"] = {}
        elif len(short.get("text", "")) > 64:
            short["text"] = short["text"][: len(short["text"]) // 2] + " ..."
        elif len(short["warning"]["text"]) > 64:
            short["warning"] = {**short["warning"], "text": short["warning"]["text"][:60] + " ..."}
        else:
            short["checkpoint"] = ""
            return _compact(short)[:LAST_WORDS_BYTES_MAX]
    return text


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), default=str)  # ASCII: a character is a byte


def _queues(queues: Sequence[QueueProgress]) -> list[list[Any]]:
    """`[topic, broker, queue, done, latest, lagSeconds]`, farthest behind first."""
    ordered = sorted(queues, key=lambda one: (one.done - one.latest, one.topic, one.broker, one.queue))
    return [[one.topic, one.broker, one.queue, one.done, one.latest, one.lag_seconds] for one in ordered[:QUEUES_MAX]]


def utc_text(seconds: float) -> str:
    """Return a moment as documents have it: `2026-11-22T10:15:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _bytes_text(size: int) -> str:
    for power, letter in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {letter}iB"
    return f"{size} bytes"
