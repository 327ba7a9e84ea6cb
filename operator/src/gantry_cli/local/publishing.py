"""What the supervisor lets others see: group.json with the processes, decision.json with what was seen and decided.

Both are written whole after a look, the first when it has changed. Whoever reads them needs no connection to the
supervisor, and sees by the time in them whether it still looks. Neither holds a secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final, final

import msgspec

from gantry_cli.local.look import Look, MemberView
from gantry_cli.local.state import member_name, now_ms
from gantry_cli.local.supervisor import Supervisor
from gantry_cli.processes import ServerProcess
from gantry_cli.text import duration_text
from gantry_remoting.addresses import join_address
from gantry_remoting.durable_files import replace_file
from gantry_spec.explain import explain
from gantry_spec.ledger import Fault, Ledger, behind
from gantry_spec.manifest.quantities import bytes_text
from gantry_spec.observed import ObservedShard


@final
class Publisher:
    """Of one supervisor."""

    def __init__(self, supervisor: Supervisor, name_servers: Sequence[ServerProcess]) -> None:
        self._supervisor: Final = supervisor
        self._name_servers: Final = name_servers
        self._written = b""
        self._failure = ""

    def publish(self) -> None:
        """After a look. A disk that is full costs the view, and not the group."""
        path = self._supervisor.state.decision_file
        data = msgspec.json.encode(self.look(), enc_hook=int)
        try:
            self._publish_group()  # first: who has read that a member is gone finds no record of it
            replace_file(path, data, mode=0o644, is_durable=False)
            self._failure = ""
        except OSError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                self._supervisor.tell(f"what is seen cannot be written down: {error}")

    def publish_end(self) -> None:
        """Nothing runs any more; ports and folders stay as they are."""
        self._supervisor.record.end()
        self._publish_group()
        self._supervisor.state.decision_file.unlink(missing_ok=True)

    def _publish_group(self) -> None:
        supervisor = self._supervisor
        record = supervisor.record
        for server, child in zip(record.name_servers, self._name_servers, strict=True):
            server.note_process(child)
        for member in supervisor.members.values():
            member.record.note_processes(member.broker, member.sidecar)
        written = msgspec.json.encode(record)
        if written != self._written:
            supervisor.state.write_group(record)
            self._written = written

    def look(self) -> Look:
        """The newest."""
        supervisor = self._supervisor
        record = supervisor.record
        return Look(
            at_ms=time.time_ns() // 1_000_000,
            group=record.name,
            pid=os.getpid(),
            started_at_ms=record.started_at_ms,
            name_servers=record.addresses,
            members=[view for shard in supervisor.observed.shards for view in self._members(shard)],
            conditions=supervisor.decision.conditions,
            ledgers=supervisor.decision.ledgers,
            decision=supervisor.decision.explanation,
            outlook=explain(supervisor.spec, supervisor.observed, now_ms()),
            events=list(supervisor.events)[-100:],
        )

    def _members(self, shard: ObservedShard) -> list[MemberView]:
        behind_bytes = behind(shard)
        return [self._member(shard.number, one.number, behind_bytes[one.number]) for one in shard.members]

    def _member(self, shard: int, number: int, behind_bytes: int | None) -> MemberView:
        member = self._supervisor.members[shard, number]
        report, record, child = member.report, member.record, member.broker
        seen = member.seen(now_ms())
        view = MemberView(
            name=record.name,
            shard=shard,
            number=number,
            process="running" if child.is_running else "stopped",
            pid=child.pid,
            starts=child.starts,
            address=join_address(self._supervisor.record.host, record.port),
            sidecar_url="" if member.sidecar is None else record.sidecar_url,
        )
        if report is None:
            return view
        return msgspec.structs.replace(
            view,
            role=str(report.role) if seen.process == "Running" else "",
            epoch=report.epoch,
            seen_ago_ms=max(0, now_ms() - report.asked_ms),
            wrote=report.wrote,
            committed=report.committed,
            flushed=report.flushed,
            acked=report.acked,
            confirmed=report.confirmed,
            behind_bytes=behind_bytes,
            is_draining=report.is_draining,
            trouble=report.trouble,
            missing_bytes=report.missing_bytes,
            damaged_bytes=report.damaged_bytes,
        )

    def line(self) -> str:
        """The group in a line."""
        supervisor = self._supervisor
        up_s = time.time() - supervisor.record.started_at_ms / 1000
        masters = supervisor.masters()
        shards = [
            _ledger_text(one) if one.shard in masters else f"shard {one.shard}: no master answers"
            for one in supervisor.decision.ledgers
        ]
        return f"up {duration_text(up_s)}   " + "   ".join(shards)


def _ledger_text(ledger: Ledger) -> str:
    if ledger.master is None or not ledger.is_fresh:
        return f"shard {ledger.shard}: no master"
    at_risk = bytes_text(ledger.risk(Fault.MACHINE).bytes)
    stored = "unknown" if ledger.wrote is None else bytes_text(ledger.wrote)
    return (
        f"shard {ledger.shard}: {member_name(ledger.shard, ledger.master)} in epoch {ledger.epoch},"
        f" {len(ledger.in_sync)} in sync, {stored} stored, {at_risk} at risk"
    )
