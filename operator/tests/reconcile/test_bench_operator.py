"""The operator's benchmark in small: groups become Ready, calls are counted, and a failed run has no figures.

No test checks a time: figures are meaningful only on an idle machine.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import msgspec
import operator_groups
import pytest
from click.testing import CliRunner
from gantry_bench import operator_run, reported_run
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.operator_figures import (
    FULL,
    MEBIBYTE,
    Calls,
    OperatorReport,
    OperatorScale,
    Phase,
    calls_between,
    operator_figures,
    operator_goals,
    quantile,
)
from gantry_bench.operator_sidecars import StandInSidecars
from spec_world.brokers import Refused
from spec_world.invariant_checker import InvariantViolation

from gantry_operator.kubernetes_api import THREADS
from gantry_operator.objects.names import SIDECAR_PORT, PodPlace

SMALL = OperatorScale(groups=3, settle_s=0.0, rest_s=1.0, ready_s_max=300.0)
START = datetime(2026, 1, 1, tzinfo=UTC)
INFINITY = float("inf")


# -- the whole of it, small --------------------------------------------------------------------------------------------


@pytest.mark.verify
@pytest.mark.needs_api_server
def test_groups_become_ready_and_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has its pods; the API server counts no fewer calls than the operator does itself."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(operator_groups, "QUICK", SMALL)

    result = CliRunner().invoke(operator_groups.main, ["--quick"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())["report"]
    assert (report["groups"], report["not_ready"], report["unexpected_errors"]) == (3, 0, 0)
    assert report["pods"] >= 3 * 2
    made = {(one["verb"], one["resource"]): one["count"] for one in report["creation"]["calls"]}
    assert made["patch", "statefulsets"] >= 3 and made["create", "secrets"] >= 3
    under_way = THREADS  # calls that had arrived at the first look, and were answered after it
    assert sum(made.values()) + under_way >= report["creation"]["own_calls"] > 0
    assert report["peak_bytes"] >= report["rest"]["resident_bytes"] > 0
    assert report["creation"]["rounds"] >= 3


@pytest.mark.slow
@pytest.mark.needs_api_server
def test_groups_that_do_not_become_ready_have_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: with sidecars that refuse every order nothing is measured, and the run reports its progress."""

    def refuse(*_: object) -> None:
        raise Refused("it will not")

    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(operator_groups, "QUICK", msgspec.structs.replace(SMALL, ready_s_max=8.0))
    monkeypatch.setattr("operator_world.pod_shard.PodShard.execute_order", refuse)

    result = CliRunner().invoke(operator_groups.main, ["--quick"])

    assert result.exit_code == 1
    assert "0 of 3 groups were Ready within 8 s" in result.output
    assert list((tmp_path / "results").iterdir()) == []


async def test_each_stand_in_has_its_own_address() -> None:
    """It has one as pods do, and answers only for its own broker."""
    async with StandInSidecars(operator_run.group_spec()) as sidecars:
        places = [PodPlace(0, member) for member in (1, 2)]
        addresses = [await sidecars.begin("orders", place, f"claim-{place.member}", 0) for place in places]

    assert len(set(addresses)) == 2
    assert all(address.startswith("127.") for address in addresses)


