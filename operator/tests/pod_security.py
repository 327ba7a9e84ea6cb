"""Rules of Kubernetes' pod security level `restricted` for pods of Linux, without a cluster.

From the table in Kubernetes' documentation of the Pod Security Standards, baseline and restricted together. It is
stricter than the table in two ways: it allows no sysctls and no SELinux options. It does not check the annotations of
AppArmor, the hosts of probes and lifecycle hooks, and the seccomp profile and `runAsNonRoot` of a pod whose containers
all have their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
"""The allowed types of volumes."""

CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
"""The capabilities that a container may add."""

PROFILES = frozenset({"RuntimeDefault", "Localhost"})
"""The allowed types of a seccomp profile and of an AppArmor profile."""


def broken_rules(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the rules that a pod's spec breaks; none if admission would accept it."""
    pod = spec.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']}: {', '.join(sorted(kinds))}"
    if pod.get("sysctls"):
        yield "sysctls"
    yield from _of_both(pod)
    containers = [one for name in ("containers", "initContainers", "ephemeralContainers") for one in spec.get(name, [])]
    for container in containers:
        for text in _of_container(container.get("securityContext", {}), pod):
            yield f"{container['name']}: {text}"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield f"{container['name']}: hostPort"


def _of_both(context: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules of fields that the security contexts of pods and of containers have."""
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    if context.get("seLinuxOptions"):
        yield "seLinuxOptions"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in PROFILES:
        yield "appArmorProfile"


def _of_container(own: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    yield from _of_both(own)
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield "runAsNonRoot"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or not set(capabilities.get("add", [])) <= CAPABILITIES:
        yield "capabilities"
    profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
    if profile.get("type") not in PROFILES:
        yield "seccompProfile"
