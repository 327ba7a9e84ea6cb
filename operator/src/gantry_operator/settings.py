"""What the operator is started with: options, else the environment, read once and checked together."""

from __future__ import annotations

import os
import uuid
from typing import Annotated, Final, final

import msgspec

from gantry_operator.errors import SettingsError
from gantry_operator.leader_election import Terms
from gantry_remoting import split_address

SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


@final
class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process."""

    image: str
    """Of brokers, sidecars and name servers, where a group names none."""

    namespaces: tuple[str, ...] = ()
    """Those whose groups are looked after; none: those of the whole cluster."""

    namespace: str = "gantry-system"
    """Its own: where the leader's Lease is."""

    identity: str = ""
    """Its name in that Lease; a new one for each process."""

    kubeconfig: str | None = None
    """A file that says where the cluster is and who we are; none: the pod's own account, else `~/.kube/config`."""

    context: str | None = None
    """Of that file."""

    pull_policy: str = "IfNotPresent"
    """Of images."""

    pull_secrets: tuple[str, ...] = ()
    """Secrets that images are pulled with."""

    pipeline_image: str = ""
    """Of pipelines' drivers and executors, where a pipeline names none; empty: each has to."""

    pipeline_pull_policy: str = "IfNotPresent"
    """Of that image."""

    executors_role: tuple[str, str] = ("", "")
    """Kind and name of the role that lets a driver make executors; none: no pipeline may run in mode `kubernetes`."""

    name: str = "gantry-operator"
    """Of the leader's Lease; its key is in the Secret of this name and `-key`."""

    leader: Terms = Terms()
    """How long the leader's Lease lasts, for how long its holder believes, and how often it tries: 15, 10 and 2 s."""

    lease_duration_ms: int = 15_000
    """Of shards' Leases that are made from now on."""

    looks_at_machines: bool = True
    """Whether Nodes and PersistentVolumes may be looked at. Without, nobody notices a cordon or a lost disk."""

    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "gantry-operator"),)
    """Of its own pods: groups' policies let them in."""

    prometheus_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "prometheus"),)
    """Of pods that may ask brokers for metrics."""

    listen: str = "0.0.0.0:8090"
    """Where /livez, /readyz and /metrics are answered."""

    stale_s: Seconds = 60.0
    """A group that has not come round for so long means that this process is stuck."""

    log_level: str = "info"
    """What is logged, as JSON, to standard error."""


def own_namespace() -> str:
    """That of the pod that this runs in; the usual one elsewhere."""
    try:
        with open(SERVICE_ACCOUNT_NAMESPACE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "gantry-system"


def own_identity() -> str:
    """A pod that is started again is another one."""
    return f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:12]}"


def address_of(text: str, option: str) -> tuple[str, int]:
    """``host:port``. Raises ``SettingsError``."""
    try:
        host, port = split_address(text, port_min=0)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from error
    if not host:
        raise SettingsError(f"{option} {text}: write host:port, for example 0.0.0.0{text}")
    return host, port


def pairs_of(text: str, option: str) -> tuple[tuple[str, str], ...]:
    """``a=b,c=d``. Raises ``SettingsError``."""
    found = []
    for term in (one.strip() for one in text.split(",") if one.strip()):
        name, separator, value = term.partition("=")
        if not separator or not name:
            raise SettingsError(f"{option} {term}: it is no name=value")
        found.append((name, value))
    return tuple(found)


def role_of(text: str, option: str) -> tuple[str, str]:
    """``ClusterRole/name`` or ``Role/name``; empty for none. Raises ``SettingsError``."""
    kind, _, name = text.partition("/")
    if text and (kind not in ("ClusterRole", "Role") or not name):
        raise SettingsError(f"{option} {text}: it is no ClusterRole/NAME or Role/NAME")
    return (kind, name) if text else ("", "")


def names_of(text: str) -> tuple[str, ...]:
    """``a,b``."""
    return tuple(one.strip() for one in text.split(",") if one.strip())
