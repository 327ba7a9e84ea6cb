"""The operator in this process instead of in the cluster: with the options, the Lease and the rights of its chart.

The installed ones are sent to sleep meanwhile. Since it is one Lease, none of them leads beside this one even if
somebody wakes them; and since it is one key, groups that were there before have the same tokens.
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
DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}"
NAMED: Final = f"app.kubernetes.io%2Fname%3D{OPERATOR}"


def pods_of_operators(cluster: Cluster) -> list[Object]:
    """Those that are there."""
    return cluster.api.items(f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector={NAMED}")


def lease_holder(cluster: Cluster) -> str:
    """Who leads; empty if nobody does."""
    return str(cluster.api.get(LEASE)["spec"].get("holderIdentity") or "")


@contextmanager
def operators_asleep(cluster: Cluster) -> Iterator[None]:
    """The installed ones do not run; afterwards as many as before do."""
    replicas = cluster.api.get(DEPLOYMENT)["spec"]["replicas"]
    name, space = f"deployment/{OPERATOR}", f"--namespace={SYSTEM}"
    try:
        cluster.kubectl("scale", name, space, "--replicas=0")
        wait_until("the end of all operators", lambda: not pods_of_operators(cluster), GONE_SECONDS_MAX)
        yield
    finally:
        cluster.kubectl("scale", name, space, f"--replicas={replicas}")
        cluster.kubectl("rollout", "status", name, space, "--timeout=110s")


def chart_environment(cluster: Cluster) -> Mapping[str, str]:
    """What the chart tells its operators; not what a pod finds out by itself."""
    [container] = cluster.api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def chart_kubeconfig(cluster: Cluster, target: Path) -> Path:
    """A way in with the rights of the chart's account, and no others."""
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
