"""The tables, which each run changes atomically, and the report that is built from them; without Spark."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from spark_kit.sample_day import BEGIN, end_ms, write_sample_day

from gantry_pipelines.analytics.axes import Unit, format_amount, log_ticks, round_ticks, time_text, time_ticks
from gantry_pipelines.analytics.figures import compute_figures
from gantry_pipelines.analytics.job import closed_windows
from gantry_pipelines.analytics.report import render_page, write_report
from gantry_pipelines.analytics.streaming import _WindowWriter
from gantry_pipelines.analytics.tables import JOURNAL, STAGED, TABLES, Tables
from gantry_pipelines.errors import JobError
from gantry_pipelines.reporting import Reporter

LATENCY = TABLES["latency"]
NIGHT = datetime(2026, 11, 22, 23, 58, tzinfo=UTC)
MINUTE_MS = 60_000


def windows(begin: int, end: int, messages: int, topic: str = "orders") -> pa.Table:
    """Return a row for each minute, counted from two minutes before midnight."""
    rows = [
        {
            "windowBegin": NIGHT + timedelta(minutes=at), "windowEnd": NIGHT + timedelta(minutes=at + 1),
            "topic": topic, "messages": messages, "p50Ms": 1.0, "p95Ms": 2.0, "p99Ms": 3.0, "maxMs": 4.0,
            "clockSkewed": 0,
        }
        for at in range(begin, end)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=LATENCY.schema)


def minute_ms(minutes: int) -> int:
    return int((NIGHT + timedelta(minutes=minutes)).timestamp() * 1000)


def message_counts(tables: Tables) -> list[int]:
    return [int(row["messages"]) for row in tables.read(LATENCY).to_pylist()]


def test_windows_that_are_written_again_replace_the_previous_rows(tmp_path: Path) -> None:
    """Windows in the replaced range without new rows are removed, also across midnight; the others stay."""
    with Tables(tmp_path) as tables:
        tables.write("a", {"latency": windows(0, 4, 10)}, {"writtenTo": 1})
        tables.write("b", {"latency": windows(2, 3, 20)}, {"writtenTo": 2}, (minute_ms(1), minute_ms(4)))

    assert message_counts(tables) == [10, 20]
    assert tables.progress() == {"writtenTo": 2}
    assert sorted(path.name for path in (tmp_path / "latency").iterdir()) == ["day=2026-11-22", "day=2026-11-23"]


def test_without_a_range_only_windows_with_new_rows_are_replaced(tmp_path: Path) -> None:
    """A stream replaces only the windows of its batch."""
    with Tables(tmp_path) as tables:
        tables.write("a", {"latency": windows(0, 4, 10)}, {})
        tables.write("b", {"latency": windows(3, 5, 20)}, {})

    assert message_counts(tables) == [10, 10, 10, 20, 20]


class ArrowFrame:
    """A DataFrame of one batch, as far as the writer of windows uses it."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def persist(self) -> None:
        """Keep nothing: the rows are in memory."""

    def unpersist(self) -> None:
        """Release nothing, since nothing was kept."""

    def toArrow(self) -> pa.Table:
        return self.rows


def test_stream_reports_each_batch_whose_windows_it_has_written(tmp_path: Path) -> None:
    """The closed windows of a batch are written to their tables, and the progress has the number of the batch."""
    reporter = Reporter("analytics")
    with Tables(tmp_path) as tables:
        write = _WindowWriter(tables, reporter).batch_function("latency", {"latency": lambda frame: frame})
        for batch, frame in enumerate((windows(0, 2, 10), windows(2, 2, 0), windows(2, 4, 20))):
            write(cast(Any, ArrowFrame(frame)), batch)

    assert message_counts(tables) == [10, 10, 20, 20]
    assert (reporter.totals.batch, reporter.totals.files) == (2, 2)


def test_run_that_crashes_before_its_journal_has_changed_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """Files that were only staged are deleted by the next run."""
    with Tables(tmp_path) as tables:
        tables.write("a", {"latency": windows(0, 2, 10)}, {"writtenTo": 1})

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), Tables(tmp_path) as tables:
        patched.setattr("gantry_pipelines.analytics.tables.replace_file", die)
        tables.write("b", {"latency": windows(0, 2, 20)}, {"writtenTo": 2})
    assert (tmp_path / STAGED).exists()

    with Tables(tmp_path) as tables:
        assert message_counts(tables) == [10, 10]
    assert tables.progress() == {"writtenTo": 1}
    assert not (tmp_path / STAGED).exists()


@pytest.mark.parametrize(
    ("moves", "expected"), [(0, [10, 10, 10, 10]), (1, [20, 20, 10, 10])], ids=["before the first move", "between two"]
)
def test_run_that_crashes_after_its_journal_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: Any, moves: int, expected: list[int]
) -> None:
    """The journal commits the run: both days have the new rows, and the progress is the new one.

    Until then a reader sees whole days, each before or after the run.
    """
    with Tables(tmp_path) as tables:
        tables.write("a", {"latency": windows(0, 4, 10)}, {"writtenTo": 1})
    done: list[str] = []

    def die(source: Any, target: Any) -> None:
        if "latency" in str(target):
            if len(done) == moves:
                raise KeyboardInterrupt
            done.append(str(target))
        os.rename(source, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), Tables(tmp_path) as tables:
        patched.setattr("gantry_pipelines.analytics.tables.os.replace", die)
        tables.write("b", {"latency": windows(0, 4, 20)}, {"writtenTo": 2})
    assert json.loads((tmp_path / JOURNAL).read_text())["run"] == "b"
    assert message_counts(Tables(tmp_path)) == expected

    with Tables(tmp_path) as tables:
        assert message_counts(tables) == [20] * 4
    assert tables.progress() == {"writtenTo": 2}
    assert not (tmp_path / JOURNAL).exists()


