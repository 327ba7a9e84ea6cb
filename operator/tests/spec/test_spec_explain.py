"""The forecast of a failover is made by the same functions as the decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from spec_world.observations import (
    NOW_MS,
    healthy_shard,
    lease_record_of,
    observed_group,
    spec_with,
    with_record,
    with_report,
)

from gantry_spec import actions as act
from gantry_spec.ballot import UNOBSERVED_BYTES_PER_S
from gantry_spec.decide import decide
from gantry_spec.decide.decision import line_of
from gantry_spec.executor import order_of
from gantry_spec.explain import explain
from gantry_spec.observed import ObservedShard, Role
from gantry_status import orders

ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


def test_the_forecast_of_a_synchronous_group_shows_winner_and_no_loss() -> None:
    """It lists the candidates with their gaps, the winner, and a loss of zero."""
    shard = with_report(healthy_shard(slaves=2), 3, wrote=9_000)

    [outlook] = explain(spec_with(slaves=2), observed_group(shard), NOW_MS)

    assert (outlook.master, outlook.winner, outlook.loss_at_most, outlook.blocked_by) == (1, 2, 0, ())
    assert [(one.number, one.gap_bytes, one.has_vote) for one in outlook.candidates] == [
        (2, 0, True),
        (3, 1_000, True),
    ]
    assert outlook.lines[0] == (
        "shard 0: if master 1 of epoch 3000 died now, member 2 would take over, and 0 B would be lost at most"
    )
    assert outlook.lines[2] == "  member 3: 1000 B behind"


def test_the_forecast_shows_a_forbidden_loss_in_bytes() -> None:
    """In an asynchronous group it has what the slave lacks and what the master may have taken since its last report."""
    shard = with_report(healthy_shard(acks_needed=0), 2, wrote=6_000)

    [outlook] = explain(spec_with(**ASYNC), observed_group(shard), NOW_MS)

    assert (outlook.winner, outlook.loss_at_least, outlook.loss_at_most) == (2, 4_000, 4_000 + UNOBSERVED_BYTES_PER_S)
    assert outlook.blocked_by == ("1.0 MiB could be lost, but spec.failover.maxDataLossBytes allows 0 B",)
    assert "could be promoted by order" in outlook.lines[0]


def test_a_blocked_candidate_has_a_reason() -> None:
    """It has no recent report, or another store."""
    silent = with_report(healthy_shard(slaves=2), 2, asked_ms=NOW_MS - 60_000)
    strange = with_report(silent, 3, identity="another")

    [outlook] = explain(spec_with(slaves=2), observed_group(strange), NOW_MS)

    reasons = [one.blocked_by for one in outlook.candidates]
    assert reasons[0] == "no recent report"
    assert "its store was replaced" in reasons[1]
    assert outlook.winner is None
    assert "no member could be elected" in outlook.lines[0]


def test_an_unknown_loss_is_not_shown_as_zero() -> None:
    """This covers an unreadable Lease, a shard without a master, and a master without a reported peak load."""
    unread = msgspec.structs.replace(healthy_shard(), lease=None)
    unborn = with_record(healthy_shard(number=1), None)
    without_peak = with_report(healthy_shard(number=2, acks_needed=0), 1, peak_bytes_per_s=None)

    outlooks = explain(spec_with(**ASYNC, shards=3), observed_group(unread, unborn, without_peak), NOW_MS)

    assert [one.loss_at_most for one in outlooks] == [None, None, None]
    assert [one.blocked_by[0] for one in outlooks] == [
        "the Lease cannot be read",
        "the shard has no master yet",
        "the possible loss is unknown",
    ]


def test_the_forecast_names_mode_and_pause_as_blockers() -> None:
    """In these cases a person has to act."""
    [outlook] = explain(spec_with(failover={"mode": "Manual"}), observed_group(healthy_shard(), is_paused=True), NOW_MS)

    assert outlook.blocked_by == ("the group is paused", "failover.mode is Manual")


def test_the_forecast_offers_a_request_only_where_one_would_be_executed() -> None:
    """A request is dropped in mode Disabled, and waits while the group is paused, hibernated or fenced."""
    shard = healthy_shard()
    fenced = msgspec.structs.replace(shard, is_fenced=True)
    disabled = spec_with(failover={"mode": "Disabled"})
    for spec, group, reason in (
        (disabled, observed_group(shard), "failover.mode is Disabled"),
        (spec_with(), observed_group(shard, is_hibernated=True), "the group is hibernated"),
        (spec_with(), observed_group(shard, is_paused=True), "the group is paused"),
        (spec_with(), observed_group(fenced), "the shard is fenced"),
    ):
        [outlook] = explain(spec, group, NOW_MS)

        assert outlook.blocked_by == (reason,)
        assert not outlook.can_be_requested
        assert "member 2 would be elected, but could not be promoted, and 0 B would be lost" in outlook.lines[0]

    [outlook] = explain(spec_with(failover={"mode": "Manual"}), observed_group(shard), NOW_MS)
    assert outlook.can_be_requested and "could be promoted by order" in outlook.lines[0]


def test_the_recorded_loss_is_at_most_the_forecast() -> None:
    """The loss in the Lease does not exceed the forecast if nothing changed in between."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "2Mi"})
    shard: ObservedShard = with_report(healthy_shard(acks_needed=0), 2, wrote=6_000)
    [outlook] = explain(spec, observed_group(shard), NOW_MS)

    record = msgspec.structs.replace(lease_record_of(acks_needed=0), epoch=4_000)
    fenced = with_record(shard, record)
    for number in (1, 2):
        fenced = with_report(fenced, number, promised_epoch=4_000, granted_ms=0)
    fenced = with_report(fenced, 1, wrote=10_000)
    record_actions = [
        one for one in decide(spec, observed_group(fenced), NOW_MS).actions if isinstance(one, act.RecordMaster)
    ]

    assert outlook.loss_at_most is not None
    assert record_actions[0].record.newest is not None
    assert record_actions[0].record.newest.loss <= outlook.loss_at_most


