"""The operator's report on a group: conditions, bands, when the status is written, and events without repetition."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from spec_world.observations import (
    NOW_MS,
    healthy_shard,
    observed_group,
    spec_with,
    with_member,
    with_record,
    with_report,
)

from gantry_operator.api import EVENTS, Object, ObjectRef
from gantry_operator.cache import Cache
from gantry_operator.errors import Forbidden, Unavailable
from gantry_operator.event_recorder import REASONS, REPEAT_MS, RETRY_MS, Event, EventRecorder, event_of
from gantry_operator.group_facts import huge_pages_condition
from gantry_operator.status import (
    WRITE_MS,
    StatusFacts,
    invalid_status,
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
from gantry_status.broker_state import SlaveState

BEFORE = "2026-01-01T00:00:00Z"
NOW = "2026-01-01T00:01:00Z"


def status_with(shard: ObservedShard, before: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return the status of a group with this one shard."""
    spec = spec_with(slaves=1)
    group = BrokerGroup(metadata=Metadata(name="g", namespace="shop", generation=4), spec=spec)
    observation = observed_group(shard)
    facts = StatusFacts(
        group, observation, decide(spec, observation, NOW_MS), explain(spec, observation, NOW_MS), **more
    )
    status = msgspec.to_builtins(status_of(facts, before or {}, NOW))
    assert isinstance(status, dict)
    return status


def test_status_of_a_healthy_group_has_master_and_risk() -> None:
    """It has the columns, each shard, and conditions with the generation of the observed spec."""
    status = status_with(healthy_shard())

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


@pytest.mark.parametrize("is_unknown", [False, True])
def test_unknown_loss_of_an_election_is_in_status_and_event(is_unknown: bool) -> None:
    """The status has it until the next election, and the event of the election is a warning."""
    shard = healthy_shard()
    assert shard.lease is not None and shard.lease.record is not None
    [term] = shard.lease.record.terms
    record = msgspec.structs.replace(
        shard.lease.record, terms=(msgspec.structs.replace(term, is_loss_unknown=is_unknown),)
    )

    [written] = status_with(with_record(shard, record))["eachShard"]
    named = event_of(act.RecordMaster(shard=0, expected="7", record=record, why="member 1 is the master"))

    unknown = "the election of epoch 3000 may have lost acknowledged messages; how many is unknown"
    assert written["electionLoss"] == (unknown if is_unknown else "")
    assert named is not None and named.is_warning is is_unknown


def test_status_matches_the_schema_of_the_resource() -> None:
    """The API server would prune any other field."""
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

    assert unknown(status_with(healthy_shard()), schema, "status") == []


def test_lag_and_risk_are_unknown_without_a_master() -> None:
    """They are unknown, not zero; and the phase is that of an unavailable group."""
    shard = with_member(with_report(healthy_shard(), 1, asked_ms=0, answered_ms=0), 1, process=Process.UNKNOWN)
    status = status_with(shard)

    assert (status["phase"], status["ready"], status["master"]) == ("Unavailable", "0/1", "-")
    assert (status["lag"], status["atRisk"]) == ("unknown", "unknown")
    assert status["eachShard"][0]["durability"]["isMet"] is False


def test_a_scaled_in_slave_does_not_make_a_shard_ready() -> None:
    """It still follows until it is removed. Ready, and the lag, are about the slaves of the spec."""
    acks = (SlaveState(number=3, identity="store-3", received=10_000, flushed=10_000),)

    status = status_with(with_report(healthy_shard(slaves=2), 1, slaves=acks))

    assert (status["ready"], status["lag"]) == ("0/1", "unknown")
    assert status["eachShard"][0]["inSync"] == 1


