"""The status of a group, made from a decision and its observations, and when to write it. Pure.

    written at once       changes of conditions, the phase, the generation, the number of ready shards, masters, epochs,
                          fences, actions and the reasons that block them, of proxies, and of backups
    at most every 10 s    all other changes: of byte bands, lags, messages, and the forecast for the loss of a master

Exact byte counts are in `gantry status` and the metrics; as fields of the status they would cause a write in each
round of the loop. Texts, such as the reasons that block an action, may contain counts. A condition keeps the time of
its last transition over restarts of the operator, because the status in the cluster is read before it is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from gantry_operator.objects import names
from gantry_spec.actions import Wait
from gantry_spec.decide.decision import Condition as DecidedCondition
from gantry_spec.decide.decision import Decision, Fences, line_of
from gantry_spec.explain import Outlook
from gantry_spec.gate import check_durability
from gantry_spec.ledger import Fault, Ledger, band_of, worst_band
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.status import (
    BackupStatus,
    Condition,
    DecisionStatus,
    DurabilityStatus,
    ProxyStatus,
    ShardStatus,
    Status,
)
from gantry_spec.observed import ObservedGroup, ObservedShard

WRITE_MS: Final = 10_000
"""The minimum time between two writes of a status without an urgent change."""

MESSAGE_MAX: Final = 1_000
"""The most characters of a message in the status."""

LINES_MAX: Final = 12
"""The most lines of a list of reasons, or of a forecast."""

RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
"""The conditions of kstatus, which a status has only while they are true: work towards the present spec is under way,
and it cannot succeed until the resource is edited."""

RECOVERY_S: Final = 120.0
"""How long replicas may be missing before they count as lost: usually a pod starts and catches up in this time."""

_AMOUNT: Final = re.compile(r"\b\d+(?:\.\d+)?(?: ?[KMGTPE]iB| B|ms|s|m|h| messages?)\b")
"""An amount of bytes, time or messages in a text."""


class StatusFacts(NamedTuple):
    """Everything from which the status of a group is made."""

    group: BrokerGroup
    observed: ObservedGroup
    decision: Decision
    outlooks: Sequence[Outlook]
    extra_conditions: Sequence[DecidedCondition] = ()
    """Conditions in addition to those of the decision."""

    proxy: ProxyStatus = ProxyStatus()
    backup: BackupStatus = BackupStatus()
    needs_edit: str = ""
    """Why the desired state cannot be reached until the resource is edited; empty if it can."""


def status_of(facts: StatusFacts, before: Mapping[str, Any], now: str) -> Status:
    """Return the new status of the group. ``before`` is the present one."""
    group, decision = facts.group, facts.decision
    ledgers = {ledger.shard: ledger for ledger in decision.ledgers}
    shards = [
        _shard(facts, shard, ledgers.get(shard.number, Ledger(shard=shard.number, observed_ms=0)), now)
        for shard in facts.observed.shards
    ]
    wanted = [one for one in shards if one.number < group.spec.shards]
    ready = sum(1 for one in wanted if one.master and not ledgers[one.number].not_in_sync(group.spec))
    generation = group.metadata.generation
    decided = [*decision.conditions, *facts.extra_conditions]
    present = conditions_of(decided, before, generation, now)
    conditions = conditions_of([*decided, *progress_conditions(facts, present, now)], before, generation, now)
    return Status(
        observed_generation=generation,
        phase=phase_of(conditions),
        ready=f"{ready}/{group.spec.shards}",
        shards=len(shards),
        selector=f"{names.GROUP_LABEL}={group.metadata.name},{names.COMPONENT_LABEL}={names.BROKER}",
        master=",".join(one.master or "-" for one in wanted),
        epoch=max((one.epoch for one in shards), default=0),
        lag=worst_band(one.lag for one in wanted),
        at_risk=worst_band(one.durability.at_risk for one in wanted),
        each_shard=shards,
        proxy=facts.proxy,
        backup=facts.backup,
        conditions=conditions,
    )


def invalid_status(generation: int, reason: str, message: str, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the status of a resource with an invalid spec: the present one, with conditions that give the reason."""
    decided = [
        DecidedCondition(type="Ready", is_true=False, reason=reason, message=message),
        DecidedCondition(type="Progressing", is_true=False, reason=reason, message=message),
        DecidedCondition(type=STALLED, is_true=True, reason=reason, message=message),
    ]
    ours = conditions_of(decided, before, generation, now)
    replaced = {one.type for one in ours} | {RECONCILING}
    rest = [one for one in before.get("conditions") or [] if one.get("type") not in replaced]
    changed = [msgspec.to_builtins(one) for one in ours]
    return dict(before) | {"phase": "Invalid", "observedGeneration": generation, "conditions": [*changed, *rest]}


