"""`make bench-scale`: bends and their explanation, the pictures, the tables, and what a failed curve leaves.

The figures are made up, so no load is run. The pictures are read as a viewer does: the places of points are turned
into values with the labels of the axes.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import curves
import msgspec
import pytest
from click.testing import CliRunner
from gantry_bench import (
    curve_broker,
    curve_definitions,
    curve_page,
    curve_plot,
    curve_points,
    curve_scale,
    errors,
    figures,
    loadgen,
    machine,
    measurement,
    usage,
)
from gantry_bench.curve_points import CurveName, Growth, Measure, Point, Skipped
from gantry_bench.curve_run import CurveRun, Step, shard_values, steps_of
from gantry_bench.send_figures import GantryPath
from rich.console import Console
from test_bench_measurement import report

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = machine.Machine("A processor", 2, 1 << 30, "6.18.5", "3.11.7", "0.23.0")
CURVES = list(curve_definitions.CURVES.values())


def points(
    name: CurveName, path: GantryPath, key: str, values: dict[float, float], *, other_cores: float = 0.0, **more: float
) -> list[Point]:
    """Return points with one figure by size, and others that are the same at each size."""
    return [
        Point(curve=name, path=path, size=size, values={key: value, **more}, other_cores=other_cores)
        for size, value in values.items()
    ]


def flat(key: str = "cpu_us") -> Measure:
    """Return a figure that should not grow."""
    return Measure(key=key, heading="CPU, us", title="CPU", growth="flat", noise=0.5)


def panel_of(picture: str, panel: str) -> ElementTree.Element:
    """Return the group of a panel in a picture."""
    found = ElementTree.fromstring(picture).find(f"{SVG}g[@id='{panel}']")
    assert found is not None
    return found


def values_in(panel: ElementTree.Element, path: GantryPath) -> dict[float, float]:
    """Return sizes and values of a line, from the places of its points and the labels of the axes."""
    texts = panel.findall(f"{SVG}text")
    across = {
        float(text.attrib["x"]): number_of(text)
        for text in texts
        if text.get("text-anchor") == "middle" and "transform" not in text.attrib and is_number(text)
    }
    up = {
        float(text.attrib["y"]): number_of(text)
        for text in texts
        if text.get("text-anchor") == "end"
        if is_number(text)
    }
    is_logarithmic = any("transform" in text.attrib and (text.text or "").endswith("(log)") for text in texts)
    line = panel.find(f"{SVG}polyline[@class='line {path}']")
    assert line is not None
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    circles = [
        (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
        for circle in panel.findall(f"{SVG}circle")
        if circle.get("fill") == curve_plot.COLOURS[path]
    ]
    assert places == circles
    return {
        read_axis(x, across, is_logarithmic=True): read_axis(y, up, is_logarithmic=is_logarithmic) for x, y in places
    }


def is_number(text: ElementTree.Element) -> bool:
    """Whether a text is the label of a tick."""
    return re.fullmatch(r"[\d,.]+(e[-+]\d+)?", text.text or "") is not None


def number_of(text: ElementTree.Element) -> float:
    """Return the number that a tick has."""
    return float((text.text or "").replace(",", ""))


def read_axis(place: float, ticks: dict[float, float], *, is_logarithmic: bool) -> float:
    """Return the value at a place of an axis, between its outer ticks."""
    (start, low), *_, (end, high) = sorted(ticks.items())
    share = (place - start) / (end - start)
    return float(low * (high / low) ** share) if is_logarithmic else low + share * (high - low)


@pytest.mark.parametrize(
    ("growth", "values", "bend"),
    [
        ("flat", {1: 6.0, 10: 6.1, 100: 6.2, 1000: 9.5}, 1000),
        ("flat", {1: 6.0, 10: 9.5, 100: 9.9, 1000: 12.0}, 10),
        ("flat", {1: 6.0, 10: 9.5, 100: 6.1, 1000: 6.0}, None),
        ("flat", {1: 100.0, 10: 20.0, 100: 21.0, 1000: 31.0}, 1000),
        ("flat", {1: 0.2, 10: 0.6}, None),
        ("linear", {1: 30.0, 10: 30.2, 100: 32.0, 1000: 50.0, 10_000: 230.0}, 10_000),
        ("linear", {1: 30.0, 10: 30.2, 100: 32.0}, None),
        ("proportional", {1: 100.0, 2: 190.0, 4: 240.0, 8: 241.0}, 4),
        ("proportional", {1: 100.0, 2: 190.0, 4: 350.0}, None),
        ("none", {1: 1.0, 10: 100.0}, None),
        ("flat", {1: 1.0}, None),
    ],
)
def test_bend_is_where_the_expected_line_is_left(
    growth: Growth, values: dict[float, float], bend: float | None
) -> None:
    """A bend is the first step from which all steps are beyond the line; noise and one bad step are none."""
    measure = Measure(key="value", heading="value", growth=growth, noise=0.5)

    found = curve_points.find_bend(list(values.items()), measure)

    assert (None if found is None else found.size) == bend


def test_growth_faster_than_linear_is_named() -> None:
    """Each one costs more than between the steps before: that is said, with the factor."""
    measure = curve_definitions.ANONYMOUS
    steady = [(1.0, 30.0), (1000.0, 40.0), (10_000.0, 130.0)]
    steep = [(1.0, 30.0), (1000.0, 40.0), (10_000.0, 310.0)]

    assert curve_points.find_super_linear(steady, measure) is None
    found = curve_points.find_super_linear(steep, measure)
    assert found is not None
    assert (found.size, round(found.ratio, 1)) == (10_000.0, 3.0)
    text = curve_points.explain(curve_definitions.TOPICS, points("topics", "compiled", "anonymous_mib", dict(steep)))
    assert text == [
        "Memory of the broker itself, compiled: 30.0 at 1, and 28.7 KiB for each further topic; bends at 10,000, where "
        "growth exceeds the fixed part. **Faster than linear** at 10,000: each one costs 3.0 times as much as between "
        "the two steps before."
    ]


def test_bend_is_explained_by_the_parts_that_grow() -> None:
    """The sentence has the change in the event loop, in other threads and in the kernel, largest first."""
    before = {"cpu_us": 6.0, "loop_us": 5.5, "threads_us": 0.5, "kernel_us": 2.0}
    after = {"cpu_us": 12.0, "loop_us": 7.5, "threads_us": 4.5, "kernel_us": 3.0}
    own = [
        Point(curve="topics", path="python", size=size, values=values)
        for size, values in ((1, before), (10, before), (100, after))
    ]

    assert curve_points.explain(curve_definitions.TOPICS, own) == [
        "CPU for a send, Python: bends at 100, 12.00 after 6.00 at 10 (2.0 times the lowest); of the change, +4.00 in "
        "other threads, +2.00 in the event loop, +1.00 in the kernel, of both."
    ]


@pytest.mark.parametrize("values", [{1: 6.0, 10: 6.5, 100: 7.0, 1000: 14.25}, {1: 2.0, 10: 15.0, 100: 410.0}])
def test_points_of_the_picture_are_the_values(values: dict[float, float]) -> None:
    """The places of the points, read with the labels of the axes, are the measured values of both code paths."""
    other = {size: 2 * value for size, value in values.items()}
    own = [*points("topics", "compiled", "cpu_us", values), *points("topics", "python", "cpu_us", other)]

    panel = panel_of(curve_plot.draw(curve_definitions.TOPICS, own), "topics-cpu_us")

    for path, expected in (("compiled", values), ("python", other)):
        read = values_in(panel, path)  # type: ignore[arg-type]  # the names of the two paths
        assert list(read) == pytest.approx(list(expected), rel=0.01)
        assert list(read.values()) == pytest.approx(list(expected.values()), rel=0.02)


def test_bend_is_labelled_where_it_is() -> None:
    """The ring of a bend is around its point, and its label has the size; a line without a bend has neither."""
    bent, straight = {1.0: 6.0, 10.0: 6.1, 100.0: 9.9, 1000.0: 12.0}, {1.0: 10.0, 10.0: 10.0, 100.0: 10.0, 1000.0: 10.0}
    own = [*points("topics", "compiled", "cpu_us", bent), *points("topics", "python", "cpu_us", straight)]

    panel = panel_of(curve_plot.draw(curve_definitions.TOPICS, own), "topics-cpu_us")

    (ring,) = panel.findall(f"{SVG}circle[@class='bend compiled']")
    line = panel.find(f"{SVG}polyline[@class='line compiled']")
    assert line is not None
    x, y = line.attrib["points"].split()[list(bent).index(100.0)].split(",")
    assert (ring.attrib["cx"], ring.attrib["cy"]) == (x, y)
    (label,) = panel.findall(f"{SVG}text[@class='bend compiled']")
    assert label.text == "bend at 100"
    assert abs(float(label.attrib["x"]) - float(x)) < 15 and abs(float(label.attrib["y"]) - float(y)) < 25
    assert panel.findall(f"{SVG}circle[@class='bend python']") == []


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_picture_is_valid_and_the_same_for_the_same_results(curve: curve_points.Curve) -> None:
    """A picture is XML with its texts as text: titles, axes with units, both code paths. The order does not matter."""
    factors: dict[GantryPath, float] = {"compiled": 1.0, "python": 3.0}
    own = [
        Point(curve=curve.name, path=path, size=size, values={one.key: size * factor for one in curve.measures})
        for path, factor in factors.items()
        for size in (1, 2, 4)
    ]

    picture = curve_plot.draw(curve, own)

    assert picture == curve_plot.draw(curve, own[::-1])
    texts = [text.text for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert {"compiled path", "Python path", f"{curve.axis} (log)"} <= set(texts)
    for one in curve.panels:
        assert one.title in texts
        assert any(text in (one.heading, f"{one.heading} (log)") for text in texts)
    assert not {element.tag for element in ElementTree.fromstring(picture).iter()} & {f"{SVG}image", f"{SVG}script"}


def contrast(colour: str, background: str) -> float:
    """Return the contrast of two colours, as WCAG defines it."""

    def luminance(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(colour), luminance(background)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", ["#ffffff", "#0d1117"])
def test_colours_can_be_read_on_light_and_dark(background: str) -> None:
    """Lines and texts have a contrast of at least 3 on both backgrounds."""
    colours = [curve_plot.TEXT_COLOUR, *curve_plot.COLOURS.values()]

    assert {colour: contrast(colour, background) for colour in colours if contrast(colour, background) < 3} == {}


def test_table_has_a_row_for_each_step_and_says_what_is_missing() -> None:
    """Steps are in the order of size with both paths side by side; skipped steps and other programs are named."""
    own = [
        *points("restart", "python", "clean_s", {10: 1.5, 1: 1.25}, other_cores=0.7),
        *points("restart", "compiled", "clean_s", {1: 1.0, 10: 1.0}),
    ]
    skipped = [Skipped("restart", 100.0, "115 GB of disk are needed")] * 2

    table = curve_page.curve_figures(curve_definitions.RESTART, own, skipped, cores=2)

    assert table.headings == ["log, GB", "path", "start after a clean stop, s"]
    assert table.rows == [
        ["1", "compiled", "1.00"], ["1", "Python", "1.25"], ["10", "compiled", "1.00"], ["10", "Python", "1.50"],
    ]  # fmt: skip
    assert table.notes.count("Not measured: 100 log, GB: 115 GB of disk are needed.") == 1
    assert table.notes[-1] == "Other programs used up to 0.7 cores meanwhile, so the figures mean little."


@pytest.mark.parametrize(("cores", "verdict"), [(2, "**the cores are the bend**"), (16, "the cores are not the bend")])
def test_bend_of_shards_is_explained_by_the_cores(cores: int, verdict: str) -> None:
    """Where the rate bends, the note says how many of the machine's cores were busy."""
    rates = {1.0: 100.0, 2.0: 120.0, 4.0: 121.0}
    own = points("shards", "compiled", "rate", rates, broker_cores=1.5, load_cores=0.4)

    (note,) = curve_page.cores_notes(own, cores)

    assert f"bends at 2 shards: brokers, load generators and other programs use 1.9 of the {cores} cores" in note
    assert note.endswith(f"{verdict}.")


