"""The report: one self-contained HTML file without scripts and external resources, to be opened, mailed and printed.

It has the period, the key numbers, and a chart for each question with its numbers in a table below. Names of topics and
keys are escaped; in addition, a content security policy forbids the browser to load anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from gantry_pipelines.analytics import charts
from gantry_pipelines.analytics.axes import Unit, format_amount, moment_text
from gantry_pipelines.analytics.charts import Chart
from gantry_pipelines.analytics.figures import Figures, compute_figures
from gantry_pipelines.analytics.tables import Tables
from gantry_remoting.durable_files import replace_file

DAYS_MAX: Final = 7
"""Days of windows that a report shows."""
DAY_MS: Final = 86_400_000
TABLE_ROWS_MAX: Final = 60
"""The most rows of a table in the page."""
NO_VALUE: Final = "\N{EN DASH}"
"""The text in place of a value that was not measured."""


def write_report(tables: Tables, path: Path, now_ms: int) -> bool:
    """Write the report of the newest windows atomically; return False if there are no windows."""
    figures = compute_figures(tables, now_ms - DAYS_MAX * DAY_MS, now_ms + DAY_MS)
    if figures is None:
        return False
    replace_file(path, render_page(figures, now_ms).encode())
    return True


def render_page(figures: Figures, now_ms: int) -> str:
    """Return the complete HTML page."""
    sections = "".join(f"<section>{content}</section>" for content in _sections(figures) if content)
    period = f"{moment_text(figures.begin_ms)} to {moment_text(figures.end_ms)} UTC"
    windows = format_amount(figures.window_ms / 1000, Unit.SECONDS)
    merged = ""
    if figures.step_ms > figures.window_ms:
        step = format_amount(figures.step_ms / 1000, Unit.SECONDS)
        merged = f" A point of a chart covers {step}: the mean of rates, the maximum of latencies."
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Topics, {escape(period)}</title><style>{STYLE}</style></head><body><main>"
        f'<header><h1>Topic usage</h1><p class="period">{escape(period)}</p></header>'
        f"{_tiles(figures)}{sections}"
        f"<footer><p>Windows of {windows}, by the brokers' store time.{merged} "
        f"Generated {moment_text(now_ms)} UTC by <code>gantry pipeline analytics</code>.</p></footer></main>"
        "</body></html>\n"
    )


def _tiles(figures: Figures) -> str:
    worst = max((row for row in figures.topics if row["p99Ms"] is not None), key=lambda row: row["p99Ms"], default=None)
    tiles = [
        ("Messages", format_amount(figures.messages, Unit.MESSAGES), f"in {_count(len(figures.topics), 'topic')}"),
        ("Stored", format_amount(figures.bytes, Unit.BYTES), "one replica, with headers"),
        (
            "Busiest window",
            format_amount(figures.peak_per_second, Unit.MESSAGES_PER_SECOND),
            moment_text(figures.peak_ms)[:16],
        ),
    ]
    if worst is not None:
        tiles.append(("Highest p99 latency", format_amount(worst["p99Ms"], Unit.MILLISECONDS), f"in {worst['topic']}"))
    if figures.lags:
        behind = sum(row["lagMessages"] for row in figures.lags)
        groups = _count(len({row["group"] for row in figures.lags}), "group")
        tiles.append(("Consumer lag", format_amount(behind, Unit.MESSAGES), f"messages, {groups}"))
    items = "".join(
        f"<li><span>{escape(name)}</span><strong>{escape(value)}</strong><small>{escape(note)}</small></li>"
        for name, value, note in tiles
    )
    return f'<ul class="tiles">{items}</ul>'


def _sections(figures: Figures) -> Iterator[str]:
    yield (
        _head("Traffic", "Stored messages per second, by topic; the areas are stacked.")
        + _figure(charts.render_areas(figures.rates), figures.rates)
        + "<h3>In bytes</h3>"
        + _figure(charts.render_areas(figures.volumes), figures.volumes)
        + _topics_table(figures)
    )
    shown = [chart for chart in figures.latencies if any(v is not None for one in chart.series for v in one.values)]
    if shown:
        small = "".join(
            f"<div><h3>{escape(chart.title)}</h3>{_figure(_latency_chart(chart), chart)}</div>" for chart in shown
        )
        yield (
            _head(
                "Latency from producer to log",
                "From a message's born time at its producer to its store time, by both machines' clocks: half of the "
                "messages took less than p50, one in a hundred more than p99.",
            )
            + f'<div class="pairs">{small}</div>'
            + _latency_table(figures)
        )
    yield _queues(figures) if figures.queues else ""
    yield _keys(figures) if figures.keys else ""
    yield _lags(figures) if figures.lags else ""


def _latency_chart(chart: Chart) -> str:
    return charts.render_lines(chart, width=charts.NARROW, is_logarithmic=True)


def _topics_table(figures: Figures) -> str:
    rows = [
        (
            row["topic"], f"{row['messages']:,}", format_amount(row["bytes"], Unit.BYTES),
            format_amount(row["meanPerSecond"], Unit.MESSAGES_PER_SECOND),
            format_amount(row["peakPerSecond"], Unit.MESSAGES_PER_SECOND),
        )
        for row in figures.topics
    ]  # fmt: skip
    return _table(("Topic", "Messages", "Stored", "Mean rate", "Busiest window"), rows)


def _latency_table(figures: Figures) -> str:
    def text(value: float | None) -> str:
        return NO_VALUE if value is None else format_amount(value, Unit.MILLISECONDS)

    rows = [
        (row["topic"], text(row["p50Ms"]), text(row["p95Ms"]), text(row["p99Ms"]), text(row["maxMs"]),
         f"{row['clockSkewed']:,}")
        for row in figures.topics
    ]  # fmt: skip
    names = ("Topic", "Highest p50", "Highest p95", "Highest p99", "Maximum", "Clock skew")
    note = "The maximum over all windows. “Clock skew”: messages whose store time is before their born time; left out."
    return _table(names, rows, note)


def _queues(figures: Figures) -> str:
    bars = [
        (
            f"{row['topic']} · {row['broker']} / {row['queue']}",
            row["timesEven"],
            f"{row['timesEven']:.2f} {Unit.EVEN_SHARES.symbol} even share",
        )
        for row in figures.queues[:8]
    ]
    rows = [
        (f"{row['topic']}", f"{row['broker']} / {row['queue']}", f"{row['messages']:,}",
         format_amount(row["share"], Unit.SHARE), f"{row['timesEven']:.2f}")
        for row in figures.queues
    ]  # fmt: skip
    lead = "A queue's share of its topic, relative to an even distribution: 1 is even, 2 is twice the even share."
    return (
        _head("Hot queues", lead)
        + charts.render_bars("Hot queues", Unit.EVEN_SHARES, bars)
        + _table(("Topic", "Broker / queue", "Messages", "Share of topic", "Times even share"), rows)
    )


def _keys(figures: Figures) -> str:
    bars = [
        (f"{row['topic']} · {row['key']}", float(row["messages"]), f"{row['messages']:,} messages")
        for row in figures.keys[:10]
    ]
    rows = [
        (row["topic"], row["key"], f"{row['messages']:,}", format_amount(row["bytes"], Unit.BYTES))
        for row in figures.keys
    ]
    lead = "Keys with the most messages. Only the hottest keys of each window are stored, so these are lower bounds."
    return (
        _head("Hot keys", lead)
        + charts.render_bars("Hot keys", Unit.MESSAGES, bars)
        + _table(("Topic", "Key", "Messages", "Bytes"), rows)
    )


def _lags(figures: Figures) -> str:
    chart = _figure(charts.render_lines(figures.lag), figures.lag) if figures.lag is not None else ""
    rows = [
        (row["group"], row["topic"], f"{row['lagMessages']:,}",
         NO_VALUE if row["lagSeconds"] is None else format_amount(row["lagSeconds"], Unit.SECONDS))
        for row in figures.lags
    ]  # fmt: skip
    lead = "Messages that are stored and not yet consumed, by the brokers' committed offsets at each sample."
    names = ("Group", "Topic", "Lag (messages)", "Age of oldest")
    return _head("Consumers", lead) + chart + _table(names, rows, "At the last sample.")


def _head(title: str, lead: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="lead">{escape(lead)}</p>'


def _figure(drawing: str, chart: Chart) -> str:
    """Return a chart with its legend, and its values in a collapsed table."""
    names = ("UTC", *(series.name for series in chart.series))
    step = max(-(-len(chart.times_ms) // TABLE_ROWS_MAX), 1)
    rows = [
        (moment_text(moment), *(NO_VALUE if one.values[at] is None else format_amount(one.values[at] or 0, chart.unit)
                                for one in chart.series))
        for at, moment in enumerate(chart.times_ms) if at % step == 0
    ]  # fmt: skip
    every = "" if step == 1 else f", every {step} points"
    values = f"<details><summary>Values{every}</summary>{_table(names, rows)}</details>"
    return f"<figure>{drawing}{charts.render_legend(chart)}{values}</figure>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(one)}</td>" for one in row[1:])
        + "</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(note)}</caption>" if note else ""
    return f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #5b6675; --rule: #dfe4ea;
  --c0: #2f6db5; --c1: #e08a1e; --c2: #2a9d7c; --c3: #b5498f; --c4: #7a63c7; --c5: #c2452d;
  --c6: #6fa8dc; --c7: #8a94a3; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1a2029; --ink: #e7ecf3; --soft: #9aa7b8;
  --rule: #2d3643; --c0: #6ea8ea; --c1: #f2aa4c; --c2: #4fc7a3; --c3: #dd7fbd; --c4: #a996ec; --c5: #ec7a63;
  --c6: #9cc9f2; --c7: #94a0b1; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 36px 20px 48px; }
header { margin-bottom: 22px; } h1 { font-size: 30px; line-height: 1.2; margin: 0; letter-spacing: -.4px; }
h2 { font-size: 20px; margin: 0 0 2px; } h3 { font-size: 15px; margin: 22px 0 6px; }
.period, .lead, footer, caption { color: var(--soft); } .period { margin: 4px 0 0; font-size: 16px; }
.lead { margin: 0 0 16px; max-width: 72ch; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 22px 24px;
  margin: 18px 0; }
.tiles { list-style: none; margin: 0; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.tiles li { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tiles span, .tiles small { display: block; color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.tiles strong { display: block; font-size: 26px; line-height: 1.3; font-weight: 650; letter-spacing: -.3px; }
figure { margin: 0 0 6px; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.tick.y, .name { text-anchor: end; } svg .name, svg .value { fill: var(--ink); font-size: 13px; }
.grid { stroke: var(--rule); } .base { stroke: var(--soft); } .line { fill: none; stroke: var(--colour);
  stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.area, .bar { fill: var(--colour); } .area { fill-opacity: .85; stroke: var(--card); stroke-width: .75; }
.tip { fill: transparent; } .tip:hover { fill: var(--ink); fill-opacity: .08; }
.s0 { --colour: var(--c0); } .s1 { --colour: var(--c1); } .s2 { --colour: var(--c2); } .s3 { --colour: var(--c3); }
.s4 { --colour: var(--c4); } .s5 { --colour: var(--c5); } .s6 { --colour: var(--c6); } .s7 { --colour: var(--c7); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 4px 0 8px 66px;
  font-size: 13px; } .legend li { overflow-wrap: anywhere; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px;
  background: var(--colour); }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 0 26px; }
.pairs h3 { margin-top: 6px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin-top: 14px; } table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; } caption { caption-side: bottom; text-align: left; padding-top: 8px; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--rule); font-weight: 400; }
thead th { color: var(--soft); font-size: 13px; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; }
tbody th { overflow-wrap: anywhere; min-width: 7.5em; } td { white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
summary { color: var(--soft); font-size: 13px; cursor: pointer; width: max-content; }
footer { font-size: 13px; } code { font-family: ui-monospace, Menlo, Consolas, monospace; }
@media print { body { background: #fff; } main { padding: 0; } section, .tiles li { break-inside: avoid; }
  details { display: none; } }
"""
"""Style sheet of the page, for light and dark mode, screen and print; its colours suit colour-blind readers."""