def test_condition_keeps_its_last_transition_time() -> None:
    """This holds over restarts of the operator, too, because the present status is read first."""
    before = status_with(healthy_shard())
    for one in before["conditions"]:
        one["lastTransitionTime"] = BEFORE
    shard = with_report(healthy_shard(), 1, slaves=())

    after = {one["type"]: one for one in status_with(shard, before)["conditions"]}

    assert after["Paused"]["lastTransitionTime"] == BEFORE
    assert (after["Ready"]["status"], after["Ready"]["lastTransitionTime"]) == ("False", NOW)


def test_urgent_changes_are_written_at_once_and_others_every_ten_seconds() -> None:
    """Masters, conditions and actions are urgent, another lag waits; a status with only other times is not written."""
    written = status_with(healthy_shard())
    behind = status_with(with_report(healthy_shard(wrote=100_000), 1, slaves=healthy_shard().members[0].report.slaves))  # type: ignore[union-attr]
    no_master = status_with(with_report(healthy_shard(), 1, role="UNASSIGNED"))
    later = status_with(healthy_shard())
    later["eachShard"][0]["durability"]["observedAt"] = "later"

    assert behind["lag"] != written["lag"]
    assert not is_worth_a_write(behind, written, WRITE_MS - 1)
    assert is_worth_a_write(behind, written, WRITE_MS)
    assert is_worth_a_write(no_master, written, 0)
    assert not is_worth_a_write(later, written, 1 << 40)
    assert is_worth_a_write(written, {}, 0)
    assert is_worth_a_write(written, {"eachShard": [{"number": 0}]}, 0), (
        "expected a status of an older operator to be replaced at once"
    )


def test_invalid_spec_keeps_the_rest_of_the_status() -> None:
    """The master is still correct; only the conditions change."""
    before = status_with(healthy_shard())
    status = invalid_status(5, "InvalidSpec", "spec.slave: no such field", before, NOW)

    conditions = {one["type"]: one for one in status["conditions"]}
    assert (status["master"], status["phase"], status["observedGeneration"]) == ("g-0-master-0", "Invalid", 5)
    assert (conditions["Ready"]["reason"], conditions["Ready"]["observedGeneration"]) == ("InvalidSpec", 5)
    assert conditions["Available"] == next(one for one in before["conditions"] if one["type"] == "Available")


@pytest.mark.parametrize(
    ("medium", "nodes", "expected"),
    [
        ("HugePages-2Mi", [], (None, "NodesUnknown")),
        ("HugePages-2Mi", ["4Gi"], (True, "EnoughOrNotRequested")),
        ("HugePages-2Mi", ["2Mi"], (False, "TooFew")),
        ("Off", [], (True, "EnoughOrNotRequested")),
    ],
)
def test_huge_pages_are_unknown_where_no_node_can_be_read(medium: str, nodes: list[str], expected: object) -> None:
    """The operator may not be allowed to read Nodes: then it does not know whether a broker can be scheduled."""
    cache = Cache()
    for pages in nodes:
        status = {"allocatable": {"memory": "16Gi", "hugepages-2Mi": pages}}
        cache.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "namespace": ""}, "status": status})

    found = huge_pages_condition(spec_with(writeBuffer={"medium": medium, "segmentSize": "64Mi"}), cache)

    assert (found.is_true, found.reason) == expected


def test_changed_numbers_in_reasons_are_not_urgent() -> None:
    """While something waits, the bytes and the age in its reason change with every round; other words do not."""
    written = status_with(healthy_shard())

    def waiting(why: str) -> dict[str, Any]:
        shard = written["eachShard"][0]
        return written | {"eachShard": [shard | {"decision": shard["decision"] | {"blockedBy": [why]}}]}

    before = waiting("restart of member 2 not allowed: 3.0 MiB are at risk for 900ms, but spec.durability allows 1s")
    later = waiting("restart of member 2 not allowed: 512 B are at risk for 2s, but spec.durability allows 1s")
    of_another = waiting("restart of member 3 not allowed: 512 B are at risk for 2s, but spec.durability allows 1s")

    assert is_worth_a_write(before, written, 0)
    assert not is_worth_a_write(later, before, WRITE_MS - 1)
    assert is_worth_a_write(later, before, WRITE_MS)
    assert is_worth_a_write(of_another, before, 0)
    assert not is_worth_a_write(waiting("5 messages are left"), waiting("7 messages are left"), 0)