def conditions_of(
    decided: Sequence[DecidedCondition], before: Mapping[str, Any], generation: int, now: str
) -> list[Condition]:
    """Return the conditions in the form of Kubernetes, each with the time of its last transition."""
    known = {one.get("type"): one for one in before.get("conditions") or []}
    found = []
    for one in decided:
        status = "Unknown" if one.is_true is None else str(one.is_true)
        old = known.get(one.type, {})
        is_same = old.get("status") == status and old.get("lastTransitionTime")
        found.append(
            Condition(
                type=one.type,
                status=status,
                reason=one.reason,
                message=one.message[:MESSAGE_MAX],
                observed_generation=generation,
                last_transition_time=str(old["lastTransitionTime"]) if is_same else now,
            )
        )
    return found


def refusal_condition(kind: str, text: str) -> DecidedCondition | None:
    """Return a condition that something is refused, with this text as its message; None for an empty text."""
    return DecidedCondition(type=kind, is_true=False, reason="Refused", message=text) if text else None


def progress_conditions(facts: StatusFacts, present: Sequence[Condition], now: str) -> list[DecidedCondition]:
    """Return the conditions by which kstatus (Flux, Helm 4) and Argo CD wait for a group; none if all is done.

    ``Ready`` is about the brokers that run, and may be true while another spec is being applied. ``present`` are the
    other conditions of the status.
    """
    if facts.needs_edit:
        return [DecidedCondition(type=STALLED, is_true=True, reason="EditNeeded", message=facts.needs_edit)]
    found, actions = {one.type: one for one in present}, facts.decision.actions
    waits = [one.why for one in actions if isinstance(one, Wait)]
    is_acting, text = len(waits) < len(actions), "; ".join(line_of(one) for one in actions[:LINES_MAX])
    if facts.observed.is_paused:
        return [_reconciling("Paused", "the operator takes no action")]
    if found["Hibernated"].status == "True":
        return []
    wanted = [shard for shard in facts.observed.shards if shard.number < facts.group.spec.shards]
    known = [shard for shard in wanted if shard.lease is not None and shard.lease.record is not None]
    if len(known) < facts.group.spec.shards:
        return [_reconciling("Creating", text)]
    outdated = _outdated_members(facts)
    if outdated:
        return [_reconciling("Updating", f"members with former settings: {', '.join(outdated)}")]
    ready = found["Ready"]
    lost_s = 0.0 if ready.status == "True" else _seconds_between(ready.last_transition_time, now)
    if is_acting and lost_s < RECOVERY_S:
        return [_reconciling("Acting", text)]
    if ready.status != "True" and found["Available"].status == "True" and lost_s < RECOVERY_S:
        return [_reconciling("Recovering", text)]
    expected = ("Applied", "ProxiesReady", "GatewayReady", "ArchiveReady", "Resized")
    unmet = [name for name in expected if name in found and found[name].status == "False"]
    if unmet:
        return [_reconciling("Waiting", "; ".join(f"{name}: {found[name].message}" for name in unmet))]
    return [_reconciling("Waiting", text)] if actions else []


def _reconciling(reason: str, message: str) -> DecidedCondition:
    return DecidedCondition(type=RECONCILING, is_true=True, reason=reason, message=message)


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def _outdated_members(facts: StatusFacts) -> list[str]:
    """Return the members of the spec whose pods are not of the present template, as SHARD/MEMBER."""
    template, spec = facts.observed.template, facts.group.spec
    return [
        f"{shard.number}/{member.number}"
        for shard in facts.observed.shards
        for member in shard.members
        if shard.number < spec.shards and member.number in spec.members and template and member.template != template
    ]


def phase_of(conditions: Sequence[Condition]) -> str:
    """Return the phase: one word for the most important condition."""
    status_of_type = {one.type: one.status for one in conditions}
    if status_of_type.get("Paused") == "True":
        return "Paused"
    if status_of_type.get("Hibernated") == "True":
        return "Hibernated"
    if status_of_type.get("Available") != "True":
        return "Unavailable"
    if status_of_type.get("Progressing") == "True":
        return "Progressing"
    return "Degraded" if status_of_type.get("Degraded") == "True" else "Ready"