async def test_violated_guarantee_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A violated invariant is not lost in an answer to the operator; without one the run continues."""
    answers: list[Callable[[], None]] = [lambda: None]
    monkeypatch.setattr("operator_world.pod_shard.PodShard.execute_order", lambda *_: answers[0]())
    async with StandInSidecars(operator_run.group_spec()) as sidecars, aiohttp.ClientSession() as session:
        address = await sidecars.begin("orders", PodPlace(0, 1), "claim", 0)
        headers, url = {"Authorization": "Bearer x"}, f"http://{address}:{SIDECAR_PORT}/v1/role/fence"
        async with session.post(url, json={"epoch": 2}, headers=headers) as answer:
            assert answer.status == 200
        sidecars.advance(1_000, 0.0)

        answers[0] = broken
        async with session.post(url, json={"epoch": 3}, headers=headers) as answer:
            assert answer.status == 200
        with pytest.raises(BenchmarkFailed, match="an invariant was violated: two masters"):
            sidecars.advance(2_000, 0.0)


def broken() -> None:
    raise InvariantViolation("two masters")


# -- the figures -------------------------------------------------------------------------------------------------------


def audit_line(number: int, after_s: float, verb: str = "patch", **reference: str) -> str:
    """Return a line of the API server's audit log."""
    moment = (START + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")
    found = {"auditID": f"a{number}", "requestReceivedTimestamp": moment, "verb": verb}
    return json.dumps(found | ({"objectRef": reference} if reference else {}))


def test_request_counts_once_at_its_arrival() -> None:
    """A watch is logged at its start and its end; one that started before the measurement does not count."""
    lines = [
        audit_line(1, 9.9, resource="pods"),
        audit_line(2, 10.0, resource="pods", subresource="status"),
        audit_line(3, 11.0, "watch", resource="pods"),
        audit_line(3, 11.0, "watch", resource="pods"),
        audit_line(4, 12.0, resource="leases", namespace="gantry-system"),
        audit_line(5, 13.0, resource="leases", namespace="gantry-system"),
        audit_line(6, 14.0, "get"),
        audit_line(7, 20.0, resource="pods"),
    ]

    found = calls_between(lines, START + timedelta(seconds=10), START + timedelta(seconds=20))

    assert found == [
        Calls("patch", "leader's lease", 2), Calls("patch", "pods/status", 1), Calls("watch", "pods", 1),
        Calls("get", "other", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "seconds"), [(0.5, 0.15), (0.75, 0.2), (0.95, 0.84), (1.0, 1.0)], ids=["p50", "p75", "p95", "all"]
)
def test_quantiles_cover_the_rounds_between_two_scrapes(share: float, seconds: float) -> None:
    """Half of twenty rounds took at most 0.15 s, if spread evenly in their buckets; earlier ones do not count."""
    before = {0.1: 100.0, 0.2: 100.0, 1.0: 100.0, INFINITY: 100.0}
    after = {0.1: 105.0, 0.2: 115.0, 1.0: 120.0, INFINITY: 120.0}

    assert quantile(before, after, share) == pytest.approx(seconds)


def test_quantile_beyond_all_buckets_is_the_last_bound() -> None:
    """The histogram has no more detail; without rounds there is no quantile."""
    assert quantile({}, {0.1: 0.0, INFINITY: 4.0}, 0.95) == 0.1
    assert quantile({0.1: 1.0, INFINITY: 1.0}, {0.1: 1.0, INFINITY: 1.0}, 0.95) == 0.0


def phase_with_calls(count: int, resident_bytes: int = MEBIBYTE) -> Phase:
    """Return the figures of a phase with this number of calls."""
    return Phase(
        name="rest", seconds=300.0, rounds=1, p50_ms=1.0, p95_ms=2.0, calls=[Calls("patch", "pods", count)],
        own_calls=0, call_ms=0.0, core_share=0.1, resident_bytes=resident_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(("count", "peak", "met"), [(500, 200, [True, True]), (501, 201, [False, False])], ids=str)
def test_goals_are_those_of_the_acceptance_criteria(count: int, peak: int, met: list[bool]) -> None:
    """50 groups, 2 calls per group and minute, 200 MiB; one more of either misses them."""
    assert FULL.groups == 50
    report = OperatorReport(
        groups=50, pods=200, ready_p50_s=1.0, ready_max_s=2.0, creation=phase_with_calls(10_000),
        rest=phase_with_calls(count), peak_bytes=peak * MEBIBYTE, renewals=3_000, unexpected_errors=0, not_ready=0,
        other_cores=0.0,
    )  # fmt: skip

    assert [goal.is_met for goal in operator_goals(report, FULL)] == met
    rows = operator_figures(report, FULL).rows
    assert [row[6] for row in rows] == ["40.00", f"{count / 250:.2f}"]
