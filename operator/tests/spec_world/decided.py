"""What is decided about one shard, in words that tests read well, and looks at shards whose master is silent."""

from __future__ import annotations

from typing import Any

from spec_world.looks import NOW_MS, observed, spec_with, with_member, with_report

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Observed, ObservedShard, Process


def decided(shard: ObservedShard | Observed, spec: Spec | None = None) -> list[act.Action]:
    """The actions for one shard, waits left out."""
    look = shard if isinstance(shard, Observed) else observed(shard)
    return [one for one in decide(spec or spec_with(), look, NOW_MS).actions if not isinstance(one, act.Wait)]


def waits(shard: ObservedShard | Observed, spec: Spec | None = None) -> str:
    """Why nothing is done; nothing but waits, and starts of who has ended, may have been decided."""
    look = shard if isinstance(shard, Observed) else observed(shard)
    decision = decide(spec or spec_with(), look, NOW_MS)
    assert [one for one in decision.actions if not isinstance(one, act.Wait | act.Start)] == []
    return "; ".join(one.why for one in decision.waits)


def silent(shard: ObservedShard, number: int, for_ms: int = 20_000, **changes: Any) -> ObservedShard:
    """A member that was heard last long ago."""
    shard = with_report(shard, number, asked_ms=NOW_MS - for_ms, answered_ms=NOW_MS - for_ms)
    return with_member(shard, number, **({"process": Process.UNKNOWN} | changes))


def deaf(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """Slaves that hear no master."""
    for number in numbers:
        shard = with_report(shard, number, heard_ms=20_000)
    return shard
