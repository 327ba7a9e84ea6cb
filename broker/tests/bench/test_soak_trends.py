"""Trends of a soak: what grows is found, and noise, warm-ups, faults and restarts are not taken for growth."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from gantry_bench.machine import Machine
from gantry_soak.bounds import judge
from gantry_soak.plot import POINTS_MAX, pictures, thin_out
from gantry_soak.records import End, Fault, Latency, ProcessSample, Run, Sample, Start, make_run
from gantry_soak.report import page_figures, problems_of
from gantry_soak.trends import Bound, Point, Trend, Verdict, find_trend, usable_points
from msgspec import structs

MIB = 1 << 20
BOUND = Bound(per_hour=12.0, noise=3.0)
MACHINE = Machine(processor="p", cores=2, memory_bytes=1 << 30, kernel="6.1", python="3.11", uvloop="1")


def points_of(
    value_at: Callable[[float], float], *, length_s: float = 3600.0, life: str = "1", start_s: float = 0.0
) -> list[Point]:
    """Return a point each ten seconds."""
    return [Point(start_s + at, value_at(at), life) for at in range(0, int(length_s), 10)]


def trend_of(points: list[Point], bound: Bound = BOUND) -> Trend:
    return find_trend(usable_points(points, faults=[], warm_up_s=120, settle_s=20), bound)


def test_one_descriptor_a_minute_grows() -> None:
    """A slope above the bound is growth, and is reported in units for an hour."""
    trend = trend_of(points_of(lambda at: 50 + at // 60))
    assert trend.verdict is Verdict.GROWS
    assert trend.per_hour == pytest.approx(60, rel=0.02)


def test_a_growth_below_the_bound_is_flat() -> None:
    """Five descriptors an hour are allowed by a bound of twelve."""
    assert trend_of(points_of(lambda at: 50 + at * 5 / 3600)).verdict is Verdict.FLAT


def test_noise_without_a_trend_is_flat() -> None:
    """Values that move up and down have no trend, however large they are."""
    chance = random.Random(5)
    assert trend_of(points_of(lambda at: 50 + chance.uniform(-30, 30))).verdict is Verdict.FLAT


def test_a_leak_is_found_in_noise() -> None:
    """A leak of one a minute is found below noise of ten times the growth of a minute."""
    chance = random.Random(6)
    assert trend_of(points_of(lambda at: 50 + at / 60 + chance.uniform(-10, 10))).verdict is Verdict.GROWS


def test_single_peaks_do_not_decide() -> None:
    """A peak at the end, or a tenth of wild values, moves no median."""
    assert trend_of(points_of(lambda at: 50 + (1000 if at > 3500 or at % 100 == 0 else 0))).verdict is Verdict.FLAT


def test_the_warm_up_of_a_process_is_no_growth() -> None:
    """A process that fills its caches within the warm-up and stays there is flat."""
    assert trend_of(points_of(lambda at: 50 + min(at, 110) / 2)).verdict is Verdict.FLAT
    without = find_trend(points_of(lambda at: min(at, 600) / 10, length_s=900), BOUND)
    assert without.verdict is Verdict.GROWS, "without a warm-up the same shape is growth"


def test_lives_are_not_compared_with_each_other() -> None:
    """A process that needs more after each restart, and is flat within each life, does not grow."""
    lives = [[Point(600.0 * n + at, 50.0 + 40 * n, str(n)) for at in range(0, 600, 10)] for n in range(6)]
    assert trend_of([point for life in lives for point in life]).verdict is Verdict.FLAT


def test_a_leak_is_found_although_restarts_hide_it() -> None:
    """A process that leaks in each life, and starts with the same value each time, grows."""
    lives = [points_of(lambda at: 50 + at / 60, length_s=600, life=str(n), start_s=600 * n) for n in range(6)]
    assert trend_of([point for life in lives for point in life]).verdict is Verdict.GROWS


def test_values_of_faults_do_not_count() -> None:
    """Values within a fault and shortly after it are left out."""
    points = points_of(lambda at: 1000.0 if 2000 <= at <= 2030 else 50.0)
    kept = usable_points(points, faults=[(2000, 2020)], warm_up_s=0, settle_s=20)
    assert {point.value for point in kept} == {50.0}
    assert {point.value for point in usable_points(points, faults=[], warm_up_s=0, settle_s=20)} == {50.0, 1000.0}


def test_too_few_values_have_no_trend() -> None:
    """A life that is too short is not judged, and is not called flat."""
    assert trend_of(points_of(lambda at: at, length_s=150)).verdict is Verdict.TOO_SHORT


# -- a whole run -------------------------------------------------------------------------------------------------------


def run_of(*, descriptors_a_minute: float = 0.0, findings: list[str] | None = None) -> Run:
    """Return an hour of a master."""
    start = Start(
        started_at="2026-01-01T00:00:00Z", machine=MACHINE, seed=1, planned_s=3600, interval_s=10, features=["normal"]
    )
    samples = [
        Sample(
            at_s=float(at),
            processes=[
                ProcessSample(
                    name="master-0", life="7 MASTER", anonymous=60 * MIB, proportional=90 * MIB,
                    descriptors=int(50 + descriptors_a_minute * at / 60), threads=9, mappings=300,
                )
            ],
            disk={"master-0/commit log": 64 * MIB}, tables={"master-0/topics": 20.0},
            latencies=[Latency(name="send", count=99, p50_ms=1.0, p99_ms=4.0)], done={"normal": at},
        )
        for at in range(0, 3600, 10)
    ]  # fmt: skip
    fault = Fault(start_s=600, end_s=620, name="kill-slave", target="slave-0-1")
    end = End(at_s=3610, findings=findings or [], sent=10, acknowledged=9, received=9)
    return make_run([start, *samples, fault, end], "test")


def test_a_flat_run_has_no_problems() -> None:
    """An hour in which nothing grows passes."""
    run = run_of()
    assert problems_of(run, judge(run)) == []


def test_a_growing_measure_is_named_with_its_process() -> None:
    """The failure names process, measure and slope."""
    run = run_of(descriptors_a_minute=1)
    (problem,) = problems_of(run, judge(run))
    assert problem.startswith("master-0: descriptors grows by ")


def test_latencies_beside_other_programs_do_not_count() -> None:
    """Growing latencies fail a run, but not if other programs used the processors."""
    for other_cores, expected in ((0.0, ["p50", "p99"]), (1.5, [])):
        run = run_of()
        samples = [
            structs.replace(
                sample,
                other_cores=other_cores,
                latencies=[Latency(name="send", count=9, p50_ms=at, p99_ms=max(0.0, 9.0 * at - 500))],
            )
            for at, sample in enumerate(run.samples, 1)
        ]
        judged = judge(structs.replace(run, samples=samples))
        assert [one.measure.group for one in judged if one.trend.verdict is Verdict.GROWS] == expected


def test_findings_of_the_ledger_fail_a_flat_run() -> None:
    """A lost message fails the run, and so does a run without an end."""
    run = run_of(findings=["normal: 1 acknowledged messages never arrived: 3"])
    assert problems_of(run, judge(run)) == ["normal: 1 acknowledged messages never arrived: 3"]
    interrupted = make_run([run.start, *run.samples], "test")
    assert problems_of(interrupted, judge(interrupted)) == ["the run was interrupted: its messages were not judged"]


def test_pictures_have_time_from_left_to_right_and_faults() -> None:
    """Every picture is small, has a band for the fault, and a line whose points are in the order of time."""
    run = run_of(descriptors_a_minute=1)
    drawn = pictures(run, judge(run))
    for text in drawn.values():
        assert len(text) < 60_000 and text.count('class="fault"') >= 1
    line = drawn["soak-files.svg"].split('class="line" points="')[1].split('"')[0]
    across = [float(pair.split(",")[0]) for pair in line.split()]
    assert across == sorted(across) and len(across) <= POINTS_MAX
    assert "GROWS" in drawn["soak-files.svg"] and "kill-slave slave-0-1" in drawn["soak-files.svg"]


def test_thinning_keeps_the_highest_peak() -> None:
    """A single peak among many values stays in the picture."""
    points = points_of(lambda at: 999.0 if at == 1230 else 1.0, length_s=20_000)
    assert max(point.value for point in thin_out(points)) == 999.0


def test_the_page_shows_what_matters() -> None:
    """The tables of the page have work, faults and trends."""
    run = run_of()
    tables = {figures.name: figures for figures in page_figures(run, judge(run), ["soak-disk.svg"])}
    assert set(tables) == {"measured on", "run", "work", "faults", "trends"}
    assert ["10.0 min", "kill-slave", "slave-0-1", "20.0 s", ""] in tables["faults"].rows
    assert "images/soak-disk.svg" in tables["run"].notes[0]
    assert any(row[0] == "master-0: descriptors" for row in tables["trends"].rows)


def test_a_fault_that_was_never_injected_fails_the_run() -> None:
    """A kind of fault may fail to be injected once, but not each time."""
    run = run_of()
    missed = Fault(start_s=900, end_s=901, name="kill-slave", target="", note="there is no slave")
    again = structs.replace(run, faults=[*run.faults, missed])
    assert problems_of(again, judge(again)) == []
    never = structs.replace(run, faults=[missed])
    assert problems_of(never, judge(never)) == ["kill-slave was never injected: there is no slave"]
