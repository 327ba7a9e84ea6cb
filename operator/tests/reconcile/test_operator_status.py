"""What the operator says of a group: conditions, bands, when it is written, and events that are told once."""

from __future__ import annotations

from typing import Any

import msgspec
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from spec_world.looks import NOW_MS, healthy, observed, spec_with, with_member, with_report

from gantry_operator.api import EVENTS, Object
from gantry_operator.errors import Forbidden
from gantry_operator.event_recorder import AGAIN_MS, REASONS, Event, EventRecorder, event_of
from gantry_operator.status import (
    WRITE_MS,
    Facts,
    broken_status,
    is_worth_a_write,
    status_of,
)
from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.decide.decision import Condition
from gantry_spec.explain import explain
from gantry_spec.manifest.crd import group_schema
from gantry_spec.manifest.group import BrokerGroup, Metadata
from gantry_spec.observed import ObservedShard, Process

BEFORE = "2026-01-01T00:00:00Z"
NOW = "2026-01-01T00:01:00Z"


def said(shard: ObservedShard, before: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The status of a group with this one shard."""
    spec = spec_with(slaves=1)
    group = BrokerGroup(metadata=Metadata(name="g", namespace="shop", generation=4), spec=spec)
    look = observed(shard)
    facts = Facts(group, look, decide(spec, look, NOW_MS), explain(spec, look, NOW_MS), **more)
    status = msgspec.to_builtins(status_of(facts, before or {}, NOW))
    assert isinstance(status, dict)
    return status


def test_a_healthy_group_says_who_leads_and_what_is_at_risk() -> None:
    """Columns, each shard, and conditions with the generation of the spec that was looked at."""
    status = said(healthy())

    assert (status["phase"], status["ready"], status["master"], status["epoch"]) == (
        "Ready",
        "1/1",
        "g-0-master-0",
        3000,
    )
    assert (status["lag"], status["atRisk"], status["observedGeneration"]) == ("none", "none", 4)
    assert status["selector"] == "gantry.dev/group=g,app.kubernetes.io/component=broker"
    [shard] = status["eachShard"]
    assert (shard["inSync"], shard["durability"]["isMet"]) == (1, True)
    assert "member 2 would take over" in shard["decision"]["ifMasterDies"][0]
    assert {one["observedGeneration"] for one in status["conditions"]} == {4}


def test_the_status_is_what_the_resource_can_hold() -> None:
    """Every field is one of the custom resource's schema, or the API server would prune it."""
    schema = group_schema()["properties"]["status"]

    def unknown(value: Any, known: dict[str, Any], path: str) -> list[str]:
        if isinstance(value, list):
            return [fault for one in value for fault in unknown(one, known["items"], path + "[]")]
        if not isinstance(value, dict):
            return []
        inner = known["properties"]
        wrong = [f"{path}.{name}" for name in value if name not in inner]
        return wrong + [
            fault
            for name, one in value.items()
            if name in inner
            for fault in unknown(one, inner[name], f"{path}.{name}")
        ]

    assert unknown(said(healthy()), schema, "status") == []


def test_a_shard_without_a_master_knows_nothing_rather_than_zero() -> None:
    """Unknown lag and risk, not none; and the phase says that it is not available."""
    shard = with_member(with_report(healthy(), 1, asked_ms=0, answered_ms=0), 1, process=Process.UNKNOWN)
    status = said(shard)

    assert (status["phase"], status["ready"], status["master"]) == ("Unavailable", "0/1", "-")
    assert (status["lag"], status["atRisk"]) == ("unknown", "unknown")
    assert status["eachShard"][0]["durability"]["isMet"] is False


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    """Over restarts of the operator, too, since the status that stands there is read first."""
    before = said(healthy())
    for one in before["conditions"]:
        one["lastTransitionTime"] = BEFORE
    shard = with_report(healthy(), 1, slaves=())

    after = {one["type"]: one for one in said(shard, before)["conditions"]}

    assert after["Paused"]["lastTransitionTime"] == BEFORE
    assert (after["Ready"]["status"], after["Ready"]["lastTransitionTime"]) == ("False", NOW)


def test_what_matters_is_written_at_once_and_bands_every_ten_seconds() -> None:
    """A master, a condition, an action: at once. Another lag, or when it was so: not before; the same: never."""
    written = said(healthy())
    behind = said(with_report(healthy(wrote=100_000), 1, slaves=healthy().members[0].report.slaves))  # type: ignore[union-attr]
    no_master = said(with_report(healthy(), 1, role="UNASSIGNED"))
    later = said(healthy())
    later["eachShard"][0]["durability"]["observedAt"] = "later"

    assert behind["lag"] != written["lag"]
    assert not is_worth_a_write(behind, written, WRITE_MS - 1)
    assert is_worth_a_write(behind, written, WRITE_MS)
    assert is_worth_a_write(no_master, written, 0)
    assert not is_worth_a_write(later, written, 1 << 40)
    assert is_worth_a_write(written, {}, 0)
    assert is_worth_a_write(written, {"eachShard": [{"number": 0}]}, 0), "of an older operator"


def test_a_spec_that_cannot_be_read_leaves_the_rest_as_it_stood() -> None:
    """Who leads is still true; why nothing is done is new."""
    before = said(healthy())
    status = broken_status(5, "InvalidSpec", "spec.slave: no such field", before, NOW)

    conditions = {one["type"]: one for one in status["conditions"]}
    assert (status["master"], status["phase"], status["observedGeneration"]) == ("g-0-master-0", "Invalid", 5)
    assert (conditions["Ready"]["reason"], conditions["Ready"]["observedGeneration"]) == ("InvalidSpec", 5)
    assert conditions["Available"] == next(one for one in before["conditions"] if one["type"] == "Available")


def test_conditions_of_others_are_beside_those_of_the_decision() -> None:
    """Huge pages, and what could not be applied."""
    status = said(healthy(), more=[Condition(type="HugePagesReady", is_so=False, reason="TooFew", message="x" * 5000)])

    found = {one["type"]: one for one in status["conditions"]}["HugePagesReady"]
    assert (found["status"], found["reason"]) == ("False", "TooFew")
    assert len(found["message"]) <= 1000


# -- events ------------------------------------------------------------------------------------------------------------


def group_object() -> Object:
    head = {"name": "g", "namespace": "shop", "uid": "u", "resourceVersion": "7"}
    return {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": head}


async def test_an_event_is_told_once_in_a_while() -> None:
    """The same reason and words are not told again before some minutes have passed."""
    api, clock = FakeKubernetes(), ModelClock()
    recorder = EventRecorder(api, clock)
    promote = act.Promote(shard=0, member=2, epoch=4000, electable=(1,), last_epoch=3000, end=7)
    promoted = event_of(promote)
    assert promoted is not None
    assert event_of(act.Follow(shard=0, member=1, epoch=4000, master="m:1")) is None

    for _ in range(3):
        await recorder.record(group_object(), promoted)
    assert [one["reason"] for one in api.of_kind(EVENTS)] == ["MasterPromoted"]
    clock.ms += AGAIN_MS
    await recorder.record(group_object(), promoted)

    told = api.of_kind(EVENTS)
    assert len(told) == 2
    assert told[0]["involvedObject"]["uid"] == "u"
    assert "member 2" in told[0]["message"]


async def test_an_event_that_cannot_be_told_ends_nothing() -> None:
    """The group goes on."""
    api = FakeKubernetes()
    api.refuse = lambda verb, place: Forbidden("events", "no")

    await EventRecorder(api, ModelClock()).record(group_object(), Event("NotApplied", "why", is_warning=True))

    assert api.of_kind(EVENTS) == []


def test_every_reason_is_one_word() -> None:
    """People and alerts match on them."""
    assert all(reason.isalpha() and reason[0].isupper() for reason in REASONS.values())
    assert len(set(REASONS.values())) == len(REASONS)