def full_results(**changes: object) -> curves.Results:
    """Return the results of a complete run, with one point for each curve."""
    own = [one for name in curves.NAMES for one in points(name, "compiled", "rest_percent", {1: 1.0})]
    results = curves.Results("2026-11-27T12:00:00Z", MACHINE, curve_scale.FULL, list(curves.NAMES), "", own)
    return msgspec.structs.replace(results, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"scale": curve_scale.QUICK}, "not a full run"),
        ({"problems": {"topics": "failed"}}, "a curve is not complete"),
        ({"curves": ["topics"]}, "not all curves were measured"),
        ({"missing_path": "no C compiler"}, "the compiled path was not measured"),
        (
            {"points": points("topics", "compiled", "cpu_us", {1: 1.0}, other_cores=0.8)},
            "other programs used up to 0.8 cores; repeat on a quiet machine",
        ),
    ],
)
def test_only_a_complete_run_on_a_quiet_machine_is_published(changes: dict[str, object], reason: str) -> None:
    """Everything else leaves the page as it is, with the reason."""
    assert curves.why_unpublished(full_results(**changes)) == reason


def test_page_has_a_place_for_every_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing replaces the tables in a copy of the page, and writes the pictures that it shows."""
    page = tmp_path / "benchmarks.md"
    page.write_text(curves.PAGE.read_text())
    monkeypatch.setattr(curves, "PAGE", page)
    monkeypatch.setattr(curves, "IMAGES", tmp_path / "images")

    curves.publish_results(full_results(points=[
        Point(curve=curve.name, path="compiled", size=size, values={one.key: 2.0 for one in curve.measures})
        for curve in CURVES for size in (1, 10)
    ]), Console(quiet=True))  # fmt: skip

    shown = re.findall(r"!\[.+\]\((images/scale-.+\.svg)\)", page.read_text())
    assert shown == [f"images/scale-{name}.svg" for name in curves.NAMES]
    assert all(ElementTree.parse(tmp_path / name) for name in shown)


def results_of(names: list[CurveName]) -> curves.Results:
    """Return results without points, for a run of these curves."""
    return curves.Results("2026-11-27T12:00:00Z", MACHINE, curve_scale.QUICK, names, "")


def measured(step: Step) -> Point:
    """Return a point without measuring anything."""
    return Point(curve=step.curve, path=step.path, size=step.size, values={"rest_percent": 1.0})


def test_failed_curve_leaves_its_points_and_the_other_curves() -> None:
    """Each step is saved at once; a failure is recorded, and the next curve is measured."""
    saved: list[curves.Results] = []

    def measure(step: Step) -> Point | Skipped:
        if step.curve == "topics" and step.size == 100:
            raise errors.BenchmarkFailed("the broker ended with code 1")
        return measured(step)

    results = curves.measure(results_of(["topics", "shards"]), measure, ["compiled"], saved.append)

    assert results.problems == {"topics": "the broker ended with code 1"}
    assert [(one.curve, one.size) for one in results.points] == [
        ("topics", 1),
        ("topics", 10),
        ("shards", 1),
        ("shards", 2),
    ]
    assert [len(one.points) for one in saved] == [1, 2, 3, 4, 4]
    assert saved[-1] == results


def test_interrupt_keeps_what_was_measured() -> None:
    """Ctrl-C ends the run; the curves that are not complete are named."""

    def measure(step: Step) -> Point | Skipped:
        if step.curve == "consumers":
            raise KeyboardInterrupt
        return measured(step)

    results = curves.measure(
        results_of(["topics", "consumers", "shards"]), measure, ["compiled", "python"], lambda current: None
    )

    assert len(results.points) == 2 * len(curve_scale.QUICK.topics)
    assert results.problems == {"consumers": "interrupted", "shards": "interrupted"}


def test_run_is_continued_with_what_it_lacks() -> None:
    """A step that failed, and one that was measured beside other programs, are measured; others keep their points."""
    first = curves.measure(results_of(["topics"]), measured, ["compiled", "python"], lambda current: None)
    busy = [msgspec.structs.replace(point, other_cores=0.5 * (place == 2)) for place, point in enumerate(first.points)]
    before = msgspec.structs.replace(first, points=busy[:-1], problems={"topics": "the broker ended with code 1"})
    steps: list[Step] = []

    def measure(step: Step) -> Point:
        steps.append(step)
        return measured(step)

    results = curves.measure(curves.quiet_part(before), measure, ["compiled", "python"], lambda current: None)

    assert {(step.path, float(step.size)) for step in steps} == {(one.path, one.size) for one in (busy[2], busy[-1])}
    assert results.points == first.points
    assert results.problems == {}


def test_run_of_another_machine_is_not_continued(tmp_path: Path) -> None:
    """Its figures do not belong into one table with those of this machine."""
    path = tmp_path / "scale.json"
    path.write_bytes(msgspec.json.encode(results_of(["topics"])))

    answer = CliRunner().invoke(curves.main, ["--continue", str(path), "--json", str(tmp_path / "new.json")])

    assert answer.exit_code == 1
    assert "was on another machine or of another code path: measure everything" in answer.output


@pytest.mark.parametrize("option", [["--quick"], ["--only", "topics"]])
def test_continued_run_has_the_steps_of_the_earlier_one(option: list[str], tmp_path: Path) -> None:
    """Options for other curves or steps are refused."""
    path = tmp_path / "scale.json"
    path.write_bytes(b"{}")

    answer = CliRunner().invoke(curves.main, ["--continue", str(path), *option])

    assert answer.exit_code == 2
    assert "--continue takes the curves and steps of the earlier run" in answer.output


def test_results_are_shown_again(tmp_path: Path) -> None:
    """`--from` prints the tables of a file, writes the pictures to a folder, and exits with 1 if a curve has failed."""
    own = points("topics", "compiled", "cpu_us", {1: 6.0, 10: 6.0, 100: 12.0})
    results = full_results(points=own, skipped=[Skipped("restart", 100.0, "no space")], problems={"shards": "it ended"})
    path = tmp_path / "scale.json"
    path.write_bytes(msgspec.json.encode(results))

    result = CliRunner().invoke(curves.main, ["--from", str(path), "--pictures", str(tmp_path / "pictures")])

    assert result.exit_code == 1
    for text in ("bends at 100", "Not measured: 100 log, GB: no space.", "Not complete: it ended", "A processor"):
        assert text in result.output
    assert [one.name for one in (tmp_path / "pictures").iterdir()] == ["scale-topics.svg"]


def test_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """The message names the file and what was expected."""
    path = tmp_path / "other.json"
    path.write_text("{}")

    result = CliRunner().invoke(curves.main, ["--from", str(path)])

    assert result.exit_code == 1
    assert f"{path} is not a results file of make bench-scale" in result.output


def test_help_has_every_curve_and_examples() -> None:
    """A reader learns what is measured, how to run a part, and what is needed."""
    result = CliRunner().invoke(curves.main, ["--help"])

    assert result.exit_code == 0
    for text in (*curves.NAMES, "make bench-scale BENCH_SCALE='--quick'", "--from bench/results/", "You need Linux"):
        assert text in result.output


def test_step_without_room_is_skipped_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output names the size, what is needed and what is free, and no broker is started."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=12_000_000_000))
    monkeypatch.setattr(curves, "RESULTS", tmp_path)
    monkeypatch.setattr(curves, "QUICK", msgspec.structs.replace(curve_scale.QUICK, log_bytes=(100_000_000_000,)))
    monkeypatch.setattr("gantry_bench.curve_run.build", lambda: tmp_path)

    result = CliRunner().invoke(curves.main, ["--quick", "--only", "restart"])

    assert result.exit_code == 0, result.output
    assert re.search(
        r"SKIPPED 100 log, GB: 11\d GB of disk are needed beside the 10 GB that stay free, and 12 GB", result.output
    )
    assert len(list(tmp_path.glob("scale-*.json"))) == 1


def test_both_code_paths_take_turns() -> None:
    """A machine that becomes slower in the run must not make one code path look slower."""
    steps = steps_of(curve_scale.QUICK, "shards", ["compiled", "python"])

    assert [(step.size, step.path) for step in steps] == [
        (1, "compiled"), (1, "python"), (2, "compiled"), (2, "python"),
    ]  # fmt: skip


def test_shards_are_summed() -> None:
    """The rate is the sum; the CPU time of a send is that of all brokers for all messages."""
    one = report(messages=1000, messages_per_second=500.0)
    other = report(messages=3000, messages_per_second=1500.0)

    values = shard_values([one, other])

    assert values["rate"] == 2000.0
    assert values["cpu_us"] == pytest.approx(2 * one.server.cpu_seconds * 1e6 / 4000)


def test_refused_sends_fail_a_step() -> None:
    """A refused send costs less, so a step with refusals is no measurement."""
    with pytest.raises(errors.BenchmarkFailed, match="3 sends were refused"):
        shard_values([report(errors=3)])


def test_opening_of_a_store_is_read_from_its_log_line() -> None:
    """A start logs whether the stop was clean, and the range that it has read; a line without them is an error."""
    line = "2026-11-27 07:00:00,000 INFO gantry_broker.app store opened is_clean=False read_from=512 end=2048 records=3"

    assert curve_broker.parse_opening(line) == curve_broker.Opening(is_clean=False, read_bytes=1536)
    with pytest.raises(errors.BenchmarkFailed, match="has no range"):
        curve_broker.parse_opening("store opened is_clean=True")


def test_usage_is_split_by_thread_and_mode() -> None:
    """Microseconds for each message: event loop and other threads, and the kernel's share of both."""
    used = usage.Usage(loop_seconds=0.6, other_seconds=0.2, user_seconds=0.6, kernel_seconds=0.2, faults=50)

    costs = used.each_us(100)

    assert costs == pytest.approx(
        {"cpu_us": 8000.0, "loop_us": 6000.0, "threads_us": 2000.0, "kernel_us": 2000.0, "faults": 0.5}
    )
    text = "17 (a (name) 1) S 1 1 1 0 -1 4194304 321 0 0 0 250 50 0 0 20 0 4 0 100"
    assert usage.parse_stat(text) == (2.5, 0.5, 321)


