"""The settings of the operator, from command line options or the environment, read once and validated together."""

from __future__ import annotations

import os
import uuid
from typing import Annotated, Final, final

import msgspec

from gantry_operator.errors import SettingsError
from gantry_operator.leader_election import LeaseTimings
from gantry_remoting import split_address

SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


@final
class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one operator process."""

    image: str
    """The image of brokers, sidecars and name servers of groups that set no image."""

    namespaces: tuple[str, ...] = ()
    """The namespaces whose resources are reconciled; empty for the whole cluster."""

    namespace: str = "gantry-system"
    """The operator's own namespace, which contains the leader Lease and the operator's key."""

    identity: str = ""
    """The holder identity in the leader Lease; empty for a new one in each process, also in a restarted one."""

    kubeconfig: str | None = None
    """The kubeconfig file with address and credentials; None for the pod's service account, else `~/.kube/config`."""

    context: str | None = None
    """The context of the kubeconfig to use; None for its current context."""

    pull_policy: str = "IfNotPresent"
    """The pull policy of the images of brokers, sidecars and name servers, also where a group sets the image."""

    pull_secrets: tuple[str, ...] = ()
    """The names of the Secrets with which images are pulled."""

    pipeline_image: str = ""
    """The image of drivers and executors of pipelines that set no image; empty if every pipeline must set one."""

    pipeline_pull_policy: str = "IfNotPresent"
    """The pull policy of the images of pipelines, also where a pipeline sets the image."""

    executors_role: tuple[str, str] = ("", "")
    """Kind and name of the role with which a driver creates executors; empty if mode `kubernetes` is not allowed."""

    name: str = "gantry-operator"
    """The name of the leader Lease. The operator's key is in the Secret with this name and the suffix `-key`."""

    leader: LeaseTimings = LeaseTimings()
    """Duration, renew deadline and retry period of the leader Lease: 15, 10 and 2 seconds."""

    lease_duration_ms: int = 15_000
    """The duration of the Leases of shards, in milliseconds, for Leases that are created from now on."""

    can_read_nodes: bool = True
    """Whether Nodes and PersistentVolumes may be read. Without them, cordons and disks of lost machines are unknown."""

    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "gantry-operator"),)
    """The labels of the operator's own pods, which the network policies of groups admit."""

    prometheus_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "prometheus"),)
    """The labels of the Prometheus pods, which may scrape the sidecars of groups."""

    listen: str = "[::]:8090"
    """The address, as host:port, on which /livez, /readyz and /metrics are served."""

    stale_s: Seconds = 60.0
    """The liveness probe fails when a resource was not reconciled for this time, in seconds."""

    log_level: str = "info"
    """The lowest level of the log records that are written to standard error as JSON."""


def own_namespace() -> str:
    """Return the namespace of the pod that this process runs in, or `gantry-system` outside of a pod."""
    try:
        with open(SERVICE_ACCOUNT_NAMESPACE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "gantry-system"


def own_identity() -> str:
    """Return a new holder identity for the leader Lease: a restarted pod must not take itself for the last holder."""
    return f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:12]}"


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse an address of the form ``host:port``. Raises ``SettingsError``."""
    try:
        host, port = split_address(text, port_min=0)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from error
    if not host:
        raise SettingsError(f"{option} {text}: missing host; write host:port, for example 0.0.0.0{text}")
    return host, port


def parse_pairs(text: str, option: str) -> tuple[tuple[str, str], ...]:
    """Parse a list of the form ``a=b,c=d``. Raises ``SettingsError``."""
    found = []
    for term in (one.strip() for one in text.split(",") if one.strip()):
        name, separator, value = term.partition("=")
        if not separator or not name:
            raise SettingsError(f"{option} {term}: expected name=value")
        found.append((name, value))
    return tuple(found)


def parse_role(text: str, option: str) -> tuple[str, str]:
    """Parse ``ClusterRole/name`` or ``Role/name``; an empty text means no role. Raises ``SettingsError``."""
    kind, _, name = text.partition("/")
    if text and (kind not in ("ClusterRole", "Role") or not name):
        raise SettingsError(f"{option} {text}: expected ClusterRole/NAME or Role/NAME")
    return (kind, name) if text else ("", "")


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a list of names that are separated by commas."""
    return tuple(one.strip() for one in text.split(",") if one.strip())
