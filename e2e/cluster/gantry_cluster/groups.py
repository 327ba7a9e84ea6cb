"""The operator on the cluster, groups that it manages, and clients of them in pods.

Only public interfaces are used: the chart, `kubectl apply`, the group's status, and `gantry` in a pod of the image. The
exception is `Group.record`, which reads the operator's record in a Lease.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gantry_cluster.api import Object
from gantry_cluster.clients import PodLoad
from gantry_cluster.cluster import Cluster, condition_status
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import DeadlineExceeded
from gantry_cluster.faults import exec_command
from gantry_cluster.paths import ROOT
from gantry_cluster.pods import Namespace, container, is_gone, pod_spec

SYSTEM = "gantry-system"
OPERATOR = "gantry-operator"
"""The namespace of the operator, and the name of its chart and its Deployment."""

CHART = ROOT / "charts" / OPERATOR
DEFINITIONS = tuple(f"{name}.gantry.dev" for name in ("brokergroups", "topicarchives", "logaudits", "topicanalytics"))
"""The CRDs that the chart installs."""

HISTORIES = ROOT / "e2e" / "histories" / "gantry_histories"
"""The package with the load and the checker of its history, which is mounted in the pod of the clients."""

RECORD = "gantry.dev/record"
"""The annotation of a Lease with the operator's record of epochs and terms."""

READY_SECONDS_MAX = 180.0
"""The limit for a healthy group and for a replaced pod."""

CLIENT = "client"
"""The name of the pod in which clients of a group run."""

SDK_PACKAGES = ("grpc", "typing_extensions")
"""What an application needs that uses proxies as SDKs do. Images lack it, since the proxy has a port of its own."""

UNPACK = """
import base64, io, sys, tarfile
packed = base64.b64decode(sys.stdin.read())
tarfile.open(fileobj=io.BytesIO(packed)).extractall("/packages")
"""
"""The program that unpacks packages in the pod of the clients."""

LINES = 40
"""How many last lines of logs and events a diagnosis has."""

HEALTHY = {
    **dict.fromkeys(("Ready", "Available", "Replicating", "DurabilityMet", "HugePagesReady"), "True"),
    **dict.fromkeys(("Progressing", "Degraded", "Paused"), "False"),
}
"""The conditions of a healthy group."""


def pack_packages(names: Sequence[str]) -> str:
    """Return packages of this environment as text for `UNPACK`. The Python of the image must be of the same version."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name in names:
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None, f"{name} is not installed"
            path = Path(spec.origin)
            path = path.parent if path.name == "__init__.py" else path
            archive.add(path, path.name, filter=lambda one: None if "__pycache__" in one.name else one)
    return base64.b64encode(packed.getvalue()).decode()


def install_operator(cluster: Cluster, archive: Path | None, *values: str) -> Namespace:
    """Install the chart with the images of the nodes; return when the operators are ready."""
    images = cluster.provide_images(archive).chart_values()
    namespace = Namespace(cluster, SYSTEM)
    if is_gone(namespace):
        namespace.create()
    words = [word for value in images for word in ("--set-string", value)]
    words += [word for value in values for word in ("--set", value)]
    cluster.helm("install", OPERATOR, CHART, "--namespace", SYSTEM, "--wait", "--timeout", "110s", *words)
    return namespace


def has_operator(cluster: Cluster) -> bool:
    """Return whether the operator is installed."""
    found = cluster.api.items(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments")
    return any(one["metadata"]["name"] == OPERATOR for one in found)


def remove_operator(cluster: Cluster) -> None:
    """Remove everything that installing has made, and the definitions, which the chart leaves.

    The API server may apply the removed admission policies a moment longer, so the deletion is allowed by annotation.
    """
    allowed = ("--selector=app.kubernetes.io/part-of=gantry", "gantry.dev/allow-deletion=true", "--overwrite")
    cluster.kubectl("annotate", "customresourcedefinition", *allowed)
    cluster.helm("uninstall", OPERATOR, "--namespace", SYSTEM, "--ignore-not-found", "--wait", "--timeout", "110s")
    cluster.kubectl("delete", "customresourcedefinition", *DEFINITIONS, "--ignore-not-found")
    cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")


def operator_log(cluster: Cluster) -> str:
    """Return the last lines of the operators' logs."""
    return cluster.kubectl("logs", f"deployment/{OPERATOR}", f"--namespace={SYSTEM}", "--all-pods", f"--tail={LINES}")


@dataclass(frozen=True)
class ClientSecrets:
    """The Secrets that are mounted in the clients' pod. By default there are none."""

    authority: str = ""
    """The Secret with `ca.crt`. If it is set, clients use TLS."""

    account: str = ""
    """The Secret with `credentials`. If it is set, clients sign their requests."""

    @property
    def secrets(self) -> list[str]:
        """The names of the Secrets that are mounted."""
        return [name for name in (self.authority, self.account) if name]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of `gantry` in the clients' pod."""
        tls = {"GANTRY_TLS_CA": f"/entry/{self.authority}/ca.crt", "GANTRY_TLS_VERIFY": "authority"}
        account = {"GANTRY_CREDENTIALS": f"/entry/{self.account}/credentials"}
        return (tls if self.authority else {}) | (account if self.account else {})

    @property
    def words(self) -> list[str]:
        """The options of a load."""
        tls = ["--tls-ca", f"/entry/{self.authority}/ca.crt"] if self.authority else []
        return tls + (["--account", f"/entry/{self.account}/credentials"] if self.account else [])


