"""Reports of a run: progress lines for people, JSON lines for programs, and a document for the operator.

A job reports totals; this module decides how to show them. On a terminal that is a line every few seconds on standard
error, and the result on standard output. In a pod each line is JSON, the state is served over HTTP (``status_page``),
and the result is the container's termination message. Kubernetes keeps 4096 bytes of that message, also when the pod's
logs are gone, so queues are left out from the end of the list until the document fits; `queuesTotal` counts all.
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
from gantry_pipelines.stop_request import StopRequest
from gantry_status.text import bytes_text

TERMINATION_MESSAGE_BYTES_MAX: Final = 4096
"""The longest termination message that Kubernetes keeps."""
QUEUES_MAX: Final = 50
"""Queues in a document; those with the largest lag come first."""
LINE_INTERVAL_SECONDS: Final = 5.0
"""Time between two progress lines, at least; steps and warnings are printed at once."""
VERSION: Final = 1
"""Version of the document's format."""


class OutputFormat(StrEnum):
    """The format of the lines: text for people, JSON for programs."""

    TEXT = "text"
    JSON = "json"


class Phase(StrEnum):
    """The phase of a run, as its document has it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Output:
    """The streams and files of a reporter, and its clock. ``now`` returns seconds since 1970."""

    output_format: OutputFormat = OutputFormat.TEXT
    lines: TextIO = field(default_factory=lambda: sys.stderr)
    """The stream of progress lines."""

    result: TextIO = field(default_factory=lambda: sys.stdout)
    """The stream of the result."""

    termination_message: Path | None = None
    """The file for the final document; None outside of a pod."""

    now: Callable[[], float] = field(default=lambda: datetime.now(UTC).timestamp())


@final
class Reporter:
    """Reports the progress and the result of one run. Its methods may be called from any thread."""

    def __init__(self, job: str, stop: StopRequest | None = None, output: Output | None = None) -> None:
        self.job = job
        self.stop = StopRequest() if stop is None else stop
        self._output = Output() if output is None else output
        self._lock = threading.RLock()
        self._started_s = self._active_s = self._output.now()
        self._progress_reported_s = 0.0
        self._phase = Phase.STARTING
        self._totals = Totals()
        self._outcome: Outcome | None = None
        self._warning: tuple[str, str] = ("", "")
        self._is_hindered = False

    def __repr__(self) -> str:
        return f"<Reporter {self.job} {self._phase} rows={self._totals.rows}>"

    @property
    def totals(self) -> Totals:
        """The totals that were reported last."""
        return self._totals

    @property
    def is_ready(self) -> bool:
        """Whether the run has reported progress, nothing hinders it at present, and no stop is requested."""
        return self._phase is Phase.RUNNING and not self._is_hindered and not self.stop.is_requested

    @property
    def idle_seconds(self) -> float:
        """The time since the last activity in seconds; it grows when a run hangs."""
        return self._output.now() - self._active_s

    def report_step(self, text: str, **facts: Any) -> None:
        """Print one line about a step at once, with further fields for JSON."""
        with self._lock:
            self._active_s = self._output.now()
            self._write_line("step", text, facts)

    def warn(self, reason: str, text: str, **facts: Any) -> None:
        """Report a problem that does not end the run; the document has the newest one."""
        with self._lock:
            self._warning = (reason, text)
            self._write_line("warning", text, {"reason": reason, **facts})

    def set_hindered(self, is_hindered: bool) -> None:
        """Record whether something hinders the run at present, so that it is not ready for requests."""
        self._is_hindered = is_hindered

    def mark_alive(self) -> None:
        """Record activity without progress, such as an empty batch or a wait for brokers."""
        with self._lock:
            self._active_s = self._output.now()

    def report_progress(self, **totals: Any) -> None:
        """Update totals of this run (fields of ``Totals``); the others keep their values."""
        with self._lock:
            self._phase = Phase.STOPPING if self.stop.is_requested else Phase.RUNNING
            self._totals = replace(self._totals, **totals)
            now = self._active_s = self._output.now()
            if now - self._progress_reported_s >= LINE_INTERVAL_SECONDS:
                self._progress_reported_s = now
                self._write_line("progress", self._summary(now), self._numbers())

    def finish(self, outcome: Outcome) -> Outcome:
        """Report the outcome, and return it. In the text format a failure is printed by the caller, not here."""
        with self._lock:
            self._outcome = outcome
            self._phase = Phase.DONE if outcome.exit_code == 0 else Phase.FAILED
            self._active_s = self._output.now()
            document = self.document()
            if self._output.output_format is OutputFormat.JSON:
                self._print(self._output.result, json.dumps({"event": "result", **document}))
            elif outcome.exit_code == 0:
                self._print(self._output.result, outcome.text or self._summary(self._active_s))
            if self._output.termination_message is not None:
                with contextlib.suppress(OSError):  # the exit code still has the result
                    self._output.termination_message.write_text(termination_message(document), encoding="utf-8")
            return outcome

    def document(self) -> dict[str, Any]:
        """Return the state of this run for programs, as JSON values."""
        with self._lock:
            outcome = self._outcome
            totals = self._totals if outcome is None else outcome.apply_to(self._totals)
            document: dict[str, Any] = {
                "v": VERSION,
                "job": self.job,
                "phase": str(self._phase),
                "start": utc_text(self._started_s),
                "active": utc_text(self._active_s),
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
                    "end": utc_text(self._active_s),
                    "exitCode": outcome.exit_code,
                    "reason": outcome.reason,
                    "text": outcome.text,
                    "facts": outcome.facts,
                }
            return document

    def _write_line(self, event: str, text: str, facts: dict[str, Any]) -> None:
        if self._output.output_format is OutputFormat.JSON:
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

    def _summary(self, now: float) -> str:
        totals, seconds = self._totals, max(now - self._started_s, 0.001)
        words = f"{totals.rows:,} messages, {bytes_text(totals.bytes)} in {seconds:,.0f} s"
        words += f" ({totals.rows / seconds:,.0f}/s)" if seconds >= 1 else ""
        words += f", {totals.files:,} files" if totals.files else ""
        words += f", {totals.rows_behind:,} remaining" if totals.queues else ""
        words += f", {totals.rows_lost:,} LOST (deleted before they were read)" if totals.rows_lost else ""
        return words

    @staticmethod
    def _print(stream: TextIO, text: str) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # the reader of the stream has closed it
            print(text, file=stream, flush=True)


def termination_message(document: dict[str, Any]) -> str:
    """Return the document within Kubernetes' limit.

    It is shortened in this order: fewer queues, no facts, a shorter text, a shorter warning, no checkpoint. If that
    does not suffice, it is cut, and is no JSON.
    """
    short = {**document, "queues": list(document["queues"])}
    while len(text := _compact(short)) > TERMINATION_MESSAGE_BYTES_MAX:
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
            return _compact(short)[:TERMINATION_MESSAGE_BYTES_MAX]
    return text


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), default=str)  # ASCII: a character is a byte


def _queues(queues: Sequence[QueueProgress]) -> list[list[Any]]:
    """Return rows `[topic, broker, queue, done, latest, lagSeconds]`, the largest lag first."""
    ordered = sorted(queues, key=lambda one: (one.done - one.latest, one.topic, one.broker, one.queue))
    return [[one.topic, one.broker, one.queue, one.done, one.latest, one.lag_seconds] for one in ordered[:QUEUES_MAX]]


def utc_text(seconds: float) -> str:
    """Format a time as in documents: `2026-11-22T10:15:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
