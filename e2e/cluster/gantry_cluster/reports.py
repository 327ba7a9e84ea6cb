"""The reports of a running group: of its brokers, its sidecars, its objects, and the route for clients outside.

Brokers are queried in a client's pod, each at its own Service; sidecars in their own container, because only that has
a token. The route is looked up from outside of the cluster. Equal values of several members are joined into one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gantry_cluster.api import Object
from gantry_cluster.clients import external_address, run_gantry_outside
from gantry_cluster.errors import ApiRefused, CommandFailed
from gantry_cluster.groups import CLIENT, Group

NOT_FOUND: Final = 404
COLLECTIONS: Final = {
    "Service": ("services", "api/v1"),
    "PersistentVolumeClaim": ("persistentvolumeclaims", "api/v1"),
    "StatefulSet": ("statefulsets", "apis/apps/v1"),
    "Deployment": ("deployments", "apis/apps/v1"),
    "ConfigMap": ("configmaps", "api/v1"),
    "ServiceAccount": ("serviceaccounts", "api/v1"),
    "PodDisruptionBudget": ("poddisruptionbudgets", "apis/policy/v1"),
    "Certificate": ("certificates", "apis/cert-manager.io/v1"),
    "NetworkPolicy": ("networkpolicies", "apis/networking.k8s.io/v1"),
}
"""The collection and the API of each kind of object."""

ASK_BROKERS: Final = """
import asyncio, json, ssl, sys
from gantry_access import Credentials
from gantry_client import Admin, ClientSettings
from gantry_client.errors import ClientError
from gantry_remoting import RemotingError

wanted = json.loads(sys.argv[1])

def settings(is_plain):
    if is_plain:
        return ClientSettings()
    tls = None
    if wanted["authority"]:
        tls = ssl.create_default_context(cadata=wanted["authority"])
        tls.check_hostname = False
    account = Credentials(*wanted["account"]) if wanted["account"] else None
    return ClientSettings(tls=tls, credentials=account)

async def ask():
    report = {"config": {}, "anonymous": {}}
    async with Admin("127.0.0.1:1", client_settings=settings(False)) as admin:
        for pod, address in wanted["brokers"].items():
            report["config"][pod] = await admin.brokers.config(address)
        master = wanted["brokers"][wanted["master"]]
        topics, groups = await admin.brokers.topic_table(master), await admin.brokers.group_table(master)
        report["tables"] = {
            "topics": {name: {"queues": one.write_queue_nums} for name, one in topics.items()},
            "groups": {name: {"retryMax": one.retry_max_times} for name, one in groups.items()},
        }
    async with Admin("127.0.0.1:1", client_settings=settings(True)) as anonymous:
        for pod, address in wanted["brokers"].items():
            try:
                await anonymous.brokers.config(address)
                report["anonymous"][pod] = "yes"
            except (ClientError, RemotingError, OSError):
                report["anonymous"][pod] = "no"
    print(json.dumps(report))

asyncio.run(ask())
"""
"""Prints the settings and tables of brokers, and whether they answer a plain client, as JSON."""

ASK_SIDECAR: Final = """
import json, pathlib, ssl, urllib.request
words = []
for place in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        found = place.read_text().split(chr(0))
    except OSError:
        continue
    if found[1:3] == ["-m", "gantry_admin"]:
        words = found
token = pathlib.Path("/etc/gantry/sidecar/read-tokens").read_text().strip().partition(":")[2]
url = ("https" if "--tls-cert" in words else "http") + "://127.0.0.1:8080/v1/status"
unverified = ssl._create_unverified_context()
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
status = json.load(urllib.request.urlopen(request, timeout=10, context=unverified))
print(json.dumps({"status": status, "arguments": words}))
"""
"""Prints the status and the arguments of a sidecar, as JSON."""


class ClientAccess(NamedTuple):
    """How clients authenticate and connect at present."""

    account: tuple[str, str] | None = None
    """The access key and the secret key; None if requests are not signed."""

    authority: str = ""
    """The certificate of the authority as PEM text; empty for connections without TLS."""


def read_broker_reports(group: Group, access: ClientAccess) -> Mapping[str, Any]:
    """Return the settings of each broker of the first shard, the tables of its master, and whether a client
    without TLS and account gets answers.
    """
    pods = [pod for pod in group.brokers() if pod.startswith(f"{group.name}-0-")]
    wanted = {
        "brokers": {pod: f"{pod}.{group.namespace.name}.svc:10911" for pod in pods},
        "master": group.masters()[0],
        "account": access.account,
        "authority": access.authority,
    }
    place = (
        "exec",
        CLIENT,
        f"--namespace={group.namespace.name}",
        "--",
        "python",
        "-c",
        ASK_BROKERS,
        json.dumps(wanted),
    )
    reports: Mapping[str, Any] = json.loads(group.namespace.cluster.kubectl(*place))
    return reports


def read_sidecar_report(group: Group, pod: str) -> tuple[Object, dict[str, str]]:
    """Return the status of a sidecar and its options: the last value of each option, and the number of peers."""
    reports = json.loads(group.namespace.run_python(pod, ASK_SIDECAR, "sidecar"))
    words = reports["arguments"]
    options = {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}
    return reports["status"], options | {"--peer": str(words.count("--peer"))}


def find_object(group: Group, kind: str, name: str) -> Object | None:
    """Return an object of the group's namespace, or None."""
    try:
        return group.namespace.cluster.api.get(f"{group.namespace.path(*COLLECTIONS[kind])}/{name}")
    except ApiRefused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        return None


def is_routed_outside(group: Group, topic: str) -> bool:
    """Return whether a client outside of the cluster gets a route to the first shard."""
    service = f"{group.name}-nameserver-external"
    if find_object(group, "Service", service) is None:
        return False
    try:
        return f"{group.name}-0" in run_gantry_outside(
            external_address(group.namespace, service), "topic", "describe", topic
        )
    except CommandFailed:
        return False


def join_distinct(values: Iterable[str]) -> str:
    """Return the common value, or all distinct values."""
    return " | ".join(sorted(set(values)))
