"""The operator on the cluster, groups that it runs, and clients of them in pods.

Only what a user has is used: the chart, `kubectl apply`, the group's status, and `gantry` in a pod of the image.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gantry_cluster.api import Object
from gantry_cluster.clients import PodLoad
from gantry_cluster.cluster import Cluster, condition
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import DeadlineExceeded
from gantry_cluster.faults import inside
from gantry_cluster.places import ROOT
from gantry_cluster.pods import Namespace, container, is_gone, pod_spec

SYSTEM = "gantry-system"
OPERATOR = "gantry-operator"
CHART = ROOT / "charts" / OPERATOR
DEFINITIONS = tuple(f"{name}.gantry.dev" for name in ("brokergroups", "topicarchives", "logaudits", "topicanalytics"))
HISTORIES = ROOT / "e2e" / "histories" / "gantry_histories"
RECORD = "gantry.dev/record"
READY_SECONDS_MAX = 180.0
CLIENT = "client"
LINES = 40
HEALTHY = {
    **dict.fromkeys(("Ready", "Available", "Replicating", "DurabilityMet", "HugePagesReady"), "True"),
    **dict.fromkeys(("Progressing", "Degraded", "Paused"), "False"),
}
"""What conditions of a group say when nothing is wrong."""


def install_operator(cluster: Cluster, archive: Path | None, *values: str) -> Namespace:
    """The chart as everybody installs it, with images that nodes have; returns when the operators are ready."""
    images = cluster.give_operator(archive).chart_values()
    space = Namespace(cluster, SYSTEM)
    if is_gone(space):
        space.make()
    words = [word for value in images for word in ("--set-string", value)]
    words += [word for value in values for word in ("--set", value)]
    cluster.helm("install", OPERATOR, CHART, "--namespace", SYSTEM, "--wait", "--timeout", "110s", *words)
    return space


def has_operator(cluster: Cluster) -> bool:
    """Whether somebody has installed it."""
    found = cluster.api.items(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments")
    return any(one["metadata"]["name"] == OPERATOR for one in found)


def remove_operator(cluster: Cluster) -> None:
    """All that installing it has made, and the definitions, which the chart leaves."""
    cluster.helm("uninstall", OPERATOR, "--namespace", SYSTEM, "--ignore-not-found", "--wait", "--timeout", "110s")
    cluster.kubectl("delete", "customresourcedefinition", *DEFINITIONS, "--ignore-not-found")
    cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")


def operator_log(cluster: Cluster) -> str:
    """The last that the operators have said."""
    return cluster.kubectl("logs", f"deployment/{OPERATOR}", f"--namespace={SYSTEM}", "--all-pods", f"--tail={LINES}")


@dataclass(frozen=True)
class Entry:
    """What clients in the cluster come in with: Secrets that are mounted in their pod. Nothing is needed by itself."""

    authority: str = ""
    """Of this one `ca.crt`: they speak TLS."""

    account: str = ""
    """Of this one `credentials`: they sign what they ask."""

    @property
    def secrets(self) -> list[str]:
        """Those that are mounted."""
        return [name for name in (self.authority, self.account) if name]

    @property
    def environment(self) -> dict[str, str]:
        """For `gantry`."""
        tls = {"GANTRY_TLS_CA": f"/entry/{self.authority}/ca.crt", "GANTRY_TLS_VERIFY": "authority"}
        account = {"GANTRY_CREDENTIALS": f"/entry/{self.account}/credentials"}
        return (tls if self.authority else {}) | (account if self.account else {})

    @property
    def words(self) -> list[str]:
        """For a load."""
        tls = ["--tls-ca", f"/entry/{self.authority}/ca.crt"] if self.authority else []
        return tls + (["--account", f"/entry/{self.account}/credentials"] if self.account else [])


@final
@dataclass(frozen=True)
class Group:
    """A group in a namespace."""

    space: Namespace
    name: str
    entry: Entry = Entry()

    def apply(self, spec: Object) -> None:
        """As `kubectl apply` of a manifest does."""
        document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "spec": spec}
        document["metadata"] = {"name": self.name, "namespace": self.space.name}
        self.space.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def read(self) -> Object:
        """It, with its status."""
        return self.space.cluster.api.get(f"{self.space.path('brokergroups', 'apis/gantry.dev/v1alpha1')}/{self.name}")

    def conditions(self) -> dict[str, str]:
        """What its conditions say of what is asked for now; nothing while that was not looked at."""
        group = self.read()
        if group.get("status", {}).get("observedGeneration") != group["metadata"]["generation"]:
            return {}
        return {kind: condition(group, kind) for kind in HEALTHY}

    def masters(self) -> list[str]:
        """The pod of each shard's master, as the status says; `-` for none."""
        return str(self.read().get("status", {}).get("master", "")).split(",")

    def record(self, shard: int = 0) -> Object:
        """What stands in the Lease of a shard: epochs, and the reigns that are not forgotten yet."""
        path = f"{self.space.path('leases', 'apis/coordination.k8s.io/v1')}/{self.name}-{shard}"
        found: Object = json.loads(self.space.cluster.api.get(path)["metadata"]["annotations"][RECORD])
        return found

    def brokers(self) -> list[str]:
        """The pods of brokers that are there."""
        return self._pods("broker")

    def name_servers(self) -> list[str]:
        """The pods of its own name servers that are there."""
        return self._pods("nameserver")

    def _pods(self, component: str) -> list[str]:
        selector = f"gantry.dev%2Fgroup%3D{self.name}%2Capp.kubernetes.io%2Fcomponent%3D{component}"
        found = self.space.cluster.api.items(f"{self.space.path('pods')}?labelSelector={selector}")
        return sorted(pod["metadata"]["name"] for pod in found)

    def claims(self) -> dict[str, Object]:
        """The claims in its namespace, by name."""
        found = self.space.cluster.api.items(self.space.path("persistentvolumeclaims"))
        return {claim["metadata"]["name"]: claim for claim in found}

    def node_of(self, pod: str) -> str:
        """Where a pod runs."""
        found = self.space.read_pod(pod)
        assert found is not None, f"there is no pod {pod}"
        return str(found["spec"]["nodeName"])

    def node_without(self, *pods: str) -> str:
        """A node that none of these pods is on."""
        taken = {self.node_of(pod) for pod in pods}
        return next(node for node in self.space.cluster.nodes if node not in taken)

    def uid_of(self, pod: str) -> str:
        """Of a pod; empty if there is none."""
        found = self.space.read_pod(pod)
        return "" if found is None else str(found["metadata"]["uid"])

    def annotate(self, name: str, value: str | None) -> None:
        """Order something of the operator; None takes the annotation off."""
        path = f"{self.space.path('brokergroups', 'apis/gantry.dev/v1alpha1')}/{self.name}"
        self.space.cluster.api.merge(path, {"metadata": {"annotations": {name: value}}})

    def wait_healthy(self, seconds_max: float = READY_SECONDS_MAX) -> float:
        """Wait until every condition is as it should be; how long that took."""
        started = time.monotonic()
        try:
            wait_until(f"a healthy group {self.name}", lambda: self.conditions() == HEALTHY, seconds_max)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.account()}") from None
        return time.monotonic() - started

    def replace_pod(self, name: str, *words: str) -> float:
        """Delete a pod as people do, and wait until another one has its name; how long that took."""
        before, started = self.space.read_pod(name), time.monotonic()
        assert before is not None, f"there is no pod {name}"

        def is_another() -> bool:
            after = self.space.read_pod(name)
            return after is not None and after["metadata"]["uid"] != before["metadata"]["uid"]

        self.space.cluster.kubectl("delete", "pod", name, f"--namespace={self.space.name}", "--wait=false", *words)
        wait_until(f"another pod {name}", is_another, READY_SECONDS_MAX)
        return time.monotonic() - started

    def account(self) -> str:
        """All that somebody wants to read when it is not as it should be."""
        cluster, space = self.space.cluster, f"--namespace={self.space.name}"
        pods = cluster.kubectl("get", "pods", space, "--show-labels", "--output=wide")
        events = cluster.kubectl("get", "events", space, "--sort-by=.lastTimestamp")
        status = json.dumps(self.read().get("status"), indent=1)
        return "\n".join((pods, *events.splitlines()[-LINES:], status, operator_log(cluster)))

    # -- clients -------------------------------------------------------------------------------------------------------

    @property
    def name_server(self) -> str:
        """Where clients in the cluster ask."""
        return f"{self.name}-nameserver.{self.space.name}:9876"

    def start_client(self, node: str = "") -> None:
        """A pod beside the group's, with our image and the judge of histories in it; on a node, if that matters."""
        files = {path.name: path.read_text() for path in HISTORIES.glob("*.py")}
        self.space.cluster.api.create(self.space.path("configmaps"), {"metadata": {"name": "histories"}, "data": files})
        items = [{"key": name, "path": f"{HISTORIES.name}/{name}"} for name in files]
        environment = {"PYTHONPATH": "/judge"} | self.entry.environment
        main = container(
            "main",
            "import signal; signal.pause()",
            env=[{"name": name, "value": value} for name, value in environment.items()],
            volumeMounts=[
                {"name": "histories", "mountPath": "/judge"},
                *({"name": name, "mountPath": f"/entry/{name}", "readOnly": True} for name in self.entry.secrets),
            ],
        )
        volumes = [
            {"name": "histories", "configMap": {"name": "histories", "items": items}},
            *({"name": name, "secret": {"secretName": name, "defaultMode": 0o440}} for name in self.entry.secrets),
        ]
        place = {"nodeName": node} if node else {}
        self.space.pod(CLIENT, pod_spec(main, volumes=volumes, **place))
        self.space.wait_ready(CLIENT)

    def gantry(self, *words: str) -> str:
        """Run `gantry` in the client's pod, as a client of this group; what it printed."""
        place = ("exec", CLIENT, f"--namespace={self.space.name}", "--", "gantry")
        return self.space.cluster.kubectl(*place, *words, "--namesrv", self.name_server)

    def load(self, topic: str, queues: int, *words: str, is_direct: bool = False) -> PodLoad:
        """Producers, a consumer and their judge, in the client's pod. A direct one needs no API server."""
        return self._started("in_pod", topic, "--queues", str(queues), *self.entry.words, *words, is_direct=is_direct)

    def application(self, topic: str, *, first: int = 20) -> PodLoad:
        """An ordinary client in the client's pod, which sends steadily; entered when it has its first answers."""
        return self._started("steady", topic, "--first", str(first))

    def _started(self, module: str, topic: str, *words: str, is_direct: bool = False) -> PodLoad:
        cluster = self.space.cluster
        program = ("python", "-m", f"{HISTORIES.name}.{module}", "--name-server", self.name_server, "--topic", topic)
        if is_direct:
            return PodLoad(tuple(inside(self.space, CLIENT, "main", *program, *words)))
        kubectl = (str(cluster.programs["kubectl"]), f"--kubeconfig={cluster.folder.kubeconfig}")
        place = ("exec", "--stdin", CLIENT, f"--namespace={self.space.name}", "--")
        return PodLoad((*kubectl, *place, *program, *words))
