"""Hand-made faults of elections, of the operator and its sidecar, and of the pipelines."""

from __future__ import annotations

from typing import Final

from mutations.planted_fault import Fault

PLANNED: Final = "operator/tests/reconcile"

ELECTION: Final = (
    Fault(
        "longer log beats newer epoch",
        "operator/src/gantry_spec/ballot.py",
        "return self.last_epoch, self.end",
        "return self.end, self.last_epoch",
        "An election is won by the newest epoch, and only within it by the longest log.",
        judges=("elections", "replication"),
        is_about_messages=True,
    ),
    Fault(
        "one promise too few",
        "operator/src/gantry_spec/ballot.py",
        "return intersecting_quorum(electable, acks_needed) if acks_needed > 0 else min(1, electable)",
        "return intersecting_quorum(electable, acks_needed) - 1 if acks_needed > 0 else min(1, electable)",
        "Among the members that have promised is one with every acknowledged message.",
        judges=("elections", "replication"),
        is_about_messages=True,
    ),
    Fault(
        "emptied store keeps its vote",
        "operator/src/gantry_spec/ballot.py",
        "if (one.number, one.identity) in stores and one.is_complete is True]",
        "if (one.number, one.identity) in stores]",
        "A store that has lost data proves nothing about acknowledged messages.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "new slave electable before it has everything",
        "operator/src/gantry_spec/decide/term_maintenance.py",
        "return bar is not None and ack is not None and ack.received is not None and ack.received >= bar",
        "return bar is not None and ack is not None and ack.received is not None",
        "A new member may be promoted only when it has every acknowledged message.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "successor does not wait for the Lease",
        "operator/src/gantry_spec/decide/view.py",
        "return max(self.lease.seen_ms + self.record.duration_ms, min(grants)) if grants else None",
        "return min(self.lease.seen_ms + self.record.duration_ms, min(grants)) if grants else None",
        "No member is promoted while the old master may still acknowledge.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "unknown loss allowed",
        "operator/src/gantry_spec/gate.py",
        '        return Verdict(False, "the possible loss is unknown", None)\n',
        "        return ALLOWED\n",
        "A promotion that may lose an unknown amount waits for a person.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "promotes without an order",
        "operator/src/gantry_spec/decide/election.py",
        "if last is not None and winner.number != last.master and not view.may_move:",
        "if last is not None and winner.number == last.master and not view.may_move:",
        "With failover.mode Manual or Disabled no other member becomes master without an order.",
    ),
)

OPERATOR: Final = (
    Fault(
        "volumes deleted with their shard",
        "operator/src/gantry_operator/execute/pruner.py",
        "    *(*ROUTE_KINDS, SERVICES, CONFIG_MAPS, BUDGETS,",
        '    *(Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"), SERVICES, CONFIG_MAPS, BUDGETS,',
        "The operator never deletes a PersistentVolumeClaim.",
    ),
    Fault(
        "only copy replaced with its lost disk",
        "operator/src/gantry_spec/decide/membership.py",
        "if view.lease.record is None or not view.record.is_settled or view.healthy_master is None:",
        "if view.lease.record is None or not view.record.is_settled:",
        "A lost disk is replaced only while a master has everything that was acknowledged.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "record of another operator overwritten",
        "operator/src/gantry_operator/execute/leases.py",
        '    if version != expected:\n        raise Conflict(what, f"the record has version',
        '    if version is None and expected:\n        raise Conflict(what, f"the record has version',
        "Two operators at once never record two masters of one epoch.",
    ),
    Fault(
        "old master keeps its label",
        "operator/src/gantry_operator/execute/role_labels.py",
        '        elif label == MASTER_ROLE:\n            wanted = ""\n',
        "        elif label == MASTER_ROLE:\n            pass\n",
        "The Service of the master selects no pod of a master that was replaced.",
    ),
)

SIDECAR: Final = (
    Fault(
        "ready without right to acknowledge",
        "operator/src/gantry_admin/health.py",
        "if not state.may_acknowledge:",
        "if not state.may_acknowledge and state.problem:",
        "A master that may not acknowledge sends is not ready.",
    ),
    Fault(
        "lease renewed for an older epoch",
        "operator/src/gantry_admin/lease_renewal.py",
        "    if term.epoch != state.epoch:\n",
        "    if term.epoch < state.epoch:\n",
        "A sidecar gives the Lease only to the master of the newest epoch.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "role recovered under a newer term",
        "operator/src/gantry_spec/role_recovery.py",
        "    if (term.epoch, term.master) != (report.epoch, report.master_id):\n",
        "    if term.master == report.broker_id and term.epoch != report.epoch:\n",
        "A broker that was restarted is not the master again after another one was elected.",
        judges=("elections",),
        is_about_messages=True,
    ),
    Fault(
        "lease given to a recovered role at once",
        "operator/src/gantry_admin/lease_renewal.py",
        "        if state is None or not state.is_regained:\n",
        "        if state is None or state.is_regained:\n",
        "A master that recovered its role by itself acknowledges only after the Lease was readable for a while.",
    ),
    Fault(
        "read token may give orders",
        "operator/src/gantry_admin/guard.py",
        'return Caller(f"token:{name}", may_change)',
        'return Caller(f"token:{name}", name is not None)',
        "A token that may only read cannot give orders to a broker.",
    ),
)

PIPELINES: Final = (
    Fault(
        "file shown before its record",
        "pipelines/src/gantry_pipelines/archive/writer.py",
        "            self.add_record(record_of(query_id, batch_id, file))\n"
        "            crash_points.hit(crash_points.AFTER_RECORD)\n"
        "            if file.kind is RangeKind.DATA:\n"
        "                self.storage.publish(file.staged, file.place.path)\n",
        "            if file.kind is RangeKind.DATA:\n"
        "                self.storage.publish(file.staged, file.place.path)\n"
        "            crash_points.hit(crash_points.AFTER_RECORD)\n"
        "            self.add_record(record_of(query_id, batch_id, file))\n",
        "Readers that list an archive never see more than its manifest has.",
    ),
    Fault(
        "last message of range skipped",
        "pipelines/src/pyspark_rocketmq/planning.py",
        "while at < extent.range.end:",
        "while at < extent.range.end - 1:",
        "The tasks of a Spark read together have every message that was asked for.",
    ),
)
