"""The operator in this process instead of in the cluster, with the options, the Lease and the permissions of its chart.

The installed operators are scaled down meanwhile. Since all share one Lease, none of them leads beside this one even
if they are started; since all share one key, existing groups keep their tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.groups import OPERATOR, SYSTEM

GONE_SECONDS_MAX: Final = 60.0
"""The limit for the installed operators to end."""

DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}"
SELECTOR: Final = f"app.kubernetes.io%2Fname%3D{OPERATOR}"


def pods_of_operators(cluster: Cluster) -> list[Object]:
    """List the pods of the installed operators."""
    return cluster.api.items(f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector={SELECTOR}")


def lease_holder(cluster: Cluster) -> str:
    """Return the holder of the operators' Lease; empty if there is none."""
    return str(cluster.api.get(LEASE)["spec"].get("holderIdentity") or "")


@contextmanager
def scale_down_operators(cluster: Cluster) -> Iterator[None]:
    """Scale the installed operators to zero, and back at the end."""
    replicas = cluster.api.get(DEPLOYMENT)["spec"]["replicas"]
    name, namespace = f"deployment/{OPERATOR}", f"--namespace={SYSTEM}"
    try:
        cluster.kubectl("scale", name, namespace, "--replicas=0")
        wait_until("the end of all operators", lambda: not pods_of_operators(cluster), GONE_SECONDS_MAX)
        yield
    finally:
        cluster.kubectl("scale", name, namespace, f"--replicas={replicas}")
        cluster.kubectl("rollout", "status", name, namespace, "--timeout=110s")


def chart_environment(cluster: Cluster) -> Mapping[str, str]:
    """Return the environment that the chart sets, without values that a pod reads from its own metadata."""
    [container] = cluster.api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def chart_kubeconfig(cluster: Cluster, target: Path) -> Path:
    """Write a kubeconfig with exactly the permissions of the chart's service account."""
    account = cluster.api.get(DEPLOYMENT)["spec"]["template"]["spec"]["serviceAccountName"]
    ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    given = cluster.api.create(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token", ask)
    found = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "--output=json"))
    found["users"] = [{"name": account, "user": {"token": given["status"]["token"]}}]
    for one in found["contexts"]:
        one["context"]["user"] = account
    target.touch(mode=0o600)
    target.write_text(json.dumps(found))
    return target