@final
@dataclass(frozen=True)
class Group:
    """A broker group in a namespace."""

    namespace: Namespace
    name: str
    client_secrets: ClientSecrets = ClientSecrets()

    def apply(self, spec: Object) -> None:
        """Apply a manifest as `kubectl apply` does."""
        document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "spec": spec}
        document["metadata"] = {"name": self.name, "namespace": self.namespace.name}
        self.namespace.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def read(self) -> Object:
        """Read the resource with its status."""
        return self.namespace.cluster.api.get(
            f"{self.namespace.path('brokergroups', 'apis/gantry.dev/v1alpha1')}/{self.name}"
        )

    def conditions(self) -> dict[str, str]:
        """Return the conditions for the current generation; empty while the operator has not observed it."""
        group = self.read()
        if group.get("status", {}).get("observedGeneration") != group["metadata"]["generation"]:
            return {}
        return {kind: condition_status(group, kind) for kind in HEALTHY}

    def masters(self) -> list[str]:
        """Return the pod of each shard's master according to the status; `-` for none."""
        return str(self.read().get("status", {}).get("master", "")).split(",")

    def lease_record(self, shard: int = 0) -> Object:
        """Return the record in the Lease of a shard: its epochs and recent terms."""
        path = f"{self.namespace.path('leases', 'apis/coordination.k8s.io/v1')}/{self.name}-{shard}"
        found: Object = json.loads(self.namespace.cluster.api.get(path)["metadata"]["annotations"][RECORD])
        return found

    def brokers(self) -> list[str]:
        """List the pods of brokers that exist."""
        return self._pods("broker")

    def name_servers(self) -> list[str]:
        """List the pods of the group's own name servers that exist."""
        return self._pods("nameserver")

    def proxies(self) -> list[str]:
        """List the pods of the group's gRPC proxies that exist."""
        return self._pods("proxy")

    def are_proxies_ready(self) -> bool:
        """Return whether the operator reports for the current generation that all proxies are ready."""
        group = self.read()
        is_current = group.get("status", {}).get("observedGeneration") == group["metadata"]["generation"]
        return is_current and condition_status(group, "ProxiesReady") == "True"

    def _pods(self, component: str) -> list[str]:
        selector = f"gantry.dev%2Fgroup%3D{self.name}%2Capp.kubernetes.io%2Fcomponent%3D{component}"
        found = self.namespace.cluster.api.items(f"{self.namespace.path('pods')}?labelSelector={selector}")
        return sorted(pod["metadata"]["name"] for pod in found)

    def claims(self) -> dict[str, Object]:
        """Return the claims in the namespace, by name."""
        found = self.namespace.cluster.api.items(self.namespace.path("persistentvolumeclaims"))
        return {claim["metadata"]["name"]: claim for claim in found}

    def node_of(self, pod: str) -> str:
        """Return the node on which a pod runs."""
        found = self.namespace.read_pod(pod)
        assert found is not None, f"pod {pod} not found"
        return str(found["spec"]["nodeName"])

    def node_without(self, *pods: str) -> str:
        """Return a node that runs none of these pods."""
        taken = {self.node_of(pod) for pod in pods}
        return next(node for node in self.namespace.cluster.nodes if node not in taken)

    def uid_of(self, pod: str) -> str:
        """Return the uid of a pod; empty if it does not exist."""
        found = self.namespace.read_pod(pod)
        return "" if found is None else str(found["metadata"]["uid"])

    def annotate(self, name: str, value: str | None) -> None:
        """Set an annotation that the operator acts on; None removes it."""
        path = f"{self.namespace.path('brokergroups', 'apis/gantry.dev/v1alpha1')}/{self.name}"
        self.namespace.cluster.api.merge(path, {"metadata": {"annotations": {name: value}}})

    def wait_healthy(self, seconds_max: float = READY_SECONDS_MAX) -> float:
        """Wait until every condition is healthy; return how long that took, in seconds."""
        started = time.monotonic()
        try:
            wait_until(f"a healthy group {self.name}", lambda: self.conditions() == HEALTHY, seconds_max)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.diagnosis()}") from None
        return time.monotonic() - started

    def replace_pod(self, name: str, *words: str) -> float:
        """Delete a pod, and wait until another one has its name; return how long that took, in seconds."""
        before, started = self.namespace.read_pod(name), time.monotonic()
        assert before is not None, f"pod {name} not found"

        def is_another() -> bool:
            after = self.namespace.read_pod(name)
            return after is not None and after["metadata"]["uid"] != before["metadata"]["uid"]

        self.namespace.cluster.kubectl(
            "delete", "pod", name, f"--namespace={self.namespace.name}", "--wait=false", *words
        )
        wait_until(f"another pod {name}", is_another, READY_SECONDS_MAX)
        return time.monotonic() - started

    def diagnosis(self) -> str:
        """Return what is needed to analyse a failure: pods, events, status and logs."""
        cluster, namespace = self.namespace.cluster, f"--namespace={self.namespace.name}"
        pods = cluster.kubectl("get", "pods", namespace, "--show-labels", "--output=wide")
        events = cluster.kubectl("get", "events", namespace, "--sort-by=.lastTimestamp")
        status = json.dumps(self.read().get("status"), indent=1)
        return "\n".join((pods, *events.splitlines()[-LINES:], status, operator_log(cluster)))

    # -- clients -------------------------------------------------------------------------------------------------------

    @property
    def name_server(self) -> str:
        """The address of the name server for clients in the cluster."""
        return f"{self.name}-nameserver.{self.namespace.name}:9876"

    def start_client(self, node: str = "") -> None:
        """Start a client pod with Gantry's image and the history checker, optionally on a given node."""
        files = {path.name: path.read_text() for path in HISTORIES.glob("*.py")}
        self.namespace.cluster.api.create(
            self.namespace.path("configmaps"), {"metadata": {"name": "histories"}, "data": files}
        )
        items = [{"key": name, "path": f"{HISTORIES.name}/{name}"} for name in files]
        environment = {"PYTHONPATH": "/histories:/packages"} | self.client_secrets.environment
        main = container(
            "main",
            "import signal; signal.pause()",
            env=[{"name": name, "value": value} for name, value in environment.items()],
            volumeMounts=[
                {"name": "histories", "mountPath": "/histories"},
                {"name": "packages", "mountPath": "/packages"},
                *(
                    {"name": name, "mountPath": f"/entry/{name}", "readOnly": True}
                    for name in self.client_secrets.secrets
                ),
            ],
        )
        volumes = [
            {"name": "histories", "configMap": {"name": "histories", "items": items}},
            {"name": "packages", "emptyDir": {}},
            *(
                {"name": name, "secret": {"secretName": name, "defaultMode": 0o440}}
                for name in self.client_secrets.secrets
            ),
        ]
        place = {"nodeName": node} if node else {}
        self.namespace.create_pod(CLIENT, pod_spec(main, volumes=volumes, **place))
        self.namespace.wait_ready(CLIENT)

    def gantry(self, *words: str) -> str:
        """Run `gantry` in the client's pod against this group; return its output."""
        place = ("exec", CLIENT, f"--namespace={self.namespace.name}", "--", "gantry")
        return self.namespace.cluster.kubectl(*place, *words, "--namesrv", self.name_server)

    def start_load(self, topic: str, queues: int, *words: str, is_direct: bool = False) -> PodLoad:
        """Start a load with its checker in the client's pod. With ``is_direct`` it needs no API server once it
        has started.
        """
        own = ("--queues", str(queues), *self.client_secrets.words, *words)
        return self._start_program("in_pod", *self._place(topic), *own, is_direct=is_direct)

    def start_application(self, topic: str, *, first: int = 20) -> PodLoad:
        """Start an ordinary client in the client's pod that sends steadily.

        Entering the context waits for the ``first`` acknowledgements.
        """
        return self._start_program("steady", *self._place(topic), "--first", str(first))

    def start_sdk_application(self, topic: str, consumers: str) -> PodLoad:
        """Start an application in the client's pod that uses the proxies of the group as SDKs of RocketMQ 5 do.

        ``consumers`` is a consumer group without other members.
        """
        place = ("exec", "--stdin", CLIENT, f"--namespace={self.namespace.name}", "--")
        self.namespace.cluster.kubectl(*place, "python", "-c", UNPACK, stdin=pack_packages(SDK_PACKAGES))
        endpoint = str(self.read()["status"]["proxy"]["endpoint"])
        tls = self.client_secrets.words[:2] if self.client_secrets.authority else ()
        return self._start_program("proxied", "--endpoint", endpoint, "--topic", topic, "--group", consumers, *tls)

    def _place(self, topic: str) -> tuple[str, ...]:
        return ("--name-server", self.name_server, "--topic", topic)

    def _start_program(self, module: str, *words: str, is_direct: bool = False) -> PodLoad:
        cluster = self.namespace.cluster
        program = ("python", "-m", f"{HISTORIES.name}.{module}")
        if is_direct:
            return PodLoad(tuple(exec_command(self.namespace, CLIENT, "main", *program, *words)))
        kubectl = (str(cluster.programs["kubectl"]), f"--kubeconfig={cluster.folder.kubeconfig}")
        place = ("exec", "--stdin", CLIENT, f"--namespace={self.namespace.name}", "--")
        return PodLoad((*kubectl, *place, *program, *words))
