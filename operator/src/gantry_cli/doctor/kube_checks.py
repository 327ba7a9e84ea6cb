"""Decides about a group in a Kubernetes cluster, from its status, its pods and the answers of its sidecars. Pure.

What only a client can see is skipped here, with the command that checks it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from gantry_cli.doctor.checks import CHECKS
from gantry_cli.doctor.connection_checks import expiry_findings
from gantry_cli.doctor.results import CheckResult, Finding, fault, ok, result_of, skipped, warning
from gantry_cli.doctor.server_checks import disk_finding, disk_limits
from gantry_cli.kube.documents import ClusterGroupStatus, ClusterMemberStatus
from gantry_status.text import bytes_text

Document = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KubeFacts:
    """The observation of a group in a cluster."""

    version: str
    """The version of this command."""
    status: ClusterGroupStatus
    pods: Mapping[str, Document]
    """The brokers' pods by name."""
    sidecars: Mapping[str, Document]
    """The status documents of the sidecars that answered, by pod."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The broker settings in the group's spec."""
    client_command: str = ""
    """The command with which a client of the group runs the other checks."""


def decide_kube(facts: KubeFacts, only: Sequence[str] = ()) -> tuple[CheckResult, ...]:
    """Return the results of all checks, or of those in ``only``."""
    return tuple(
        result_of(check.id, check.title, _DECISIONS.get(check.id, _skip_for_clients)(facts))
        for check in CHECKS
        if not only or check.id in only
    )


def _skip_for_clients(facts: KubeFacts) -> Iterator[Finding]:
    yield skipped("-", "only a client of the group can check it", facts.client_command)


def _check_name_servers(facts: KubeFacts) -> Iterator[Finding]:
    ready, _, wanted = facts.status.name_servers.partition("/")
    if not wanted:
        yield skipped("-", "the group has no name servers of its own, or you may not list pods")
    elif ready != wanted:
        found = f"{facts.status.name_servers} are ready"
        remedy = f"see kubectl get pods -n {facts.status.namespace}, and the events of the pods that are not ready"
        yield fault("name servers", found, "clients that use the others find no broker", remedy)
    else:
        yield ok("name servers", f"{facts.status.name_servers} are ready")


def _check_versions(facts: KubeFacts) -> Iterator[Finding]:
    versions = defaultdict[str, list[str]](list)
    for pod, document in facts.sidecars.items():
        if document.get("version"):
            versions[str(document["version"])].append(pod)
        sidecar = document.get("sidecar")
        if isinstance(sidecar, dict) and sidecar.get("version"):
            versions[str(sidecar["version"])].append(f"sidecar of {pod}")
    for member in facts.status.members:
        if member.pod not in facts.sidecars:
            yield _unanswered(member)
    if len(versions) > 1:
        found = "; ".join(f"{version}: {', '.join(labels)}" for version, labels in sorted(versions.items()))
        remedy = "wait until the operator has restarted all pods; see `gantry status` for what it waits for"
        yield fault("pods", found, "a mix of versions is meant for the minutes of an upgrade", remedy)
    elif versions:
        yield ok("pods", f"all run {next(iter(versions))}")
    if versions and facts.version not in versions:
        found = f"this command is {facts.version}, the pods are {', '.join(sorted(versions))}"
        yield warning("this command", found, "it may lack options, or show less", "install the version of the pods")


def _check_disks(facts: KubeFacts) -> Iterator[Finding]:
    for member in facts.status.members:
        disk = facts.sidecars.get(member.pod, {}).get("disk")
        total, used = (disk.get("total_bytes"), disk.get("used_bytes")) if isinstance(disk, dict) else (None, None)
        if not isinstance(total, int) or not isinstance(used, int) or total <= 0:
            yield _unanswered(member)
            continue
        capacity = f"{bytes_text(used)} of {bytes_text(total)}"
        yield disk_finding(member.pod, -(-used * 100 // total), disk_limits(facts.settings), capacity)


def _check_huge_pages(facts: KubeFacts) -> Iterator[Finding]:
    for name, pod in sorted(facts.pods.items()):
        wanted = _huge_pages_of(pod)
        if not wanted:
            yield ok(name, "requests no huge pages")
            continue
        message = _unscheduled_message(pod)
        if "hugepages" in message:
            remedy = (
                "reserve huge pages on the nodes (vm.nr_hugepages) and restart kubelet, or set "
                "spec.writeBuffer.medium: Memory; gantry explain --capacity shows the room on each node"
            )
            yield fault(name, f"requests {wanted} and is not scheduled: {message}", "the broker does not start", remedy)
        elif not (pod.get("spec") or {}).get("nodeName"):
            yield skipped(name, f"requests {wanted}, and is not scheduled yet: {message or 'no reason is known'}")
        else:
            yield ok(name, f"has {wanted}")


def _huge_pages_of(pod: Document) -> str:
    for container in (pod.get("spec") or {}).get("containers") or []:
        limits = (container.get("resources") or {}).get("limits") or {}
        for key, amount in limits.items():
            if str(key).startswith("hugepages-"):
                return f"{key}={amount}"
    return ""


def _unscheduled_message(pod: Document) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _check_tls(facts: KubeFacts) -> Iterator[Finding]:
    remedy = "renew the Secret of spec.access.tlsSecret, or see the operator's log if it issues the certificates"
    for pod, document in sorted(facts.sidecars.items()):
        ends_ms = document.get("certificate_ends_wall_ms")
        if isinstance(ends_ms, int):
            yield from expiry_findings(pod, ends_ms, facts.status.at_ms, remedy)
    yield skipped("-", "only a client can check the names in the certificates", facts.client_command)


def _check_slaves(facts: KubeFacts) -> Iterator[Finding]:
    see = f"gantry status bg/{facts.status.group} --namespace {facts.status.namespace}"
    for shard in facts.status.shards:
        if not shard.master:
            found = f"shard {shard.number} has no master{f': {shard.action}' if shard.action else ''}"
            yield fault(f"shard {shard.number}", found, "sends to this shard fail", f"{see} shows what it waits for")
    for member in facts.status.members:
        role = (member.role or member.label or "").lower()
        if member.phase != "Running" or not member.is_ready:
            reason = member.readiness or member.problem or "no reason is known"
            found = f"{role or 'member'}, {member.phase.lower()}, not ready: {reason}"
            remedy = f"kubectl describe pod {member.pod} -n {facts.status.namespace}"
            yield fault(member.pod, found, "its shard has one copy less, or no master", remedy)
        elif member.role is None:
            yield _unanswered(member)
        elif role == "slave" and member.problem:
            yield fault(member.pod, member.problem, "it copies nothing, and cannot replace its master", see)
        else:
            yield ok(
                member.pod, f"{role}{'' if member.behind_bytes is None else f', {member.behind_bytes} bytes behind'}"
            )
    if not facts.status.members:
        yield skipped("-", "no pod of a broker is known")


def _unanswered(member: ClusterMemberStatus) -> Finding:
    return skipped(member.pod, member.fault or "its sidecar has not answered")


_DECISIONS: Final[Mapping[str, Callable[[KubeFacts], Iterator[Finding]]]] = {
    "name-server": _check_name_servers,
    "tls": _check_tls,
    "version": _check_versions,
    "disk": _check_disks,
    "huge-pages": _check_huge_pages,
    "slave-following": _check_slaves,
}
"""The checks that the objects and sidecars of a group answer."""