def test_sends_to_many_topics_use_one_queue_each() -> None:
    """The load generator gets the number of topics, and the other loads are as they were."""
    target = loadgen.Target(address="127.0.0.1:1", process_id=7, is_echo=False)
    timing = loadgen.Timing(warm_up_ms=1, duration_ms=2)
    many = measurement.Mode("topics", 1, 64, 64, None, topics=1000)

    command = loadgen.arguments(many, 1024, sender=measurement.JAVA, target=target, timing=timing)

    assert {"-topics=1000", "-queues=1"} <= set(command)
    usual = loadgen.arguments(measurement.MODES["a"], 1024, sender=measurement.JAVA, target=target, timing=timing)
    assert not any(word.startswith(("-topics", "-queues")) for word in usual)


@pytest.mark.verify(quick=1)
@pytest.mark.needs_go
@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_every_figure_is_measured(curve: curve_points.Curve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small step on a real broker has every figure of its curve, and leaves no files."""
    monkeypatch.setattr(machine, "WARM_BYTES_MAX", machine.WARM_STEP_BYTES)
    sizes: dict[CurveName, int] = {"restart": 5_000_000}
    size = sizes.get(curve.name, 2)
    scale = msgspec.structs.replace(
        curve_scale.QUICK, timing=loadgen.Timing(20, 100), rest_seconds=0.1, deliveries=20, segment_bytes=16 << 20
    )
    run = CurveRun(scale, machine.Cores(None, None), tmp_path)

    point = run.measure(Step(curve.name, "python", size))

    assert isinstance(point, Point), point
    assert {one.key for one in curve.measures} <= set(point.values)
    assert list(tmp_path.iterdir()) == []


def test_markers_of_the_page_are_those_of_the_curves() -> None:
    """The page keeps a place for the machine and for each curve."""
    tables = [figures.Figures(name=name, headings=["a"], rows=[], notes=[]) for name in ("measured on", *curves.NAMES)]

    page = figures.publish(curves.PAGE.read_text(), tables, benchmark=curves.BENCHMARK)

    assert page.count("<!-- bench-scale: ") == len(tables)


def test_wait_for_closed_sockets_ends_when_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker closes connections after its clients, and has a limit: the next load would be refused."""
    counts = iter([12, 11, 10, 3])
    monkeypatch.setattr(usage, "count_sockets", lambda process_id: next(counts))

    usage.wait_for_closed_sockets(1, 10)

    assert next(counts) == 3


def test_only_sockets_are_counted() -> None:
    """A broker opens files of queues while it stores the messages of a run: those are no connections."""
    before = usage.count_sockets(os.getpid())
    with socket.socket(), open(os.devnull):
        assert usage.count_sockets(os.getpid()) == before + 1


def test_wait_for_closed_sockets_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that keeps connections open is a finding."""
    monkeypatch.setattr(usage, "count_sockets", lambda process_id: 20)
    monkeypatch.setattr(usage, "CLOSING_S", 0.1)

    with pytest.raises(errors.BenchmarkFailed, match="still has 20 sockets, expected at most 10"):
        usage.wait_for_closed_sockets(1, 10)