def test_the_docs_show_the_printed_forecast() -> None:
    """The text in the docs is the exact output."""
    page = Path(__file__).resolve().parents[3] / "docs/groups.md"
    shown = page.read_text().split("```text\n")[2].split("```")[0].splitlines()
    shard = with_report(healthy_shard(acks_needed=0), 2, wrote=6_000)

    [outlook] = explain(spec_with(**ASYNC), observed_group(shard), NOW_MS)

    assert outlook.lines == shown


# -- actions -----------------------------------------------------------------------------------------------------------


def test_every_order_action_becomes_an_order_of_the_control_socket() -> None:
    """It has the fields of the action, except those for the sender and the gate."""
    ours = {"shard", "why", "member", "last_epoch", "end", "continues", "is_ordered"}
    kinds = [kind for kind in vars(act).values() if isinstance(kind, type) and issubclass(kind, act.OrderAction)]
    assert len(kinds) == 8, "expected seven kinds of order actions, and their base class"
    for kind in kinds:
        if kind is act.OrderAction:
            continue
        samples = {
            "epoch": 7,
            "electable": (1, 2),
            "master": "m:1",
            "timeout_ms": 5,
            "clients_only": True,
            "force": True,
        }
        fields = {field.name for field in msgspec.structs.fields(kind)}
        known = {name: value for name, value in samples.items() if name in fields}
        other = {"last_epoch": 1, "end": 2} if kind is act.Promote else {}
        action = msgspec.convert({"type": kind.__name__, "shard": 0, "member": 1, **other, **known}, kind)
        order = msgspec.to_builtins(order_of(action))
        assert fields - ours == known.keys(), kind
        assert (
            known.items() <= {name: tuple(one) if isinstance(one, list) else one for name, one in order.items()}.items()
        )


def test_roles_have_the_names_of_the_control_socket() -> None:
    """A status becomes a report without a translation."""
    assert {str(role) for role in Role} == {str(role) for role in orders.HaRole}


def test_every_action_has_a_text_and_survives_json() -> None:
    """It is one line for people, and JSON that decodes to an equal action."""
    actions = [
        act.Wait(shard=0, why="it is early"),
        act.Promise(shard=1, member=2, epoch=3_000),
        act.TakeEpoch(shard=0, expected="7", record=lease_record_of()),
    ]

    assert [line_of(one) for one in actions] == [
        "shard 0: waiting: it is early",
        "shard 1: Promise member 2 epoch 3000",
        "shard 0: TakeEpoch",
    ]
    for one in actions:
        assert msgspec.json.decode(msgspec.json.encode(one), type=type(one)) == one