def test_conditions_of_rendering_are_added_to_those_of_the_decision() -> None:
    """They are those for huge pages, and for objects that could not be applied."""
    status = status_with(
        healthy_shard(),
        extra_conditions=[Condition(type="HugePagesReady", is_true=False, reason="TooFew", message="x" * 5000)],
    )

    found = {one["type"]: one for one in status["conditions"]}["HugePagesReady"]
    assert (found["status"], found["reason"]) == ("False", "TooFew")
    assert len(found["message"]) <= 1000


# -- events ------------------------------------------------------------------------------------------------------------


def group_object() -> Object:
    head = {"name": "g", "namespace": "shop", "uid": "u", "resourceVersion": "7"}
    return {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": head}


async def test_repeated_event_is_recorded_once_in_a_while() -> None:
    """The same reason and message are not recorded again for some minutes."""
    api, clock = FakeKubernetes(), ModelClock()
    recorder = EventRecorder(api, clock)
    promote = act.Promote(shard=0, member=2, epoch=4000, electable=(1,), last_epoch=3000, end=7)
    promoted = event_of(promote)
    assert promoted is not None
    assert event_of(act.Follow(shard=0, member=1, epoch=4000, master="m:1")) is None

    for _ in range(3):
        await recorder.record(group_object(), promoted)
    assert [one["reason"] for one in api.of_kind(EVENTS)] == ["MasterPromoted"]
    clock.ms += REPEAT_MS
    await recorder.record(group_object(), promoted)

    events = api.of_kind(EVENTS)
    assert len(events) == 2
    assert events[0]["involvedObject"]["uid"] == "u"
    assert "member 2" in events[0]["message"]


def test_a_dropped_request_has_another_event_than_a_finished_one() -> None:
    """A request that can never be done is not reported as done."""
    done = act.ClearRequest(shard=0, request="0=2", why="member 2 is the master of epoch 4000")
    dropped = act.ClearRequest(shard=0, request="0=7", why="request dropped: member 7 does not exist", is_dropped=True)

    events = [event_of(one) for one in (done, dropped)]

    assert [None if one is None else one.reason for one in events] == ["RequestDone", "RequestDropped"]


async def test_failure_to_record_an_event_is_not_fatal() -> None:
    """The loop of the group continues."""
    api = FakeKubernetes()
    api.fault_of = lambda verb, place: Forbidden("events", "no")

    await EventRecorder(api, ModelClock()).record(group_object(), Event("NotApplied", "why", is_warning=True))

    assert api.of_kind(EVENTS) == []


async def test_failed_event_is_recorded_when_it_is_reported_again() -> None:
    """It is not suppressed like a recorded one; but not every round, which may be one second later, tries again."""
    api, clock = FakeKubernetes(), ModelClock()
    recorder, event = EventRecorder(api, clock), Event("NotApplied", "why", is_warning=True)
    asked: list[str] = []

    def refuse(verb: str, ref: ObjectRef) -> Unavailable:
        asked.append(verb)
        return Unavailable("events", "no answer")

    api.fault_of = refuse
    for _ in range(10):
        await recorder.record(group_object(), event)
        clock.ms += 1_000
    assert asked == ["create"]

    api.fault_of = lambda verb, ref: None
    clock.ms += RETRY_MS
    for _ in range(3):
        await recorder.record(group_object(), event)
        clock.ms += RETRY_MS
    assert [one["reason"] for one in api.of_kind(EVENTS)] == ["NotApplied"]


def test_every_reason_is_one_word() -> None:
    """Users and alerts match on the reasons."""
    assert all(reason.isalpha() and reason[0].isupper() for reason in REASONS.values())
    assert len(set(REASONS.values())) == len(REASONS)