def test_tables_have_one_writer(tmp_path: Path) -> None:
    """A second writer is refused and changes nothing."""
    with Tables(tmp_path), pytest.raises(JobError, match="another run writes") as caught, Tables(tmp_path):
        pass
    assert caught.value.reason == "Busy"


def test_file_system_without_locks_is_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the cause: waiting for another run would not help."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("gantry_pipelines.analytics.tables.fcntl.flock", refuse)
    with pytest.raises(JobError, match="No locks available") as caught, Tables(tmp_path):
        pass
    assert caught.value.reason == "CannotLock"


def test_only_closed_windows_are_written() -> None:
    """The range ends at the last window boundary before now minus the watermark, and never before its begin."""
    assert closed_windows(90_500, 400_000, 60_000, 60_000) == (60_000, 300_000)
    assert closed_windows(300_000, 359_000, 60_000, 60_000).is_empty
    assert closed_windows(300_000, 0, 60_000, 0).is_empty


# -- the page ----------------------------------------------------------------------------------------------------------


class PageParser(HTMLParser):
    """Collects the tags, references and text of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "onclick", "onload")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_report_loads_and_runs_nothing(tmp_path: Path) -> None:
    """The page has no scripts and no external resources; every chart has a title, a description, and a table."""
    tables = write_sample_day(tmp_path, minutes=30)
    assert write_report(tables, tmp_path / "report.html", end_ms(30))
    parser = PageParser()
    parser.feed((tmp_path / "report.html").read_text())

    assert not {"script", "link", "img", "iframe", "object"} & set(parser.tags)
    assert parser.references == []
    assert parser.tags.count("svg") == parser.tags.count("desc") >= 8
    assert {"table", "caption", "figure", "details"} <= set(parser.tags)
    text = " ".join(parser.text)
    for wanted in ("Topic usage", "Hot queues", "Hot keys", "Consumers", "payments", "messages per second"):
        assert wanted in text


def test_description_of_bars_names_their_unit(tmp_path: Path) -> None:
    """A screen reader reads the description: hot queues are shares of their topics, and hot keys are messages."""
    figures = compute_figures(write_sample_day(tmp_path, minutes=10), 0, 1 << 50)
    assert figures is not None

    text = render_page(figures, end_ms(10))

    assert ">Hot queues, in multiples of the even share: " in text
    assert ">Hot keys, in messages: " in text


def test_names_of_topics_and_keys_are_escaped(tmp_path: Path) -> None:
    """Markup in a key of a producer is shown as text."""
    tables = write_sample_day(tmp_path, minutes=10)
    figures = compute_figures(tables, 0, 1 << 50)
    assert figures is not None
    evil = '<script>alert("1")</script>'
    figures.keys[0]["key"] = evil

    text = render_page(figures, end_ms(10))

    assert evil not in text
    assert "&lt;script&gt;" in text


def test_figures_do_not_depend_on_merging_windows_for_charts(tmp_path: Path) -> None:
    """Merged windows show the mean of rates and the maximum of latencies; the totals stay the same."""
    tables = write_sample_day(tmp_path, minutes=500)
    rows = tables.read(TABLES["throughput"]).to_pylist()
    latencies = tables.read(LATENCY).to_pylist()
    figures = compute_figures(tables, 0, 1 << 50)

    assert figures is not None
    assert figures.messages == sum(row["messages"] for row in rows)
    assert figures.begin_ms == int(BEGIN.timestamp() * 1000)
    assert len(figures.rates.times_ms) <= 240
    assert figures.step_ms == 3 * MINUTE_MS
    drawn = sum(sum(value or 0 for value in one.values[:-1]) * 180 for one in figures.rates.series)
    last = sum(row["messages"] for row in rows if row["windowBegin"] >= BEGIN + timedelta(minutes=498))
    assert drawn == pytest.approx(figures.messages - last)
    worst = max(row["p99Ms"] for row in latencies if row["topic"] == "orders")
    assert next(row for row in figures.topics if row["topic"] == "orders")["p99Ms"] == worst
    assert figures.queues[0]["queue"] == 2
    assert figures.lags[0]["group"] == "warehouse"


def test_empty_tables_have_no_report(tmp_path: Path) -> None:
    """Without any window no report is written."""
    assert not write_report(Tables(tmp_path), tmp_path / "report.html", 0)
    assert not (tmp_path / "report.html").exists()


def test_axes_have_round_numbers_and_times() -> None:
    """Linear ticks begin at zero, logarithmic ones at a power of ten; labels have no redundant parts."""
    assert round_ticks(9_347) == [0, 2_500, 5_000, 7_500, 10_000]
    assert round_ticks(0) == [0.0, 1.0]
    assert round_ticks(2.6 * 1024**2, is_binary=True)[-1] == 3 * 1024**2
    assert log_ticks(0.8, 750) == [0.1, 1.0, 10.0, 100.0, 1000.0]
    assert log_ticks(1, 1) == [1.0, 10.0]
    ticks = time_ticks(int(BEGIN.timestamp() * 1000), end_ms())
    assert [time_text(tick, ticks) for tick in ticks][:2] == ["04:00", "05:00"]
    assert (format_amount(0, Unit.BYTES), format_amount(1_300_000, Unit.BYTES)) == ("0 B", "1.24 MiB")
    assert (format_amount(12_345, Unit.MESSAGES_PER_SECOND), format_amount(0.373, Unit.SHARE)) == ("12.3k/s", "37.3 %")
    assert (format_amount(0.42, Unit.MILLISECONDS), format_amount(1_530, Unit.MILLISECONDS)) == ("0.42 ms", "1.53 s")
    assert format_amount(9_000, Unit.SECONDS) == "2.5 h"