def urgent_part(status: Mapping[str, Any]) -> Any:
    """Return the part of a status whose changes are written at once.

    The amounts in the reasons that block actions are left out: those of bytes, messages and time change all the time.
    """
    conditions = sorted((one["type"], one["status"], one["reason"]) for one in status.get("conditions") or [])
    shards = [
        (
            one["number"],
            one["master"],
            one["epoch"],
            one["fence"],
            one["decision"]["action"],
            tuple(_AMOUNT.sub("", why) for why in one["decision"]["blockedBy"]),
        )
        for one in status.get("eachShard") or []
    ]
    summary = [status.get(name) for name in ("phase", "observedGeneration", "ready", "proxy", "backup")]
    return conditions, shards, summary


def without_times(status: Mapping[str, Any]) -> Any:
    """Return a status without the times at which it was observed."""
    shards = [
        one | {"durability": {key: value for key, value in one["durability"].items() if key != "observedAt"}}
        for one in status.get("eachShard") or []
    ]
    return dict(status) | {"eachShard": shards}


def is_worth_a_write(status: Mapping[str, Any], written: Mapping[str, Any], age_ms: int) -> bool:
    """Return whether this status should replace the one that was written ``age_ms`` ago."""
    is_urgent = urgent_part_or_none(written) != urgent_part(status)
    is_changed = without_times(status) != without_times_or_none(written)
    return is_due(is_urgent=is_urgent, is_changed=is_changed, age_ms=age_ms)


def is_due(*, is_urgent: bool, is_changed: bool, age_ms: int) -> bool:
    """Return whether to write a status: an urgent change at once, any other at most every ``WRITE_MS``."""
    return is_urgent or (is_changed and age_ms >= WRITE_MS)


def urgent_part_or_none(status: Mapping[str, Any]) -> Any:
    """Return the urgent part of a status, or None if another version of the operator wrote it in another form."""
    try:
        return urgent_part(status)
    except (KeyError, TypeError):
        return None


def without_times_or_none(status: Mapping[str, Any]) -> Any:
    """Return a status without its times, or None if another version of the operator wrote it in another form."""
    try:
        return without_times(status)
    except (KeyError, TypeError):
        return None


# -- shards ------------------------------------------------------------------------------------------------------------


def _shard(facts: StatusFacts, shard: ObservedShard, ledger: Ledger, now: str) -> ShardStatus:
    """Return the status of one shard."""
    name, spec = facts.group.metadata.name, facts.group.spec
    outlook = next((one for one in facts.outlooks if one.shard == shard.number), None)
    record = None if shard.lease is None else shard.lease.record
    is_led = ledger.is_fresh and ledger.master is not None
    actions = [one for one in facts.decision.actions if one.shard == shard.number]
    doing = [line_of(one) for one in actions if not isinstance(one, Wait)]
    return ShardStatus(
        number=shard.number,
        master=names.member_pod(name, shard.number, ledger.master) if is_led and ledger.master else "",
        epoch=0 if record is None else record.epoch,
        in_sync=len(ledger.in_sync) if is_led else 0,
        lag=_lag(spec, shard, ledger) if is_led else "unknown",
        election_loss="" if record is None or record.newest is None else record.newest.election_loss,
        fence=_fence(facts.decision.fences, shard.number),
        durability=DurabilityStatus(
            at_risk=ledger.risk(Fault.MACHINE).band if is_led else "unknown",
            bottleneck=ledger.bottleneck,
            is_met=is_led and check_durability(ledger, spec).is_allowed,
            observed_at=now,
        ),
        decision=DecisionStatus(
            action="; ".join(doing)[:MESSAGE_MAX],
            blocked_by=[one.why[:MESSAGE_MAX] for one in actions if isinstance(one, Wait)][:LINES_MAX],
            if_master_dies=[] if outlook is None else [line[:MESSAGE_MAX] for line in outlook.lines[:LINES_MAX]],
        ),
    )


def _fence(fences: Fences, shard: int) -> str:
    """Return the state of a shard's fence, as in ``ShardStatus.fence``."""
    if shard in fences.closed:
        return "Fenced"
    return "Fencing" if shard in fences.still_open else ""


def _lag(spec: Spec, shard: ObservedShard, ledger: Ledger) -> str:
    """Return the lag band of the slave that is farthest behind; unknown if a slave of the spec does not report."""
    master = next((one for one in shard.members if one.number == ledger.master), None)
    if master is None or master.report is None or ledger.wrote is None:
        return "unknown"
    received = {ack.number: ack.received for ack in master.report.slaves}
    ends = [received.get(number) for number in spec.members if number != ledger.master]
    known = [one for one in ends if one is not None]
    return band_of(max((ledger.wrote - one for one in known), default=0)) if len(known) == len(ends) else "unknown"
