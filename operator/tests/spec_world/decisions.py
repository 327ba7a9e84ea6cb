"""Helpers for tests of decisions about one shard, and shards whose master does not answer."""

from __future__ import annotations

from typing import Any

from spec_world.observations import NOW_MS, observed_group, spec_with, with_member, with_report

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import ObservedGroup, ObservedShard, Process


def decided_actions(shard: ObservedShard | ObservedGroup, spec: Spec | None = None) -> list[act.Action]:
    """Return the actions that are decided for one shard, without waits."""
    group = shard if isinstance(shard, ObservedGroup) else observed_group(shard)
    return [one for one in decide(spec or spec_with(), group, NOW_MS).actions if not isinstance(one, act.Wait)]


def wait_reasons(shard: ObservedShard | ObservedGroup, spec: Spec | None = None) -> str:
    """Return the reasons of all waits. Only waits and starts of stopped members may have been decided."""
    group = shard if isinstance(shard, ObservedGroup) else observed_group(shard)
    decision = decide(spec or spec_with(), group, NOW_MS)
    assert [one for one in decision.actions if not isinstance(one, act.Wait | act.Start)] == []
    return "; ".join(one.why for one in decision.waits)


def with_silent_member(shard: ObservedShard, number: int, for_ms: int = 20_000, **changes: Any) -> ObservedShard:
    """Return the shard with an old last report of a member."""
    shard = with_report(shard, number, asked_ms=NOW_MS - for_ms, answered_ms=NOW_MS - for_ms)
    return with_member(shard, number, **({"process": Process.UNKNOWN} | changes))


def with_disconnected_slaves(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """Return the shard with slaves that have lost contact with the master."""
    for number in numbers:
        shard = with_report(shard, number, heartbeat_age_ms=20_000)
    return shard
