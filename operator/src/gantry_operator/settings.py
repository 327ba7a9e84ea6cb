"""What the operator is started with: options, else the environment, read once and checked together."""

from __future__ import annotations

import os
import uuid
from typing import Annotated, Final, final

import msgspec

from gantry_operator.errors import SettingsError
from gantry_operator.leader import Terms

PREFIX: Final = "GANTRY_OPERATOR_"
SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


@final
class Settings(msgspec.Struct, frozen=True, kw_only=True):
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
    context: str | None = None
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    lease_name: str = "gantry-operator"
    leader: Terms = Terms()
    lease_duration_ms: int = 15_000
    """Of shards' Leases that are made from now on."""

    probes: str = "0.0.0.0:8081"
    metrics: str = "0.0.0.0:8080"
    stale_s: Seconds = 60.0
    """A group that has not come round for so long means that this process is stuck."""

    log_level: str = "info"


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
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"{option} {text}: it is no host:port")
    return host.strip("[]"), int(port)
