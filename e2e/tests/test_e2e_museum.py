"""The museum of known failures: the page agrees with the recorded results, and no exhibit of the plan is missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from gantry_interop.processes import Nursery
from gantry_interop.versions import PEER
from gantry_museum import catalogue, cli, page, results
from gantry_museum.exhibit import Exhibit, Outcome, Stage, System
from gantry_museum.results import Result

THREADS = {
    "apache/rocketmq": {3129, 5235, 4306, 6566, 8380, 6586, 9879, 9518},
    "itboon/rocketmq-helm": {33},
    "apache/rocketmq-operator": {52, 70, 143, 227},
    "redpanda-data/redpanda-operator": {1866},
    "rabbitmq/cluster-operator": {992},
    "strimzi/strimzi-kafka-operator": {3710},
    "cloudnative-pg/cloudnative-pg": {6653},
    "nats-io/nats-server": {7564},
}
"""The reports that have an exhibit, at least."""
OCCURS_ON_GANTRY = {"power-loss"}
"""The exhibits whose failure occurs on Gantry too; the page explains each."""
RECORDED = results.read()


def test_page_is_generated_from_the_recorded_runs() -> None:
    """docs/museum.md has exactly the content of the exhibits and the recorded results."""
    assert page.PAGE.read_text() == page.build_page(RECORDED, catalogue.ALL)


def test_every_reported_thread_has_an_exhibit() -> None:
    """No report of the plan is left out."""
    shown: dict[str, set[int]] = {}
    for exhibit in catalogue.ALL:
        for thread in exhibit.threads:
            shown.setdefault(thread.repository, set()).update(thread.numbers)

    assert [name for name, numbers in THREADS.items() if not numbers <= shown.get(name, set())] == []


def test_every_exhibit_has_a_result_of_each_system_and_every_twin_fails() -> None:
    """A scenario without a result, or whose twin does not show the failure, proves nothing."""
    assert results.faults(RECORDED, catalogue.ALL) == []


def test_missing_result_and_passing_twin_are_faults() -> None:
    """The twin of the rule above: both are reported."""
    first = catalogue.ALL[0]
    twin = next(one for one in RECORDED if (one.exhibit, one.system) == (first.name, System.TWIN))

    found = results.faults([dataclasses.replace(twin, has_failed=False)], [first])

    assert found[0].startswith(f"{first.name}: no result for apache")
    assert found[-1] == f"{first.name}: the failure did not occur without the guard, so it proves nothing"


def test_failures_do_not_occur_on_gantry_but_for_stated_ones() -> None:
    """A failure that occurs on Gantry is on the list, and its exhibit has a remark about it."""
    failed = {one.exhibit for one in RECORDED if one.system == System.GANTRY and one.has_failed}

    assert failed == OCCURS_ON_GANTRY
    assert all(catalogue.BY_NAME[name].remark for name in failed)


@pytest.mark.parametrize("exhibit", catalogue.ALL, ids=lambda exhibit: exhibit.name)
def test_every_exhibit_runs_on_both_systems_or_says_why_not(exhibit: Exhibit) -> None:
    """Each has Gantry's result and a twin, and RocketMQ's result or the reason why it is not run."""
    assert System.GANTRY in exhibit.systems
    assert System.TWIN in exhibit.systems and exhibit.twin
    assert (System.APACHE in exhibit.systems) != (System.APACHE in exhibit.absent)


def test_new_results_replace_only_those_of_their_systems() -> None:
    """Exhibits are recorded one by one, in the order of the catalogue, and removed ones are dropped."""
    first, second = catalogue.ALL[:2]
    before = [
        Result(second.name, System.GANTRY, False, ("old",)),
        Result(first.name, System.APACHE, True, ("old",)),
        Result("removed", System.GANTRY, False, ("old",)),
    ]

    merged = results.merge(before, [Result(first.name, System.GANTRY, False, ("new",))], catalogue.ALL)

    assert [(one.exhibit, one.system, one.facts) for one in merged] == [
        (first.name, System.APACHE, ("old",)),
        (first.name, System.GANTRY, ("new",)),
        (second.name, System.GANTRY, ("old",)),
    ]


def test_results_survive_the_file(tmp_path: Path) -> None:
    """What is written is read again."""
    results.write(RECORDED, tmp_path / "results.json")

    assert results.read(tmp_path / "results.json") == RECORDED


def test_changed_result_is_reported() -> None:
    """A run reports a failure that occurs now and did not before, and the opposite; a new system is no change."""
    before = [Result("a", "gantry", False, ()), Result("b", "gantry", True, ())]
    new = [Result("a", "gantry", True, ()), Result("b", "gantry", False, ()), Result("c", "gantry", True, ())]

    assert cli.changes(before, new) == [
        "a on gantry: the failure occurs now",
        "b on gantry: the failure does not occur now",
    ]


def test_page_shows_failures_and_reasons() -> None:
    """A failure is bold in the overview and the table; a system that is not run has its reason."""
    exhibit = Exhibit(
        name="some", title="Some failure", threads=(), reported="It fails.", scenario="Try it.", run=nothing,
        systems=(System.GANTRY, System.TWIN), absent={System.APACHE: "no such part"}, twin="has no guard",
    )  # fmt: skip
    recorded = [Result("some", System.GANTRY, False, ("Fine.",)), Result("some", System.TWIN, True, ("Lost.",))]

    text = page.build_page(recorded, [exhibit])

    assert f"| RocketMQ {PEER} | not run | no such part |\n| Gantry | does not occur | Fine. |\n" in text
    assert "| Gantry that has no guard | **occurs** | Lost. |" in text


def nothing(stage: Stage) -> Outcome:
    del stage
    return Outcome(False, ())


@pytest.mark.verify
@pytest.mark.parametrize("name", ["hibernation-claims", "ignored-edit"])
@pytest.mark.needs_api_server
def test_exhibit_runs_and_agrees_with_its_record(name: str, tmp_path: Path) -> None:
    """An exhibit without RocketMQ has the recorded result again, also in its twin."""
    exhibit = catalogue.BY_NAME[name]
    expected = {one.system: one.has_failed for one in RECORDED if one.exhibit == name}

    for system in (System.GANTRY, System.TWIN):
        with Nursery(tmp_path / f"{system}-logs") as nursery:
            assert exhibit.run(Stage(system, tmp_path / system, nursery)).has_failed == expected[system]
