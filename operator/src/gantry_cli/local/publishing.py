"""Publishes the state of a local group: group.json has the processes, decision.json the status and the decisions.

Both are replaced as a whole after a round, the first only when it has changed. Readers need no connection to the
supervisor: the time in the status shows whether the supervisor is still running its rounds. Neither file has a secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final, final

import msgspec

from gantry_cli.local.group_status import LocalGroupStatus, LocalMemberStatus, LocalProxyStatus
from gantry_cli.local.proxy import LocalProxies
from gantry_cli.local.records import ProxyRecord, member_name
from gantry_cli.local.state import now_ms
from gantry_cli.local.supervisor import Supervisor
from gantry_cli.processes import ServerProcess
from gantry_cli.text import duration_text
from gantry_remoting.addresses import join_address
from gantry_remoting.durable_files import replace_file
from gantry_spec.explain import explain
from gantry_spec.ledger import Fault, Ledger, bytes_behind
from gantry_spec.observed import ObservedShard
from gantry_status.text import bytes_text


@final
class Publisher:
    """Writes the files by which other processes see the group. Owned by one supervisor."""

    def __init__(self, supervisor: Supervisor, name_servers: Sequence[ServerProcess], proxies: LocalProxies) -> None:
        self._supervisor: Final = supervisor
        self._name_servers: Final = name_servers
        self._proxies: Final = proxies
        self._written_group = b""
        self._last_failure = ""

    def publish(self) -> None:
        """Write both files after a round. A full disk leaves them outdated, and does not stop the group."""
        path = self._supervisor.state.decision_file
        data = msgspec.json.encode(self.current_status(), enc_hook=int)
        try:
            # A reader of the status that finds a member removed must not find it in the group's record.
            self._publish_group()
            replace_file(path, data, mode=0o644, is_durable=False)
            self._last_failure = ""
        except OSError as error:
            if str(error) != self._last_failure:
                self._last_failure = str(error)
                self._supervisor.report_event(f"failed to write the status: {error}")

    def publish_end(self) -> None:
        """Record that no process runs any more. Ports and folders are kept for the next start."""
        self._supervisor.record.end()
        self._publish_group()
        self._supervisor.state.decision_file.unlink(missing_ok=True)

    def _publish_group(self) -> None:
        supervisor = self._supervisor
        record = supervisor.record
        for server, child in zip(record.name_servers, self._name_servers, strict=True):
            server.note_process(child)
        for proxy in record.proxies:
            if (process := self._proxies.child(proxy.name)) is not None:
                proxy.note_process(process)
        for member in supervisor.members.values():
            member.record.note_processes(member.broker, member.sidecar)
        written = msgspec.json.encode(record)
        if written != self._written_group:
            supervisor.state.write_group(record)
            self._written_group = written

    def current_status(self) -> LocalGroupStatus:
        """Return the status after the latest round."""
        supervisor = self._supervisor
        record = supervisor.record
        return LocalGroupStatus(
            at_ms=time.time_ns() // 1_000_000,
            group=record.name,
            pid=os.getpid(),
            started_at_ms=record.started_at_ms,
            name_servers=record.addresses,
            proxies=[self._proxy_status(one) for one in record.proxies],
            members=[view for shard in supervisor.observed.shards for view in self._members(shard)],
            conditions=supervisor.decision.conditions,
            ledgers=supervisor.decision.ledgers,
            decision=supervisor.decision.explanation,
            outlook=explain(supervisor.spec, supervisor.observed, now_ms()),
            events=list(supervisor.events)[-100:],
        )

    def _proxy_status(self, record: ProxyRecord) -> LocalProxyStatus:
        child = self._proxies.child(record.name)
        return LocalProxyStatus(
            name=record.name,
            process="running" if child is not None and child.is_running else "stopped",
            pid=None if child is None else child.pid,
            starts=0 if child is None else child.starts,
            address=record.address,
            metrics_url=f"http://{record.http_address}/metrics",
        )

    def _members(self, shard: ObservedShard) -> list[LocalMemberStatus]:
        behind_bytes = bytes_behind(shard)
        return [self._member(shard.number, one.number, behind_bytes[one.number]) for one in shard.members]

    def _member(self, shard: int, number: int, behind_bytes: int | None) -> LocalMemberStatus:
        member = self._supervisor.members[shard, number]
        report, record, child = member.report, member.record, member.broker
        observed = member.to_observed(now_ms())
        view = LocalMemberStatus(
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
            role=str(report.role) if observed.process == "Running" else "",
            epoch=report.epoch,
            report_age_ms=max(0, now_ms() - report.asked_ms),
            wrote=report.wrote,
            committed=report.committed,
            flushed=report.flushed,
            acked=report.acked,
            confirmed=report.confirmed,
            behind_bytes=behind_bytes,
            is_draining=report.is_draining,
            problem=report.problem,
            missing_bytes=report.missing_bytes,
            damaged_bytes=report.damaged_bytes,
        )

    def line(self) -> str:
        """Return the state of the group as one line."""
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
