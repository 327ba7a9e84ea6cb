"""The operator on the cluster, groups that it runs, and clients of them in pods.

Only what a user has is used: the chart, `kubectl apply`, the group's status, and `gantry` in a pod of the image.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, final

from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster, condition
from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import ClusterError, DeadlineExceeded
from gantry_cluster.places import ROOT
from gantry_cluster.pods import Namespace, container, pod_spec

SYSTEM = "gantry-system"
OPERATOR = "gantry-operator"
TAG = "e2e"
CHART = ROOT / "charts" / OPERATOR
HISTORIES = ROOT / "e2e" / "histories" / "gantry_histories"
READY_SECONDS_MAX = 180.0
CLIENT = "client"
LINES = 40
HEALTHY = {
    **dict.fromkeys(("Ready", "Available", "Replicating", "DurabilityMet", "HugePagesReady"), "True"),
    **dict.fromkeys(("Progressing", "Degraded", "Paused"), "False"),
}
"""What conditions of a group say when nothing is wrong."""


def install_operator(cluster: Cluster, archive: Path, *values: str) -> Namespace:
    """The chart as everybody installs it, with images that nodes have; returns when the operators are ready."""
    known = cluster.load_image(archive)
    cluster.name_image(known[0], f"localhost/{OPERATOR}:{TAG}")
    cluster.name_image("localhost/gantry:latest", f"localhost/gantry:{TAG}")
    space = Namespace(cluster, SYSTEM).make()
    images = [f"image.repository=localhost/{OPERATOR}", "brokerImage.repository=localhost/gantry"]
    images += [f"{image}.{key}" for image in ("image", "brokerImage") for key in (f"tag={TAG}", "pullPolicy=Never")]
    words = [word for value in (*images, *values) for word in ("--set", value)]
    cluster.helm("install", OPERATOR, CHART, "--namespace", SYSTEM, "--wait", "--timeout", "110s", *words)
    return space


def operator_log(cluster: Cluster) -> str:
    """The last that the operators have said."""
    return cluster.kubectl("logs", f"deployment/{OPERATOR}", f"--namespace={SYSTEM}", "--all-pods", f"--tail={LINES}")


@final
@dataclass(frozen=True)
class Group:
    """A group in a namespace."""

    space: Namespace
    name: str

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

    def start_client(self) -> None:
        """A pod beside the group's, with our image and the judge of histories in it."""
        files = {path.name: path.read_text() for path in HISTORIES.glob("*.py")}
        self.space.cluster.api.create(self.space.path("configmaps"), {"metadata": {"name": "histories"}, "data": files})
        items = [{"key": name, "path": f"{HISTORIES.name}/{name}"} for name in files]
        main = container(
            "main",
            "import signal; signal.pause()",
            env=[{"name": "PYTHONPATH", "value": "/judge"}],
            volumeMounts=[{"name": "histories", "mountPath": "/judge"}],
        )
        volume = {"name": "histories", "configMap": {"name": "histories", "items": items}}
        self.space.pod(CLIENT, pod_spec(main, volumes=[volume]))
        self.space.wait_ready(CLIENT)

    def gantry(self, *words: str) -> str:
        """Run `gantry` in the client's pod, as a client of this group; what it printed."""
        place = ("exec", CLIENT, f"--namespace={self.space.name}", "--", "gantry")
        return self.space.cluster.kubectl(*place, *words, "--namesrv", self.name_server)

    def load(self, topic: str, queues: int, *words: str) -> PodLoad:
        """Producers, a consumer and their judge, in the client's pod."""
        cluster = self.space.cluster
        return PodLoad(
            (
                *(str(cluster.programs["kubectl"]), f"--kubeconfig={cluster.folder.kubeconfig}"),
                *("exec", "--stdin", CLIENT, f"--namespace={self.space.name}", "--"),
                *("python", "-m", "gantry_histories.in_pod", "--name-server", self.name_server),
                *("--topic", topic, "--queues", str(queues), *words),
            )
        )


@final
class PodLoad:
    """`gantry_histories.in_pod` in a pod; its own words say what it hears and says."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> PodLoad:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running()
        process.kill()
        process.communicate()

    def mark(self, name: str) -> None:
        """Something is about to be done to the group."""
        self._say({"mark": name})

    def report(self, more: int) -> dict[str, Any]:
        """After so many further acknowledgements: what clients have noticed since the mark."""
        return self._say({"report": more})

    def finish(self) -> dict[str, Any]:
        """Stop, read everything, judge."""
        return self._say({"finish": True})

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "entered before it is used"
        return self._process

    def _say(self, document: Mapping[str, Any]) -> dict[str, Any]:
        entry: IO[str] | None = self._running().stdin
        assert entry is not None, "it was started with a pipe"
        entry.write(json.dumps(document) + "\n")
        entry.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        """One line. It ends by itself when nothing is acknowledged for too long, so this does."""
        process = self._running()
        assert process.stdout is not None, "it was started with a pipe"
        line = process.stdout.readline()
        if not line:
            raise ClusterError(f"the load has ended: {process.communicate()[1].strip()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def outside_gantry(address: str, *words: str) -> str:
    """Run `gantry` on this machine, which is outside of the cluster, as a client of what is at an address."""
    return run(ROOT / ".venv" / "bin" / "gantry", *words, "--namesrv", address)


def external_address(space: Namespace, service: str) -> str:
    """Where a Service of type NodePort is reached from outside: any node takes it."""
    found = space.cluster.api.get(f"{space.path('services')}/{service}")
    [port] = found["spec"]["ports"]
    node = space.cluster.api.items("/api/v1/nodes")[0]
    [address] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    return f"{address}:{port['nodePort']}"
